"""Files below one root folder, for tools: nothing outside of it is read, listed or written.

A path is what it says: it is opened part by part, and no symlink is followed, so that approval rules judge
the file that is used. Only regular files are opened: never a device, a FIFO or a socket.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch, fnmatchcase
from pathlib import Path
from typing import BinaryIO, Literal
from unicodedata import normalize

from activities.agentfiles import FILE_BYTES, may_run
from activities.configuration import is_configuration
from activities.contracts import normal_path, visible
from activities.keyfiles import has_name_of_keys, holds_keys
from activities.settings import Settings

__all__ = ["MAX_FILE_BYTES", "FolderEntry", "FilesRoot", "PathError"]

MAX_FILE_BYTES = 64 * 1024 * 1024
"""A larger file is neither read nor searched. Before one is replaced, so much of it is looked at for keys."""

NAME_KEYS = (
    "RATCHET_ENCRYPTION_KEYS", "RATCHET_KEY", "RATCHET_MCP", "RATCHET_SIGNING_KEY", "TEMPORAL_CONFIG_FILE",
)  # fmt: skip
"""Variables that name files with keys in them: those are hidden, too, wherever they are."""
PACKAGES = ("__pycache__", "node_modules")
RUN_BY_NAME = (
    "conftest.py", "test_*.py", "*_test.py", "__init__.py", "__main__.py", "sitecustomize.py",
    "usercustomize.py", "*.pth", "setup.py", "setup.cfg", "pyproject.toml", "pytest.ini", "tox.ini",
    "noxfile.py", "fabfile.py", "tasks.py", "dodo.py", "conf.py", "*.conf.py", "locustfile.py", "venv",
    "site-packages", "__pycache__", "package.json", "node_modules", "makefile", "gnumakefile", "*.mk",
    "justfile", "rakefile", "cmakelists.txt", "meson.build", "sconstruct", "sconscript", "wscript",
    "workspace.*", "module.bazel", "build.bazel", "*.bzl", "build.rs", "build.xml",
    "build.gradle*", "settings.gradle*", "gradlew*", "pom.xml", "mvnw*", "*.sbt", "*.exs", "*.nix", "gemfile",
    "*.gemspec", "composer.json", "gruntfile.*", "gulpfile.*", "*.config.*js", "*.config.*ts",
    "*.conf.*js", "*.conf.*ts", "deno.json*", "taskfile.y*ml", "lefthook*.y*ml", "mkdocs.y*ml", "vagrantfile",
    "jenkinsfile*", "action.y*ml", "appveyor.y*ml", "azure-pipelines*",
    "bitbucket-pipelines*", "buildspec.y*ml", "cloudbuild.y*ml", "dockerfile*", "containerfile*",
    "compose.y*ml", "docker-compose*.y*ml", "*.code-workspace", "agents*.md", "claude*.md", "gemini.md",
)  # fmt: skip
"""Besides names that begin with a dot, files and folders whose content programs run because of their names:
not written for a model unless the configuration says so (docs/tools.md)."""
RUN_AS_FILES = ("build", "workspace", "procfile")
"""The same, but folders have such names for other reasons."""
MODULE_ENDINGS = (".py", ".pyw", ".pyc", ".so", ".pyd")
_DRAFT = ".ratchet-draft-"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

PathParts = tuple[str, ...]


class PathError(Exception):
    """A path that a tool may not use, or that does not exist."""


def _holds_keys(path: Path) -> bool:
    """The path leads to a file of keys of the worker, under whatever name."""
    return any(_is_same(path, Path(name)) for name in filter(None, map(os.environ.get, NAME_KEYS)))


def _is_same(path: Path, named: Path) -> bool:
    with suppress(OSError, ValueError, RuntimeError):
        return path.samefile(named.expanduser())
    return False


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """One name in a folder; `path` is relative to the root."""

    path: str
    kind: Literal["file", "folder", "link", "other"]
    size: int

    def matches(self, glob: str) -> bool:
        """Its name or its path does."""
        return fnmatch(self.path.rpartition("/")[2], glob) or fnmatch(self.path, glob)


@dataclass(frozen=True, slots=True)
class FilesRoot:
    """The folder that file tools stay below; both paths are resolved."""

    root: Path
    data_dir: Path
    """The worker's own store: hidden, wherever it is."""
    write_any_name: bool = False
    programs: tuple[str, ...] = ()
    """What the worker starts: the words of its command lines. Some are paths."""

    @classmethod
    def of(cls, settings: Settings) -> FilesRoot:
        """The root that the worker is configured with."""
        servers = [one for one in settings.mcp.values() if one.command]
        words = [
            *settings.notify_command,
            *(str(Path(one.cwd or "", word)) for one in servers for word in (one.command or "", *one.args)),
        ]
        return cls(
            settings.files_root.resolve(), settings.data_dir.resolve(), settings.write_any_name, tuple(words)
        )

    def parts(self, path: str) -> PathParts:
        """The parts of the path below the root; raises `PathError`, also where a symlink is on the way."""
        try:
            named = self.root
            for part in normal_path(path).split("/"):
                named /= _name_in(named, part)
            real = named.resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise PathError(f"no usable path: {error}") from None
        if not real.is_relative_to(self.root):
            raise PathError(f"{path[:200]!r} leads outside the folder that file tools may use")
        if real != named:
            target = real.relative_to(self.root).as_posix()
            raise PathError(f"{path[:200]!r} leads over a link; give the path that it leads to: {target!r}")
        if self.data_dir == self.root:
            raise PathError(
                "tools have no files here: their folder (RATCHET_FILES_ROOT) is the worker's own store; "
                "the operator must set RATCHET_DATA_DIR to another folder"
            )
        parts = real.relative_to(self.root).parts
        if self._hidden(parts) or _holds_keys(real):
            raise PathError(f"{path[:200]!r} is not open to tools")
        return parts

    def reaches(self, path: Path) -> bool:
        """The path leads below the root, into a folder that is open to tools."""
        real = Path(os.path.realpath(path))
        return real.is_relative_to(self.root) and not self._hidden(real.relative_to(self.root).parts[:-1])

    def open(self, path: str) -> BinaryIO:
        """A regular file for reading, at most `MAX_FILE_BYTES` and without keys; raises `PathError`."""
        parts = self.parts(path)
        if not parts:
            raise PathError(f"{path!r} is a folder; list_files shows what is in it")
        with _plain_errors(path), self._folder(parts[:-1]) as folder:
            _check_regular(path, os.stat(parts[-1], dir_fd=folder, follow_symlinks=False))
            file = os.fdopen(os.open(parts[-1], _READ, dir_fd=folder), "rb")
        try:
            _check_regular(path, os.fstat(file.fileno()))
            _check_no_keys(path, file)
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return file

    def entries(self, path: str) -> tuple[FolderEntry, ...]:
        """What is in a folder, sorted, without hidden names; raises `PathError`."""
        parts = self.parts(path)
        with _plain_errors(path), self._folder(parts) as folder, os.scandir(folder) as found:
            entries = [_entry(parts, one) for one in found if not self._hidden((*parts, one.name))]
        return tuple(sorted(entries, key=lambda entry: entry.path))

    def walk(self, path: str) -> Iterator[FolderEntry]:
        """Everything below a folder, depth first and sorted; what cannot be read is skipped.

        As in ripgrep, names that begin with a dot are left out, and so are folders of installed
        packages; give such a folder as `path` to look into it.
        """
        levels = [iter(self.entries(path))]
        while levels:
            entry = next(levels[-1], None)
            if entry is None:
                levels.pop()
                continue
            name = entry.path.rpartition("/")[2]
            if name.startswith(".") or name in PACKAGES:
                continue
            yield entry
            if entry.kind == "folder":
                with suppress(PathError):
                    levels.append(iter(self.entries(entry.path)))

    def write(self, path: str, content: bytes) -> None:
        """Make the file hold `content`, all at once; folders are made. Raises `PathError`."""
        parts = self.parts(path)
        if not parts:
            raise PathError(f"{path!r} is a folder; give the name of a file")
        if not self.write_any_name and (reason := self._runs(parts, content)):
            raise PathError(
                f"{path[:200]!r} is not open to writing: {reason}; the operator may allow it "
                "(RATCHET_WRITE_ANY_NAME)"
            )
        with _plain_errors(path), self._folder(parts[:-1], make=True) as folder:
            mode = _mode_of_old(path, parts[-1], folder)
            if mode is not None:
                _check_old(path, parts[-1], folder)
            draft = f"{_DRAFT}{secrets.token_hex(8)}"
            try:
                _fill(os.open(draft, _CREATE, 0o666, dir_fd=folder), content, mode)
                os.rename(draft, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(draft, dir_fd=folder)
                raise
            os.fsync(folder)

    def _runs(self, parts: PathParts, content: bytes) -> str:
        """Why what is written there may be run, or decide what is; empty: it does not."""
        path = self.root.joinpath(*parts)
        *folders, last = parts
        if name := next(filter(_runs_by_name, folders), last if _runs_by_name(last, is_file=True) else ""):
            return f"programs run what is in {name!r} by themselves"
        if _is_code_of_ours(path) or any(_is_same(path, Path(word)) for word in self.programs):
            return "the worker runs what is there"
        if is_configuration(path):
            return "the worker is configured by what is there"
        if _folded(parts[-1]).endswith((".yaml", ".yml")):
            if _is_agent_file(content):
                return "it would be an agent file"
            with suppress(OSError), open(path, "rb", opener=lambda name, _: os.open(name, _READ)) as old:
                if _is_agent_file(old.read(FILE_BYTES + 1)):
                    return "it is an agent file"
        return ""

    def _hidden(self, parts: PathParts) -> bool:
        names = [_folded(part) for part in parts]
        if has_name_of_keys(names) or any(name.startswith(_DRAFT) for name in names):
            return True
        data_inside = self.data_dir.is_relative_to(self.root)
        return data_inside and self.root.joinpath(*parts).is_relative_to(self.data_dir)

    @contextmanager
    def _folder(self, parts: PathParts, make: bool = False) -> Iterator[int]:
        """A descriptor of the folder, reached from the root without following any symlink."""
        here = os.open(self.root, _FOLDER)
        try:
            for part in parts:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=here)
                deeper = os.open(part, _FOLDER, dir_fd=here)
                os.close(here)
                here = deeper
            yield here
        finally:
            os.close(here)


