"""People in command of every machine alike: the same loop, each machine's own scripts, no server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from activities.contracts import CallModel, CallTools, ToolResult, ToolsReturned
from client.keys import public_key
from tests.machines.driver import Play, Reaction
from tests.machines.script import Script
from tests.machines.test_all_machines import scripts
from tests.people.bench import RUN, Bench, unsafe
from workflows.gate.signing import sign, signed_content
from workflows.gate.ticket import Refused
from workflows.kernel.design import Design
from workflows.kernel.errors import name_of
from workflows.kernel.rebuild import rebuild
from workflows.kernel.restore import checkpoints, restored
from workflows.people import Asking, Decision, Group, People
from workflows.registry import shipped

DESIGNS = [pytest.param(design, id=design.name) for design in shipped()]
every_machine = pytest.mark.parametrize("design", DESIGNS)


def script_with(design: Design, wanted: Callable[[Play], bool]) -> Script:
    """The machine's first script whose play is so."""
    found: tuple[Script, ...] = scripts(design).SCRIPTS
    return next(script for script in found if type(script) is Script and wanted(script.run(design)))


def calls_tools(design: Design) -> Script:
    """A script that calls a tool and ends."""

    def wanted(run: Play) -> bool:
        called = any(isinstance(effect, CallTools) for effect in run.effects)
        return called and run.last.exit is not None

    return script_with(design, wanted)


def bench(design: Design, script: Script, answers: tuple[Reaction, ...] | None = None, **more: Any) -> Bench:
    """A run of the script."""
    given = script.answers if answers is None else answers
    return Bench(design, given, options=script.options, changed=script.changed, **more)


def without_tools(design: Design, script: Script) -> tuple[Reaction, ...]:
    """The script's answers but for those of tools: for runs in which no tool is called."""
    run = script.run(design)
    pairs = zip(run.effects, script.answers, strict=False)
    return tuple(answer for effect, answer in pairs if not isinstance(effect, CallTools))


def same_end(run: Bench, script: Script, design: Design) -> None:
    """It ended as the script does without people."""
    alone = script.run(design).exit
    assert (run.exit.reason, run.exit.answer, run.exit.ok) == (alone.reason, alone.answer, alone.ok)


def rebuilt(run: Bench) -> None:
    """The log alone tells the state."""
    snapshot = run.loop.stack.first.step.snapshot
    assert rebuild(run.machine, run.records) == (snapshot.state, snapshot.context)


@every_machine
async def test_an_approved_call_is_made_once_and_the_run_ends_as_without_people(design: Design) -> None:
    script = calls_tools(design)
    async with bench(design, script, tool=unsafe()) as run:
        asked = 0
        while run.open:
            assert run.open[0].kind == "approval"
            assert run.open[0].arguments is not None
            before = len(run.called)
            await run.decide("approve")
            asked += 1
            assert len(run.called) >= before
        assert asked == len(run.called) > 0
        assert len({name for name, _ in run.called}) == len(run.called)
        same_end(run, script, design)
        rebuilt(run)
        assert [d.outcome for d in run.loop.desk.decided()] == ["approved"] * asked


@every_machine
async def test_a_rejected_call_is_never_made_and_its_comment_is_the_tools_result(design: Design) -> None:
    script = calls_tools(design)
    async with bench(design, script, without_tools(design, script), tool=unsafe()) as run:
        while run.open:
            await run.decide("reject", text="too dear for us")
        assert run.called == []
        if run.loop.stack.exit is None:
            await run.command("abort", text="enough")
        assert run.loop.stack.ledger.used("tool_calls") == 0
        said = repr([record.patch for record in run.records])
        assert "too dear for us" in said
        assert {d.outcome for d in run.loop.desk.decided()} <= {"rejected", "withdrawn"}
        rebuilt(run)


@every_machine
async def test_an_edited_call_is_made_with_the_new_arguments_only(design: Design) -> None:
    script = calls_tools(design)
    async with bench(design, script, tool=unsafe()) as run:
        while run.open:
            await run.decide("edit", arguments={"q": "edited by ann"})
        assert {run_.arguments["q"] for _, run_ in run.called} == {"edited by ann"}
        rebuilt(run)
        assert run.loop.stack.exit is not None


