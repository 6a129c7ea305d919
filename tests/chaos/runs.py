"""The runs of chaos: over all shipped machines, each with a list of things to do, and an honest model.

The model looks into the conversation for what is done already, and asks for the next thing on the list. So
it tries again what failed, and what it says follows from what it was shown alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from activities.contracts import ModelSpec
from tests.fake_openai import Answer
from workflows.api import AgentTask

__all__ = ["DONE", "KINDS", "answer_of", "expected_answer", "lines_of", "names_in", "reply", "task_of"]

TOOLS = ("pay", "send", "mark", "move", "tell")
JOBS: dict[str, tuple[tuple[str, ...], ...]] = {
    "react": (("pay",), ("send",), ("mark",), ("move",)),
    "tools": (("pay", "mark"), ("send",), ("move", "pay"), ("mark",)),
    "code": (("pay", "send", "mark", "move"), ("pay", "send")),
    "staged": (("pay", "mark"), ("send", "move")),
    "planner": (("mark", "pay"), ("send",), ("move",)),
    "simple": (("pay",), ("move",), ("send",), ("mark",)),
    "contract": (("pay",), ("send",), ("mark",), ("move",)),
    "nested": (("pay",), ("send", "move")),
    "long": (("pay", "mark"), ("send",), ("mark",), ("move",)) * 3,
    "rolled": (("pay",), ("send",), ("move",), ("mark",), ("pay",), ("mark",)),
}
"""Which calls a run of each kind makes, reply by reply; `nested` twice, in two inner runs side by side."""
KINDS = tuple(JOBS)
NAME = re.compile(rf"\bfor ((?:{'|'.join(JOBS)})-\w+)")
DONE = re.compile(rf"done ((?:{'|'.join(JOBS)})-\w+\.\d+)")
"""Also where a line ends before it, which is two characters in JSON."""
LONG_OUTPUT = 20_000
"""Characters: more than history holds, and more than a model is shown."""


def names_in(kind: str, name: str) -> tuple[str, ...]:
    """The names of the runs that do the work of this one."""
    return (f"{name}a", f"{name}b") if kind == "nested" else (name,)


def lines_of(name: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Tool and line of each call of this run, reply by reply. The name says the kind: `react-7`."""
    found, number = [], 0
    for group in JOBS[name.partition("-")[0]]:
        found.append(tuple((tool, f"{name}.{number + n}") for n, tool in enumerate(group)))
        number += len(group)
    return tuple(found)


def answer_of(name: str) -> str:
    """What a run says in the end."""
    return f"all is finished for {name}"


def expected_answer(name: str) -> str:
    """The whole answer of a run."""
    kind = name.partition("-")[0]
    before = "stop: " if kind == "nested" else ""
    return "\n".join(f"{before}{answer_of(one)}" for one in names_in(kind, name))


def _model(form: str, seconds: float) -> ModelSpec:
    return ModelSpec(provider="openai", name=form, timeout_seconds=seconds)


STAGES = [
    {"name": "think", "flow_type": "think", "enters": "Thinking", "exits": ["Acting", "Observing"]},
    {"name": "act", "flow_type": "act", "enters": "Acting", "exits": ["Observing"]},
    {"name": "observe", "flow_type": "observe", "enters": "Observing", "exits": ["Finished", "Thinking"]},
]
SLOT = {"name": "answer", "budget": {"explore": 60, "exploit": 60, "render": 60, "ctx_reads": 60}}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "react": {"max_steps": 60},
    "tools": {"max_iterations": 90},
    "code": {"max_iterations": 60},
    "staged": {"max_iterations": 40, "stages": STAGES},
    "planner": {"max_iterations": 60},
    "simple": {"mode": "simple", "max_iterations": 60},
    "contract": {"slots": [SLOT], "caps": {"decision_rounds": 80, "tool_calls": 80, "exploit": 80}},
}
ROLES = {
    "code": {"default": "code", "sub": "word"},
    "staged": {"default": "observe", "think": "think", "act": "act", "observe": "observe"},
}
MACHINES = {"simple": "planner", "nested": "nester", "long": "tools", "rolled": "tools"}


def task_of(kind: str, name: str, seconds: float = 12, **more: Any) -> AgentTask:
    """A run of this kind. Unsafe calls wait for a person; a model has these seconds to answer."""
    form = kind if kind in OPTIONS else "tools"
    options: Any = dict(OPTIONS[form])
    forms = ROLES.get(kind, {"default": form})
    if kind == "nested":
        inner = [
            {
                "machine": "tools",
                "goal": f"Do all for {one}",
                "give": list(TOOLS),
                "options": OPTIONS["tools"],
            }
            for one in names_in(kind, name)
        ]
        options = {"inner": inner, "together": True}
    given = {
        "goal": f"Do all for {name}", "machine": MACHINES.get(kind, kind), "options": options, "tools": TOOLS,
        "models": {role: _model(one, seconds) for role, one in forms.items()},
        "heartbeat_seconds": 3, "limits": {"model_calls": 400}, "people": {"on_trouble": "ask"},
    }  # fmt: skip
    return AgentTask.model_validate({**given, **more})


