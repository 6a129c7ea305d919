"""The file tools stay below their root, whatever the path, and read, list and write there."""

from __future__ import annotations

import base64
import json
import os
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.agentfiles import AGENT_KEYS
from activities.extensions import load_modules
from activities.files import MAX_FILE_BYTES, FilesRoot, PathError
from activities.settings import Settings
from activities.tools import list_files, read_file, search_files, write_file
from client.agents.agentfile import AgentFile, load_agent
from client.errors import UsageError
from client.keys import new_encryption_key, new_key
from tests.activities.toolkit import context_on, settings_on
from tests.conftest import Environ

OUTSIDE = "kept outside"


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """A root with links that lead out and back, and a secret beside it."""
    with tempfile.TemporaryDirectory() as made:
        base = Path(made).resolve()
        (base / "secret.txt").write_text(OUTSIDE)
        (base / "rooted").mkdir()
        (base / "rooted" / "secret.txt").write_text(OUTSIDE)
        folder = base / "root"
        (folder / "sub" / "deep").mkdir(parents=True)
        for name in ("a.txt", "sub/a.txt", "sub/deep/a.txt"):
            (folder / name).write_text("inside")
        for hidden in (".git", ".ratchet"):
            (folder / hidden).mkdir()
            (folder / hidden / "a.txt").write_text(OUTSIDE)
        (folder / "inner").symlink_to("sub/deep")
        (folder / "inner.txt").symlink_to("sub/a.txt")
        (folder / "out").symlink_to(base)
        (folder / "out.txt").symlink_to("../secret.txt")
        (folder / "dangling").symlink_to(base / "new.txt")
        (folder / "to_git").symlink_to(".git")
        (folder / "loop").symlink_to("loop")
        yield folder


def read(root: Path, path: str, **more: Any) -> str:
    return read_file.run(read_file.Params(path=path, **more), context_on(root))


def listed(root: Path, **params: Any) -> list[str]:
    return list_files.run(list_files.Params(**params), context_on(root)).splitlines()


def write(root: Path, path: str, content: str = "new") -> str:
    return write_file.run(write_file.Params(path=path, content=content), context_on(root))


REFUSED = [
    "..", "../secret.txt", "sub/../../secret.txt", "/etc/passwd", "/etc/../etc/passwd", "out/secret.txt",
    "out.txt", "inner/../../../secret.txt", "../rooted/secret.txt", "out/root/../secret.txt",
    ".git/a.txt", ".GIT/a.txt", "sub/../.ratchet/a.txt", "to_git/a.txt", "/dev/zero", "/proc/self/environ",
    "loop", "loop/x", "dangling", "a\0b", "x" * 5000, "a/" * 3000, "sub\\a.txt", "sub/../a.txt", "a\nb",
]  # fmt: skip


@pytest.mark.parametrize("path", REFUSED, ids=lambda path: repr(path[:30]))
def test_path_that_leads_out_is_refused_by_every_tool(root: Path, path: str) -> None:
    before = sorted(str(found) for found in root.parent.rglob("*"))
    for use in (
        lambda: read(root, path),
        lambda: listed(root, path=path),
        lambda: write(root, path),
        lambda: search_files.run(search_files.Params(pattern=".", path=path), context_on(root)),
    ):
        with pytest.raises(PathError):
            use()
    assert sorted(str(found) for found in root.parent.rglob("*")) == before
    assert (root.parent / "secret.txt").read_text() == OUTSIDE


SEGMENTS = st.sampled_from([
    "..", ".", "", "a.txt", "sub", "deep", "inner", "inner.txt", "out", "out.txt", "root", "rooted",
    ".git", ".ratchet", "secret.txt", "to_git", "loop", "dangling", "~", "\\", "%2e%2e", " ",
])  # fmt: skip


@settings(deadline=None)
@given(segments=st.lists(SEGMENTS | st.text(max_size=4), min_size=1, max_size=8), absolute=st.booleans())
def test_no_path_ever_reads_outside_the_root(root: Path, segments: list[str], absolute: bool) -> None:
    path = "/".join(([str(root)] if absolute else []) + segments)
    try:
        with FilesRoot.of(settings_on(root)).open(path) as file:
            assert file.read() == b"inside"
    except PathError:
        return


