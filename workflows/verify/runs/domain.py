"""Which answers are tried: every failure that an effect can have, each decision, and replies and outputs from
the forms by which a visit reads them, the tools' schemas and the scenario.

What is tried follows from the effect and the scenario alone, so that states that ask the same get the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pydantic import JsonValue

from activities.contracts import (
    MODEL_REFUSED,
    Answers,
    Artifact,
    ArtifactsRead,
    ArtifactText,
    AskModel,
    AskPerson,
    CallTools,
    CodeCall,
    CodeStepped,
    Effect,
    EffectFailed,
    ErrorClass,
    MachineEnded,
    ModelReplied,
    NativeCall,
    PersonDecided,
    ReadArtifacts,
    RunCode,
    RunMachine,
    Together,
    ToolCall,
    ToolResult,
    ToolSpec,
    ToolsReturned,
)
from workflows.gate.arguments import arguments_for
from workflows.kernel.properties import Scenario
from workflows.verify.runs.samples import fits, samples, schema_of

__all__ = ["LEFT_OUT", "WITHOUT", "Domain", "Tried", "open_tool"]

LEFT_OUT = (
    "the clock stands still and calls cost nothing, so that no limit of time or money is reached",
    "no message, command or rollback comes from people; they decide what they are asked",
    "calls in one effect all end alike, or only the first differs; of effects side by side, one differs",
    "a model's reply asks for at most one tool, or for two that are alike; 12 sets of arguments each",
    "each digest of the conversation is a new one, even where nothing was said in between",
)
"""What no domain has, for whoever reads what held."""
MAX_ARGUMENT_SETS = 12
"""Sets of arguments with which an offered tool is called."""
MODEL_FAILURES: Mapping[str, tuple[ErrorClass, str]] = {
    "transient": ("transient", "HTTP429"),
    "fatal": ("fatal", "HTTP401"),
    "too long": ("recoverable", "context_too_long"),
    "refuses": ("fatal", MODEL_REFUSED),
}
"""In words -> class and type of the failure."""
TOOL_ERRORS = ("failed", "transient", "timeout", "rejected", "expired")
PLAIN_WORDS = {"'It is forty-two.'": "It is forty-two.", "''": ""}
WITHOUT = frozenset({
    *MODEL_FAILURES, *PLAIN_WORDS, "'It is', cut off", *TOOL_ERRORS, "unknown_outcome", "approve", "reject",
    "resume", "abort", "answer", "unavailable", "the request fails", "42", "lost", "answers 42", "no answer",
    "ends, prints 'out'", "NameError", "out of time",
})  # fmt: skip
"""What a scenario's `without` may name."""
MAY_HAVE_ACTED = {"unsafe", "keyed"}
"""Effects of tools whose call may end with nobody knowing whether it acted."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One answer that is tried, and its words for people."""

    text: str
    answer: Any
    name: str = ""
    """By which a scenario leaves it out; empty: it cannot."""


def open_tool(name: str) -> ToolSpec:
    """A tool of which only the name is known: it takes any arguments and may do anything."""
    schema = {"type": "object", "additionalProperties": True}
    return ToolSpec(name=name, description="", parameters=schema, effect="unsafe")


class _Words(dict[str, Sequence[JsonValue]]):
    """A scenario's words; it knows which were looked up."""

    def __init__(self, words: Mapping[str, Sequence[JsonValue]]) -> None:
        super().__init__(words)
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> Sequence[JsonValue]:
        self.used.add(name)
        return super().__getitem__(name)