# -- the model --------------------


def reply(form: str, messages: Sequence[Mapping[str, Any]]) -> Answer:
    """What the model of this form says to these messages."""
    told = [str(one.get("content") or "") for one in messages if one["role"] != "assistant"]
    text = "\n".join(told)
    found = NAME.search(text)
    if found is None:
        return Answer("I do not know for whom")
    name = found[1]
    done = set(DONE.findall(text))
    left = [
        group
        for calls in lines_of(name)
        if (group := [(tool, line) for tool, line in calls if line not in done])
    ]
    return FORMS[form](name, left, text)


Left = list[list[tuple[str, str]]]


def _arguments(line: str) -> dict[str, Any]:
    number = int(line.rpartition(".")[2])
    return {"line": line, **({"chars": LONG_OUTPUT} if number == 2 else {})}


def _json(**said: Any) -> Answer:
    return Answer(json.dumps(said))


def _native(name: str, left: Left, text: str) -> Answer:
    """Native calls, all of a group at once."""
    if not left:
        return Answer(answer_of(name))
    calls = tuple(
        {"id": f"c{line}", "type": "function",
         "function": {"name": tool, "arguments": json.dumps(_arguments(line))}}
        for tool, line in left[0]
    )  # fmt: skip
    return Answer(tool_calls=calls, finish_reason="tool_calls")


def _react(name: str, left: Left, text: str) -> Answer:
    if not left:
        return _json(thought=f"FINAL ANSWER: {answer_of(name)}", action=None)
    tool, line = left[0][0]
    return _json(thought=f"next is {line}", action=tool, action_input=_arguments(line))


def _planner(name: str, left: Left, text: str) -> Answer:
    if "You make the plan" in text:
        return _json(goal=f"all for {name}", initial_steps=["do it"])
    return _native(name, left, text)


def _simple(name: str, left: Left, text: str) -> Answer:
    if not left:
        return _json(action="finish", params={"answer": answer_of(name)}, confidence=1)
    tool, line = left[0][0]
    return _json(action=tool, params=_arguments(line), confidence=1)


def _think(name: str, left: Left, text: str) -> Answer:
    known = _known(text)
    tools = sorted({tool for tool, _ in left[0]}) if left else []
    return _json(intent="change", suggested_tools=tools, reasoning=f"go on for {name}; {known}")


def _known(text: str) -> str:
    return ", ".join(f"done {line}" for line in sorted(set(DONE.findall(text)))) or "nothing yet"


def _observe(name: str, left: Left, text: str) -> Answer:
    last = "" if left else answer_of(name)
    return _json(summary=f"for {name}: {_known(text)}", final_answer=last, need_loop=bool(left))


def _code(name: str, left: Left, text: str) -> Answer:
    if not left:
        return Answer(f"FINAL({answer_of(name)})")
    calls = "\n".join(
        f"print({tool}(line={line!r}, chars={_arguments(line).get('chars', 0)})[:200])"
        for tool, line in left[0]
    )
    return Answer(f'```repl\nprint(llm_query("a word for {name}"))\n{calls}\n```')


ARTIFACT = re.compile(r"^- (\w+)(@\S+)? \(\w+, \w+\) by \w+ in round \d+(.*)$", re.MULTILINE)


def _contract(name: str, left: Left, text: str) -> Answer:
    """What lies in the store need not be kept where the disk was full: the call was made nevertheless."""
    made = {
        f"{name}.{one[1][1:]}": one for one in ARTIFACT.finditer(text) if one[1].startswith("s")
        and (": error:" not in one[3] or "kept" in one[3])
    }  # fmt: skip
    todo = [call for group in left for call in group if call[1] not in made]
    if todo:
        tool, line = todo[0]
        return _wanted(tool, f"s{line.rpartition('.')[2]}", _arguments(line))
    answers = [one for one in ARTIFACT.finditer(text) if one[1] == "answer" and ": error:" not in one[3]]
    if not answers:
        return _wanted("tell", "answer", {"line": answer_of(name)})
    found = answers[-1][1] + (answers[-1][2] or "")
    return _json(
        action="complete", strategy="exit", completion_summary=answer_of(name),
        map_slots=[{"slot_name": "answer", "source_path": found}],
    )  # fmt: skip


def _wanted(tool: str, artifact: str, params: dict[str, Any]) -> Answer:
    call = {"tool_id": tool, "params": params, "out_artifacts_spec": [{"name": artifact}]}
    return _json(action="call_tool", strategy="explore", tool_call=call)


FORMS: Mapping[str, Callable[[str, Left, str], Answer]] = {
    "tools": _native, "act": _native, "react": _react, "planner": _planner, "simple": _simple,
    "think": _think, "observe": _observe, "code": _code, "contract": _contract,
    "word": lambda name, left, text: Answer("yes"),
}  # fmt: skip
"""How each model writes what it wants."""