@settings(deadline=None)
@given(segments=st.lists(SEGMENTS, min_size=1, max_size=6))
def test_no_path_ever_lists_outside_the_root(root: Path, segments: list[str]) -> None:
    try:
        entries = list(FilesRoot.of(settings_on(root)).walk("/".join(segments)))
    except PathError:
        return
    assert not [entry.path for entry in entries if "secret" in entry.path or "git/" in entry.path]


def test_folder_that_becomes_link_after_check_is_not_followed(tmp_path: Path) -> None:
    """The swap that a race would do between check and use, done at its worst moment."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "a.txt").write_text(OUTSIDE)
    (tmp_path / "root" / "sub").mkdir(parents=True)
    (tmp_path / "root" / "sub" / "a.txt").write_text("inside")
    root = FilesRoot.of(settings_on(tmp_path / "root"))
    walk = root.walk(".")
    assert next(walk).path == "sub"
    (tmp_path / "root" / "sub").rename(tmp_path / "root" / "old")
    (tmp_path / "root" / "sub").symlink_to(tmp_path / "secret")
    assert list(walk) == []
    with pytest.raises(PathError):
        root.open("sub/a.txt")


def test_fifos_sockets_and_folders_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    os.mkfifo(tmp_path / "fifo.yaml")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(tmp_path, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
        for name in ("fifo", "fifo.yaml", "socket"):
            with pytest.raises(PathError, match="not a regular file"):
                read(tmp_path, name)
            with pytest.raises(PathError, match="not a regular file"):
                write(tmp_path, name)
    with pytest.raises(PathError, match="is a folder"):
        read(tmp_path, "folder")
    with pytest.raises(PathError):
        write(tmp_path, "folder")
    with pytest.raises(PathError, match="is a folder"):
        write(tmp_path, ".")
    assert "fifo\tnot a regular file" in listed(tmp_path)


def test_devices_are_not_read_even_below_the_root() -> None:
    with pytest.raises(PathError, match="not a regular file"):
        read(Path("/dev"), "zero")


def test_too_large_file_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(PathError, match="at most 67,108,864 can be read"):
        read(tmp_path, "huge")


def test_workers_own_store_is_hidden_wherever_it_is(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "blobs").write_text(OUTSIDE)
    root = FilesRoot.of(Settings(files_root=tmp_path, data_dir=tmp_path / "store"))
    assert root.entries(".") == ()
    with pytest.raises(PathError, match="not open to tools"):
        root.open("store/blobs")


def test_listing_shows_kinds_and_sizes_sorted(root: Path) -> None:
    assert listed(root) == [
        "a.txt\t6 bytes", "dangling\tlink", "inner\tlink", "inner.txt\tlink", "loop\tlink", "out\tlink",
        "out.txt\tlink", "sub/", "to_git\tlink",
    ]  # fmt: skip
    assert listed(root, recursive=True, glob="sub/*") == [
        "sub/a.txt\t6 bytes", "sub/deep/", "sub/deep/a.txt\t6 bytes",
    ]  # fmt: skip
    assert listed(root, limit=1) == ["a.txt\t6 bytes", "[8 more; use glob or a deeper path]"]
    assert listed(root, glob="*.log") == ["Nothing in '.' matches '*.log'."]


def test_reading_pages_by_lines_and_says_where_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"line {n}\n" for n in range(1, 101)))
    page = read(tmp_path, "log", offset=3, limit=2).splitlines()
    assert page == ["log: lines 3-4 of 100; go on with offset 5", "3\tline 3", "4\tline 4"]
    assert read(tmp_path, "log", offset=100).splitlines()[0] == "log: lines 100-100 of 100"
    assert read(tmp_path, "log", offset=101) == "log: no line 101; the file has 100 lines."


def test_pages_fit_the_output_cap_and_add_up(tmp_path: Path) -> None:
    text = [f"{n} " + "x" * (n % 900) for n in range(500)] + ["y" * 50_000, "end"]
    (tmp_path / "log").write_text("\n".join(text))
    context = context_on(tmp_path, output_cap=5000)
    seen, offset = 0, 1
    while True:
        page = read_file.run(read_file.Params(path="log", offset=offset, limit=5000), context)
        assert len(page) <= 5000
        seen += len(page.splitlines()) - 1
        head = page.splitlines()[0]
        if "go on" not in head:
            break
        offset = int(head.rpartition(" ")[2])
    assert seen == len(text)


def test_binary_file_is_refused_and_bad_bytes_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "latin").write_bytes("caf\xe9\r\nx".encode("latin-1"))
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(PathError, match="not a text file"):
        read(tmp_path, "image")
    assert read(tmp_path, "latin") == "latin: lines 1-2 of 2\n1\tcaf\ufffd\n2\tx"
    assert read(tmp_path, "empty") == "empty: no line 1; the file has 0 lines."


def test_writing_makes_folders_replaces_all_and_keeps_permissions(tmp_path: Path) -> None:
    assert write(tmp_path, "new/deep/a.txt", "h\xe9llo") == "Wrote 6 bytes to new/deep/a.txt."
    (tmp_path / "new" / "deep" / "a.txt").chmod(0o640)
    write(tmp_path, "new/deep/a.txt", "x")
    written = tmp_path / "new" / "deep" / "a.txt"
    assert written.read_text() == "x"
    assert stat.S_IMODE(written.stat().st_mode) == 0o640
    assert os.listdir(written.parent) == ["a.txt"]


@pytest.mark.parametrize(("path", "target"), [("inner.txt", "sub/a.txt"), ("inner/a.txt", "sub/deep/a.txt")])
def test_link_is_not_followed_and_its_target_named(root: Path, path: str, target: str) -> None:
    """Approval rules judge the path that is given."""
    for use in (read, write):
        with pytest.raises(PathError, match=f"leads over a link; .*{target}"):
            use(root, path)
    assert read(root, target).endswith("inside")


def test_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(PathError, match="not a folder"):
        write(tmp_path, "file/below")
    with pytest.raises(PathError):
        write(tmp_path, "x" * 300)
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_missing_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PathError, match=r"'nope\.txt': no such file.*list_files shows"):
        read(tmp_path, "nope.txt")


def test_root_that_is_the_workers_store_has_no_files(tmp_path: Path) -> None:
    """Else a model could write what the next worker loads."""
    root = FilesRoot.of(Settings(files_root=tmp_path, data_dir=tmp_path))
    for use in (lambda: root.entries("."), lambda: root.write("worker.json", b"{}")):
        with pytest.raises(PathError, match="RATCHET_DATA_DIR"):
            use()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        ".venv/lib/x.py", "a/.VENV/x.py", "src/__pycache__/x.pyc", "lib/evil.pth", "a/conftest.py",
        "ConfTest.py", "conf\u200btest.py", "sitecustomize.py", ".github/workflows/x.yml", ".gitlab-ci.yml",
        ".bashrc", ".config/autostart/x.desktop", ".vscode/tasks.json", "Makefile", "package.json",
        "pyproject.toml", "a/./Dockerfile.dev", ".pre-commit-config.yaml", "Jenkinsfile", "Containerfile",
        "eslint.config.mjs", "web/vite.config.ts", "Gemfile", "x.gemspec", "settings.gradle.kts",
        "Gruntfile.js", "gulpfile.ts", "pom.xml", "Vagrantfile", "Taskfile.yml", "action.yml", "appveyor.yml",
        "docs/conf.py", "gunicorn.conf.py", "lefthook.yml", "composer.json", "mkdocs.yml", "fabfile.py",
        "tasks.py", "dodo.py", "flake.nix", "WORKSPACE", "build.sbt", "mix.exs", "meson.build", "SConstruct",
        "wscript", "tests/__init__.py", "test_evil.py", "evil_test.py", "json.py", "json.abi3.so",
        "pytest.py", "CLAUDE.md", "AGENTS.md",
    ],
)  # fmt: skip
def test_what_programs_run_by_name_is_written_only_if_allowed(tmp_path: Path, name: str) -> None:
    with pytest.raises(PathError, match=r"not open to writing.*RATCHET_WRITE_ANY_NAME"):
        write(tmp_path, name)
    assert list(tmp_path.iterdir()) == []
    FilesRoot.of(settings_on(tmp_path, write_any_name=True)).write(name, b"x")
    assert (tmp_path / name).read_text() == "x"


@pytest.mark.parametrize("name", ["tools.py", "shop/prices.py", "shop/new.py"])
def test_modules_of_the_worker_are_not_written(tmp_path: Path, name: str) -> None:
    """The next worker runs them, and so it does a new file in a package."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "prices.py").write_text("PRICE = 1")
    source = f"import sys; sys.path.append({str(tmp_path)!r}); import shop.prices"
    (tmp_path / "tools.py").write_text(source)
    load_modules([str(tmp_path / "tools.py")])
    try:
        with pytest.raises(PathError, match=r"not open to writing.*RATCHET_WRITE_ANY_NAME"):
            write(tmp_path, name)
        assert (tmp_path / "tools.py").read_text() == source
        FilesRoot.of(settings_on(tmp_path, write_any_name=True)).write(name, b"x")
        write(tmp_path, "stall.py")
    finally:
        sys.path.remove(str(tmp_path))
        for module in ("shop", "shop.prices"):
            del sys.modules[module]


