"""One block of code: to its next call outside, the call, and on with its answer, to its end (spec 2.4).

A block lives as long as its visit. Every call is an effect of its own, so a worker that dies loses
nothing but the time since the last call. What a block does wrong is told to the block. Only a sandbox
that fails and an unsafe tool with an unknown outcome end the run.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from activities.contracts import CodeAnswer, CodeCall, CodeStepped, MaterialRef
from workflows.machines.authoring import (
    AskModel,
    CallTools,
    Effect,
    EffectError,
    EffectFailed,
    ExecutionError,
    FatalError,
    Message,
    ModelReplied,
    Run,
    RunCode,
    RunMachine,
    Say,
    Together,
    ToolCall,
    do,
)
from workflows.machines.code.block_calls import (
    ANSWER_CHARS,
    BUILT_IN,
    CALL_SIZE,
    FINAL,
    FINAL_VAR,
    MANY,
    QUERIES,
    REPLY_BYTES,
    RUN_BYTES,
    BadCall,
    OfferedTool,
    answer_text,
    arguments,
    offered,
    only_value,
    questions,
)
from workflows.machines.code.context import Code
from workflows.machines.code.prompt import block_output, no_variable
from workflows.machines.code.reply import is_variable
from workflows.machines.common.json_text import cut
from workflows.machines.common.named_parts import call_user_function

__all__ = ["Block", "Doing", "OutcomeUnknown", "look_up"]

T = TypeVar("T")
Doing = Generator[Effect[Any], Any, T]
"""A part of a visit that gives a `T`."""

SIDE_BY_SIDE = 100
"""Sub-queries in one effect, so that no effect is very large."""


class OutcomeUnknown(ExecutionError):
    """Nobody knows whether an unsafe tool took effect; nothing is run again."""


class Block:
    """The next block of the reply, while it runs."""

    def __init__(self, c: Code, run: Run) -> None:
        self.source = c.blocks[c.next]
        self.name = f"{c.iteration + 1}.{c.next + 1}"
        """Of the run's second reply the first block is `2.1`."""
        self.session = c.session
        self.sent = 0
        """Bytes that its calls have sent outside and got back."""
        self.answer: str | None = None
        """Given by `FINAL`."""
        self.variable: str | None = None
        """Named by `FINAL_VAR`."""
        self._c, self._run = c, run
        self._tools = {tool.name: tool for tool in offered(run.input.tools)}
        self._steps = self._calls = 0
        self._printed: list[str] = []
        self._cut = 0
        self._error: str | None = None

    @property
    def output(self) -> str:
        """What the model is shown of it."""
        return block_output("".join(self._printed), self._cut, self._error)

    def run_to_end(self) -> Doing[None]:
        """Run it with all its calls. Raises OutcomeUnknown, and EffectError for a sandbox that fails."""
        if not self.source:
            return
        stepped = yield from self._step(block=self.source)
        while stepped.call is not None:
            answer = yield from self._answer(stepped.call)
            stepped = yield from self._step(answer=answer)

    def _step(self, **what: Any) -> Doing[CodeStepped]:
        """Begin the block, or go on with it; its output is cut over all steps together."""
        self._steps += 1
        stepped = yield from do(sandbox(
            self._c, self._run, self.session, **what, before=self._c.session,
            names=(*BUILT_IN, *self._tools),
            label=f"run block {self.name}" + (f", step {self._steps}" if self._steps > 1 else ""),
        ))  # fmt: skip
        room = self._run.options.block.output_chars - sum(map(len, self._printed))
        self._printed.append(stepped.printed[: max(room, 0)])
        self._cut += stepped.left_out + max(len(stepped.printed) - max(room, 0), 0)
        self.session, self._error = stepped.session, stepped.error
        return stepped

    # -- its calls --------------------

    def _answer(self, call: CodeCall) -> Doing[CodeAnswer]:
        """What the block gets for its call: a value, or an error that is raised inside it."""
        try:
            if call.name in QUERIES:
                return (yield from self._query(call))
            if call.name in (FINAL, FINAL_VAR):
                return self._end(call)
            return (yield from self._use(self._tools[call.name], call))
        except BadCall as bad:
            # A sub-query never raises inside the block (2.4).
            return CodeAnswer(value=f"Error: {bad}") if call.name in QUERIES else CodeAnswer(error=str(bad))

    def _end(self, call: CodeCall) -> CodeAnswer:
        value = only_value(call)
        if call.name == FINAL_VAR and isinstance(value, str):
            self.variable = value.strip().strip("'\"").strip()
        else:
            self.answer = answer_text(value)
        return CodeAnswer(stop=True)

    def _use(self, tool: OfferedTool, call: CodeCall) -> Doing[CodeAnswer]:
        given = arguments(call, tool.parameters)
        bytes = size(json.dumps(call.model_dump(mode="json"), ensure_ascii=False))
        if bytes > CALL_SIZE:
            raise BadCall(
                f"{call.name}: the arguments have {bytes:,} bytes, at most {CALL_SIZE:,} are allowed"
            )
        self._send(bytes)
        self._calls += 1
        use = ToolCall(id=f"{self.name}.{self._calls}", tool=tool.tool, arguments=given)
        attempts = self._run.options.max_tool_attempts
        try:
            returned = yield from do(CallTools(calls=(use,), attempts=attempts, label=f"tool {use.id}"))
        except EffectError as error:
            return CodeAnswer(error=_failure(error))
        result = returned.results[0]
        if result.error == "unknown_outcome":
            raise OutcomeUnknown(result.output)
        if result.error:
            return CodeAnswer(error=result.output or result.error)
        self.sent += size(result.output)
        return CodeAnswer(value=result.output, whole=result.whole, parse=True)

    def _query(self, call: CodeCall) -> Doing[CodeAnswer]:
        """Sub-queries, those of a batch side by side. A failure is a text, too (2.4)."""
        (prompts, role), most = questions(call), self._run.options.block.calls
        if self._calls + len(prompts) > most:
            raise BadCall(f"more than {most:,} calls in one block; use several blocks")
        self._send(sum(map(size, prompts)))
        texts: list[str] = []
        for first in range(0, len(prompts), SIDE_BY_SIDE):
            texts += yield from self._ask(prompts[first : first + SIDE_BY_SIDE], role)
        self.sent += sum(map(size, texts))
        return CodeAnswer(value=list(texts) if call.name == MANY else texts[0])

    def _ask(self, prompts: Sequence[str], role: str) -> Doing[list[str]]:
        effects = [self._question(n, prompt, role) for n, prompt in enumerate(prompts, self._calls + 1)]
        label = f"llm_query {self._calls + 1}-{self._calls + len(prompts)}"
        self._calls += len(prompts)
        answers: Sequence[Any]
        try:
            if len(effects) == 1:
                answers = [(yield effects[0])]
            else:
                answers = (yield from do(Together(effects=tuple(effects), label=label))).answers
        except EffectError as error:
            return [f"Error: {_failure(error)}"] * len(effects)
        return [_text(answer) for answer in answers]

    def _question(self, number: int, prompt: str, role: str) -> AskModel | RunMachine:
        run, label = self._run, f"llm_query {number}: {' '.join(prompt[:80].split())}"
        if self._nests(prompt):
            nested = run.options.nested
            return RunMachine(
                machine=nested.machine,
                goal=prompt,
                options=run.prepared.nested_options,
                give=run.input.tool_names if nested.tools is None else nested.tools,
                roles={"default": role},
                limits=nested.limits,
                label=label,
            )
        return AskModel(
            beside=True,
            say=(Message(role="user", content=prompt),),
            role=role,
            attempts=run.options.max_model_attempts,
            refusal="raises",
            label=label,
        )

    def _nests(self, prompt: str) -> bool:
        """This prompt becomes a run with depth + 1; where that is too deep for code, it answers at once.

        Raises what the policy raises if it is a KernelError; for any other failure a FatalError.
        """
        name = f"nested policy {self._run.options.nested.policy}"
        nests = call_user_function(name, self._run.prepared.nests, prompt, self._run.input.depth)
        if not isinstance(nests, bool):
            raise FatalError(f"the {name} answered {nests!r}; expected True or False")
        return nests

    def _send(self, more: int) -> None:
        """Count these bytes. Raises BadCall if they are too many for one reply's blocks, or for the run."""
        for before, most, whose, advice in (
            (self._c.reply_bytes, REPLY_BYTES, "one reply", "go on in the next reply, with shorter texts"),
            (self._c.run_bytes, RUN_BYTES, "a run", "answer with what you have"),
        ):
            if (used := before + self.sent) + more > most:
                raise BadCall(
                    f"the calls of {whose} may send and bring {most:,} bytes in all; {used:,} are used, "
                    f"this call needs {more:,}; {advice}"
                )
        self.sent += more


