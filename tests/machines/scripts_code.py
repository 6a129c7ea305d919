"""Scripts of the code machine: together they take every row of its table."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from activities.contracts import Effect, EffectFailed, MachineEnded, ModelReplied, ModelsReplied, RunMachine
from activities.contracts_code import CodeCall, CodeStepped, RunCode
from tests.machines.answers import failed, said, tool_failed, tool_said
from tests.machines.script import Script

__all__ = ["REPLIES", "SCRIPTS", "answers", "block", "broke", "calls", "ran", "together", "wrote"]


def wrote(*blocks: str, before: str = "", behind: str = "") -> str:
    """A reply with these blocks between words."""
    fences = [f"```repl\n{source}\n```" for source in blocks]
    return "\n".join([before, *fences, behind]).strip("\n")


def block(*blocks: str, cost: float = 0, behind: str = "") -> Any:
    """The model replied with these blocks."""
    return said(wrote(*blocks, behind=behind), cost)


def ran(printed: str = "", session: str = "s1", **more: Any) -> Any:
    """A block came to its end."""
    return CodeStepped(session=session, printed=printed, **more)


def broke(error: str, printed: str = "", session: str = "s1", **more: Any) -> Any:
    """A block ended with an error."""
    return CodeStepped(session=session, printed=printed, error=error, **more)


def calls(name: str, *args: Any, printed: str = "", session: str = "s1", **named: Any) -> Any:
    """A block waits for a call."""
    call = CodeCall(name=name, args=args, named=named)
    return CodeStepped(session=session, printed=printed, call=call)


def together(*replies: Any) -> Any:
    """Models that were asked side by side replied so."""
    return ModelsReplied(replies=replies)


LOST: Any = broke("NameError: name 'x' is not defined")

SCRIPTS = (
    Script("answers at once", (said("FINAL(42)"),)),
    Script("looks first", (block("print(context)"), ran("data"), said("It is clear.\nFINAL(42)"))),
    Script("looks and answers in one reply", (block("x = 1", behind="FINAL(1)"), ran())),
    Script("answers with a variable", (block("x = 1"), ran(), said("FINAL_VAR(x)"), ran("1\n"))),
    Script("says nothing to do", (said("hm"), said("FINAL(42)"))),
    Script("names no variable", (said("FINAL_VAR(x)"), LOST, said("FINAL(42)"))),
    Script("names nothing at all", (said("FINAL_VAR(x + 1)"), said("FINAL(42)"))),
    Script("is nested too deep", (said("FINAL(42)"),), {"max_depth": 0}),
    Script("is nested too deep, alone", (failed("fatal"),), {"max_depth": 0}),
    Script("cannot be reached", (failed("transient"),)),
    Script("loses its model", (block("1"), ran(), failed("fatal"))),
    Script("loses its sandbox", (block("1"), failed("fatal"))),
    Script("loses its sandbox at the end", (said("FINAL_VAR(x)"), failed("fatal"))),
    Script(
        "queries a model",
        (
            block("y = llm_query('a')", "2"),
            calls("llm_query", "a"),
            said("b"),
            ran("b"),
            ran(),
            said("FINAL(b)"),
        ),
    ),
    Script(
        "queries many, one in vain",
        (
            block("llm_query_batched(['a', 'b'])"),
            calls("llm_query_batched", ["a", "b"]),
            together(said("A"), failed("fatal")),
            calls("FINAL", 1),
            ran(),
        ),
    ),
    Script(
        "queries runs of their own",
        (
            block("llm_query('a')"),
            calls("llm_query", "a"),
            MachineEnded(machine="code", ok=True, exit_reason="shallow", answer="A"),
            calls("FINAL_VAR", "x"),
            ran(),
            ran("1"),
        ),
        {"nested": "always"},
    ),
    Script(
        "uses tools",
        (
            block("tool('x')"),
            calls("tool", "x"),
            tool_said("[1]"),
            calls("tool", q="y"),
            tool_failed("failed"),
            broke("RuntimeError: broken"),
            said("FINAL(no)"),
        ),
    ),
    Script("loses a tool", (block("tool()"), calls("tool"), tool_failed("unknown_outcome"))),
    Script(
        "takes all its iterations",
        (block("1"), ran(), block("2"), ran(), said("I do not know.")),
        {"max_iterations": 2},
    ),
    Script("answers at the last call", (said("hm"), said("FINAL(42)")), {"max_iterations": 1}),
    Script("spends too much", (block("1", cost=2),), {"policies": [{"type": "max_cost", "value": 1}]}),
    Script(
        "spends too much in a block",
        (block("llm_query('a')"), calls("llm_query", "a"), said("b", cost=2), ran()),
        {"policies": [{"type": "max_cost", "value": 1}]},
    ),
    Script(
        "leaves old messages out",
        (*[said("hm")] * 4, said("FINAL(42)")),
        {"compression": {"window_tokens": 1000, "at": 0.0001, "keep_last": 2, "least": 4}},
    ),
)

REPLIES = st.sampled_from(
    [
        block("print(context)"),
        block("a = llm_query('x')", "tool('y')"),
        block("x = 1", "", behind="FINAL_VAR(x)"),
        block("", "x = 1", behind="FINAL(it's 1)"),
        said("FINAL_VAR(x)"),
        said("FINAL(42)", cost=0.1),
        said("hm"),
        said("```repl\nnever closed"),
        ModelReplied(text="It is", finish_reason="length"),
    ]
)
"""What a model may say in random runs."""

_CALLS = st.sampled_from(
    [
        CodeCall(name="llm_query", args=("x",)),
        CodeCall(name="llm_query", args=("x", "default")),
        CodeCall(name="llm_query", args=(1,)),
        CodeCall(name="llm_query_batched", args=(["x", "y", "z"],)),
        CodeCall(name="llm_query_batched", named={"prompts": "x"}),
        CodeCall(name="FINAL", args=({"a": [1, None]},)),
        CodeCall(name="FINAL_VAR", args=("x",)),
        CodeCall(name="FINAL_VAR", args=("x y",)),
        CodeCall(name="tool", args=("x",)),
        CodeCall(name="tool", args=("x", "y")),
    ]
)


def answers(effect: Effect) -> st.SearchStrategy[Any] | None:
    """Any answer to the effects that only this machine asks for."""
    failures = st.sampled_from([failed("transient"), failed("fatal"), failed("unknown_outcome")])
    if isinstance(effect, RunMachine):
        return st.one_of(st.builds(_ended, st.booleans(), st.none() | st.text(max_size=5)), failures)
    if not isinstance(effect, RunCode):
        return None
    ends = st.builds(_stepped, st.none() | _CALLS, st.text(max_size=30), st.none() | st.text(max_size=9))
    return st.one_of(ends, ends, ends, ends, failures)


def _ended(ok: bool, answer: str | None) -> MachineEnded | EffectFailed:
    return MachineEnded(machine="code", ok=ok, exit_reason="stop" if ok else "failed", answer=answer)


def _stepped(call: CodeCall | None, printed: str, error: str | None) -> CodeStepped:
    return CodeStepped(session="s2", call=call, printed=printed, error=None if call else error)
