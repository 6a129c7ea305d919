"""Ratchet as an MCP server: start runs, see what they do and ask, and, where that is allowed, decide."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from itertools import accumulate
from typing import Annotated, Any, ParamSpec

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BaseModel, Field

from activities.contracts import without_digests
from client.agents.agentfile import AgentFile
from client.errors import RatchetError, UnknownRun, UsageError
from client.runs.listing import RequestSummary, RunLine
from client.sdk.agent import AgentClient
from client.sdk.people import decision_from
from workflows.api import RunResult
from workflows.kernel.log import Record
from workflows.people import Request, Verb

__all__ = ["mcp_server"]

WAIT_SECONDS, POLL_SECONDS = 300, 2
PAGE_RECORDS = 50
TEXT_CHARS = 20_000
"""Of one answer; a client that is a model pays for each."""
NOTE_CHARS = 1_000
"""Of them, for what is left out."""
MAX_NAMED_RUNS = 5
READ = ToolAnnotations(read_only_hint=True, open_world_hint=False)
START = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=True)
DECIDE = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)
INSTRUCTIONS = (
    "Ratchet runs LLM agents durably. `start_run` starts one and returns its id at once; `run_result` waits "
    "for its result. A run may wait for a person: `open_requests` shows what it asks."
)
NOT_YOURS = (
    " You cannot decide these requests: tell the person about them, who decides with `ratchet inbox` and "
    "`ratchet approve`."
)
Run = Annotated[str, Field(description="Id of the run; its beginning or end if that is unique.")]
P = ParamSpec("P")


def mcp_server(
    client: AgentClient, agents: Mapping[str, AgentFile], may_decide: str = "", *, all_runs: bool = False
) -> MCPServer:
    """A server for runs of these agents.

    Args:
        agents: by name; they may be started.
        may_decide: the name under which its client decides; without one it cannot.
        all_runs: its client may read runs of every agent, and decide there if it may decide.
    """
    server = MCPServer(
        "ratchet", instructions=INSTRUCTIONS + ("" if may_decide else NOT_YOURS), log_level="WARNING"
    )
    tools = _Tools(client, agents, may_decide, all_runs)
    reading = (
        tools.list_agents, tools.list_runs, tools.run_status, tools.run_log, tools.open_requests,
        tools.run_result,
    )  # fmt: skip
    offered: list[tuple[Any, ToolAnnotations]] = [(function, READ) for function in reading]
    offered += [(tools.start_run, START)] if agents else []
    offered += [(tools.decide, DECIDE)] if may_decide else []
    for function, hints in offered:
        server.tool(annotations=hints, structured_output=False)(_answer_in_text(function))
    return server


def _answer_in_text(function: Callable[P, Awaitable[Any]]) -> Callable[P, Awaitable[CallToolResult]]:
    """The same, with its answer as JSON, and what went wrong as text for the client. A run's output is
    structured content, too."""

    @wraps(function)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> CallToolResult:
        try:
            found = await function(*args, **kwargs)
        except RatchetError as error:
            raise ToolError(str(error)) from None
        text = _json(found)
        if len(text) > TEXT_CHARS:
            left = f"[{len(text) - TEXT_CHARS:,} of {len(text):,} characters left out]"
            text = f"{text[:TEXT_CHARS]}\n{left}"
        return CallToolResult(content=[TextContent(text=text)], structured_content=_output_of(found))

    return answer


def _output_of(found: Any) -> dict[str, Any] | None:
    """The answer of a run as data; its `answer` may have other words around it."""
    if not isinstance(found, RunResult) or found.output is None:
        return None
    return {"ok": found.ok, "exit_reason": found.exit_reason, "output": found.output}


def _request_value(request: RequestSummary) -> RequestSummary:
    """Without the digest where the arguments are not shown: nobody decides what was not seen."""
    return replace(request, digest="") if request.tool and request.arguments is None else request


def _fitting(values: Iterable[Any], characters: int) -> int:
    """How many of the first of them fit whole into so many characters."""
    return sum(length <= characters for length in accumulate(len(_json(value)) + 2 for value in values))


def _whole_requests(run: str, requests: Sequence[Request], characters: int) -> list[Any]:
    """Those that fit, the oldest first, and how many are left out: one that is cut would have its digest
    before arguments that nobody sees."""
    shown, total = _fitting(requests, characters), len(requests)
    if shown == total:
        return list(requests)
    how = "Decide those that are shown, and ask again; or a person sees all with"
    if not shown:
        how = "They are too long to be shown here: a person sees them with"
    rest = f"{total - shown} of {total} open requests. {how} `ratchet inbox {run}`."
    return [*requests[:shown], {"left_out": rest}]


def _record_value(record: Record) -> Any:
    """Without what only a provider and the store understand: encrypted reasoning, and what images are signed
    with; and without digests of requests."""
    kept = {"__all__": {"kept"}}
    asked = {"digest", "asked"}  # long arguments are not beside them: nobody decides by a log
    text = record.model_dump_json(
        exclude_defaults=True, exclude={"messages": kept, "beside": kept, "notes": kept, "about": asked}
    )
    return json.loads(without_digests(text))


def _json(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False, default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_defaults=True)
    if is_dataclass(value):
        given = {field.name: (getattr(value, field.name), field.default) for field in fields(value)}
        return {name: _plain(item) for name, (item, default) in given.items() if item != default}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


class _Tools:
    """What a client may call. Docstrings and descriptions are for the model behind it."""

    def __init__(
        self, client: AgentClient, agents: Mapping[str, AgentFile], may_decide: str, all_runs: bool
    ) -> None:
        self.client, self.agents, self.by, self.all_runs = client, agents, may_decide, all_runs

    async def _find(self, run: str) -> str:
        """The whole id of a run that this client may see. Raises RatchetError: of the others it says nothing.
        That an id is taken `start_run` tells, whoever's run it is."""
        if self.all_runs:
            return await self.client.find(run)
        with suppress(UnknownRun, UsageError):  # none, or several: their ids are not for this client
            found = await self.client.find(run)
            if await self._agent_of(found) in self.agents:
                return found
        known = ", ".join(self.agents)
        raise UnknownRun(
            f"no run of {known} has the id {run!r}, or several begin or end with it; this server shows only "
            "runs of these agents (`ratchet mcp --all-runs` shows all)"
        )

    async def _agent_of(self, run: str) -> str:
        """The agent of a run. Raises UnknownRun where nobody knows it."""
        try:
            return (await self.client.describe(run)).agent
        except UnknownRun:
            if result := await self.client.archive.result(run):  # Temporal has forgotten it
                return result.agent
            raise

    def _is_mine(self, line: RunLine) -> bool:
        return self.all_runs or line.agent in self.agents

    async def list_agents(self) -> Any:
        """List the agents that `start_run` can start."""
        return [
            {"agent": name, "description": agent.description, "machine": agent.machine, "tools": agent.tools}
            for name, agent in self.agents.items()
        ]

    async def list_runs(
        self,
        running: Annotated[bool, Field(description="Only runs that are not over.")] = False,
        limit: Annotated[int, Field(ge=1, le=200)] = 20,
    ) -> Any:
        """List runs, newest first."""
        some = limit if self.all_runs else None
        mine = [line for line in await self.client.lines(some, running=running) if self._is_mine(line)]
        found = await self.client.with_ends(mine[:limit])
        return [replace(line, requests=()) for line in found]  # `open_requests` shows them whole

    async def run_status(self, run: Run) -> Any:
        """Tell where a run is: state, step, what it waits for, what it has used, its newest steps."""
        found = await self._find(run)
        return {"status": await self.client.status(found), "steps": (await self.client.steps(found))[-10:]}

    async def run_log(
        self, run: Run, since: Annotated[int, Field(ge=0, description="First record.")] = 0
    ) -> Any:
        """Read a run's records: each transition, why it happened and what it changed. Some 50 at a time."""
        found = await self.client.records(await self._find(run), since)
        records = [_record_value(record) for record in found[:PAGE_RECORDS]]
        shown = max(1, _fitting(records, TEXT_CHARS - 100))
        return {"records": records[:shown], "next": since + shown if len(found) > shown else None}

    async def open_requests(
        self, run: Annotated[str | None, Field(description="Default: all runs that wait.")] = None
    ) -> Any:
        """Show what runs ask people: each request with its options and its digest, oldest first."""
        room = TEXT_CHARS - NOTE_CHARS
        if run is not None:
            found = await self._find(run)
            return _whole_requests(found, await self.client.requests(found), room)
        waiting = [line for line in await self.client.inbox() if self._is_mine(line)]
        asked: list[dict[str, Any]] = [
            {"run": line.id, "waiting": line.waiting, "requests": [_request_value(one)] if one else []}
            for line in waiting
            for one in line.requests or (None,)
        ]
        fitting = _fitting(asked, room)
        shown: dict[str, Any] = {}
        for one in asked[:fitting]:
            shown.setdefault(one["run"], {**one, "requests": []})["requests"] += one["requests"]
        if fitting == len(asked):
            return [*shown.values()]
        runs = [*dict.fromkeys(one["run"] for one in asked[fitting:])]
        names = ", ".join(runs[:MAX_NAMED_RUNS])[: NOTE_CHARS // 2]
        more = f" and {len(runs) - MAX_NAMED_RUNS} more" if len(runs) > MAX_NAMED_RUNS else ""
        how = f"Give `run` to see those of one run. Left out are some of {names}{more}"
        return [*shown.values(), {"left_out": f"{len(asked) - fitting} of {len(asked)} requests. {how}."}]

    async def run_result(
        self,
        run: Run,
        ctx: Context[Any, Any],
        wait_seconds: Annotated[int, Field(ge=0, le=WAIT_SECONDS)] = 60,
    ) -> Any:
        """Wait until a run is over, at most so long, and tell what came out; else where it is and what it
        asks."""
        found, until = await self._find(run), time.monotonic() + wait_seconds
        ending = asyncio.create_task(self.client.result(found))
        try:
            while True:
                left = until - time.monotonic()
                done, _ = await asyncio.wait({ending}, timeout=max(min(left, POLL_SECONDS), 0.1))
                if done:
                    return ending.result()
                status = await self.client.status(found)
                if left <= 0 or status.requests:
                    asks = await self.client.requests(found) if status.requests else ()
                    room = TEXT_CHARS - NOTE_CHARS - len(_json(status))
                    return {"over": False, "status": status, "requests": _whole_requests(found, asks, room)}
                where = f"{status.state}, step {status.step}"
                await ctx.report_progress(wait_seconds - left, wait_seconds, where)
        finally:
            ending.cancel()

    async def start_run(
        self,
        agent: Annotated[str, Field(description="One of `list_agents`.")],
        goal: Annotated[str, Field(description="What it shall do.")],
        run: Annotated[
            str | None,
            Field(
                pattern=r"^[A-Za-z0-9._-]{1,100}$",
                description="Id of your choice: a second start with it starts nothing.",
            ),
        ] = None,
    ) -> Any:
        """Start a run of an agent; returns its id at once. It goes on when you are gone."""
        if agent not in self.agents:
            raise ToolError(f"there is no agent {agent!r}; there are: {', '.join(self.agents)}")
        return {"run": await self.client.start(self.agents[agent].task(goal), run)}

    async def decide(  # noqa: PLR0913, PLR0917  # what a decision has
        self,
        run: Run,
        request: Annotated[str, Field(description="Id of the request.")],
        digest: Annotated[str, Field(description="Of the request as you saw it.")],
        decision: Annotated[Verb, Field(description="One of the request's options.")],
        text: Annotated[str, Field(description="Comment, answer or result.")] = "",
        arguments: Annotated[dict[str, Any] | None, Field(description="For `edit`: all of them.")] = None,
        amounts: Annotated[dict[str, float] | None, Field(description="For `topup`: by counter.")] = None,
    ) -> Any:
        """Decide a request, once the person whom you work for has told you what to decide."""
        found = await self.client.find(await self._find(run), running=True)
        seen = await self.client.request(found, request)
        if decision in ("approve", "edit") and seen.tool and len(_json(seen)) > TEXT_CHARS // 2:
            raise ToolError("its arguments are too long to be shown whole here; a person decides elsewhere")
        made = decision_from(seen, decision, text, arguments=arguments, amounts=amounts or {})
        return await self.client.decide(found, made.model_copy(update={"digest": digest}), by=self.by)