def _name_in(folder: Path, name: str) -> str:
    """A name in composed form as the folder has it: it may have the same letters in another form alone.

    What is judged is the composed form, which one file in the folder has at most: its own name counts first.
    Raises `ValueError`.
    """
    if os.path.lexists(folder / name):
        return name
    same = []
    with suppress(OSError):  # there is no such folder: said when it is opened
        same = [one for one in os.listdir(folder) if normalize("NFC", one) == name]
    if len(same) > 1:
        raise ValueError(f"{len(same)} names in the folder have the letters of {name!r}; rename all but one")
    return same[0] if same else name


def _folded(part: str) -> str:
    """A name without case, and without characters that do not show: some file systems ignore both."""
    return visible(normalize("NFC", part).casefold(), lambda _: "")


def _runs_by_name(part: str, is_file: bool = False) -> bool:
    name = _folded(part)
    if is_file and name in RUN_AS_FILES:
        return True
    if name.endswith(MODULE_ENDINGS):
        module = name.partition(".")[0]  # in front of Python's own, for programs that start in its folder
        if module in sys.stdlib_module_names or module in sys.modules:
            return True
    return name.startswith(".") or any(fnmatchcase(name, pattern) for pattern in RUN_BY_NAME)


def _is_agent_file(content: bytes) -> bool:
    """What is no text of an agent file's size cannot be loaded as one."""
    try:
        return may_run(content.decode())
    except UnicodeDecodeError:
        return False


