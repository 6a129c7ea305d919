"""The planner machine: scripts that read as its documentation, then what no script shows (spec 4)."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from activities.contracts import MODEL_ATTEMPTS
from tests.machines.answers import cut, failed, person, ran, replied
from tests.machines.planner_scripts import (
    ANSWER,
    BAD,
    FINISH,
    LOOK,
    LOST,
    PLAN,
    RECORD,
    SCRIPTS,
    TWO,
    Script,
    act,
    calls,
    fails,
    no_plan,
    observed,
    plan,
    planner,
    simple,
    used,
    verdict,
)
from tests.machines.play import play, program_of, rows_of, rows_taken, tool
from workflows.kernel.errors import ExecutionError, MaxIterationsExceeded, NoTransition, error_named
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import Extensions, Machine, Run, RunInput, State
from workflows.kernel.transition import close
from workflows.machines.common.json_text import NotJson
from workflows.machines.planner import MACHINE, Options, Planner, Progress, Proposal, S, build_machine
from workflows.machines.planner.loop import Observed, recorded
from workflows.machines.planner.planned import TABLE, loop_check
from workflows.machines.planner.policy import Policy
from workflows.machines.planner.reply import read_proposal


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script(script: Script) -> None:
    run = planner(*script.answers, **script.options)
    assert (run.path, run.unused) == (script.path, 0)
    ended = run.exit
    assert (ended.reason, ended.ok, ended.answer) == (script.reason, not script.error, script.answer)
    assert script.error in str(ended.error)
    assert ended.raises == (script.raises if script.error else None)
    # the history says the same as the log, but for the end behind FINALIZE
    moves = [(S[r.state].value, S[r.to].value) for r in run.records[1:] if r.to and r.to != "END"]
    assert [(entry["from"], entry["to"]) for entry in run.context.history] == moves
    assert {"done", "iterations", "state", "fsm_history", "audit"} <= ended.outcome.keys()


WITHOUT_PLAN = build_machine(Options(mode="simple"))


@pytest.mark.parametrize("machine", [MACHINE, WITHOUT_PLAN], ids=["plan", "simple"])
def test_scripts_take_every_row_of_the_table(machine: Machine) -> None:
    mode = "plan" if machine is MACHINE else "simple"
    scripts = (one for one in SCRIPTS if one.options.get("mode", "plan") == mode)
    runs = (planner(*one.answers, both_ways=False, **one.options) for one in scripts)
    assert rows_taken(runs) == rows_of(machine)


def test_tables_are_the_closed_ones_of_the_spec() -> None:
    """A planned run has no way around its plan."""
    loop = {
        ("EXECUTE", "OBSERVE"), ("EXECUTE", "HALT"), ("OBSERVE", "LOOP_CHECK"), ("LOOP_CHECK", "HALT"),
        ("LOOP_CHECK", "FINALIZE"), ("LOOP_CHECK", "EXECUTE"), ("FINALIZE", "END"),
    }  # fmt: skip
    planned = {
        ("INTAKE", "PLAN"), ("PLAN", "DECIDE"), ("PLAN", "HALT"),
        ("DECIDE", "EXECUTE"), ("DECIDE", "FINALIZE"), ("DECIDE", "HALT"), ("EXECUTE", "FINALIZE"),
    }  # fmt: skip
    assert {(one, to) for one, row in MACHINE.rows.items() for to in row.values()} == loop | planned
    without = {(one, to) for one, row in WITHOUT_PLAN.rows.items() for to in row.values()}
    assert without == loop | {("INTAKE", "EXECUTE")}


def test_machine_refuses_options_of_the_other_mode() -> None:
    with pytest.raises(ValueError, match="`mode: plan`; make one with `build_machine"):
        play(program_of(MACHINE, {"mode": "simple"}), ())


def test_event_without_a_row_names_state_and_event() -> None:
    wrong = recorded(TABLE, State(S.INTAKE, lambda c, run: ({}, Observed())))
    machine = replace(MACHINE, states=[*wrong, *MACHINE.states[1:]])
    with pytest.raises(NoTransition, match="planner: in state INTAKE, Observed came; expected TakenIn"):
        play(program_of(machine), ())


# -- PLAN and DECIDE (4.3) ------------------------------------------------------------------------


def test_intake_keeps_goal_and_time() -> None:
    assert planner().context.state == {"goal": "find out", "started_at": "1970-01-01T00:16:40+00:00"}


def test_planner_is_told_schema_tools_and_instructions() -> None:
    run = planner(instructions="Be brief.")
    system, user = run.prompts[0]
    assert (run.asked[0].role, run.asked[0].offer) == ("planner", ())
    assert system.content.startswith("Be brief.")
    assert all(
        part in system.content for part in ('"initial_steps"', "- look: does look", "- write: does write")
    )
    assert user.content == "find out"


def test_prompt_builder_writes_the_request() -> None:
    assert planner(prompt_builder="builds").newest == "Plan for find out, begun 1970"


@pytest.mark.parametrize(("reply", "goal", "schema", "kept"), [
    (plan("see"), "find out", None, {"goal": "see"}),
    (plan(""), "find out", None, {"goal": ""}),
    (replied('{"initial_steps": ["a"]}'), "find out", {}, {"goal": "find out", "initial_steps": ["a"]}),
    (plan(risk="low"), "find out", {}, {"goal": "know it", "risk": "low"}),
])  # fmt: skip
def test_plan_is_completed(reply: Any, goal: str, schema: Any, kept: Any) -> None:
    run = planner(reply, goal=goal, plan_schema=schema)
    assert run.context.state["plan"] == {"required_capabilities": [], "initial_steps": [], **kept}


def test_plan_without_goal_and_input_is_invalid() -> None:
    run = planner(replied("{}"), goal="", plan_schema={})
    assert (run.path, run.exit.error) == ("IPDH", "Agent halted: Invalid plan")


def test_providers_may_enforce_the_schemas() -> None:
    run = planner(PLAN, verdict(True), decide="model", reply_format="json_schema")
    schemas = [effect.response_schema for effect in run.asked]
    assert [bool(schema) for schema in schemas] == [True, True, False]
    decision: Any = simple(reply_format="json_schema").asked[0].response_schema
    assert decision["properties"]["action"]["enum"][-1] == "finish"
    assert simple().asked[0].response_schema is None


def test_model_that_decides_sees_goal_and_plan() -> None:
    run = planner(plan("see"), decide="model", instructions="Be brief.")
    system, user = run.prompts[-1]
    assert run.asked[-1].role == "decide"
    assert system.content.startswith("Be brief.")
    assert "find out" in user.content
    assert '"goal": "see"' in user.content


# -- EXECUTE and OBSERVE --------------------------------------------------------------------------


def test_model_that_executes_gets_whole_conversation_and_tools() -> None:
    """R-003-3: the calls are in it, too, before their results."""
    run = planner(PLAN, TWO, ran("A"), ran('{"n": 1}'), instructions="Be brief.")
    roles = [message.role for message in run.prompts[-1]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "tool", "tool"]
    assert run.asked[-1].offer == ("look", "write")
    results = [json.loads(message.content) for message in run.prompts[-1][-2:]]
    assert results == [{"name": "look", "result": "A"}, {"name": "write", "result": {"n": 1}}]
    assert run.context.observations[1] == {"tool_call_id": "c1", "name": "write", "result": {"n": 1}}


def test_r_003_2_failed_calls_are_repeated_but_not_replies() -> None:
    """A reply that came is never asked for again, whatever is wrong with it."""
    run = planner(PLAN, verdict(True), ANSWER, replied("short"), decide="model", finalize_summary=True)
    assert [effect.role for effect in run.asked] == ["planner", "decide", "default", "summary"]
    assert {effect.attempts for effect in run.asked} == {MODEL_ATTEMPTS}
    for wrong, asked in (((replied("no plan"),), 1), ((PLAN, cut(ANSWER)), 2), ((PLAN, failed("fatal")), 2)):
        lost = planner(*wrong)
        assert (len(lost.asked), lost.exit.ok) == (asked, False)


def test_calls_run_one_by_one_and_missing_arguments_are_none() -> None:
    run = planner(PLAN, calls(("look", '{"q": "a"}'), ("write", ""), ("look", "null")), ran(), ran(), ran())
    assert used(run) == [("look", {"q": "a"}), ("write", {}), ("look", {})]


def test_r_003_4_results_before_a_halt_are_kept() -> None:
    run = planner(PLAN, TWO, ran("A"), ran("broken", "failed"))
    assert observed(run) == ["A"]
    assert (len(used(run)), run.exit.outcome["iterations"]) == (2, 1)


def test_r_003_5_model_is_told_each_recorded_problem() -> None:
    turn = calls("nosuch", ("look", '{"q": "bad"}'), "look", "write", "look")
    run = planner(
        PLAN, turn, ran("broken", "failed"), ran("late", "expired"), ran("C"), policy="no_bad", **RECORD
    )
    assert observed(run) == ["Unknown tool: nosuch", "Policy violation: bad", "broken", "late", "C"]


def test_r_003_10_only_tools_that_ran_set_marks() -> None:
    found = ran("x", marks=("found", "tool_called"))
    run = planner(PLAN, calls("look", "nosuch"), found)
    assert run.context.marks == ("tool_called", "step_completed", "found")
    lost = planner(PLAN, LOOK, ran("x", "failed", marks=("found",)), on_tool_error="record")
    assert lost.context.marks == ()


def test_long_name_of_an_unknown_tool_is_cut() -> None:
    run = planner(PLAN, calls("x" * 100_000, ("y" * 100_000, "{oops")), on_tool_error="record")
    patches = [record.model_dump_json(include={"patch", "reason"}) for record in run.records]
    assert sum(map(len, patches)) < 10_000


def test_policy_is_asked_at_each_point_with_what_was_observed() -> None:
    seen: list[tuple[str, int]] = []
    hooks = {"watch": lambda d, state: seen.append((d.action, len(state["observations"])))}
    planner(
        PLAN, calls("nosuch", "look", "write"), ran(), policy="watch", hooks=hooks, both_ways=False, **RECORD
    )
    assert seen == [("plan", 0), ("execute", 0), ("nosuch", 0), ("look", 1), ("write", 2)]


# -- LOOP_CHECK (4.5) -----------------------------------------------------------------------------

CONDITIONS = ("halt", "iterations", "time", "budget", "converged", "observations")
REASONS = ["broken", "Max iterations exceeded", "Time limit exceeded", "Budget exceeded: tokens",
           "Policy indicates convergence", "Continuing", "No observations"]  # fmt: skip


def checked(*holding: str) -> str:
    """What LOOP_CHECK says when these conditions hold."""
    options = Options(max_iterations=3, time_limit=60, budgets={"tokens": 100}, converged=("done",))
    c = Planner(
        error="broken" if "halt" in holding else "",
        iteration=3 if "iterations" in holding else 2,
        marks=("done",) if "converged" in holding else (),
        observations=({"name": "look"},) if "observations" in holding else (),
    )
    spent = {"seconds": 60.0 if "time" in holding else 59, "tokens": 100.0 if "budget" in holding else 99}
    assert MACHINE.prepare
    prepared = MACHINE.prepare(options, Extensions())
    run = Run(
        options, prepared, RunInput("g"), S.LOOP_CHECK, step=1, visit=1, counts={}, ledger=Ledger(spent=spent)
    )
    assert loop_check.visit
    _, event = loop_check.visit(c, run)
    return str(event.reason)


@pytest.mark.parametrize("many", [1, 2, 6])
def test_first_condition_that_holds_decides(many: int) -> None:
    for holding in itertools.combinations(CONDITIONS, many):
        assert checked(*holding) == REASONS[CONDITIONS.index(holding[0])]


def test_r_003_7_run_without_observations_ends() -> None:
    assert checked() == "No observations"


# -- results and counting (4.6, 4.7) --------------------------------------------------------------


@pytest.mark.parametrize(("answers", "options", "length"), [
    ((PLAN, ANSWER), {}, 4),
    ((PLAN, LOOK, ran(), ANSWER), {}, 7),
    ((PLAN, *(LOOK, ran()) * 3), {"max_iterations": 3}, 12),
    ((replied("no"),), {}, 2),
])  # fmt: skip
def test_history_has_the_lengths_of_the_spec(answers: Any, options: Any, length: int) -> None:
    assert len(planner(*answers, **options).context.history) == length


def test_history_has_numbers_reasons_and_iterations() -> None:
    entries = planner(PLAN, calls(("look", '{"q": "x"}')), ran(), ANSWER).context.history
    assert [tuple(entry.values()) for entry in entries] == [
        (0, 1, "Input normalized", 0), (1, 2, "Plan created", 0), (2, 3, "Decision: continue", 0),
        (3, 4, 'Tool calls requested: look({"q": "x"})', 1), (4, 5, "Tools executed: 1", 1),
        (5, 3, "Continuing", 1), (3, 6, "No tool calls requested", 2),
    ]  # fmt: skip


def test_r_003_9_limit_error_is_an_execution_error_too() -> None:
    run = planner(PLAN, LOOK, ran(), max_iterations=1)
    error = error_named(str(run.exit.raises), "planner", "HALT", str(run.exit.error))
    assert isinstance(error, MaxIterationsExceeded)
    assert isinstance(error, ExecutionError)


def test_r_003_8_limit_is_max_iterations_alone() -> None:
    assert planner(PLAN, *(LOOK, ran()) * 50, both_ways=False).exit.outcome["iterations"] == 50
    run = planner(PLAN, *(LOOK, ran()) * 101, ANSWER, max_iterations=102, both_ways=False)
    assert (run.exit.ok, run.exit.outcome["iterations"]) == (True, 102)
    steps = simple(*(act("look"), ran()) * 101, FINISH, max_iterations=102, both_ways=False)
    assert (steps.exit.ok, steps.exit.outcome["iterations"]) == (True, 102)


def test_log_grows_by_what_is_new() -> None:
    for begin, turn in ((planner, (LOOK, ran())), (simple, (act("look"), ran()))):
        first = (PLAN,) if begin is planner else ()
        size = {
            n: sum(len(r.model_dump_json()) for r in begin(*first, *turn * n, both_ways=False).records)
            for n in (10, 20, 30)
        }
        assert size[30] - size[20] < 1.1 * (size[20] - size[10])


def test_result_names_plan_observations_and_audit() -> None:
    outcome: Any = planner(plan("see"), LOOK, ran("A"), ANSWER).exit.outcome
    assert (outcome["done"], outcome["final_message"], outcome["state"]["plan"]["goal"]) == (
        True,
        "forty-two",
        "see",
    )
    assert outcome["state"]["observations"] == [{"tool_call_id": "c0", "name": "look", "result": "A"}]
    (audit,) = outcome["audit"]
    assert (audit["input"], audit["decision"]["action"], audit["result"]["iterations"]) == (
        "find out",
        "plan",
        2,
    )
    lost: Any = planner(replied("no")).exit.outcome
    assert (lost["done"], lost["audit"][0]["decision"]) == (False, None)
    assert lost["error"] == lost["audit"][0]["result"]["error"]


def test_agents_limit_ends_the_run_where_it_is() -> None:
    run = planner(PLAN, ledger=Ledger(caps={"model_calls": 1}))
    assert (run.exit.reason, run.exit.raises, run.exit.outcome["error"]) == ("limit", None, "limit")


def test_run_that_is_aborted_while_tools_run_keeps_its_records() -> None:
    run = planner(PLAN, TWO, ran("A"))
    ended = close(run.step, "aborted", now=2000)
    assert ended.exit
    state: Any = ended.exit.outcome["state"]
    assert [record["result"] for record in state["observations"]] == ["A"]


@pytest.mark.parametrize(("answers", "caps", "culprit"), [
    ((failed("fatal", "bad key"),), {}, "bad key"),
    ((cut(replied("in sho")),), {}, "max_output_tokens"),
    ((), {"model_calls": 2}, "model_calls: 2 of 2 spent"),
    ((failed("fatal", "I would rather not", "model_refused"),), {}, "I would rather not"),
])  # fmt: skip
def test_missing_summary_takes_nothing_away(answers: Any, caps: Any, culprit: str) -> None:
    run = planner(PLAN, ANSWER, *answers, finalize_summary=True, ledger=Ledger(caps=caps))
    assert (run.exit.ok, run.exit.answer) == (True, "forty-two")
    assert culprit in str(run.exit.outcome["summary_error"])


# -- people ---------------------------------------------------------------------------------------


def test_message_while_planning_reaches_the_models_that_follow() -> None:
    run = planner(person("hurry"), PLAN, verdict(True), decide="model")
    assert [message.content for message in run.prompts[1]][-1] == "hurry"
    assert run.newest == "hurry"


def test_message_while_tools_run_comes_after_their_results() -> None:
    run = planner(PLAN, TWO, ran(), person("hurry"), ran(), ANSWER)
    assert [m.role for m in run.prompts[-1]][-4:] == ["assistant", "tool", "tool", "user"]
    assert run.exit.answer == "forty-two"


def test_message_as_the_run_ends_is_not_the_answer() -> None:
    run = planner(PLAN, LOOK, person("hurry"), ran(), converged=["tool_called"])
    assert json.loads(str(run.exit.answer)) == {"name": "look", "result": "found"}
    assert [message.content for message in run.step.snapshot.inbox] == ["hurry"]


def test_message_reaches_a_run_without_a_plan() -> None:
    run = simple(act("look"), person("hurry"), ran(), FINISH)
    assert run.newest == "hurry"


# -- simple mode (4.10) ---------------------------------------------------------------------------


def test_simple_opening_names_tools_format_and_goal() -> None:
    system, user = simple(instructions="Be brief.").prompts[0]
    assert system.content.startswith("Be brief.")
    assert '- look: does look\n  params: {"properties": {"q"' in system.content
    assert '"action": "the name of a tool, or finish"' in system.content
    assert user.content == "find out"
    assert simple(tools=()).prompts[0]


def test_next_input_is_the_result_or_what_the_hook_builds() -> None:
    assert simple(act("look"), ran('{"n": [1]}')).newest.startswith('Result of look: {"n": [1]}\n')
    run = simple(act("look"), ran("a"), act("look"), ran("b"), input_builder="counts")
    assert [m.content for m in run.conversation if m.role == "user"] == ["find out", "1: a", "2: b"]


def test_results_are_merged_into_the_shared_state() -> None:
    run = simple(
        act("look"), ran('{"a": {"b": 1}, "l": [1, 2]}'), act("look"), ran("plain"),
        act("look"), ran('{"a": {"c": 2}, "l": [3]}'), FINISH,
    )  # fmt: skip
    state: Any = run.exit.outcome["state"]
    assert (state["a"], state["l"], state["done"]) == ({"b": 1, "c": 2}, [3], True)


def test_every_step_is_audited() -> None:
    run = simple(act("look", 0.9, q="x"), ran("found"), replied("hm"))
    first, second = run.context.observations
    assert first == {
        "input": "find out",
        "decision": {"action": "look", "params": {"q": "x"}, "confidence": 0.9},
        "result": "found",
    }
    assert (second["decision"], "not JSON" in second["result"]["error"]) == (None, True)
    assert run.exit.outcome["audit"] == [first, second]


def test_recorded_failure_sets_neither_marks_nor_state() -> None:
    run = simple(act("look"), ran('{"n": 1}', "rejected"), FINISH)
    assert (run.context.marks, "n" in run.context.state) == ((), False)
    assert "Result of look" in run.newest


def test_what_a_tool_returned_is_kept_when_a_hook_fails() -> None:
    run = simple(act("look"), ran("found"), input_builder="fails")
    assert (observed(run), run.context.marks) == (["found"], ("tool_called", "step_completed"))


def test_finish_wins_over_a_tool_of_that_name() -> None:
    run = simple(FINISH, tools=(tool("finish"),))
    assert (run.exit.reason, used(run)) == ("finished", [])


@pytest.mark.parametrize("key", [" path", ":path", " : path", "path\t"])
def test_policy_judges_exactly_what_runs(key: str) -> None:
    seen: list[Any] = []
    hooks = {"watch": lambda decision, state: seen.append((decision.action, dict(decision.params)))}
    run = simple(act(" look ", **{key: "x"}), policy="watch", hooks=hooks, both_ways=False)
    assert used(run) == seen == [("look", {"path": "x"})]


@pytest.mark.parametrize(("text", "culprit"), [
    ("[]", "a list"), ('{"action": 3}', "`action`"), ('{"action": "%s"}' % ("x" * 101), "`action`"),
    ('{"action": "look", "params": []}', "`params`"), ('{"params": {":q": 1, "q": 2}}', "twice"),
    ('{"action": "look", "confidence": "high"}', "`confidence`"),
    ('{"action": "look", "confidence": true}', "`confidence`"),
])  # fmt: skip
def test_reply_that_is_not_a_decision(text: str, culprit: str) -> None:
    read = read_proposal(text)
    assert isinstance(read, NotJson)
    assert culprit in read.problem


@given(st.text() | st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.sampled_from(["action", "params", "confidence", ":q"]), inner),
).map(json.dumps))  # fmt: skip
def test_reading_a_decision_never_raises(text: str) -> None:
    assert isinstance(read_proposal(text), Proposal | NotJson)


# -- policy and hooks (4.8, 4.9) ------------------------------------------------------------------


NAN = float("nan")


class Nonsense:
    """What a hook may return, or raise inside an error: nothing of it can be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __bool__ = __len__ = __repr__


