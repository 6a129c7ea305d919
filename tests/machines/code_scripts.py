"""Runs of the code machine: one list of answers is one run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from activities.contracts import (
    Answers,
    CodeCall,
    CodeStepped,
    EffectFailed,
    MachineEnded,
    ModelReplied,
    ToolSpec,
)
from tests.machines.answers import cut, failed, person, ran, replied
from tests.machines.play import Played, Reaction, play, program_of, tool
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import Extensions
from workflows.machines.code import MACHINE

SEARCH = tool(
    "search",
    parameters={
        "type": "object",
        "properties": {"pattern": {"type": "string"}, "limit": {"type": "integer"}},
    },
)


def code(
    *answers: Reaction,
    tools: Iterable[ToolSpec] = (SEARCH,),
    extensions: Extensions | None = None,
    ledger: Ledger | None = None,
    input: Mapping[str, Any] | None = None,
    **options: Any,
) -> Played:
    """A run that gets these answers; `input` are fields of its RunInput."""
    extensions = extensions or Extensions()
    program = program_of(MACHINE, options, tools=tools, extensions=extensions, **(input or {}))
    # A policy that counts how often it is asked must not see a visit run again.
    return play(program, answers, ledger=ledger, both_ways=not extensions.policies)


def fences(*blocks: str, after: str = "") -> str:
    """A reply with these blocks."""
    return "\n".join([*(f"```repl\n{source}\n```" for source in blocks), *([after] if after else [])])


def block(*blocks: str, after: str = "", cost: float = 0) -> ModelReplied:
    """The model replies with these blocks, and with these words after them."""
    return replied(fences(*blocks, after=after), cost)


def ended(printed: str = "", session: str = "s1", **more: Any) -> CodeStepped:
    """A block ended."""
    return CodeStepped(session=session, printed=printed, **more)


def broke(error: str, printed: str = "", session: str = "s1", **more: Any) -> CodeStepped:
    """A block ended with an error."""
    return CodeStepped(session=session, printed=printed, error=error, **more)


def calls(name: str, *args: Any, printed: str = "", session: str = "s1", **named: Any) -> CodeStepped:
    """A block waits for this call."""
    return CodeStepped(session=session, printed=printed, call=CodeCall(name=name, args=args, named=named))


def together(*answers: ModelReplied | MachineEnded | EffectFailed) -> Answers:
    """Sub-queries that were asked side by side got these answers."""
    return Answers(answers=answers)


def child(answer: str | None = None, *, ok: bool = True, **more: Any) -> MachineEnded:
    """A sub-query's own run ended."""
    return MachineEnded(**{"machine": "code", "ok": ok, "exit_reason": "stop", "answer": answer, **more})


LOST = broke("NameError: name 'x' is not defined")
ASKS = (block("llm_query('a')"), calls("llm_query", "a"))
BATCH = (block("..."), calls("llm_query_batched", ["a", "b"]))
USES = (block("..."), calls("search", "x"))