class Domain:
    """The answers to each effect of a machine in one scenario."""

    def __init__(self, scenario: Scenario, tools: Mapping[str, ToolSpec]) -> None:
        self.scenario, self.tools = scenario, tools
        self.tried: dict[str, dict[str, None]] = {}
        """What was asked -> the answers, in words."""
        self.unfit: dict[str, None] = {}
        """Where a form takes none of the values that are tried."""
        self._words = _Words(scenario.words)
        self._labels: set[str] = set()
        self._called: set[str] = set()
        self._known: dict[Any, tuple[Effect[Any], tuple[Tried, ...]]] = {}
        """With the effect, so that its forms live on and keep their identity."""

    def answers(self, effect: Effect[Any]) -> tuple[Tried, ...]:
        """What is tried for this effect; the same objects for the same effect."""
        key = (effect.model_dump_json(), _forms(effect))
        if key not in self._known:
            found: dict[Any, Tried] = {}
            for one in self._of(effect):
                if one.name not in self.scenario.without:
                    found.setdefault((type(one.answer), one.answer.model_dump_json()), one)
            self._known[key] = effect, tuple(found.values())
            asked, prefix = _question_and_prefix(effect)
            texts = (one.text.removeprefix(prefix).removeprefix(" -> ") for one in found.values())
            self.tried.setdefault(asked, {}).update(dict.fromkeys(text.lstrip(":, ") for text in texts))
        return self._known[key][1]

    @property
    def unused(self) -> Iterator[str]:
        """What the scenario brings and nothing has asked for, as far as it was explored."""
        replies = self.scenario.replies
        for pattern in replies if isinstance(replies, Mapping) else ():
            if not any(fnmatchcase(label, pattern) for label in self._labels):
                yield f"replies `{pattern}`"
        yield from (f"outputs of `{tool}`" for tool in self.scenario.outputs if tool not in self._called)
        yield from (f"words for `{name}`" for name in self._words if name not in self._words.used)

    def _of(self, effect: Effect[Any]) -> Iterator[Tried]:
        tried: dict[type[Any], Callable[[Any], Iterator[Tried]]] = {
            AskModel: self._replies,
            CallTools: self._results,
            AskPerson: _decisions,
            RunMachine: _inner_runs,
            RunCode: _blocks,
            ReadArtifacts: _texts_read,
            Together: self._side_by_side,
        }
        yield from tried[type(effect)](effect)

    def _side_by_side(self, effect: Together) -> Iterator[Tried]:
        """All members alike, by the position among what is tried for each; then one by itself."""
        each = [self.answers(one) for one in effect.effects]
        if not all(each):
            return
        for at in range(max(map(len, each))):
            row = [tried[min(at, len(tried) - 1)] for tried in each]
            alike = len({one.text for one in row}) == 1
            text = f"all {row[0].text}" if alike else "; ".join(one.text for one in row)
            yield Tried(text, Answers(answers=tuple(one.answer for one in row)))
        first = [tried[0].answer for tried in each]
        for at, tried in enumerate(each):
            for one in tried[1:]:
                answers = (*first[:at], one.answer, *first[at + 1 :])
                yield Tried(f"only {at + 1}: {one.text}", Answers(answers=answers))

    # -- models --------------------

    def _replies(self, effect: AskModel) -> Iterator[Tried]:
        form = effect.form if effect.form is not None else effect.response_schema
        if form is not None:
            for text in self._read_by(form, f"{_question_and_prefix(effect)[0]}: no reply"):
                yield Tried(f"model: {text}", ModelReplied(text=text))
        for reply in self._given(effect.label):
            yield _replied(reply)
        if effect.offer and effect.tool_choice != "none":
            yield from self._native_calls(effect)
        for name, text in PLAIN_WORDS.items():
            yield Tried(f"model: {name}", ModelReplied(text=text), name)
        cut = "'It is', cut off"
        yield Tried(f"model: {cut}", ModelReplied(text="It is", finish_reason="length"), cut)
        for name, (error, kind) in MODEL_FAILURES.items():
            yield Tried(f"model: {name}", EffectFailed(error=error, type=kind, message="no reply"), name)

    def _read_by(self, form: Any, what: str) -> list[str]:
        """Values of a form, as JSON; `what` is noted if it takes none of them."""
        values = samples(schema_of(form), self._words)
        if not any(fits(form, value) for value in values):
            self.unfit[f"{what} fits the form"] = None
        return [json.dumps(value, ensure_ascii=False) for value in values]

    def _given(self, label: str) -> Iterator[Any]:
        self._labels.add(label)
        replies = self.scenario.replies
        if not isinstance(replies, Mapping):
            yield from replies
            return
        for pattern, some in replies.items():
            if fnmatchcase(label, pattern):
                yield from some

    def _native_calls(self, effect: AskModel) -> Iterator[Tried]:
        good = [call for name in effect.offer for call in self._calls_of(name)]
        for call in good:
            yield _replied((call,))
        first = effect.offer[0]
        yield _replied((NativeCall(id="c0", name=first, arguments="{oops"),))
        yield _replied((NativeCall(id="c0", name="nosuch", arguments="{}"),))
        cut = ModelReplied(text="", tool_calls=(NativeCall(id="c0", name=first),), finish_reason="length")
        yield Tried(f"model: {first}( cut off", cut)
        if good:
            yield _replied((good[0], good[0].model_copy(update={"id": "c1"})))

    def _calls_of(self, name: str) -> list[NativeCall]:
        spec = self.tools.get(name) or open_tool(name)
        found = [one for one in samples(spec.parameters, self._words) if isinstance(one, dict)]
        if all(isinstance(arguments_for(spec, one), str) for one in found):
            self.unfit[f"{name}: no arguments fit its schema"] = None
        return [
            NativeCall(id="c0", name=name, arguments=json.dumps(one)) for one in found[:MAX_ARGUMENT_SETS]
        ]

    # -- tools --------------------

    def _results(self, effect: CallTools) -> Iterator[Tried]:
        """All calls end alike, or the first by itself and the others well. No host lets the effect fail."""
        good = [self._result(call, self._outputs(call)[0], None) for call in effect.calls]
        for text, ends in self._ends(effect.calls[0]):
            results, name = tuple(self._engine_result(call, *ends) for call in effect.calls), ends[1] or ""
            yield Tried(f"{_names(effect)}{text}", ToolsReturned(results=results), name)
            if len(effect.calls) > 1:
                alone = ToolsReturned(results=(results[0], *good[1:]))
                yield Tried(f"{effect.calls[0].tool} alone{text}", alone, name)

    def _ends(self, call: ToolCall) -> Iterator[tuple[str, tuple[str | None, Any]]]:
        for output in self._outputs(call):
            yield f" -> {output}", (output, None)
        errors = [*TOOL_ERRORS]
        if self._spec(call).effect in MAY_HAVE_ACTED:
            errors.append("unknown_outcome")
        for error in errors:
            yield f": {error}", (None, error)

    def _engine_result(self, call: ToolCall, output: str | None, error: Any) -> ToolResult:
        """What the engine answers where it does not make the call, else this end."""
        if self.tools and call.tool not in self.tools and call.tool not in self.scenario.outputs:
            return self._result(call, f"There is no tool {call.tool}", "unknown_tool")
        fitted = arguments_for(self._spec(call), call.arguments)
        if isinstance(fitted, str):
            return self._result(call, fitted, "bad_arguments")
        return self._result(call, output or f"the call ended: {error}", error)

    def _result(self, call: ToolCall, output: str, error: Any) -> ToolResult:
        kept = tuple(_artifact(one.name, output) for one in call.artifacts) if error is None else ()
        return ToolResult(id=call.id, tool=call.tool, output=output, error=error, artifacts=kept)

    def _outputs(self, call: ToolCall) -> tuple[str, ...]:
        self._called.add(call.tool)
        given = tuple(self.scenario.outputs.get(call.tool, ()))
        if call.form is not None and not given:
            given = tuple(self._read_by(call.form, f"{call.tool}: no output"))
        return (*given, "???") if given else ("found", "")

    def _spec(self, call: ToolCall) -> ToolSpec:
        return self.tools.get(call.tool) or open_tool(call.tool)