def raises_nonsense(*_: Any) -> None:
    """A hook that fails with an error that cannot be shown."""
    raise ValueError(Nonsense())


@pytest.mark.parametrize(("hook", "found"), [
    (lambda decision, state: None, ""), (lambda decision, state: "", ""),
    (lambda decision, state: "not that", "not that"),
    (no_plan, "no plans"), (fails, "ValueError: oops"), (raises_nonsense, "ValueError"),
    (lambda decision, state: True, "type bool"), (lambda decision, state: Nonsense(), "type Nonsense"),
    (lambda decision, state: decision.params.update(goal="mine"), "what the policy is given is read-only"),
    (lambda decision, state: state["l"].append(1), "what the policy is given is read-only"),
    (lambda decision, state: "x" * 1_000_000 + "\ud800", "xxx"),
])  # fmt: skip
def test_users_policy_allows_only_with_nothing_to_say(hook: Any, found: str) -> None:
    violation = Policy(validate=hook).violation(Proposal("plan", {"goal": "it"}), lambda: {"l": [1]})
    assert found in violation
    assert (bool(violation), len(violation) < 1_100) == (bool(found), True)


@pytest.mark.parametrize(("decision", "allowed"), [
    (Proposal(None), False), (Proposal(""), False), (Proposal("look"), True),
    *((Proposal("look", confidence=n), n in {0.5, 1}) for n in (0.49, 0.5, 1, 1.01, -1, 10**400, NAN)),
])  # fmt: skip
def test_shipped_checks(decision: Proposal, allowed: bool) -> None:
    assert (Policy(validate=lambda *_: None).violation(decision, dict) == "") is allowed