@every_machine
async def test_arguments_that_do_not_fit_the_tool_are_refused_and_the_request_stays_open(
    design: Design,
) -> None:
    script = calls_tools(design)
    async with bench(design, script, tool=unsafe()) as run:
        with pytest.raises(Refused, match="q"):
            await run.decide("edit", arguments={"q": 7})
        assert run.open
        assert run.called == []


@every_machine
async def test_a_request_that_expires_is_not_a_rejection(design: Design) -> None:
    script = calls_tools(design)
    people = People(asking=Asking(deadline_seconds=60))
    async with bench(design, script, without_tools(design, script), tool=unsafe(), people=people) as run:
        await run.wait(59)
        assert run.open
        while run.open:
            await run.wait(60)
        assert run.called == []
        assert {d.outcome for d in run.loop.desk.decided()} == {"expired"}
        assert run.record("Expired").by == "deadline"


@every_machine
async def test_a_deadline_may_end_the_run_as_expired(design: Design) -> None:
    script = calls_tools(design)
    people = People(asking=Asking(deadline_seconds=60, at_deadline="abort"))
    async with bench(design, script, tool=unsafe(), people=people) as run:
        await run.wait(61)
        assert (run.exit.reason, run.exit.ok) == ("expired", False)
        assert run.called == []
        rebuilt(run)


@every_machine
async def test_an_unanswered_request_goes_to_the_next_group(design: Design) -> None:
    script = calls_tools(design)
    groups = {"ops": Group(members=("ann",)), "bosses": Group(members=("bea",))}
    asking = Asking(group="ops", deadline_seconds=60, at_deadline="escalate", escalate_to=("bosses",))
    people = People(groups=groups, asking=asking)
    async with bench(design, script, tool=unsafe(), people=people) as run:
        with pytest.raises(Refused, match="bea"):
            await run.decide("approve", by="bea")
        await run.wait(61)
        assert run.open[0].approvers == ("bea",)
        with pytest.raises(Refused, match="ann"):
            await run.decide("approve", by="ann")
        while run.open:
            await run.decide("approve", by="bea")
            await run.wait(61) if run.open and run.open[0].group == "ops" else None
        same_end(run, script, design)


@every_machine
async def test_two_people_must_agree_where_two_are_asked_for(design: Design) -> None:
    script = calls_tools(design)
    people = People(groups={"two": Group(members=("ann", "bea", "cy"), quorum=2)}, asking=Asking(group="two"))
    async with bench(design, script, tool=unsafe(), people=people) as run:
        while run.open:
            assert (await run.decide("approve", by="ann")).outcome == "open"
            asked = run.open[0]
            with pytest.raises(Refused, match="ann"):
                await run.decide("approve", asked, by="ann", id="again")
            assert (await run.decide("approve", asked, by="cy")).outcome == "approved"
        same_end(run, script, design)


@every_machine
async def test_a_call_whose_outcome_nobody_knows_is_never_made_again_in_silence(design: Design) -> None:
    script = calls_tools(design)
    run_, lost = script.run(design), [False]

    def once_unknown(answer: Reaction) -> Reaction:
        def reaction(effect: CallTools) -> ToolsReturned:
            if lost[0]:
                return answer(effect) if callable(answer) else answer  # type: ignore[return-value]  # a script's own
            lost[0] = True
            one = effect.runs[0]
            result = ToolResult(id=one.id, tool=one.tool, output="nobody knows", error="unknown_outcome")
            return ToolsReturned(results=(result,))

        return reaction

    answers: list[Reaction] = []
    for effect, answer in zip(run_.effects, script.answers, strict=False):
        first = isinstance(effect, CallTools) and not lost[0] and not any(callable(a) for a in answers[-1:0])
        answers += [once_unknown(answer), answer] if first and len(answers) == _at(run_) else [answer]
    async with bench(design, script, tuple(answers), tool=unsafe()) as run:
        while run.open and run.open[0].kind == "approval":
            await run.decide("approve")
        (asked,) = run.open
        assert asked.kind == "outcome"
        made = len(run.called)
        await run.decide("retry")
        assert len(run.called) >= made + 1
        while run.open:
            await run.decide("approve")
        same_end(run, script, design)


