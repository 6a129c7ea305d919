"""Long scripts that together pass every kind of effect: one or two for each machine.

`test_same_log.py` runs each in memory, on the server and on replay; `record.py` records its history.
"""

from __future__ import annotations

import json
from typing import Any

from activities.contracts import ModelReplied, ToolSpec, Usage
from tests.machines import code_scripts, contract_scripts, staged_scripts
from tests.machines.answers import call, calls, failed, ran, replied
from tests.machines.play import tool
from tests.server.fakes import Scenario
from workflows.api import AgentTask

__all__ = ["SCENARIOS"]

LOOK = tool("look")
TOOL = tool("tool")
BROKEN = failed("transient", "the tool is gone", "HTTP503")


def _task(machine: str, *specs: ToolSpec, **more: Any) -> AgentTask:
    given = {"goal": "find out", "machine": machine, "tools": tuple(spec.name for spec in specs)}
    return AgentTask.model_validate({**given, **more})


# -- react: conversation, tools, a person --


def _act(action: str | None, words: str = "I look", **given: Any) -> ModelReplied:
    return replied(json.dumps({"thought": words, "action": action, "action_input": given}), 0.01)


REACT = Scenario(
    "react",
    _task("react", LOOK, options={"max_retries_before_human": 1}),
    (LOOK,),
    (
        replied("no JSON at all"),
        _act("look", q="x"),
        ran("it is x"),
        _act("look", q="y"),
        ran("it broke", "failed"),
        _act("dig", q="z"),
        _act(None, "I guess it is 42"),
        _act(None, "it might be 43"),
        _act("look", q="again"),
        ran("42"),
        _act(None, "FINAL ANSWER: 42"),
    ),
    "goal_achieved",
    (("resume", {"text": "look again"}),),
)

# -- tools: native calls, side by side and in order --

WRITE = tool("write", effect="unsafe")
TOOLS = Scenario(
    "tools",
    _task("tools", LOOK, WRITE, approvals={"effects": {"unsafe": "always"}}),
    (LOOK, WRITE),
    (
        calls(call("look", 1, q="a"), call("look", 2, q="b"), text="two at once"),
        ran("first"),
        ran("second", "failed"),
        calls(call("look", 3, q="c"), call("look", 4, q=["of the wrong type"])),
        ran("third"),
        calls(call("write", 5, q="old"), call("write", 6, q="never"), call("write", 7, q="ok")),
        ran("written"),
        ran("written too"),
        replied("all is done"),
    ),
    "stop",
    (
        ("edit", {"arguments": {"q": "new"}}),
        ("reject", {"text": "not this one"}),
        ("approve", {}),
    ),
)

# -- a conversation too long for the model: several summaries, one of which fails --


def _looked(*numbers: int, tokens: int) -> tuple[Any, ...]:
    """Calls and results; each question has 120 tokens more than the one before, the first so many."""
    found: list[Any] = []
    for more, number in enumerate(numbers):
        usage = Usage(input_tokens=tokens + 120 * more, output_tokens=9)
        found.append(calls(call("look", number, q=str(number))).model_copy(update={"usage": usage}))
        found.append(ran(f"{number} is grey. " + "dust " * 60))
    return tuple(found)


WINDOW = Scenario(
    "window",
    _task(
        "tools",
        LOOK,
        WRITE,
        approvals={"effects": {"unsafe": "always"}},
        options={"max_iterations": 30},
        models={"default": {"provider": "scripted", "window_tokens": 1500}},
    ),
    (LOOK, WRITE),
    (
        calls(call("write", 0, q="x")),
        *_looked(*range(1, 10), tokens=164),
        failed("recoverable", "it is busy", "busy"),
        *_looked(10, tokens=1240),
        replied("ten were grey", 0.02),
        *_looked(*range(11, 16), tokens=700),
        replied("so were five more", 0.02),
        *_looked(16, tokens=700),
        replied("all are grey"),
    ),
    "stop",
    (("reject", {"text": "never write"}),),
)

# -- code: blocks, sub-queries beside the conversation and side by side, tools; inner runs --