@pytest.mark.parametrize("name", ["workspace/a.txt", "build/out.txt", "jsonl.py", "tasks.txt", "protest.py"])
def test_names_like_those_that_are_run_are_written(tmp_path: Path, name: str) -> None:
    assert write(tmp_path, name) == f"Wrote 3 bytes to {name}."


AGENT = "machine: tools\ntools: [write_file]\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("agent.yaml", AGENT), ("sub/agent.YML", AGENT), ("agent.yaml", "modules: [helper.py]"),
        ("agent.yaml", "approvals: {effects: {unsafe: never}}\ntools: [pay]\n"),
        ("agent.yaml", '{"machine": "react"}'), ("agent.yaml", '"mach\\x69ne": react'),
        ("agent.yaml", "--- # an agent\n? !!str machine\n: react"), ("agent.yaml", "  machine:\n    react"),
        ("agent.yaml", "a: &a {machine: react}\n<<: *a"), ("agent.yaml", "a: &a machine\n*a : react"),
        ("agent.yaml", f"{AGENT}broken: ["), ("deep.yaml", f"models: {'[' * 8000}"),
        ("agent.yaml", "!!omap\n- machine: react\n- modules: [helper.py]\n- tools: [read_file]"),
        ("agent.yaml", "!!merge q: {machine: react, modules: [helper.py]}\nname: c"),
        ("agent.yaml", "!<tag:yaml.org,2002:merge> q: {modules: [helper.py]}"),
        ("agent.yaml", "tools: [read_file]"), ("agent.yaml", "name: &a [pay]\ntools: *a"),
        ("agent.yaml", "models: {default: {name: m, base_url: http://evil}}"), ("agent.yaml", "models: m"),
        ("agent.yaml", "approvals: {effects: {unsafe: never}}"),
    ],
)  # fmt: skip
def test_agent_file_is_neither_written_nor_replaced(tmp_path: Path, name: str, content: str) -> None:
    with pytest.raises(
        PathError, match=r"not open to writing: it would be an agent file.*RATCHET_WRITE_ANY_NAME"
    ):
        write(tmp_path, name, content)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    with pytest.raises(PathError, match=r"not open to writing: it is an agent file"):
        write(tmp_path, name)
    FilesRoot.of(settings_on(tmp_path, write_any_name=True)).write(name, b"x")