def size(text: str) -> int:
    """Bytes in UTF-8."""
    return len(text.encode("utf-8", "replace"))


def _text(answer: Any) -> str:
    """The text of a ModelReplied, MachineEnded or EffectFailed. Raises OutcomeUnknown."""
    if isinstance(answer, ModelReplied):
        return answer.text
    if isinstance(answer, EffectFailed):
        return f"Error: {_failure(answer)}"
    if answer.exit_reason == "unknown_outcome" or answer.outcome.get("unknown_outcome") is True:
        what = answer.error or f"the outcome of a tool of {answer.machine} is unknown"
        raise OutcomeUnknown(f"the run of a sub-query ended: {what}")
    return answer.answer if answer.answer is not None else f"Error: {answer.error or answer.exit_reason}"


def _failure(failure: EffectError | EffectFailed) -> str:
    """What went wrong, in words for the block. Raises OutcomeUnknown."""
    text = f"{failure.type}: {failure.message}"
    if failure.error == "unknown_outcome":
        raise OutcomeUnknown(text)
    return text


def sandbox(c: Code, run: Run, session: str, **what: Any) -> RunCode:
    """A step in the sandbox from this session on."""
    material = run.input.goal if run.input.material is None else run.input.material
    # A session holds a short text from its first block on; it need not travel again.
    needed = c.reaches or not session or isinstance(material, MaterialRef)
    common: dict[str, Any] = {
        "session": session,
        "constants": {"DEPTH": run.input.depth, "CORRELATION_ID": run.input.trace_id},
        "material": material if needed else None,
        "limits": run.options.block,
    }
    return RunCode(**{**common, **what})


