"""Code mode's main ways on the real server."""

from __future__ import annotations

from typing import Any

from temporalio.client import Client, WorkflowHandle

from activities.contracts import ScriptedReply
from tests.workflows.trials import ALONE, FREELY, begin, scripted
from workflows.api import TASK_QUEUE, WORKFLOW_TYPE, AgentResult, AgentTask

__all__ = ["CONTEXT", "SCENARIOS", "code_task", "wrote"]

Handle = WorkflowHandle[Any, AgentResult]
CONTEXT = "".join(f"line {n}: the number is {n * n}\n" for n in range(1, 11))
SQUARE = ScriptedReply(expect=r"line (?P<n>\d+): the number is (?P<square>\d+)", reply="{n} -> {square}")
"""A sub-model that answers each line differently."""


def wrote(*blocks: str, behind: str = "") -> str:
    """A reply with these blocks."""
    return "\n".join([*(f"```repl\n{block}\n```" for block in blocks), behind])


def code_task(
    *replies: Any, sub: tuple[Any, ...] = (SQUARE,), tools: tuple[str, ...] = (), **options: Any
) -> AgentTask:
    """A run in code mode about ten lines, with a script for it and one for its sub-queries."""
    return AgentTask(
        goal="What are the numbers?",
        machine="code",
        context=CONTEXT,
        tools=tools,
        models={"default": scripted(*replies), "sub": scripted(*sub)},
        options=options,
        heartbeat_seconds=3,
        people=ALONE,
        approvals=FREELY,
    )


ASK_ALL = """\
lines = context.strip().split("\\n")
found = [llm_query(line) for line in lines[:2]] + llm_query_batched(lines[2:5])
print(found)"""


async def _answer(client: Client) -> Handle:
    look = wrote("lines = context.split('\\n')\nprint(len(lines))", "print(lines[0], DEPTH)")
    last = ScriptedReply(expect=r"line 1: the number is (?P<n>\d+) 0", reply="It begins with\nFINAL({n})")
    return await begin(client, code_task(look, last))


async def _queries(client: Client) -> Handle:
    return await begin(client, code_task(wrote(ASK_ALL, behind="FINAL_VAR(found)")))


CALL_TOOLS = """\
kept = mark('one', text='[1, 2]')
print(kept)
try:
    crash(line='two')
except RuntimeError as error:
    print('caught', len(str(error)) > 0)
FINAL_VAR('kept')"""


async def _tools(client: Client) -> Handle:
    return await begin(client, code_task(wrote(CALL_TOOLS), tools=("mark", "crash")))


async def _nested(client: Client) -> Handle:
    """Its workflow id is the scenario's name, as in the replay: a child's id is made of it."""
    block = "FINAL(llm_query('line 7: the number is 49'))"
    child = SQUARE.model_copy(update={"reply": "FINAL({square})"})
    task = code_task(wrote(block), sub=(child,), nested="always")
    return await client.start_workflow(
        WORKFLOW_TYPE, task, id="code-nested", task_queue=TASK_QUEUE, result_type=AgentResult
    )


async def _inside(client: Client) -> Handle:
    """The run inside writes code too, with a sandbox of its own; it is as deep as the limit allows."""
    count = ScriptedReply(expect=r"Output:\n(?P<n>\d+) 1 ", reply="FINAL({n})")
    child = (wrote("x = len(context)\nprint(x, DEPTH, llm_query('go on'))"), count)
    outer = wrote("x = 'kept'\nn = llm_query('How long is this?')\nprint(n, x, DEPTH)", behind="FINAL_VAR(n)")
    nested = {"policy": "always", "mode": "inline"}
    return await begin(client, code_task(outer, sub=child, nested=nested, max_depth=2))


async def _errors(client: Client) -> Handle:
    bad = wrote("x = 1\nprint(undefined)", "while True:\n    pass", "print('x is', x)", behind="FINAL_VAR(y)")
    return await begin(client, code_task(bad, "hm", "FINAL(done)", block={"seconds": 0.5}))


async def _limit(client: Client) -> Handle:
    return await begin(client, code_task(wrote("print(1)"), "I do not know.", max_iterations=1))


async def _policy(client: Client) -> Handle:
    same = [wrote("print(1)")] * 3
    return await begin(client, code_task(*same, policies=[{"type": "no_progress", "value": 1}]))


async def _model_fails(client: Client) -> Handle:
    return await begin(client, code_task(wrote("print(llm_query('nothing that fits'))")))


SCENARIOS = {
    "code-answer": _answer,
    "code-queries": _queries,
    "code-tools": _tools,
    "code-nested": _nested,
    "code-inside-code": _inside,
    "code-errors": _errors,
    "code-limit": _limit,
    "code-policy": _policy,
    "code-model-fails": _model_fails,
}
