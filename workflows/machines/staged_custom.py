"""Stages of users' own: a model call, a whole machine, a pure function, and the error handler."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from activities.contracts import MachineEnded, ModelReplied, RunMachine
from workflows.kernel.errors import (
    EmptyPatch,
    FatalError,
    KernelError,
    PermissionViolation,
    failure_words,
    kind_words,
)
from workflows.kernel.fields import Fields
from workflows.kernel.log import Record
from workflows.kernel.machine import At, Said
from workflows.machines.json_text import clean, unread
from workflows.machines.staged_context import (
    FAILED,
    Action,
    AgentState,
    LastError,
    Observation,
    RequestedTool,
    ToolOutput,
)
from workflows.machines.staged_options import InnerMachine
from workflows.machines.staged_prompt import prompt, reply_schema, sections
from workflows.machines.staged_reply import object_in
from workflows.machines.staged_ways import Left, Ways

__all__ = ["AskModel", "CallHook", "RunInner", "handler", "precondition"]

Hook = Callable[[Any], Any]


class AskModel:
    """One structured model call whose JSON fields are the patch."""

    grants = frozenset({"call_model"})

    def __init__(self, ways: Ways) -> None:
        self.ways, self.stage, self.options = ways, ways.stage, ways.options

    def enter(self, c: Any, at: At) -> Said:
        """Ask the model."""
        asked = prompt(self.stage, self.options, c, self.ways.answering(at))
        return self.ways.ask(at, asked, response_schema=reply_schema(self.stage, self.options))

    def resume(self, c: Any, reply: ModelReplied, at: At) -> Said:
        """The reply's fields are the patch; whether it may write them the kernel says."""
        patch = object_in(reply.text)
        if patch is None:
            problem = unread(reply, "the reply is not a JSON object")
            return self.ways.fail(problem, reply=reply.text[:500])
        said = {name: value for name, value in patch.items() if name != "lifecycle"}
        reason = json.dumps(said, ensure_ascii=False) if said else ""
        if isinstance(kept := patch.get("extensions"), Mapping):
            extra = sorted(set(kept) - set(self.stage.extension))
            if extra and self.stage.enforce:
                raise PermissionViolation("staged", at.state, self._undeclared(extra))
            reason = (
                f"{self._undeclared(extra)} (let through, enforcement is off); {reason}" if extra else reason
            )
            patch = {**patch, "extensions": {name: _as_text(value) for name, value in kept.items()}}
        return _left(self.ways, at, patch, reason=reason)

    def _undeclared(self, extra: list[str]) -> str:
        declared = ", ".join(self.stage.extension) or "none"
        return f"the undeclared extension {extra[0][:100]!r} was written; declared are {declared}"


class CallHook:
    """A pure function of users' gives the patch: (view) -> patch, or (patch, lifecycle)."""

    grants = frozenset[str]()
    resume = None

    def __init__(self, ways: Ways, hook: Hook) -> None:
        self.ways, self.hook = ways, hook

    def enter(self, c: Any, at: At) -> Said:
        """Call it."""
        said = _called(self.ways.stage.name, self.hook, c)
        patch, target = said if isinstance(said, tuple) and len(said) == 2 else (said, None)
        return None if patch is None else _left(self.ways, at, patch, target)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _left(ways: Ways, at: At, patch: Any, target: Any = None, reason: str = "") -> Said:
    """Where a patch leads: to the lifecycle given, the one it sets, or the only exit there is."""
    name, exits = ways.stage.name, ways.stage.targets
    if not isinstance(patch, Mapping):
        return ways.fail("the hook returned no patch", patch)  # the kernel says what came instead
    if not patch and target is None:
        raise EmptyPatch("staged", at.state, f"the stage {name} returned an empty patch")
    chosen = target if target is not None else patch.get("lifecycle", exits[0] if len(exits) == 1 else None)
    if isinstance(patch.get("extensions"), Mapping):
        patch = {**patch, "extensions": {name: patch["extensions"]}}
    if not isinstance(chosen, str) or chosen not in (*exits, FAILED):
        return ways.astray(patch, chosen)
    return ways.to(at, chosen, patch, reason=reason)