@pytest.mark.parametrize(
    "content",
    [
        "models:\n- name: orders",
        "tools: {hammer: 3}",
        "tools: hammer",
        "approvals: [ann]",
        "!shop\nname: x",
        "description: a file of tools\nname: x\nlimits: {tokens: 1}",
        "- machine: tools",
        "a: 1\n--- {machine: tools}",
        "jobs: {build: {machine: true}}",
        "machine",
        "a: \\",
        "",
    ],
)
def test_other_yaml_files_are_written(tmp_path: Path, content: str) -> None:
    for _ in range(2):
        write(tmp_path, "data.yaml", content)


PAIRS = (
    ("machine", "react"), ("modules", "[helper.py]"), ("tools", "[read_file]"), ("models", "{default: m}"),
    ("approvals", "{effects: {read: always}}"), ("name", "b"), ("description", "a agent"),
)  # fmt: skip
SPELT = ("{}", '"{}"', "'{}'", "? {}\n", "!!str {}", "!!merge {}", "! {}", "!!binary {}")


@st.composite
def agent_texts(draw: st.DrawFn) -> str:
    """Agent files in many spellings; not all of them can be loaded."""
    pairs = draw(st.lists(st.sampled_from(PAIRS), min_size=1, max_size=4, unique_by=lambda pair: pair[0]))
    tag = draw(
        st.sampled_from(("", "!!map", "!!omap", "!!pairs", "!!set", "!own", "!", "&r", "%YAML 1.1\n---"))
    )
    shape = draw(st.sampled_from(("block", "flow", "list", "merged", "merged by tag", "aliased")))
    spelt = [(draw(st.sampled_from(SPELT)).format(key), value) for key, value in pairs]
    flow = "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"
    return tag + {
        "block": "".join(f"\n{key}: {value}" for key, value in spelt),
        "flow": " {" + ", ".join(f"{key}: {value}" for key, value in spelt) + "}",
        "list": "".join(f"\n- {key}: {value}" for key, value in spelt),
        "merged": f"\n<<: {flow}",
        "merged by tag": f"\n!!merge q: [{flow}]",
        "aliased": "\ninstructions: &k " + f"{pairs[0][0]}\n*k : {pairs[0][1]}",
    }[shape]  # fmt: skip


