"""What a worker of the command line may load: only what this machine's user has named."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from client.errors import UsageError
from client.server import usable
from client.workerconfig import Allowed, load_settings, loadable, remember
from tests.client.conftest import Ratchet, run_ratchet

EVIL = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"


@pytest.mark.parametrize("arguments", [("tools",), ("doctor",), ("run", "--model", "scripted", "x")])
def test_what_lies_in_a_data_directory_is_never_executed(data_dir: Path, arguments: tuple[str, ...]) -> None:
    """A repository that was cloned may bring a data directory."""
    data_dir.mkdir(mode=0o700)
    evil = data_dir / "evil.py"
    evil.write_text(EVIL)
    (data_dir / "worker.json").write_text(json.dumps({"modules": [str(evil)], "base_urls": ["http://x"]}))
    run_ratchet(data_dir, *arguments)
    assert not (data_dir / "ran").exists()


def test_what_was_named_for_a_directory_is_remembered_for_it_alone_and_outside_of_it(tmp_path: Path) -> None:
    module = tmp_path / "mine.py"
    module.touch()
    named = Allowed(modules=(str(module),), base_urls=("http://localhost:1/v1",))
    home, other = usable(tmp_path / "home"), usable(tmp_path / "other")
    remember(home, named)
    (tmp_path / "link").symlink_to(home)
    for again in (home, tmp_path / "other" / ".." / "home", tmp_path / "link"):
        settings = load_settings(again)
        assert (settings.modules, settings.base_urls) == (named.modules, named.base_urls)
    assert load_settings(other).modules == ()
    assert not [path for path in home.iterdir() if "worker" in path.name]
    module.unlink()
    assert load_settings(home).modules == ()


def test_a_memory_that_cannot_be_written_is_named_with_what_to_do(served: Ratchet, tmp_path: Path) -> None:
    (tmp_path / "ratchet").touch()
    run = ("run", "--model", "scripted", "--base-url", "http://127.0.0.1:9/v1", "--detach", "x")
    ended = served(*run, XDG_STATE_HOME=str(tmp_path))
    assert ended.returncode == 2
    assert f"cannot be kept in {tmp_path / 'ratchet'}" in ended.stderr
    assert "XDG_STATE_HOME" in ended.stderr


def test_a_data_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    foreign = Path("/")
    if os.geteuid() == 0:
        foreign = tmp_path / "foreign"
        foreign.mkdir()
        os.chown(foreign, 12345, -1)
    with pytest.raises(UsageError, match=r"belongs to .*--data-dir"):
        usable(foreign)


def test_a_data_directory_is_its_owners_alone(data_dir: Path) -> None:
    run_ratchet(data_dir, "run", "--agent", "log_detective", "Which?")
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
    assert (data_dir / "worker.log").is_file()
    assert (data_dir / "temporal.db").is_file()
    open_to_others = [path.name for path in data_dir.iterdir() if path.stat().st_mode & 0o077]
    assert open_to_others == []


@pytest.mark.parametrize("name", ["worker.log", "server.log", "server.lock"])
def test_a_link_in_a_data_directory_leads_no_writing_elsewhere(data_dir: Path, name: str) -> None:
    data_dir.mkdir(mode=0o700)
    outside = data_dir.parent / "outside"
    outside.write_text("mine\n")
    (data_dir / name).symlink_to(outside)
    ended = run_ratchet(data_dir, "list")
    assert ended.returncode in (1, 2)
    assert f"{name}" in ended.stderr or "cannot be used" in ended.stderr
    assert "unexpected" not in ended.stderr
    assert outside.read_text() == "mine\n"
    (data_dir / name).unlink()


def test_a_remembered_module_that_broke_meanwhile_is_left_out_aloud_and_one_that_is_named_is_not(
    tmp_path: Path,
) -> None:
    broken, sound = tmp_path / "broken.py", tmp_path / "sound.py"
    broken.write_text("def half(:\n")
    sound.write_text("TOOLS = ()\n")
    home = usable(tmp_path / "home")
    remember(home, Allowed(modules=(str(broken), str(sound))))
    settings, words = loadable(load_settings(home), ())
    assert settings.modules == (str(sound),)
    assert len(words) == 1
    assert f"{broken}, which an earlier run of this directory named, is left out" in words[0]
    assert "SyntaxError" in words[0]
    assert "deleting" in words[0]
    settings, words = loadable(load_settings(home), (str(broken),))
    assert (str(broken) in settings.modules, words) == (True, ())