class RunInner:
    """A whole machine is the stage; its answer goes into one field."""

    grants = frozenset({"run_machine"})

    def __init__(self, ways: Ways, inner: InnerMachine) -> None:
        self.ways, self.stage, self.inner = ways, ways.stage, inner

    def enter(self, c: Any, at: At) -> Said:
        """Its goal is the stage's prompt, and what the stage sees."""
        goal = "\n\n".join(part for part in (self.stage.prompt.strip(), *sections(self.stage, c)) if part)
        return RunMachine(
            machine=self.inner.name,
            machine_version=self.inner.version,
            goal=goal or self.stage.name,
            options=self.inner.options,
            instructions=self.inner.instructions,
            tools_given=self.stage.tools or (),
            roles=self.inner.roles,
            limits=self.inner.limits,
            mode=self.inner.mode,
            label=f"{self.stage.name} #{at.step}",
        )

    def resume(self, c: Any, ended: MachineEnded, at: At) -> Said:
        """A run without success is a failed tool where it takes the place of tools, else a StageError."""
        answer = ended.answer or ""
        error = "" if ended.ok else f"{ended.machine} ended with {ended.exit_reason}: {ended.error}"
        if self.inner.merge == "action":
            return self._as_tool(at, answer, error)
        if error:
            return self.ways.fail(error, exit_reason=ended.exit_reason, workflow_id=ended.workflow_id)
        kept = Observation(summary=answer, final_answer=answer, need_loop=not answer)
        merged = self.inner.merge == "observation"
        patch = {"observation": kept} if merged else {"extensions": {self.stage.name: {"answer": answer}}}
        return self.ways.to(at, self.stage.targets[0], patch, reason=answer)

    def _as_tool(self, at: At, answer: str, error: str) -> Left:
        output = ToolOutput(tool=self.inner.name, output=error or answer, error="failed" if error else None)
        action = Action(requested_tools=(RequestedTool(tool=self.inner.name),), tool_outputs=(output,))
        notes = [self.ways.note("failed", error)] if error else []
        return self.ways.to(at, self.stage.targets[0], {"action": action}, *notes, reason=output.output)


def precondition(name: str, hook: Hook) -> Callable[[Any, Record | None], bool | str]:
    """A user's `check` as the kernel asks it."""

    def check(view: Any, last: Record | None) -> bool | str:
        said = _called(name, hook, view)
        if isinstance(said, bool | str):
            return said
        raise FatalError(
            f"the check of stage {name} answered {kind_words(said)}; expected true, false or what is wrong"
        )

    return check


def handler(hook: Hook) -> Callable[[Any, At], Said]:
    """The error handler's run in Failed: what the hook returns completes `last_error`.

    The run has failed already, so a fault of the hook is only noted.
    """

    def enter(c: Any, at: At) -> Said:
        try:
            error = _completed(c.last_error, hook(c) or {})
        except Exception as fault:  # noqa: BLE001  # users' code; see above
            details = {**c.last_error.details, "error_handler": clean(failure_words(fault))[:500]}
            error = c.last_error.model_copy(update={"details": details})
        return ({"last_error": error}, None) if error != c.last_error else None

    return enter


def _completed(error: LastError, said: Mapping[str, Any]) -> LastError:
    """The error with what the hook says of it. Raises ValueError for what the log cannot hold."""
    fields = Fields.of(AgentState)
    delta = fields.checked("last_error", LastError.model_validate({**error.model_dump(), **said}))
    completed: LastError = fields.from_json("last_error", fields.to_json({"last_error": delta})["last_error"])
    return completed


def _called(name: str, hook: Hook, view: Any) -> Any:
    """What a user's function returns; what it raises ends the stage (7.10), a broken rule stays one."""
    try:
        return hook(view)
    except Exception as error:
        if isinstance(error, KernelError) and _speaks(error):
            raise
        raise FatalError(clean(f"the hook of stage {name} failed: {failure_words(error)}")) from error


def _speaks(error: Exception) -> bool:
    """It has a text that can be written."""
    try:
        str(error).encode()
    except Exception:  # noqa: BLE001  # users' code: any fault of it means no
        return False
    return True