@pytest.mark.parametrize("option", ["policy", "converged", "decide", "prompt_builder"])
@pytest.mark.parametrize("hook", [lambda *_: Nonsense(), raises_nonsense])
def test_hook_that_returns_or_raises_nonsense_ends_the_run(option: str, hook: Any) -> None:
    run = planner(PLAN, LOOK, ran(), hooks={"hook": hook}, **{option: "hook"})
    assert run.path.endswith("H")


@pytest.mark.parametrize("option", ["policy", "converged", "decide", "prompt_builder", "input_builder"])
def test_unknown_hook_is_refused_with_its_option(option: str) -> None:
    mode = {"mode": "simple"} if option == "input_builder" else {}
    with pytest.raises(ValueError, match=f"{option}: unknown hook 'fail'; did you mean fails"):
        planner(**{option: "fail"}, **mode)


def test_progress_is_a_set_in_order() -> None:
    marked = Progress().mark("a", "b").mark("a")
    assert marked == Progress(("a", "b"))
    assert marked.includes("a", "b")
    assert not marked.includes("a", "c")
    assert marked.clear() == Progress()


# -- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("option", "value"), [
    ("max_iterations", -1), ("on_tool_error", "ignore"), ("time_limit", 0), ("budgets", {"tokns": 1}),
    ("budgets", {"tokens": 0}), ("min_confidence", 1.1), ("converged", []), ("plan_schema", []),
    ("input_builder", "counts"), ("max_iteration", 5),
])  # fmt: skip
def test_bad_option_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=option):
        Options.model_validate({option: value})