def _at(run: Play) -> int:
    """Where the first tool call of a play is."""
    return next(n for n, effect in enumerate(run.effects) if isinstance(effect, CallTools))


@every_machine
async def test_a_paused_run_stands_still_until_it_is_resumed(design: Design) -> None:
    script = calls_tools(design)
    async with bench(design, script, people=People(interrupt_every=None)) as run:
        same_end(run, script, design)
    paused = bench(design, script)
    paused.order("pause")
    async with paused as run:
        assert run.performed == []
        assert run.loop.paused
        await run.command("resume")
        same_end(run, script, design)
        assert run.events.count("Paused") == run.events.count("Resumed") == 1
        rebuilt(run)


@every_machine
async def test_a_pause_at_once_stops_a_model_call_that_is_made_again_afterwards(design: Design) -> None:
    script = calls_tools(design)
    run = bench(design, script)
    run.blocked = True
    async with run:
        place, effect = run.performed[-1]
        assert isinstance(effect, CallModel)
        await run.command("pause", at_once=True)
        assert run.loop.paused
        run.blocked = False
        await run.command("resume")
        assert run.performed[1] == (place, effect)
        same_end(run, script, design)


@every_machine
async def test_an_abort_stops_a_model_call_and_the_result_is_whole(design: Design) -> None:
    script = calls_tools(design)
    run = bench(design, script)
    run.blocked = True
    async with run:
        order = await run.command("abort", text="wrong customer")
        assert order.done is not None
        assert (run.exit.reason, run.exit.ok) == ("aborted", False)
        assert "wrong customer" in (run.exit.error or "")
        assert run.record("Closed").by == "ann (claimed)"
        rebuilt(run)


@every_machine
async def test_an_abort_counts_while_the_run_waits_and_while_it_is_paused(design: Design) -> None:
    script = calls_tools(design)
    async with bench(design, script, tool=unsafe()) as run:
        await run.command("pause")
        await run.command("abort")
        assert run.exit.reason == "aborted"
        assert run.record("Withdrawn").about["request"] == "r1"
        assert run.called == []


@every_machine
async def test_a_run_stands_still_before_every_step_that_is_named(design: Design) -> None:
    script = calls_tools(design)
    async with bench(design, script, people=People(interrupt_every=1)) as run:
        seen = 0
        while run.open:
            assert run.open[0].kind == "interrupt"
            seen += 1
            await run.decide("resume")
        same_end(run, script, design)
        rebuilt(run)
        steps = max(record.step for record in run.records)
        assert seen <= max(steps - 1, 0)


@every_machine
async def test_a_run_stands_still_before_a_state_that_is_named_also_before_its_end(design: Design) -> None:
    script = calls_tools(design)
    alone = script.run(design)
    last = name_of(alone.last.snapshot.state)
    async with bench(design, script, people=People(interrupt_states=(last,))) as run:
        (asked,) = run.open
        assert (asked.kind, asked.state) == ("interrupt", last)
        await run.decide("resume")
        same_end(run, script, design)
        rebuilt(run)


@every_machine
async def test_a_rollback_makes_the_step_anew_and_nothing_before_it(design: Design) -> None:
    script = calls_tools(design)
    alone = script.run(design)
    run = bench(design, script, (*script.answers[: len(alone.effects) - 1],))
    async with run:
        step = run.loop.stack.first.step.snapshot.step
        spent = run.loop.stack.ledger.used("model_calls")
        made = [place for place, _ in run.performed]
        order = await run.command("rollback", step=step)
        assert order.refused == ""
        snapshot = run.loop.stack.first.step.snapshot
        assert snapshot.branch == 1
        assert snapshot.step == step
        assert run.loop.stack.ledger.used("model_calls") >= spent
        again = [place for place, _ in run.performed][len(made) :]
        assert set(again) & set(made) == set()
        rebuilt(run)
        await run.command("abort")
        rebuilt(run)


