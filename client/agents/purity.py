"""Runs each visit of a user's machine a second time, in a process with another hash seed, time zone,
environment and working folder: what differs there would differ on another worker.

`Local` and cassettes do so. All runs of a process share one such second process, which ends with it.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import Any

from activities.contracts import Effect, JsonObject, ToolSpec
from activities.extensions import USER_PACKAGE, load_modules
from client.errors import RatchetError
from workflows import registry
from workflows.api import AgentTask
from workflows.kernel.context import to_json
from workflows.kernel.errors import AgentError, MachineError, bug_text
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import Event, Machine
from workflows.kernel.snapshot import Observer, Program, Snapshot, Suspension, dump, suspension_from
from workflows.kernel.transition import visit_again
from workflows.task import program_for

__all__ = ["ImpureMachine", "observer_for"]

MAX_SHOWN_CHARS = 200
"""Characters of each of the two values in an error."""
ANSWER_SECONDS = 60.0
"""For an answer; a server gives a visit about two, but modules may be slow to load."""
KEPT_VARIABLES = (
    "PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH",
    "PYTHONHOME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX",
)  # fmt: skip
"""What Python and compiled libraries need of the environment: no keys, and nothing of the user's."""
START = f"import sys; sys.path[:] = {{path!r}}; from {__name__} import serve; serve()"
DIFFERS = "{} is {} here and {} there"
CHANGED = "`{}` was {} before and is {} after"
Place = tuple[str, str, str]
"""Name and file of a module, and the name of a machine in it."""


class ImpureMachine(RatchetError):
    """A state comes to something else in another process, so its runs could not be continued elsewhere."""


def observer_for(
    task: AgentTask, program: Program, specs: Mapping[str, ToolSpec], machine: Machine | None = None
) -> Observer | None:
    """What runs each visit of this run again; `machine`: in place of the one that the task names.

    None for shipped machines without code of users, and for a machine that no other process can import: one
    that is made inside a function, or in the program's main file. The observer raises ImpureMachine, and so
    does this function for a first context that differs."""
    is_named = machine is None or any(machine is one for one in registry.shipped())
    if is_named and registry.is_shipped(task.machine, task.options):
        return None
    place = None if machine is None else _place_of(machine)
    if machine is not None and place is None:
        return None
    files = {one.__name__: getattr(one, "__file__", None) for one in registry.users_modules()}
    asked: JsonObject = {
        "modules": [[name, file] for name, file in files.items() if file and name != "__main__"],
        "machine": list(place) if place else None,
        "task": task.model_dump(mode="json", exclude={"carry", "fork"}),
        "specs": {name: specs[name].model_dump(mode="json") for name in task.tools},
        "trace_id": program.input.trace_id,
    }
    if not _check_start(asked, program):
        return None
    return _Observer(asked, program)


def _check_start(asked: JsonObject, program: Program) -> bool:
    """Compare the first contexts. False: the other process cannot load the machine."""
    begun = _begun(program)
    answer, found = _answer_and_problem(asked, lambda answer: _difference(begun, answer["begin"], ""))
    if problem := answer.get("unusable"):
        text = f"{program.machine.name} is not checked in a second process, which cannot load it: {problem}"
        warnings.warn(text, stacklevel=2)
        return False
    if found:
        raise _impure(program, "`begin`", found)
    return True


def _answer_and_problem(
    asked: JsonObject, difference_in: Callable[[JsonObject], str]
) -> tuple[JsonObject, str]:
    """The answer, and what is wrong with it.

    A process that loaded files which were edited since is replaced only then: as long as the code here is
    that of before, too, their values are equal."""

    def wrong(answer: JsonObject) -> str:
        if "unusable" in answer:
            return f"it cannot be loaded there: {answer['unusable']}"
        return f"there it raises {answer['raised']}" if "raised" in answer else difference_in(answer)

    other = other_process()
    answer = other.ask(asked)
    if (found := wrong(answer)) and other.end_if_old():
        answer = other.ask(asked)
        found = wrong(answer)
    return answer, found


class _Observer:
    """Collects what a visit asks for; has the visit run again when it ends. Notices what the visit changes in
    its context in place: lists and dicts refuse that, but C code does not ask them."""

    def __init__(self, asked: JsonObject, program: Program) -> None:
        self._asked, self._program = asked, program
        self._found: list[Any] = []
        self._before: Any = None

    def __call__(self, snapshot: Snapshot, found: Any) -> None:
        shown = snapshot.entry_context.model_dump(mode="json", fallback=repr, warnings=False)
        if found is None:
            self._before = shown
            return
        if changed := _difference(self._before, shown, "", CHANGED):
            raise _changed(self._program, snapshot.state, changed)
        del self._found[len(snapshot.moments) :]  # asked for again, or another visit
        try:
            self._found.append(_form(self._program, found))
        except (ValueError, TypeError, KeyError, AttributeError):
            return  # what the kernel refuses, with a better word
        if isinstance(found, Effect):
            return
        step = dump(Suspension(self._program, snapshot, Ledger()))
        _, found = _answer_and_problem({**self._asked, "step": step}, self._difference_in)
        if found:
            raise _impure(self._program, f"state {snapshot.state}", found)

    def _difference_in(self, answer: JsonObject) -> str:
        visit: Any = answer["visit"]
        for number, (here, there) in enumerate(zip(self._found, visit, strict=False), 1):
            if difference := _difference(here, there, ""):
                what = "" if "patch" in here else f"effect {number} ({here.get('kind', 'an error')}), "
                return f"{what}{difference}"
        if len(self._found) != len(visit):
            return f"{len(self._found) - 1} effects here, {len(visit) - 1} there"
        return ""