@settings(max_examples=settings().max_examples * 4, deadline=None)
@given(agent_texts())
def test_whatever_loads_as_its_own_agent_is_not_written(text: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made).resolve()
        (folder / "helper.py").touch()
        path = folder / "agent.yaml"
        path.write_text(text)
        try:
            agent = load_agent(path)
        except UsageError:
            return
        own = ("machine", "tools", "models", "approvals")
        if agent.modules or not agent.model_fields_set.isdisjoint(own):
            with pytest.raises(PathError, match="it would be an agent file"):
                write(folder, "new.yaml", text)


def test_keys_of_agent_files_are_known_to_tools() -> None:
    assert set(AgentFile.model_fields) == AGENT_KEYS


def test_what_configures_the_worker_is_not_written(tmp_path: Path, environ: Environ) -> None:
    """It names what is run."""
    server = {"command": sys.executable, "args": ["server.py"], "cwd": str(tmp_path)}
    for name in ("servers.txt", "server.py", "notify.sh"):
        (tmp_path / name).write_text(json.dumps({"own": server}))
    (tmp_path / "agent.yaml").write_text("description: no more")
    environ["RATCHET_MCP"] = str(tmp_path / "servers.txt")
    root = FilesRoot.of(settings_on(tmp_path, notify_command=("sh", str(tmp_path / "notify.sh"))))
    del environ["RATCHET_MCP"]
    load_agent(tmp_path / "agent.yaml")
    for name, why in {
        "servers.txt": "the worker is configured by what is there",
        "agent.yaml": "the worker is configured by what is there",
        "server.py": "the worker runs what is there",
        "notify.sh": "the worker runs what is there",
    }.items():
        with pytest.raises(PathError, match=rf"not open to writing: {why}.*RATCHET_WRITE_ANY_NAME"):
            root.write(name, b"{}")


@pytest.mark.parametrize("name", [".git/hooks/pre-commit", ".gi\u200ct/config", ".ratchet/x", ".ssh/rc"])
def test_hidden_names_are_never_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(PathError, match="not open to tools"):
        FilesRoot.of(settings_on(tmp_path, write_any_name=True)).write(name, b"x")