@every_machine
async def test_a_rollback_to_a_step_that_is_not_there_is_refused_and_changes_nothing(design: Design) -> None:
    script = calls_tools(design)
    async with bench(design, script, tool=unsafe()) as run:
        before = run.loop.stack.first.step.snapshot.context
        order = await run.command("rollback", step=99)
        assert "99" in order.refused
        assert run.loop.stack.first.step.snapshot.context == before
        assert run.open
        assert run.record("RefusedCommand").error == order.refused


@every_machine
async def test_a_message_from_a_person_is_in_a_later_prompt_and_no_call_is_repeated(design: Design) -> None:
    script = calls_tools(design)
    async with bench(design, script, tool=unsafe()) as run:
        await run.command("steer", text="mind the gap")
        while run.open:
            await run.decide("approve")
        assert len({name for name, _ in run.called}) == len(run.called)
        assert run.record("Steered").about["text"] == "mind the gap"
        rebuilt(run)


@every_machine
async def test_a_limit_may_ask_for_more(design: Design) -> None:
    script = calls_tools(design)
    people = People(on_limit="ask")
    async with bench(design, script, people=people, limits={"model_calls": 1}) as run:
        asked = 0
        while run.open:
            assert run.open[0].kind == "limit"
            await run.decide("topup", amounts={"model_calls": 1})
            asked += 1
        same_end(run, script, design)
        assert asked == max(run.loop.stack.ledger.used("model_calls") - 1, 0)


@every_machine
async def test_an_unattended_run_asks_nobody(design: Design) -> None:
    script = calls_tools(design)
    answers = without_tools(design, script)
    async with bench(design, script, answers, tool=unsafe(), people=People(unattended=True)) as run:
        assert run.open == ()
        assert run.called == []
        assert run.loop.desk.decided() == ()


@every_machine
async def test_a_fork_goes_on_from_a_step_and_makes_no_call_that_was_made_before_it(design: Design) -> None:
    script = calls_tools(design)
    async with bench(design, script) as source:
        same_end(source, script, design)
    for checkpoint in checkpoints(source.machine, source.records):
        was = restored(source.machine, source.records, checkpoint.step)
        behind = [answer for name, answer in _answers(script, source) if name > was.visit]
        fork = bench(design, script, tuple(behind))
        stack = fork.forked(source.records, checkpoint.step)
        snapshot = stack.first.step.snapshot
        assert snapshot.branch == 1
        assert snapshot.step in {checkpoint.step, 1}  # from the start, step 1 may begin at once
        async with fork as run:
            assert {name for name, _ in run.performed} & {name for name, _ in source.performed} == set()
            assert run.loop.stack.ledger.used("model_calls") <= source.loop.stack.ledger.used("model_calls")
            same_end(run, script, design)
            rebuilt(run)


def _answers(script: Script, source: Bench) -> list[tuple[int, Reaction]]:
    """The script's answers, each with the visit that asked for it."""
    places = [name for name, _ in source.performed]
    visits = [int(place.split("#")[1].split(":")[0]) for place in places]
    return list(zip(visits, script.answers, strict=False))


@every_machine
async def test_only_signed_decisions_of_two_people_count_where_their_keys_are_listed(design: Design) -> None:
    script = calls_tools(design)
    keys = {name: Ed25519PrivateKey.generate() for name in ("ann", "bea")}
    group = Group(keys={name: public_key(key) for name, key in keys.items()}, quorum=2)
    people = People(groups={"two": group}, asking=Asking(group="two"))
    async with bench(design, script, tool=unsafe(), people=people) as run:
        while run.open:
            asked = run.open[0]
            with pytest.raises(Refused, match="sign"):
                await run.decide("approve", asked, by="ann")
            for name, key in keys.items():
                mark = f"{asked.id} {name}"
                given = Decision(request=asked.id, digest=asked.digest, decision="approve", by=name, id=mark)
                signature = sign(key, signed_content(RUN, given))
                await run.decide("approve", asked, by=name, id=mark, signature=signature)
        same_end(run, script, design)
        assert all(d.verified and len(d.by) == 2 for d in run.loop.desk.decided())