def _impure(program: Program, where: str, what: str) -> ImpureMachine:
    return ImpureMachine(
        f"machine {program.machine.name}, {where} differs in a process with another hash seed, time zone, "
        f"environment and folder: {what}. A run could not go on elsewhere: take the time from `run.now_utc`, "
        "sort sets, and move what looks outside into a tool. The other process loads modules from files: one "
        "that was patched in memory here, or edited and not loaded again, differs there, too. "
        "`Local(..., check_purity=False)` compares nothing"
    )


def _changed(program: Program, state: str, what: str) -> ImpureMachine:
    return ImpureMachine(
        f"machine {program.machine.name}, state {state} changed the context in place: {what}. That is in no "
        "record, so a run that goes on elsewhere has the old value. Functions that are written in C, such as "
        "those of `heapq`, and `list.append(c.field, x)` pass the refusal by: give them a copy, such as "
        "`list(c.field)`, and return that in the patch"
    )


def _form(program: Program, found: Any) -> Any:
    """What a visit asks for, returns or raises, as JSON."""
    if isinstance(found, Effect):
        keep = getattr(found, "keep", {})
        values = found.model_dump(mode="json", exclude={"keep"})
        return {**values, "keep": to_json(program.machine.context, keep)} if keep else values
    if isinstance(found, AgentError):
        return {"error": type(found).__name__, "text": str(found)}
    patch, event = found
    if not isinstance(event, Event):
        raise TypeError
    kept = to_json(program.machine.context, patch)
    said = {"reason": event.reason, "thought": event.thought, "refused_by": list(event.refused_by)}
    return {"event": type(event).__name__, **said, "patch": kept}


def _begun(program: Program) -> Any:
    try:
        context, messages = program.begin()
    except ValueError as error:
        return {"refused": str(error)}
    opening = [one.model_dump(mode="json") for one in messages]
    return {"context": context.model_dump(mode="json"), "opening": opening}


def _difference(here: Any, there: Any, path: str, words: str = DIFFERS) -> str:
    """The first difference, with its path and both values; empty: there is none."""
    if isinstance(here, dict) and isinstance(there, dict):
        pairs = ((name, here.get(name), there.get(name)) for name in dict.fromkeys([*here, *there]))
        found = (
            _difference(one, other, f"{path}.{name}" if path else name, words) for name, one, other in pairs
        )
        return next(filter(None, found), "")
    if isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
        pairs_ = enumerate(zip(here, there, strict=True))
        return next(filter(None, (_difference(a, b, f"{path}.{n}", words) for n, (a, b) in pairs_)), "")
    one, other = (json.dumps(value, ensure_ascii=False) for value in (here, there))
    return "" if one == other else words.format(path, _cut(one), _cut(other))


def _cut(text: str) -> str:
    return (
        text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]} [... {len(text):,} characters]"
    )


def _place_of(machine: Machine) -> Place | None:
    """Where a machine can be imported from; None: from nowhere."""
    for name, module in list(sys.modules.items()):
        if name != "__main__" and (file := getattr(module, "__file__", None)):
            for key, value in list(vars(module).items()):
                if value is machine:
                    return name, file, key
    return None


# -- this process's side --------------------