def _question_and_prefix(effect: Effect[Any]) -> tuple[str, str]:
    """What is asked, in words, and how the texts of its answers begin."""
    match effect:
        case AskModel():
            return effect.label or "model", "model: "
        case CallTools():
            return _names(effect), _names(effect)
        case AskPerson():
            return "a person", "person: "
        case RunMachine():
            return f"a run of {effect.machine}", "inner run: "
        case RunCode():
            return "code", "code: "
        case ReadArtifacts():
            return "texts", "text: "
    return effect.title, ""


def _forms(effect: Effect[Any]) -> tuple[int, ...]:
    """Forms are declared once, so that their identity tells them apart."""
    if isinstance(effect, Together):
        return tuple(form for one in effect.effects for form in _forms(one))
    if isinstance(effect, CallTools):
        return tuple(id(call.form) for call in effect.calls)
    return (id(effect.form),) if isinstance(effect, AskModel) else ()


def _replied(reply: Any) -> Tried:
    if isinstance(reply, str):
        return Tried(f"model: {reply}", ModelReplied(text=reply))
    shown = ", ".join(f"{call.name}({call.arguments})" for call in reply)
    return Tried(f"model calls {shown}", ModelReplied(text="", tool_calls=reply, finish_reason="tool_calls"))


def _names(effect: CallTools) -> str:
    return ", ".join(call.tool for call in effect.calls)


