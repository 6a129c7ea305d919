"""What an agent can do with nobody asked: who it is that is judged, and the one line of `ratchet run`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec

from activities.contracts import ToolSpec
from client.agents.catalog import Catalog
from workflows.api import AgentSpec
from workflows.verify.policy.call_sets import Level
from workflows.verify.policy.report import JudgedAgent, radius_text, unbounded

__all__ = ["judged", "unbounded_text"]


def judged(catalog: Catalog, agent: AgentSpec, more: Iterable[ToolSpec] = ()) -> JudgedAgent:
    """An agent with its machine and its tools; `more` are those of MCP servers. Raises UsageError."""
    machine = catalog.machine(agent.machine, agent.machine_version, agent.options)
    known = [tool for tool in (*catalog.tools, *more) if tool.name in agent.tools]
    return JudgedAgent(agent, machine, {tool.name: agent.labels.labelled(tool) for tool in known})


def unbounded_text(found: JudgedAgent) -> str:
    """The first unsafe tool that can be called without a bound and without a person, in one line; empty: none
    is known, or z3 is not installed."""
    first = next(unbounded(found), None) if find_spec("z3") else None
    if first is None:
        return ""
    such = f", such as {first.example.title}" if first.example else ""
    return f"{_UNBOUNDED[first.level].format(first.tool)}: {radius_text(first)} in one run{such}"


_UNBOUNDED: Mapping[Level, str] = {
    "unasked": "nobody is asked about {}",
    "expiry": "calls of {} are made if nobody answers in time",
    "once": "one approval lets all calls of {} pass",
}
