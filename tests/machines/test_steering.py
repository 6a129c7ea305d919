"""A person's message on the way, to every machine: it comes before the next prompt, and nothing that was done
is done again. When that prompt is sent:

* react, contract, simple, planner, staged: the model call at hand is asked anew with it, in the middle of a
  visit too (but not staged Think after a reply that could not be read); else the next one has it. Each stage
  of a staged run is told.
* tools, planner: while tools run, behind all their results.
* code: sub-queries of a block do not hear it; the next call of the main conversation does.
* refund_desk (a user's machine): the next call of the model, for this ticket or the next one.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from activities.contracts import CallModel, Transcript
from tests.machines.answers import failed, said, tool_said
from tests.machines.livekit import Live, of_every_machine, wanted
from tests.machines.scripts_code import block, calls, ran
from tests.machines.scripts_staged import TOOLS, asks
from tests.machines.scripts_tools import calls as wants
from workflows.kernel.design import Design
from workflows.kernel.moves import steerable
from workflows.registry import design

TEXT = "mind the gap, says ann"
RANDOM = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


def is_main(effect: Any) -> bool:
    """Is it a prompt of the machine's main conversation?"""
    return isinstance(effect, CallModel) and not effect.label.startswith("llm_query")


def heard(transcript: Transcript) -> int:
    """How often a prompt says it."""
    return sum(message.content.count(TEXT) for message in transcript)


def without(transcript: Transcript) -> list[tuple[str, str]]:
    """A prompt as it was before somebody spoke."""
    told = (TEXT, f"Note from the shop: {TEXT}")
    kept = [message for message in transcript if message.content not in told]
    return [(m.role, m.content.replace(f"\n\nThe user says: {TEXT}", "")) for m in kept]


def well_formed(transcript: Transcript) -> bool:
    """Calls have their results directly behind them: servers refuse any other conversation."""
    messages = list(transcript)
    for place, message in enumerate(messages):
        ids = [call.id for call in message.tool_calls]
        if [m.tool_call_id for m in messages[place + 1 : place + 1 + len(ids)]] != ids:
            return False
    return True


def prompts(effects: list[Any]) -> list[CallModel]:
    """Those of the main conversation."""
    return [effect for effect in effects if is_main(effect)]


@of_every_machine
@RANDOM
@given(data=st.data())
def test_a_message_is_in_the_next_prompt_once_and_repeats_nothing(made: Design, data: st.DataObject) -> None:
    live = Live(made)
    live.play(data, data.draw(st.integers(0, 12)))
    if live.effect is None:
        return
    stale, asked = live.effect, steerable(live.stack)
    before = len(live.effects)
    live.say(TEXT)
    event(f"{made.name}: {'asked anew' if asked else 'folded in'} at {stale.kind}")
    if asked:
        assert is_main(live.effect)
        assert without(live.effect.transcript) == [(m.role, m.content) for m in stale.transcript]
        assert (live.effect.role, live.effect.offer) == (stale.role, stale.offer)
        new = [live.effect]
    else:
        assert live.effect == stale
        new = []
    live.check()
    live.end(data)
    live.check()
    new += prompts(live.effects[before:])
    assert all(well_formed(effect.transcript) for effect in new)
    if new:
        assert heard(new[0].transcript) == 1
    assert all(heard(effect.transcript) <= 1 for effect in new)


@of_every_machine
@RANDOM
@given(data=st.data())
def test_with_the_same_answers_the_run_does_what_it_would_have_done(
    made: Design, data: st.DataObject
) -> None:
    """So no tool runs twice, and no model is asked twice, but for the call that had not been answered."""
    plain, live = Live(made), Live(made)
    at = data.draw(st.integers(0, 10))
    answers = plain.play(data, 25)
    for answer in answers[:at]:
        live.answer(answer)
    if live.effect is None:
        return
    # A bad reply before the message does not count against the call that is asked anew.
    forgiven = made.name == "react" and live.stack.top.step.snapshot.call > 1
    live.say(TEXT)
    for number, answer in enumerate(answers[at:], start=at):
        if forgiven and wanted(live.effects) != wanted(plain.effects[: number + 1]):
            return
        live.answer(answer)
    if forgiven and wanted(live.effects) != wanted(plain.effects):
        return
    assert wanted(live.effects) == wanted(plain.effects)
    assert _ended(live) == _ended(plain) or forgiven
    assert live.stack.ledger.used("model_calls") == plain.stack.ledger.used("model_calls")
    assert live.stack.ledger.used("tool_calls") == plain.stack.ledger.used("tool_calls")