def _artifact(name: str, text: str) -> Artifact:
    body = text.encode()
    return Artifact(name=name, digest=hashlib.sha256(body).hexdigest(), bytes=len(body), preview=text)


def _decisions(effect: AskPerson) -> Iterator[Tried]:
    for decision in (*effect.options, "unavailable"):
        text = "well" if decision == "answer" else ""
        yield Tried(f"person: {decision}", PersonDecided(decision=decision, by="ann", text=text), decision)
    failed = EffectFailed(error="fatal", type="Store", message="nobody could be asked")
    yield Tried("person: the request fails", failed, "the request fails")


def _texts_read(effect: ReadArtifacts) -> Iterator[Tried]:
    for name, one in (
        ("42", ArtifactText(text="42", chars=2)),
        ("lost", ArtifactText(problem="it is lost")),
    ):
        yield Tried(f"text: {name}", ArtifactsRead(texts=(one,) * len(effect.reads)), name)


def _inner_runs(effect: RunMachine) -> Iterator[Tried]:
    ended = MachineEnded(machine=effect.machine, ok=True, exit_reason="stop", answer="42")
    yield Tried("inner run: answers 42", ended, "answers 42")
    failed = MachineEnded(machine=effect.machine, ok=False, exit_reason="max_steps", error="no answer")
    yield Tried("inner run: no answer", failed, "no answer")
    for error in ("fatal", "unknown_outcome"):
        broken = EffectFailed(error=error, type="Inner", message="it broke")
        yield Tried(f"inner run: {error}", broken, error)


def _blocks(effect: RunCode) -> Iterator[Tried]:
    """How far a block comes. A session is named by the calls that its block has made: the sandbox ends a
    block that makes more than it may, and one that is told to stop."""
    made = 0 if effect.block is not None else int(effect.session.removeprefix("s"))
    out = "ends, prints 'out'"
    yield Tried(f"code: {out}", CodeStepped(session="s0", printed="out"), out)
    if effect.answer is not None and effect.answer.stop:
        return
    yield Tried("code: NameError", CodeStepped(session="s0", error="NameError: x"), "NameError")
    late = CodeStepped(session=effect.before, error="Timeout", fatal=True)
    yield Tried("code: out of time", late, "out of time")
    for name in effect.names if made < effect.limits.calls else ():
        for args in ((), ("x",)):
            step = CodeStepped(session=f"s{made + 1}", call=CodeCall(name=name, args=args))
            yield Tried(f"code: calls {name}({', '.join(args)})", step)
    gone = EffectFailed(error="fatal", type="Sandbox", message="it is gone")
    yield Tried("code: fatal", gone, "fatal")
