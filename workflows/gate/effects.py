"""The effect at hand: what it asks of people first, and performing it. Pure; knows no machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from activities.contracts import (
    AskPerson,
    CallModel,
    CallModels,
    CallTools,
    Effect,
    EffectFailed,
    JsonObject,
    MachineEnded,
    ModelsReplied,
    PersonDecided,
    RunMachine,
    ToolRun,
    ToolsReturned,
)
from workflows.gate import words
from workflows.gate.calls import refusal
from workflows.gate.orders import Order
from workflows.kernel.errors import name_of
from workflows.kernel.hold import Hold
from workflows.kernel.ledger import Breach, spent_by
from workflows.kernel.moves import breach_of, entered, refused_by_limit, topped_up
from workflows.kernel.restore import steps_done
from workflows.kernel.stack import answered, charged
from workflows.kernel.step import Cause
from workflows.people import Command, Request
from workflows.where import Where, bounded

if TYPE_CHECKING:
    from workflows.loop import Loop

__all__ = ["take"]

NOBODY = "no person can be asked"


async def take(loop: Loop, effect: Effect) -> None:
    """Whatever the effect asks of people first, then the effect itself."""
    if isinstance(effect, Hold):
        await _stand(loop)
    elif isinstance(effect, AskPerson):
        await _question(loop, effect)
    elif (breach := breach_of(loop.stack)) is not None:
        await _limit(loop, breach)
    else:
        await _perform(loop, effect)


# -- what a run asks by itself --------------------


async def _stand(loop: Loop) -> None:
    """The run stands still before a step or a state."""
    first = loop.stack.first
    snapshot, done = first.step.snapshot, steps_done(first.machine, first.step.snapshot)
    by_name = name_of(snapshot.state) in loop.people.interrupt_states
    if done == loop.stood and not by_name:
        loop.keep(entered(loop.stack, loop.nesting, now=loop.world.now()))
        return
    place = f"{bounded(loop.stack.top.place)}?"
    last = snapshot.last.reason if snapshot.last else ""
    text = words.interrupt(name_of(snapshot.state), snapshot.step, last)
    request = await loop.ask("interrupt", place, text=text, options=("resume", "abort"))
    if request is not None:
        if loop.ended_by(request):
            return
        if request.outcome == "expired" and request.at_deadline == "reject":
            loop.close("expired", words.expired(request), by="deadline")
            return
        if request.settled is not None and request.settled.text:
            said = Command(command="steer", text=request.settled.text)
            loop.inbox.insert(0, Order(said, words.who(request)))
    loop.stood = done
    loop.keep(entered(loop.stack, loop.nesting, now=loop.world.now()))


async def _question(loop: Loop, effect: AskPerson) -> None:
    """The machine asks; what is decided is its answer."""
    place = bounded(loop.stack.top.place)
    request = await loop.ask(effect.about, place, text=effect.text, options=effect.options)
    if request is not None and request.outcome == "expired" and loop.ended_by(request):
        return
    answer = PersonDecided(decision="unavailable", text=NOBODY) if request is None else _decided(request)
    _answered(loop, answer)


async def _limit(loop: Loop, breach: Breach) -> None:
    """The next call would pass a limit: more, the end that the limit stands for, or stop."""
    place = _again(f"{bounded(loop.stack.top.place)}!{breach.counter}", len(loop.calls.topups))
    asked: JsonObject = {"counter": breach.counter, "cap": breach.cap}
    text = words.limit(str(breach))
    request = await loop.ask("limit", place, text=text, arguments=asked, options=("topup", "finish", "abort"))
    if request is not None and loop.ended_by(request):
        return
    if request is not None and request.outcome == "topped_up" and request.settled is not None:
        loop.calls.topups.append(request.id)
        loop.keep(topped_up(loop.stack, request.settled.amounts))
    else:
        loop.leave("the limit ends it")
        loop.keep(refused_by_limit(loop.stack, breach, loop.nesting, now=loop.world.now()))


# -- performing --------------------


async def _perform(loop: Loop, effect: Effect) -> None:
    top, depth = loop.stack.top, loop.nesting.depth + len(loop.stack.frames)
    spent = loop.stack.ledger.used("cost_usd")
    heard = loop.desk.commands.heard if isinstance(effect, RunMachine) else ()
    where = Where(
        bounded(top.place), top.step.snapshot.branch, depth, top.step.ledger, top.tools, spent, heard
    )
    if isinstance(effect, CallTools):
        answer: BaseModel | None = await _tools(loop, effect, where)
    elif isinstance(effect, CallModel | CallModels):
        answer = await _replies(loop, effect, where)
    else:
        answer = await loop.race(effect, where)
    if isinstance(answer, ToolsReturned):
        # What people did not let through was never made: it is given back.
        not_made = sum(result.error in {"rejected", "expired"} for result in answer.results)
        loop.stack = charged(loop.stack, {"tool_calls": -not_made} if not_made else {})
    if answer is None:
        return
    if loop.world.cancelling() and isinstance(answer, MachineEnded) and answer.exit_reason == "cancelled":
        loop.stack = charged(loop.stack, spent_by(answer))
        loop.cancelled("", answer.error)
        return
    _answered(loop, answer)
    if loop.world.cancelling() and loop.stack.exit is None:
        loop.cancelled("")


def _answered(loop: Loop, answer: BaseModel) -> None:
    loop.calls.begin_anew()
    loop.keep(answered(loop.stack, answer, loop.nesting, now=loop.world.now()))


async def _tools(loop: Loop, effect: CallTools, where: Where) -> ToolsReturned | None:
    """Calls that ask wait for people; then all are made; then those of unknown outcome are cleared up."""
    names = where.calls(effect)
    if not await _approved(loop, effect, names):
        return None
    made = loop.calls.edited(effect, names)
    while True:
        try:
            answer = await loop.race(made, where)
        finally:
            step = loop.stack.first.step.snapshot.step
            loop.calls.note(made, names, where, step, loop.world)
        if not isinstance(answer, ToolsReturned):
            raise TypeError(f"tools were called, {type(answer).__name__} came back")
        unknown = next((n for n, r in enumerate(answer.results) if r.error == "unknown_outcome"), None)
        if unknown is None or not await _cleared(loop, made.runs[unknown], where, names[unknown]):
            return None if loop.stack.exit else loop.calls.told(answer, names)


async def _approved(loop: Loop, effect: CallTools, names: tuple[str, ...]) -> bool:
    """Ask for the calls that need it, all at once; False when the run has ended by it."""
    for run, name in zip(effect.runs, names, strict=True):
        known = name in loop.calls.settled or name in loop.calls.asked
        if not known and run.tool in loop.stack.top.tools:
            _put(loop, run, name)
    asked = [(name, loop.calls.asked[name]) for name in names if name in loop.calls.asked]

    def requests() -> list[Request]:
        return [loop.desk.get(request) for _, request in asked]

    def settled() -> bool:
        closed = all(request.outcome != "open" for request in requests())
        return closed or (not loop.older and any(_ends(request) for request in requests()))

    await loop.until(settled, "approval")
    if any(loop.ended_by(request) for request in requests()):
        return False
    for run, name in zip(effect.runs, names, strict=True):
        if name in loop.calls.asked:
            loop.calls.decided(run, name, loop.desk.get(loop.calls.asked[name]))
    return True


def _ends(request: Request) -> bool:
    """Its deadline has ended the run, whoever else is still waited for."""
    return request.outcome == "expired" and request.at_deadline == "abort"


def _put(loop: Loop, run: ToolRun, name: str) -> None:
    """Let a call pass, ask for it, or say why it is not made."""
    spent = loop.stack.ledger.used("cost_usd")
    asking = loop.desk.asks(run, spent_usd=spent)
    if asking is None:
        _let_pass(loop, run, name, spent)
    elif asking.undecided:
        loop.calls.settled[name] = words.not_run(run, "rejected", asking.undecided)
    elif loop.people.unattended:
        loop.calls.settled[name] = words.unattended(run)
    else:
        request = loop.open(
            "approval", name, text=words.approval(run), tool=run.tool, arguments=run.arguments,
            options=("approve", "reject", "edit", "abort"), asking=asking,
        )  # fmt: skip
        loop.calls.asked[name] = request.id


def _let_pass(loop: Loop, run: ToolRun, name: str, spent: float) -> None:
    """The log says who approved a call beforehand."""
    by = loop.desk.remembered_by(run, spent_usd=spent)
    if by and name not in loop.calls.passed:
        loop.calls.passed.append(name)
        reason = f"{run.title} was approved beforehand, by {', '.join(by)}"
        loop.note(Cause("ApprovedBefore", by="kernel", reason=reason))


async def _cleared(loop: Loop, run: ToolRun, where: Where, name: str) -> bool:
    """Find out what became of a call, so that it may be made, or taken as made; False: nobody knows."""
    if loop.world.cancelling():
        return False
    if name not in loop.calls.reconciled:
        loop.stand()
        found = await loop.raced(loop.world.reconcile(run, where, name))
        loop.calls.reconciled.append(name)
        if found is not None:
            reason = f"{run.title}: {found.outcome}{f', {found.text}' if found.text else ''}"
            loop.note(Cause("Reconciled", by="kernel", reason=reason))
            if loop.calls.found(name, found):
                return True
    place = _again(name, loop.calls.tries.get(name, 0))
    # Who may let a call happen may say whether it did.
    asking = None if "outcome" in loop.people.kinds else loop.desk.asking_of(loop.calls.asked.get(name))
    request = await loop.ask(
        "outcome", place, text=words.outcome(run), tool=run.tool, arguments=run.arguments, asking=asking,
        options=("answer", "retry", "abort"),
    )  # fmt: skip
    if request is None or loop.ended_by(request):
        return False
    return loop.calls.cleared(run, name, request)


async def _replies(loop: Loop, effect: CallModel | CallModels, where: Where) -> BaseModel | None:
    """What models answer. One refuses for good: mend it and try again, or stop. None: the run is over."""
    calls = loop.calls
    while True:
        answer = calls.refused or await _asked(loop, effect, where)
        if not isinstance(answer, EffectFailed | ModelsReplied):
            return answer
        failure = refusal(answer)
        if failure is None or not _in_trouble(loop, answer):
            return answer
        if calls.refused is None:
            calls.failures.append(answer)
        place = _again(where.activity_id, len(calls.mended))
        request = await loop.ask("trouble", place, text=words.trouble(failure), options=("retry", "abort"))
        if request is None:
            return answer
        if loop.ended_by(request):
            return None
        if request.outcome != "retried" and request.at_deadline != "approve":
            return answer
        calls.mended.append(request.id)


def _in_trouble(loop: Loop, answer: EffectFailed | ModelsReplied) -> bool:
    """People are asked about a refusal; by older runs only about that of a single call."""
    asked = isinstance(answer, EffectFailed) or not loop.older
    return asked and loop.people.on_trouble == "ask" and not loop.world.cancelling()


async def _asked(loop: Loop, effect: CallModel | CallModels, where: Where) -> BaseModel:
    """Ask the model; of calls side by side, those that were answered are not made again."""
    again = loop.calls.unanswered()
    if not again or isinstance(effect, CallModel):
        return await loop.race(effect, where)
    part = effect.model_copy(update={"calls": tuple(effect.calls[n] for n in again)})
    place = replace(where, activity_id=_again(where.activity_id, len(loop.calls.mended)))
    answer = await loop.race(part, place)
    return loop.calls.completed(answer) if isinstance(answer, ModelsReplied) else answer


def _again(place: str, times: int) -> str:
    """The place of what is asked again there: what was decided once is used once."""
    return f"{place}+{times}" if times else place


def _decided(request: Request) -> PersonDecided:
    """What a request has come to, as the machine that asked understands it."""
    by, vote = words.who(request), request.settled
    if vote is None:
        going_on = request.at_deadline == "approve"
        text = words.expired(request)
        return PersonDecided(decision="resume" if going_on else "unavailable", text=text, by="deadline")
    verb: Any = vote.verb if vote.verb in {"resume", "abort", "answer"} else "answer"
    return PersonDecided(decision=verb, text=vote.text, by=by)