def _ended(live: Live) -> Any:
    ended = live.stack.exit
    return ended and (ended.reason, ended.ok, ended.answer)


@of_every_machine
@RANDOM
@given(data=st.data())
def test_any_number_of_messages_at_any_time_leaves_a_run_that_ends_by_the_rules(
    made: Design, data: st.DataObject
) -> None:
    live, said_so = Live(made), 0
    for _ in range(8):
        live.play(data, data.draw(st.integers(0, 4)))
        if live.effect is None:
            break
        said_so += 1
        live.say(f"{said_so}. {TEXT}")
    live.end(data)
    live.check()
    told = [record for record in live.records if record.event == "Steered"]
    assert [(record.by, record.to) for record in told] == [("ann", None)] * said_so


# -- machine by machine --------------------


def running(name: str, *answers: Any, **options: Any) -> Live:
    """A run of a machine that has got these answers."""
    live = Live(design(name), options)
    for answer in answers:
        live.answer(answer(live.effect) if callable(answer) else answer)
    return live


def last_said(live: Live) -> list[str]:
    """The newest messages of the prompt at hand, by their roles."""
    return [message.role for message in live.effect.transcript][-3:]


def test_tools_mode_puts_a_message_behind_all_results_of_a_reply() -> None:
    live = running("tools", wants("tool", "tool"))
    live.say(TEXT)
    live.answer(tool_said()(live.effect))
    assert last_said(live) == ["tool", "tool", "user"]
    live.say("and hurry")
    assert [m.content for m in live.effect.transcript][-2:] == [TEXT, "and hurry"]
    assert live.stack.first.step.snapshot.context.iteration == 1


def test_a_sub_query_of_a_block_does_not_hear_a_message_and_is_not_asked_again() -> None:
    live = running("code", block("llm_query('a')"), calls("llm_query", "a"))
    asked = live.effect
    live.say(TEXT)
    assert live.effect is asked
    for answer in (said("A"), ran("A")):
        live.answer(answer)
    assert live.effect.label == "think #2"
    assert heard(live.effect.transcript) == 1
    before = live.snapshot.context
    live.say("and hurry")
    assert [m.content for m in live.effect.transcript][-1] == "and hurry"
    assert (live.snapshot.context.iteration, live.snapshot.context.place) == (before.iteration, before.place)


def test_the_acting_stage_runs_the_tools_of_a_reply_once_though_somebody_speaks() -> None:
    live = running("staged", TOOLS)
    live.say(TEXT)
    assert live.effect.label == "act #1"
    assert live.effect.transcript.messages[-1].content.endswith(f"The user says: {TEXT}")
    live.answer(asks("tool", q="x"))
    live.say("and hurry")
    live.answer(tool_said()(live.effect))
    assert live.effect.label == "observe #1"
    assert [effect.kind for effect in live.effects] == [
        "call_model",
        "call_model",
        "call_tools",
        "call_model",
    ]


def test_a_thought_that_is_asked_for_again_goes_on_waiting_and_the_next_stage_hears_the_message() -> None:
    live = running("staged", said("?"), max_format_attempts=2)
    asked = live.effect
    live.say(TEXT)
    assert live.effect is asked
    live.answer(TOOLS)
    assert live.effect.label == "act #1"
    assert heard(live.effect.transcript) == 1


def test_react_is_asked_anew_in_the_middle_of_a_visit_with_its_bad_reply_before_the_message() -> None:
    live = running("react", said("?"))
    live.say(TEXT)
    assert [m.content for m in live.effect.transcript][-3:-2] == ["?"]
    assert live.effect.transcript.messages[-1].content == TEXT
    live.answer(failed("transient"))
    assert len(live.snapshot.context.steps) == 1