@pytest.mark.parametrize(
    "name",
    [
        ".env", ".env.local", ".ENV", ".envrc", "prod.env", ".ssh/config", "id_rsa", "keys/id_ed25519",
        "server.key", "store.p12", ".git/config", ".git-credentials", ".netrc", ".npmrc", ".pypirc",
        ".pgpass", ".my.cnf", ".docker/config.json", ".kube/config", ".aws/credentials", "secrets.yml",
        ".config/ratchet/ann.pem", ".vault-token", "terraform.tfstate", "prod/terraform.tfstate.backup",
        "credentials.json", "ratchet-keys.json", "mcp.json", ".Mcp.json",
    ],
)  # fmt: skip
def test_files_that_hold_keys_are_not_open_to_tools(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("password")
    root = FilesRoot.of(settings_on(tmp_path, write_any_name=True))
    assert not any(entry.kind == "file" for entry in root.walk("."))
    with pytest.raises(PathError, match="not open to tools"):
        root.open(name)
    with pytest.raises(PathError, match="not open to tools"):
        root.write(name, b"")


@pytest.mark.parametrize("name", ["environment.py", "docker/config.json", "key", "monkey.txt", "mcp.json.md"])
def test_files_with_names_like_those_of_keys_are_open(tmp_path: Path, name: str) -> None:
    write(tmp_path, name)
    assert read(tmp_path, name).endswith("new")


NOBODY = 65534
PEM = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIE\n-----END PRIVATE KEY-----\n"
BETWEEN = "certificate\n" * 90_000
"""Longer than what is read at once."""


@pytest.mark.parametrize(
    "content",
    [
        *(PEM.replace("PRIVATE", f"{kind}PRIVATE") for kind in ("", "ENCRYPTED ", "OPENSSH ", "PGP ")),
        BETWEEN + PEM, BETWEEN[: 2**20 - 15] + PEM, json.dumps({"private_key": PEM}),
        "PuTTY-User-Key-File-3: ssh-ed25519", "# made today\nAGE-SECRET-KEY-1QQPQ",
    ],
    ids=range(9),
)  # fmt: skip
def test_file_with_a_private_key_is_closed_whatever_its_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "notes.txt").write_text(content)
    root = FilesRoot.of(settings_on(tmp_path))
    for use in (lambda: root.open("notes.txt"), lambda: root.write("notes.txt", b"")):
        with pytest.raises(PathError, match=r"'notes\.txt' is not open to tools: it holds a key"):
            use()
    assert (tmp_path / "notes.txt").read_text() == content
    found = search_files.run(search_files.Params(pattern="."), context_on(tmp_path))
    assert "[1 files skipped" in found


def test_only_beginning_of_large_file_is_searched_for_key(tmp_path: Path) -> None:
    """Else a sparse file of a terabyte would hold up the tool for hours before it is replaced."""
    for begins, replaced in ((b"", True), (PEM.encode(), False)):
        with (tmp_path / "disk.img").open("wb") as file:
            file.write(begins)
            file.truncate(MAX_FILE_BYTES)
            file.seek(MAX_FILE_BYTES)
            file.write(PEM.encode())
        with suppress(PathError):
            write(tmp_path, "disk.img")
        assert ((tmp_path / "disk.img").stat().st_size == len("new")) is replaced


@pytest.mark.parametrize(("mode", "replaced"), [(0o200, True), (0o000, False)])
def test_file_that_may_be_written_and_not_read_is_replaced(mode: int, replaced: bool) -> None:
    with tempfile.TemporaryDirectory() as made, somebody(made):
        folder = Path(made).resolve()
        (folder / "drop.yaml").write_text("old")
        (folder / "drop.yaml").chmod(mode)
        with (
            nullcontext() if replaced else pytest.raises(PathError, match=r"'drop\.yaml': Permission denied")
        ):
            FilesRoot(folder, folder / ".ratchet").write("drop.yaml", b"new")
        status = (folder / "drop.yaml").stat()
        assert stat.S_IMODE(status.st_mode) == mode
        (folder / "drop.yaml").chmod(0o600)
        assert (folder / "drop.yaml").read_text() == ("new" if replaced else "old")


@contextmanager
def somebody(folder: str) -> Iterator[None]:
    """Skips the test for root, who may read every file."""
    if is_root := os.geteuid() == 0:
        os.chown(folder, NOBODY, -1)
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_keys_that_ratchet_makes_are_closed_whatever_their_name(tmp_path: Path) -> None:
    new_key(tmp_path / "ann")
    for _ in range(2):
        new_encryption_key(tmp_path / "cipher")
    for name in ("ann", "cipher"):
        with pytest.raises(PathError, match="it holds a key"):
            read(tmp_path, name)