class OtherProcess:
    """The other process: a line of JSON for each question, and one for each answer, with the same number.

    It is started by the first question, and by one that comes after it has ended."""

    def __init__(self, seconds: float = ANSWER_SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._popen: subprocess.Popen[bytes] | None = None
        self._number = 0
        self._path: list[str] = []
        self._is_old = False

    def ask(self, question: JsonObject) -> JsonObject:
        """The answer. Raises RatchetError when the process ends, or takes too long.

        Whatever else comes between, such as Ctrl-C, ends the process: its answer would be that of the next
        question."""
        with self._lock:
            began = time.monotonic()
            try:
                return self._ask(question)
            except (OSError, ValueError) as error:
                self.close()
                if time.monotonic() - began < self._seconds:
                    text = f"the process that runs visits a second time has ended: {error}"
                else:
                    text = (
                        f"the process that runs visits a second time gave no answer for {self._seconds:g} s. "
                        "Look for what waits or loops where the machine's module is loaded, in `begin`, or "
                        "in the state"
                    )
                raise RatchetError(f"{text}. The next run starts another one") from error
            except BaseException:
                self.close()
                raise

    def _ask(self, question: JsonObject) -> JsonObject:
        if self._popen is None or self._popen.poll() is not None:
            self.close()
            self._path = _search_path()
            self._popen = _started(self._path)
        popen = self._popen
        assert popen.stdin is not None
        assert popen.stdout is not None
        timer = threading.Timer(self._seconds, popen.kill)
        timer.daemon = True
        timer.start()
        self._number += 1
        try:
            popen.stdin.write(json.dumps([self._number, question]).encode() + b"\n")
            popen.stdin.flush()
            line = popen.stdout.readline()
            if not line:
                raise ValueError(f"exit status {popen.wait()}")
            number, answer, self._is_old = json.loads(line)
        finally:
            timer.cancel()
        if number != self._number:
            raise ValueError(f"it answered question {number} in place of {self._number}")
        found: JsonObject = answer
        return found

    def end_if_old(self) -> bool:
        """Whether it would load other code now. If so, it ends; the next question starts another process."""
        with self._lock:
            is_old = self._is_old or self._path != _search_path()
            if is_old:
                self.close()
            return is_old

    def close(self) -> None:
        """End it, and with it what another thread still asks."""
        popen, self._popen = self._popen, None
        if popen is None:
            return
        popen.kill()
        popen.wait()
        for pipe in filter(None, (popen.stdin, popen.stdout)):
            with suppress(OSError):  # the rest of a question that nobody reads any more
                pipe.close()


def _search_path() -> list[str]:
    return [os.path.abspath(one) for one in sys.path]


def _started(path: list[str]) -> subprocess.Popen[bytes]:
    """In a session of its own, so that Ctrl-C in the terminal does not reach it."""
    zone = "Pacific/Kiritimati" if time.timezone != -14 * 3600 else "Pacific/Pago_Pago"
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-c", START.format(path=path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env={**kept, "TZ": zone, "PYTHONHASHSEED": seed},
        start_new_session=True,
    )  # fmt: skip


@cache
def _process_of(pid: int) -> OtherProcess:
    process = OtherProcess()
    atexit.register(lambda: process.close() if os.getpid() == pid else None)
    return process


def other_process() -> OtherProcess:
    """The one of this process."""
    return _process_of(os.getpid())


# -- the other process's side --------------------


def serve() -> None:
    """Answer questions until the first process ends."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a module prints is no answer
    programs: dict[str, Program] = {}
    files = _Files()
    for line in sys.stdin:
        number, asked = json.loads(line)
        output.write(json.dumps([number, _answer(asked, programs), files.have_changed()]) + "\n")
        output.flush()


class _Files:
    """Files of the modules that are loaded from now on: users' own, and what these import."""

    def __init__(self) -> None:
        self._before = set(sys.modules)
        self._stamps: dict[str, tuple[int, int] | None] = {}

    def have_changed(self) -> bool:
        """Whether one is not as it was when it was met here first."""
        for name, module in list(sys.modules.items()):
            if name not in self._before and (file := getattr(module, "__file__", None)):
                self._stamps.setdefault(file, _stamp(file))
        return any(_stamp(file) != stamp for file, stamp in self._stamps.items())


def _stamp(file: str) -> tuple[int, int] | None:
    """Time and size; None: there is no such file."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _answer(asked: Any, programs: dict[str, Program]) -> Any:
    """`programs` has that of the question before."""
    step = asked.pop("step", None)
    known = json.dumps(asked)
    try:
        program = programs.get(known) or _program(asked)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever a module raises
        return {"unusable": f"{type(error).__name__}: {error}"}
    programs.clear()
    programs[known] = program
    environment, folder = dict(os.environ), os.getcwd()
    os.environ.clear()  # a module that reads it when it is imported is refused by Temporal's sandbox
    os.chdir("/")
    try:
        if step is None:
            return {"begin": _begun(program)}
        return {"visit": list(_visit(program, step))}
    except Exception as error:  # noqa: BLE001  # whatever a state raises
        return {"raised": bug_text(error)}
    finally:
        os.environ.update(environment)
        os.chdir(folder)


def _visit(program: Program, step: Any) -> Iterator[Any]:
    try:
        for found in visit_again(suspension_from(program, step)):
            yield _form(program, found)
    except MachineError:
        return  # it asks for something else than before; what it asked for is there


def _program(asked: Any) -> Program:
    for name, file in asked["modules"]:
        registry.add_module(_module(name, file))
    machine = None
    if asked["machine"]:
        name, file, key = asked["machine"]
        machine = getattr(_module(name, file), key)
    specs = {name: ToolSpec.model_validate(spec) for name, spec in asked["specs"].items()}
    return program_for(AgentTask.model_validate(asked["task"]), specs, asked["trace_id"], machine)


def _module(name: str, file: str) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    if name.startswith(f"{USER_PACKAGE}."):
        return load_modules([file])[0]
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError:
        found = None
    if found is not None and found.__file__ == file:
        return found
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