@pytest.mark.parametrize("option", ["plan_schema", "prompt_builder", "decide"])
def test_simple_mode_refuses_options_of_the_plan(option: str) -> None:
    with pytest.raises(ValidationError, match=option):
        Options.model_validate({"mode": "simple", option: {} if option == "plan_schema" else "stop"})


def test_bad_schema_is_refused_before_the_run() -> None:
    with pytest.raises(ValueError, match="plan_schema"):
        planner(plan_schema={"$ref": "#/$defs/nope"})


# -- random runs ----------------------------------------------------------------------------------

REPLIES = [
    PLAN, plan(None), verdict(True), ANSWER, LOOK, TWO, BAD, calls("nosuch"), calls(("look", "{oops")),
    cut(LOOK), act("look", q="x"), act("look", 0.1), act(None), act("nosuch"), FINISH, replied(""),
    failed("transient"),
]  # fmt: skip
RESULTS = [
    ran(), ran('{"n": 7}', marks=("a",)), ran("no", "failed"), ran("no", "rejected"), LOST, failed("fatal"),
]  # fmt: skip


@settings(deadline=None)
@given(st.data(), st.sampled_from(["plan", "simple"]), st.integers(1, 4), st.booleans())
def test_random_answers_always_end(data: st.DataObject, mode: str, most: int, record: bool) -> None:
    def answer(effect: Any) -> Any:
        first = [PLAN] * 3 if effect.kind == "ask_model" and effect.role == "planner" else []
        found = data.draw(st.sampled_from([*first, *(REPLIES if effect.kind == "ask_model" else RESULTS)]))
        return found(effect) if callable(found) else found

    notes = [person("hurry")] if data.draw(st.booleans()) else []
    extra = {"finalize_summary": record, **(RECORD if record else {}), "converged": "seven"}
    run = planner(*notes, *[answer] * 60, mode=mode, max_iterations=most, policy="no_bad", **extra)
    assert run.step.exit is not None
    assert run.exit.reason in MACHINE.exits
    assert [m for m in [*run.conversation, *run.step.snapshot.inbox] if m.content == "hurry"] == notes