def test_certificates_and_digests_are_no_keys(tmp_path: Path) -> None:
    digest = base64.b64encode(bytes(64)).decode()
    for name, content in {
        "cert.pem": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        "lock.json": json.dumps({"left-pad": {"integrity": f"sha512-{digest}", "signature": digest}}),
    }.items():
        (tmp_path / name).write_text(content)
        assert "1\t" in read(tmp_path, name)


@pytest.mark.parametrize("variable", ["RATCHET_ENCRYPTION_KEYS", "RATCHET_KEY", "RATCHET_MCP"])
def test_file_of_the_workers_keys_is_not_open_to_tools(
    tmp_path: Path, environ: Environ, variable: str
) -> None:
    keys = tmp_path / "some-name.json"
    keys.write_text("{}")
    (tmp_path / "other-name.json").hardlink_to(keys)
    environ[variable] = str(keys)
    root = FilesRoot.of(settings_on(tmp_path))
    for name in ("some-name.json", "other-name.json"):
        with pytest.raises(PathError, match="not open to tools"):
            root.open(name)
        with pytest.raises(PathError, match="not open to tools"):
            root.write(name, b"{}")


def test_replaced_file_loses_set_user_id(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("old")
    program.chmod(0o4755)
    FilesRoot.of(settings_on(tmp_path)).write("program", b"new")
    assert stat.S_IMODE(program.stat().st_mode) == 0o755


def test_folder_that_becomes_a_link_meanwhile_leads_nowhere(tmp_path: Path) -> None:
    root, out = tmp_path / "root", tmp_path / "out"
    for folder, text in ((root / "sub", "inside"), (out, OUTSIDE)):
        folder.mkdir(parents=True)
        (folder / "a.txt").write_text(text)
    (root / "link").symlink_to(out)
    files, over = FilesRoot(root, tmp_path / "data"), threading.Event()

    def swap() -> None:
        moves = [("sub", "aside"), ("link", "sub"), ("sub", "link"), ("aside", "sub")]
        while not over.is_set():
            for source, target in moves:
                os.rename(root / source, root / target)

    swapping = threading.Thread(target=swap)
    swapping.start()
    seen = set()
    try:
        for _ in range(3000):
            with suppress(PathError), files.open("sub/a.txt") as file:
                seen.add(file.read().decode())
    finally:
        over.set()
        swapping.join()
    assert seen == {"inside"}


# -- names in other Unicode forms --------------------

COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"


def test_files_with_decomposed_names_are_read_and_written(tmp_path: Path) -> None:
    (tmp_path / DECOMPOSED).mkdir()
    (tmp_path / DECOMPOSED / f"{DECOMPOSED}.txt").write_text("old")
    (shown,) = listed(tmp_path, path=COMPOSED)
    path = shown.partition("\t")[0]
    assert path == f"{DECOMPOSED}/{DECOMPOSED}.txt"
    for form in (path, f"{COMPOSED}/{COMPOSED}.txt"):
        assert read(tmp_path, form).endswith("1\told")
    write_file.run(write_file.Params(path=f"{COMPOSED}/{COMPOSED}.txt", content="new"), context_on(tmp_path))
    assert [one.read_text() for one in (tmp_path / DECOMPOSED).iterdir()] == ["new"]
    found = search_files.run(search_files.Params(pattern="new"), context_on(tmp_path))
    assert f"{path}:1: new" in found


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems hold one of these names")
def test_no_other_file_is_opened_under_a_composed_name(tmp_path: Path) -> None:
    twice = "a\u0323\u0302"  # three forms: these two marks, one composed with the first, and all in one
    (tmp_path / twice).write_text("hidden")
    (tmp_path / "\u1ea1\u0302").write_text("hidden too")
    with pytest.raises(PathError, match="2 names"):
        read(tmp_path, twice)
    (tmp_path / "\u1ead").write_text("named")
    assert read(tmp_path, twice).endswith("1\tnamed")


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems hold one of these names")
def test_link_with_a_decomposed_name_leads_nowhere(root: Path) -> None:
    (root / f"{DECOMPOSED}-link").symlink_to("../secret.txt")
    with pytest.raises(PathError, match="outside"):
        read(root, f"{COMPOSED}-link")