SEARCH = code_scripts.SEARCH
CODE = Scenario(
    "code",
    _task("code", SEARCH, material="one two three", options={"max_iterations": 6}),
    (SEARCH,),
    (
        code_scripts.block("print(context)", "llm_query('a')"),
        code_scripts.ended("one two three"),
        code_scripts.calls("llm_query", "a", printed="so "),
        replied("A"),
        code_scripts.ended("A", session="s2"),
        code_scripts.block("llm_query_batched(['a', 'b', 'c'])", after="FINAL_VAR(missing)"),
        code_scripts.calls("llm_query_batched", ["a", "b", "c"], session="s3"),
        replied("A", 0.02),
        failed("transient"),
        replied("C", 0.02),
        code_scripts.broke("ValueError: bad", session="s4"),
        code_scripts.broke("NameError: name 'missing' is not defined", session="s4"),
        code_scripts.block("search('x')"),
        code_scripts.calls("search", "x", session="s5"),
        ran("[1]"),
        code_scripts.calls("search", limit=1, session="s6"),
        ran("no", "failed"),
        code_scripts.ended("x = 1", session="s7"),
        replied("FINAL_VAR(x)"),
        code_scripts.ended(" 1\n", session="s8"),
    ),
    "stop",
)
NESTED = Scenario(
    "code_nested",
    _task("code", SEARCH, options={"nested": {"policy": "always", "tools": ["search"]}, "max_depth": 2}),
    (SEARCH,),
    (
        code_scripts.block("llm_query_batched(['a', 'b'])"),
        code_scripts.calls("llm_query_batched", ["a", "b"]),
        code_scripts.block("search('x')"),
        replied("FINAL(b)"),
        code_scripts.calls("search", "x", session="i1"),
        ran("[1]"),
        code_scripts.ended("1", session="i2"),
        replied("FINAL(a)"),
        code_scripts.ended("a, b", session="s2"),
        replied("FINAL(ab)"),
    ),
    "stop",
)

# -- staged: questions beside the conversation, a stage that is a machine --

INNER = {
    "flow_type": "machine",
    "enters": "Asking",
    "exits": ["Checking"],
    "machine": "react",
    "tools": ["tool"],
    "options": {"max_steps": 3},
    "merge": "extensions",
    "writes": ["extensions"],
}
STAGED = Scenario(
    "staged",
    _task(
        "staged",
        TOOL,
        options={
            "stages": staged_scripts.stages(
                observe={"exits": ["Asking", "Thinking"]}, inner=INNER, check=staged_scripts.CHECK
            ),
            "max_format_attempts": 2,
        },
    ),
    (TOOL,),
    (
        replied("no thought"),
        staged_scripts.TOOLS,
        calls(call("tool", 1, q="x"), call("tool", 2, q="y")),
        ran("found"),
        ran("lost", "failed"),
        staged_scripts.MORE,
        staged_scripts.NOTHING,
        staged_scripts.ANSWER,
        _act("tool", q="inside"),
        ran("it is inside"),
        _act(None, "FINAL ANSWER: inner"),
        staged_scripts.judged("Finished"),
    ),
    "answered",
)

# -- planner: with a plan, and one action at a time --

PLAN = {"goal": "find out", "required_capabilities": ["look"], "initial_steps": ["look"]}
PLANNER = Scenario(
    "planner",
    _task("planner", LOOK, options={"decide": "model", "on_tool_error": "record", "finalize_summary": True}),
    (LOOK,),
    (
        replied(json.dumps(PLAN), 0.01),
        replied(json.dumps({"continue": True, "reason": "worth it"})),
        calls(call("look", 1, q="a"), call("look", 2, q="b")),
        ran("found a"),
        ran("nothing", "failed"),
        calls(call("dig", 3, q="c")),
        replied("it is a"),
        replied("The summary: a."),
    ),
    "answered",
)
SIMPLE = Scenario(
    "planner_simple",
    _task("planner", LOOK, options={"mode": "simple", "on_tool_error": "record"}),
    (LOOK,),
    (
        replied(json.dumps({"action": "look", "params": {"q": "a"}, "confidence": 0.9})),
        ran('{"seen": 1}'),
        replied(json.dumps({"action": "look", "params": {"q": "b"}})),
        ran("gone", "failed"),
        replied(json.dumps({"action": "finish", "params": {"answer": "a"}})),
    ),
    "finished",
)

# -- contract: artifacts are made and read --

C = contract_scripts
CONTRACT = Scenario(
    "contract",
    _task(
        "contract",
        C.TOOL,
        options={
            "slots": [
                {"name": "answer", "budget": {"explore": 2, "exploit": 3, "ctx_reads": 3}},
                {"name": "other"},
            ]
        },
    ),
    (C.TOOL,),
    (
        replied("?"),
        C.call("found"),
        C.made("42"),
        C.rerun("found"),
        C.read,
        C.call("rows", strategy="exploit"),
        C.made({"name": "ann"}),
        C.call("broken"),
        ran("boom", "failed"),
        C.call(tool_id="nosuch"),
        C.done(("answer", "found"), ("other", "rows.name")),
        C.read,
    ),
    "complete",
)

# -- an answer that must be data, and is not at first --

FOUND = {"type": "object", "properties": {"found": {"type": "string"}}, "required": ["found"]}
TYPED = Scenario(
    "typed",
    _task("tools", LOOK, output=FOUND),
    (LOOK,),
    (
        calls(call("look", 1, q="a")),
        ran("first"),
        replied("it is x"),
        calls(call("look", 2, q="b")),
        ran("second"),
        replied('{"found": "x"}'),
    ),
    "stop",
)

SCENARIOS = (REACT, TOOLS, WINDOW, CODE, NESTED, STAGED, PLANNER, SIMPLE, CONTRACT, TYPED)