# -- the value of a variable ----------------------------------------------------------------------


def look_up(c: Code, run: Run, name: str) -> Doing[str | None]:
    """The value of a variable, as the answer. None: there is none, and the model was told (R-001-3)."""
    value, session = None, c.session
    problem = f"{cut(name)!r} is not the name of a variable; to answer with a value, use FINAL(value)"
    if is_variable(name):
        stepped = yield from do(sandbox(
            c, run, session, before=session, block=f"print({name})", label=f"look up {name}",
            # Nothing outside may be called: a block may have replaced `print`.
            names=(), limits=run.options.block.model_copy(update={"output_chars": ANSWER_CHARS}),
        ))  # fmt: skip
        # Where it waits for a call, the session before it goes on.
        session = session if stepped.call else stepped.session
        value, problem = _printed_value(stepped)
    if value is None and run.options.final_var_missing == "answer":
        return problem
    if value is None:
        yield Say(say=(no_variable(problem),), keep={"session": session})
    return value


def _printed_value(stepped: CodeStepped) -> tuple[str | None, str]:
    """The value, or None and why there is none (spec 2.3)."""
    printed = stepped.printed.strip()
    if stepped.call is not None:
        return None, f"to print it, {stepped.call.name} would have to be called, which is not done here"
    if stepped.left_out:
        chars, most = len(stepped.printed) + stepped.left_out, f"{ANSWER_CHARS:,}"
        return None, f"it has {chars:,} characters, at most {most} are allowed; give a shorter answer"
    if stepped.error is not None and not printed:
        return None, stepped.error.strip()
    return printed, ""