def _is_code_of_ours(path: Path) -> bool:
    """This process has loaded a module from there, or finds modules of a package there: so will the next."""
    above = [(one.name.casefold(), one) for one in (path, *path.parents) if os.path.exists(one)]
    for module in tuple(sys.modules.values()):
        known = getattr(module, "__dict__", {})
        for place in (known.get("__file__"), *(known.get("__path__") or ())):
            if isinstance(place, str) and place:
                called = os.path.basename(place).casefold()
                with suppress(OSError):
                    if any(name == called and os.path.samefile(place, one) for name, one in above):
                        return True
    return False


def _entry(folder: PathParts, found: os.DirEntry[str]) -> FolderEntry:
    path = "/".join((*folder, found.name))
    try:
        status = found.stat(follow_symlinks=False)
    except OSError:
        return FolderEntry(path, "other", 0)
    if stat.S_ISREG(status.st_mode):
        return FolderEntry(path, "file", status.st_size)
    if stat.S_ISDIR(status.st_mode):
        return FolderEntry(path, "folder", 0)
    return FolderEntry(path, "link" if stat.S_ISLNK(status.st_mode) else "other", 0)


def _check_regular(path: str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise PathError(f"{path!r} is a folder; list_files shows what is in it")
    if not stat.S_ISREG(status.st_mode):
        raise PathError(f"{path!r} is not a regular file but a device, FIFO, socket or link")
    if status.st_size > MAX_FILE_BYTES:
        raise PathError(f"{path!r} has {status.st_size:,} bytes; at most {MAX_FILE_BYTES:,} can be read")


def _check_no_keys(path: str, file: BinaryIO) -> None:
    if holds_keys(file, MAX_FILE_BYTES):
        raise PathError(f"{path[:200]!r} is not open to tools: it holds a key")


def _check_old(path: str, name: str, folder: int) -> None:
    """What is replaced holds no key in what tools could read of it. One that may be written and not read is
    replaced unseen: the worker has neither a key nor an agent from there."""
    try:
        old = os.open(name, _READ, dir_fd=folder)
    except PermissionError:
        os.close(os.open(name, _WRITE, dir_fd=folder))
        return
    with os.fdopen(old, "rb") as file:
        _check_no_keys(path, file)


def _mode_of_old(path: str, name: str, folder: int) -> int | None:
    """Permissions of the file that is replaced, without set-user-id; None for a new file."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise PathError(f"{path!r} exists and is not a regular file; it was not changed")
    return stat.S_IMODE(status.st_mode) & 0o777


def _fill(descriptor: int, content: bytes, mode: int | None) -> None:
    with os.fdopen(descriptor, "wb") as file:
        if mode is not None:
            os.fchmod(descriptor, mode)
        file.write(content)
        file.flush()
        os.fsync(descriptor)


@contextmanager
def _plain_errors(path: str) -> Iterator[None]:
    """Turns the operating system's errors into ours."""
    try:
        yield
    except FileNotFoundError:
        raise PathError(f"{path!r}: no such file or folder; list_files shows what exists") from None
    except NotADirectoryError:
        raise PathError(f"{path!r}: a part of this path is not a folder") from None
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise PathError(f"{path[:200]!r}: {cause}") from None