@dataclass(frozen=True)
class Script:
    """One run, and how it ends."""

    name: str
    answers: tuple[Reaction, ...]
    path: str
    """The states by their first letters, such as PROMPTING, EXECUTING, CONCLUDING; `.` is DONE."""
    reason: str
    answer: str | None = None
    told: str = ""
    """How the newest message of the last question begins."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def run(self) -> Played:
        """Play it."""
        return code(*self.answers, **self.options)


ONCE: dict[str, Any] = {"max_iterations": 1}
SHALLOW: dict[str, Any] = {"max_depth": 0}
ERROR_IS_ANSWER: dict[str, Any] = {"final_var_missing": "answer"}
ONE_DOLLAR: dict[str, Any] = {"policies": [{"type": "max_cost", "value": 1}]}
NESTED: dict[str, Any] = {"nested": "always"}
NO_BLOCK = "There is no repl block in that"
NO_VARIABLE = "FINAL_VAR gives no answer: NameError: name 'x' is not defined"

SCRIPTS = (
    # the answer (2.2, 2.3)
    Script("answers at once", (replied("Well.\nFINAL(42)"),), "IP.", "stop", "42"),
    Script("looks first", (block("print(context)"), ended("data"), replied("FINAL(42)")),
           "IPECP.", "stop", "42",
           "Code:\n```repl\nprint(context)\n```\nOutput:\ndata"),
    Script("looks and answers in one reply", (block("x = 1", after="FINAL(1)"), ended()),
           "IPEC.", "stop", "1"),
    Script("an empty FINAL is the whole reply", (replied("So:\nFINAL()"),), "IP.", "stop", "So:\nFINAL()"),
    Script("a variable is printed and stripped",
           (block("x = 1"), ended(), replied("FINAL_VAR(x)"), ended(" 1\n")), "IPECPC.", "stop", "1"),
    Script("a variable beside blocks", (block("x = 1", after="FINAL_VAR('x')"), ended(), ended("1")),
           "IPEC.", "stop", "1"),
    Script("an empty variable is the whole reply", (replied("FINAL_VAR(x)"), ended(" \n")),
           "IPC.", "stop", "FINAL_VAR(x)"),
    Script("output beats an error", (replied("FINAL_VAR(x)"), broke("Oops: later", printed="1")),
           "IPC.", "stop", "1"),
    Script("an answer in a cut reply counts", (cut(replied("FINAL(42)\nAnd so")),), "IP.", "stop", "42"),
    # replies that say nothing useful use up an iteration
    Script("neither block nor answer", (replied("hm"), replied("FINAL(42)")),
           "IPCP.", "stop", "42", NO_BLOCK),
    Script("an empty reply", (replied(""), replied("FINAL(42)")), "IPCP.", "stop", "42", NO_BLOCK),
    Script("a block without end", (replied("```repl\nx = 1"), replied("FINAL(42)")), "IPCP.", "stop", "42",
           "The last repl block has no end"),
    Script("a cut reply", (cut(replied("It is")), replied("FINAL(42)")),
           "IPCP.", "stop", "42", "Your reply was cut"),
    Script("an empty block needs no sandbox", (block(""), replied("FINAL(42)")), "IPECP.", "stop", "42",
           "Code:\n```repl\n\n```\nOutput:\n(nothing was printed)"),
    # R-001-3: an unknown variable
    Script("R-001-3 unknown variable", (replied("FINAL_VAR(x)"), LOST, replied("FINAL(42)")),
           "IPCP.", "stop", "42",
           NO_VARIABLE),
    Script("R-001-3 unknown variable beside blocks",
           (block("1", after="FINAL_VAR(x)"), ended(), LOST, replied("FINAL(42)")), "IPECP.", "stop", "42",
           NO_VARIABLE),
    Script("R-001-3 unknown variable of a reply that was cut",
           (cut(block("1", after="FINAL_VAR(x)")), ended(), LOST, replied("FINAL(42)")), "IPECP.", "stop",
           "42", "Your reply was cut"),
    Script("R-001-3 no variable's name", (replied("FINAL_VAR(x + 1)"), replied("FINAL(42)")),
           "IPCP.", "stop", "42",
           "FINAL_VAR gives no answer: 'x + 1' is not the name of a variable"),
    Script("R-001-3 the error is the answer", (replied("FINAL_VAR(x)"), LOST), "IPC.", "stop",
           "NameError: name 'x' is not defined", options=ERROR_IS_ANSWER),
    Script("R-001-3 the error is the answer beside blocks",
           (block("1", after="FINAL_VAR(x)"), ended(), LOST), "IPEC.", "stop",
           "NameError: name 'x' is not defined", options=ERROR_IS_ANSWER),
    Script("a variable too long for an answer",
           (replied("FINAL_VAR(x)"), ended("a" * 1_000_000, left_out=234), replied("FINAL(1)")),
           "IPCP.", "stop", "1",
           "FINAL_VAR gives no answer: it has 1,000,234 characters"),
    Script("the next reply names it again",
           (replied("FINAL_VAR(x)"), LOST, block("x = 1", after="FINAL_VAR(x)"), ended(), ended("1")),
           "IPCPEC.", "stop", "1"),
    # FINAL and FINAL_VAR inside a block (R-001-5)
    Script("R-001-5 a text FINAL in a block is code", (block("FINAL('x')"), ended(), replied("FINAL(42)")),
           "IPECP.", "stop", "42", "Code:"),
    Script("FINAL ends the block and the reply", (block("FINAL(x)", "2", after="FINAL(3)"),
           calls("FINAL", {"é": [1, None]}), ended("printed")), "IPE.", "stop", '{"é": [1, null]}'),
    Script("FINAL of a block that then fails", (block("."), calls("FINAL", 42), broke("Timeout", fatal=True)),
           "IPE.", "stop", "42"),
    Script("FINAL_VAR of a block", (block("."), calls("FINAL_VAR", " 'x' "), ended(), ended("1\n")),
           "IPE.", "stop", "1"),
    Script("FINAL_VAR of a value", (block("."), calls("FINAL_VAR", 42), ended()), "IPE.", "stop", "42"),
    Script("R-001-3 FINAL_VAR of a block, unknown",
           (block(".", "2"), calls("FINAL_VAR", "x"), ended(), LOST, ended("two"), replied("FINAL(42)")),
           "IPEECP.", "stop", "42", "Code:\n```repl\n2\n```\nOutput:\ntwo"),
    # calls of blocks (2.4)
    Script("a sub-query", (*ASKS, replied("b"), ended("b"), replied("FINAL(b)")), "IPECP.", "stop", "b"),
    Script("a batch, one in vain",
           (*BATCH, together(replied("A"), failed()), ended("ok"), replied("FINAL(1)")),
           "IPECP.", "stop", "1"),
    Script("a sub-query is a run", (*ASKS, child("A"), ended("A"), replied("FINAL(A)")),
           "IPECP.", "stop", "A",
           options=NESTED),
    Script("tools", (block("search('x')"), calls("search", "x"), ran("[1]"), calls("search", limit=1),
           ran("no", "failed"), broke("RuntimeError: no"), replied("FINAL(no)")), "IPECP.", "stop", "no",
           "Code:\n```repl\nsearch('x')\n```\nOutput:\nRuntimeError: no"),
    # the last iteration
    Script("all iterations are used", (block("1"), ended(), replied("I think 42.")),
           "IPEC.", "max_iterations",
           "I think 42.", "All replies are used", ONCE),
    Script("the extra reply has FINAL", (replied("hm"), replied("So:\nFINAL(42)")),
           "IPC.", "max_iterations", "42",
           "All replies are used", ONCE),
    Script("code of the extra reply is not run", (replied("hm"), block("FINAL(1)")), "IPC.", "max_iterations",
           fences("FINAL(1)"), options=ONCE),
    Script("a variable of the extra reply stays text", (replied("hm"), replied("FINAL_VAR(x)\nFINAL(1)")),
           "IPC.", "max_iterations", "FINAL_VAR(x)\nFINAL(1)", options=ONCE),
    Script("the last allowed reply needs no extra call",
           (replied("hm"), block("1", after="FINAL(42)"), ended()), "IPCPEC.", "stop", "42",
           options={"max_iterations": 2}),
    # shallow calls
    Script("nested too deep for code", (replied("So:\nFINAL(42)"),),
           "IS.", "shallow", "42", "find out", SHALLOW),
    Script("a shallow FINAL_VAR stays text", (replied("FINAL_VAR(x)\nFINAL(1)"),), "IS.", "shallow",
           "FINAL_VAR(x)\nFINAL(1)", options=SHALLOW),
    Script("a shallow block stays text", (block("print(1)"),), "IS.", "shallow", fences("print(1)"),
           options=SHALLOW),
    # R-001-2: other ends
    Script("R-001-8 a policy stops before blocks", (block("1", after="FINAL(1)", cost=2),),
           "IP.", "policy_stop",
           "[Stopped by custom policy]", options=ONE_DOLLAR),
    Script("R-001-8 a policy stops after blocks", (*ASKS, replied("b", 2), ended()), "IPEC.", "policy_stop",
           "[Stopped by custom policy]", options=ONE_DOLLAR),
    Script("the first question fails", (failed("transient"),), "I.", "failed"),
    Script("the shallow question fails", (failed(),), "IS.", "failed", options=SHALLOW),
    Script("a later question fails", (block("1"), ended(), failed()), "IPEC.", "failed"),
    Script("the sandbox fails", (block("1"), failed()), "IPE.", "failed"),
    Script("the sandbox fails for a variable", (replied("FINAL_VAR(x)"), failed()), "IPC.", "failed"),
    Script("the outcome of a tool is unknown", (*USES, ran("lost", "unknown_outcome")), "IPE.", "failed"),
    # people
    Script("a message joins the next question",
           (block("1"), person("hurry"), ended("1"), replied("FINAL(1)")), "IPECP.", "stop", "1", "hurry"),
)  # fmt: skip

REPLIES = (
    block("print(context)"),
    block("a = llm_query('x')", "search('y')"),
    block("x = 1", "", after="FINAL_VAR(x)"),
    block("", "x = 1", after="FINAL(it's 1)"),
    replied("FINAL_VAR(x)"),
    replied("FINAL(42)", cost=0.1),
    replied("hm"),
    replied("```repl\nno end"),
    cut(replied("It is")),
    failed("transient"),
)
STEPS = (
    ended("1"),
    ended("long " * 9_000, left_out=7),
    broke("ValueError: bad", "one"),
    calls("llm_query", "x"),
    calls("llm_query", 1),
    calls("llm_query_batched", ["x", "y", "z"]),
    calls("llm_query_batched", prompts="x"),
    calls("search", "x"),
    calls("search", "x", 1, 2),
    calls("FINAL_VAR", "x y"),
    failed("fatal"),
)
SUB_ANSWERS = (replied("b"), failed("transient"), failed("unknown_outcome"))
