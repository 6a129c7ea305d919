"""The wheel: one top-level name, beside anybody's `workflows`, `activities`, `client` and `worker.py`.

The quick tests look at what was built. The others install it with pip, in fresh environments;
`make wheel-test` runs all.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener
from zipfile import ZipFile

import pytest

import ratchet as authors
from activities.installed import EXTRAS
from activities.settings import Settings
from client.cli.docs import pages
from client.proof.digests import ratchet_code
from client.server.connection import connected, has_worker
from deploy.wheel import MOVED, NAME, module_names, moved
from tests.client.commandline import until
from tests.examplekit import ROOT
from tests.test_docs import blocks, text_of
from workflows.api import TASK_QUEUE

GOAL = "How many words does agent.yaml have?"
CORE_MB = 110
"""Of all that is installed for a client, without bytecode."""
PATIENCE = 120
"""Seconds until a condition must hold."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    ZipFile(wheel).extractall(folder)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of a user's with what every Temporal project has."""
    for name in MOVED[:3]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "worker.py").touch()
    return tmp_path


def spoken(project: Path, unpacked: Path, program: str) -> subprocess.CompletedProcess[str]:
    """What a program says in the project, where the wheel is installed; the checkout comes after both."""
    path = os.pathsep.join(map(str, (project, unpacked)))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


# -- what is in it --------------------


def test_everything_has_one_name(unpacked: Path) -> None:
    top = {path.name for path in unpacked.iterdir() if path.suffix != ".dist-info"}
    assert top == {NAME}
    below = {path.stem for path in (unpacked / NAME).iterdir() if path.suffix != ".md"}
    assert below == {"__init__", "__main__", "docs", "examples", "py", "testing", "verify", *MOVED}


def test_pages_are_there_and_read(unpacked: Path, project: Path) -> None:
    """They alone, and where the links between them lead."""
    packed = [*(unpacked / NAME).glob("*.md"), *(unpacked / NAME / "docs").iterdir()]
    assert {file.relative_to(unpacked / NAME): file.read_bytes() for file in packed} == {
        file.relative_to(ROOT): file.read_bytes() for file in pages().values()
    }
    words = ["docs", "people", "--path"]
    program = f"from ratchet.client.start import main; import sys; sys.argv[1:] = {words}; main()"
    assert spoken(project, unpacked, program).stdout == f"{unpacked / NAME / 'docs' / 'people.md'}\n"


def test_every_module_and_example_is_there(unpacked: Path) -> None:
    modules = {Path(*name.split(".")) for name in module_names(ROOT)}
    packed = (path.relative_to(unpacked / NAME) for path in (unpacked / NAME).rglob("*.py"))
    assert modules <= {path.parent if path.stem == "__init__" else path.with_suffix("") for path in packed}
    for folder in ("examples", "client/console/templates", "client/console/static"):
        files = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.*") if path.suffix != ".pyc"}
        assert files == {
            path.relative_to(unpacked / NAME) for path in (unpacked / NAME / folder).rglob("*.*")
        }


def test_certificate_is_of_the_checkout_and_of_its_wheel(unpacked: Path, project: Path) -> None:
    program = "from ratchet.client.proof.digests import ratchet_code; print(ratchet_code())"
    assert spoken(project, unpacked, program).stdout.strip() == ratchet_code()
    edited = shutil.copytree(unpacked, project / "edited")
    text = edited / NAME / "activities" / "text.py"
    text.write_text(f"{text.read_text()}# another one\n")
    assert spoken(project, edited, program).stdout.strip() not in ("", ratchet_code())


def test_schema_of_agent_files_is_that_of_the_checkout(unpacked: Path, project: Path) -> None:
    program = "from ratchet.client.start import main; import sys; sys.argv[1:] = ['schema', 'agent']; main()"
    packed = unpacked / NAME / "examples" / "new" / "agent.schema.json"
    assert json.loads(spoken(project, unpacked, program).stdout) == json.loads(packed.read_text())


def test_no_name_of_the_checkout_is_left(unpacked: Path) -> None:
    """In an import, in a string that is a module's name, in a program inside a string; logs have one name."""
    old, modules = "|".join(MOVED), module_names(ROOT)
    inside = re.compile(rf"\b(from|import) ({old})\b|-m ({old})\b")
    left = []
    for file in (unpacked / NAME).rglob("*.py"):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                is_name = "." in node.value and node.value.strip(".") in modules
                names = [node.value] if is_name or inside.search(node.value) else []
            else:
                continue
            left += [f"{file}:{node.lineno}: {one}" for one in names if is_old(one) or inside.search(one)]
        assert not re.search(r"get_?[lL]ogger\(__name__", text), file
    assert left == []
    points = next(unpacked.glob("*.dist-info/entry_points.txt")).read_text()
    assert set(re.findall(r"= (\w+)", points)) == {NAME}


def is_old(name: str) -> bool:
    return name.partition(".")[0] in MOVED


def test_lines_stay_where_they_are(unpacked: Path) -> None:
    """A traceback of the wheel can be read beside the checkout."""
    for name in ("workflows/kernel/errors.py", "client/plugin.py", "worker.py", "ratchet/__init__.py"):
        packed = (unpacked / NAME / name.removeprefix(f"{NAME}/")).read_text().splitlines()
        assert len(packed) == len((ROOT / name).read_text().splitlines()) > 50


@pytest.mark.parametrize(
    "line", ["import workflows.api", "import client.plugin as plugin", "import ast, client"]
)
def test_import_that_cannot_be_moved_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"made_up.py:1: `.*write `from PACKAGE import MODULE`"):
        moved(f"{line}\n", frozenset(), "made_up.py")


def test_every_extra_is_explained() -> None:
    """To whoever lacks it, and on the page; `all` has all of them."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras.pop("all")
    assert set(everything[len("ratchet[") : -1].split(",")) == set(extras)
    assert {extra for extra, _ in EXTRAS.values()} == set(extras)
    rows = re.findall(r"^\| (`[^|]*`) \|", text_of("embedding.md"), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == {*extras, "all"}


# -- in a user's project, without an environment of its own --------------------

EVERY_MODULE = """
import pkgutil
from importlib import import_module
import ratchet
for found in pkgutil.walk_packages(ratchet.__path__, "ratchet."):
    if "__main__" not in found.name and ".examples" not in found.name:
        import_module(found.name)
print(len([getattr(ratchet, name) for name in ratchet.__all__]), "names")
"""


def test_no_module_imports_a_users_package(project: Path, unpacked: Path) -> None:
    for name in MOVED:
        file = project / name / "__init__.py" if (project / name).is_dir() else project / f"{name}.py"
        file.write_text(f"raise RuntimeError('this {name} is the user\\'s')\n")
    ended = spoken(project, unpacked, EVERY_MODULE)
    assert ended.stdout == f"{len(authors.__all__)} names\n", ended.stderr


VALIDATED = """
import asyncio
import json
from importlib import import_module
from temporalio.worker import Replayer
from ratchet import RatchetPlugin, Settings

async def nothing():
    for none in ():
        yield none

async def validated(name):
    kind = import_module(f"workflows.{name}").Report
    try:
        replayer = Replayer(workflows=[kind], plugins=[RatchetPlugin(Settings())])
        async with replayer.workflow_replay_iterator(nothing()):
            return "taken"
    except RuntimeError as error:
        return f"{error.__cause__}"

for name in ("of_data", "of_workflows", "of_activities"):
    print(name, asyncio.run(validated(name)))
"""
REPORT = """
from temporalio import workflow
from {place}.clock import NOW

@workflow.defn
class Report:
    @workflow.run
    async def run(self) -> None: ...
"""


def test_users_packages_do_not_pass_the_sandbox(project: Path, unpacked: Path) -> None:
    """Ratchet's own packages do; in a wheel those have other names than in a checkout."""
    (project / "data").mkdir()
    for place in ("data", "workflows", "activities"):
        now = "1" if place == "data" else "datetime.datetime.now()"
        (project / place / "clock.py").write_text(f"import datetime\n\nNOW = {now}\n")
        (project / "workflows" / f"of_{place}.py").write_text(REPORT.format(place=place))
    ended = spoken(project, unpacked, VALIDATED)
    pure, *impure = ended.stdout.splitlines()
    assert pure == "of_data taken", ended.stderr
    assert len(impure) == 2
    for line in impure:
        assert "Cannot access datetime.datetime.now" in line


# -- in fresh environments --------------------


@dataclass(frozen=True)
class Environment:
    """A fresh environment, and a folder of the user's."""

    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def site(self) -> Path:
        return next((self.folder / "lib").glob("python3*/site-packages"))

    def environment(self, cwd: Path, more: Mapping[str, str]) -> dict[str, str]:
        """Nothing of the checkout is on the path."""
        ours = ("RATCHET_", "TEMPORAL_", "OPENAI_", "PYTHON", "PYTEST_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {**kept, "PATH": f"{self.bin}:{kept['PATH']}", "XDG_STATE_HOME": str(cwd / ".state"), **more}

    def run(self, cwd: Path, *words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        """A program of the environment."""
        return subprocess.run(
            [self.bin / words[0], *words[1:]], cwd=cwd, env=self.environment(cwd, more), text=True,
            capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=1200,
        )  # fmt: skip

    @contextmanager
    def started(self, cwd: Path, *words: str, **more: str) -> Iterator[Path]:
        """A program of the environment meanwhile; the file with what it says."""
        output = cwd / f"said-by-{words[-1].strip('.')}.txt"
        with output.open("w") as said:
            process = subprocess.Popen(
                [self.bin / words[0], *words[1:]], cwd=cwd, env=self.environment(cwd, more),
                stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            yield output
        finally:
            process.terminate()
            process.wait(PATIENCE)

    def install(self, *packages: str) -> None:
        """Install packages, in the versions of the lock where that has them."""
        pins = re.findall(r"^([\w.-]+==[^\s;\\]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
        constraints = self.folder / "constraints.txt"
        constraints.write_text("\n".join(pins))
        done = uv("pip", "install", "--python", self.bin / "python", "--constraint", constraints, *packages)
        if "error sending request" in done.stderr.lower():
            pytest.skip("no package index answers")
        assert done.returncode == 0, done.stderr

    def conflicts(self) -> str:
        """Of what is installed; empty: none."""
        checked = uv("pip", "check", "--python", self.bin / "python")
        return "" if checked.returncode == 0 else checked.stderr


def uv(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """As pip, in a tenth of its time. It does not read pip's configuration: that becomes its variables."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    known = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "find-links": "UV_FIND_LINKS"}
    given = dict(
        re.findall(r"[.]([\w-]+)='(.*)'", "\n".join(sorted(listed.stdout.splitlines(), reverse=True)))
    )
    indexes = {variable: given[name] for name, variable in known.items() if name in given}
    return subprocess.run(
        [Path(sys.executable).parent / "uv", "--no-config", *words],
        capture_output=True, text=True, check=False,
        env={**os.environ, "UV_INDEX_STRATEGY": "unsafe-best-match", **indexes},
    )  # fmt: skip


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Environment]]:
    """Makes environments; they are removed in the end."""
    made: dict[tuple[str, ...], Environment] = {}

    def make(*packages: str, python: str = "") -> Environment:
        if (python, *packages) not in made:
            one = Environment(tmp_path_factory.mktemp("environment"))
            subprocess.run([python or sys.executable, "-m", "venv", "--without-pip", one.folder], check=True)
            one.install(*packages)
            made[python, *packages] = one
        return made[python, *packages]

    yield make
    for one in made.values():
        shutil.rmtree(one.folder)


@pytest.mark.exhaustive
def test_client_is_small(wheel: Path, environment: Callable[..., Environment]) -> None:
    core = environment(str(wheel))
    files = [path for path in core.site.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert 60 < sum(path.stat().st_size for path in files) / 1e6 < CORE_MB
    assert core.conflicts() == ""
    program = "from ratchet import AgentClient, Local, RatchetPlugin, load_agent; load_agent('log_detective')"
    assert core.run(core.folder, "python", "-c", program).stderr == ""


LACKING = {
    "server": ("ratchet", "run", "--agent", "log_detective", "go"),
    "console": ("ratchet", "console", "--address", "127.0.0.1:1"),
    "mcp": ("ratchet", "mcp", "--all-runs"),
    "verify": ("ratchet", "verify", "agent", "payments"),
    "postgres": ("python", "-m", "ratchet.worker"),
    "s3": ("python", "-m", "ratchet.worker"),
    "telemetry": ("python", "metrics.py"),
    "openai": ("ratchet", "run", "--model", "gpt-5-mini", "--base-url", "http://127.0.0.1:1/v1", "hi"),
    "code": ("python", "run_code.py"),
}
ASKED = {
    "postgres": {"RATCHET_STORE": "postgresql://nobody@127.0.0.1:1/none", "RATCHET_STORE_SECRET": "s" * 16},
    "s3": {"RATCHET_BLOBS": "s3://none/none", "RATCHET_STORE_SECRET": "s" * 16},
    "telemetry": {"RATCHET_METRICS": "127.0.0.1:9464"},
}
"""What has a worker need the extra."""
METRICS = """
import sys
import tomllib
from ratchet import RatchetError, RatchetPlugin, Settings
try:
    RatchetPlugin(Settings()).configure_worker({"activities": [], "task_queue": "ratchet"})
except RatchetError as error:
    sys.exit(str(error))
"""
CODE = """
import ratchet
agent = ratchet.load_agent("promise_keeper")
model = ratchet.ScriptedModel(["```repl\\nprint(1)\\n```"])
print(ratchet.Local(agent, model=model).run_sync("How long?", material="long").result.error)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("extra", sorted({extra for extra, _ in EXTRAS.values()}))
def test_missing_extra_is_one_line(
    wheel: Path, environment: Callable[..., Environment], extra: str, tmp_path: Path
) -> None:
    (tmp_path / "run_code.py").write_text(CODE)
    (tmp_path / "metrics.py").write_text(METRICS)
    ended = environment(str(wheel)).run(tmp_path, *LACKING[extra], **ASKED.get(extra, {}))
    (line,) = (ended.stdout + ended.stderr).strip().splitlines()[-1:]
    assert f"pip install 'ratchet[{extra}]'" in line
    assert "Traceback" not in ended.stderr


@pytest.mark.exhaustive
def test_empty_folder_gets_an_agent_that_runs(
    wheel: Path, environment: Callable[..., Environment], tmp_path: Path
) -> None:
    """`init`, `run`, `test`, `console`, and pytest with the plugin for cassettes."""
    one = environment(f"{wheel}[server]", "pytest", "mypy")
    folder = tmp_path / "of mine"
    assert one.run(tmp_path, "ratchet", "init", folder).returncode == 0
    ran = one.run(folder, "ratchet", "run", "--agent", "agent.yaml", "--id", "first", GOAL)
    assert re.search(r"agent.yaml has \d+ words", ran.stdout), ran.stderr
    assert one.run(folder, "pytest", "-q", "test_agent.py").returncode == 0
    (folder / "cassettes").mkdir()
    exported = one.run(folder, "ratchet", "export", "first", "--out", "cassettes/first.yaml")
    assert exported.returncode == 0, exported.stderr
    played = one.run(folder, "ratchet", "test", "cassettes")
    assert played.returncode == 0, played.stdout
    (folder / "test_courses.py").write_text(COURSES)
    assert "1 passed" in one.run(folder, "pytest", "-q", "test_courses.py").stdout
    assert one.run(folder, "python", "-m", "ratchet", "agents").stdout.count("\n") > 5
    with one.started(folder, "ratchet", "console") as output:
        link = until(lambda: re.search(r"Console +(http\S+)|ratchet: .*", output.read_text()))
        assert link[1], link[0]
        with build_opener(HTTPCookieProcessor()).open(link[1]) as page:
            assert "ratchet" in page.read().decode().lower()
    one.run(folder, "ratchet", "down")


COURSES = """
import pytest

@pytest.mark.cassettes
def test_course_holds(cassette):
    cassette.check()
"""


@pytest.mark.exhaustive
async def test_project_with_our_names_works_beside_its_own(
    wheel: Path, environment: Callable[..., Environment], tmp_path: Path
) -> None:
    """The project of docs/embedding.md as printed: it starts, decides and reads; both workers serve it."""
    one = environment(f"{wheel}[server]", "pytest", "mypy")
    page = text_of("embedding.md")
    for block in (*blocks(page, "python"), *blocks(page, "yaml")):
        file = tmp_path / block.partition("\n")[0].removeprefix("# ")
        file.parent.mkdir(exist_ok=True)
        (file.parent / "__init__.py").touch()
        file.write_text(block)
    (tmp_path / "parcels.txt").write_text("P-17 late\n")
    task = one.run(tmp_path, "ratchet", "task", "--agent", "summary.yaml", "any")
    (tmp_path / "summary.json").write_text(task.stdout)
    async with connected(settings=Settings(data_dir=tmp_path / "server")) as server:
        at = {"TEMPORAL_ADDRESS": server.where, "RATCHET_MODULES": '["activities/mail.py"]'}
        with (
            one.started(tmp_path, "python", "worker.py", **at) as theirs,
            one.started(tmp_path, "python", "-m", "ratchet.worker", **at) as ours,
        ):
            for queue, output in {"application": theirs, TASK_QUEUE: ours}.items():
                async with asyncio.timeout(PATIENCE):
                    while not await has_worker(server.temporal, queue):  # other processes
                        assert "Traceback" not in output.read_text()
                        await asyncio.sleep(0.1)
            letters = await asyncio.to_thread(one.run, tmp_path, "python", "-m", "client.letters", **at)
            assert letters.stdout.splitlines()[1:] == ["ann knows."], letters.stderr
            app = await asyncio.to_thread(one.run, tmp_path, "python", "app.py", **at)
            assert app.stdout == "Parcel P-17 is late.\nDONE\nReport: Parcel P-17 is late.\n", app.stderr


@pytest.mark.exhaustive
def test_frameworks_that_people_use_fit_beside_it(
    wheel: Path, environment: Callable[..., Environment], tmp_path: Path
) -> None:
    neighbours = ("llama-index-workflows", "langgraph", "openai-agents", "fastapi")
    one = environment(f"{wheel}[openai,console]", *neighbours)
    assert one.conflicts() == ""
    ours = "ratchet.workflows.api, ratchet.client.console.app"
    program = f"import workflows, langgraph.graph, agents, fastapi, {ours}; "
    program += "print(workflows.Workflow.__module__, ratchet.AgentTask.__module__)"
    ended = one.run(tmp_path, "python", "-W", "error::ImportWarning", "-c", program)
    assert ended.stdout == "workflows.workflow ratchet.workflows.api\n", ended.stderr


TYPED = """
from ratchet import AgentClient, AgentTask, Local, RunResult, ScriptedModel, load_agent
from ratchet.verify import at_most, calls
from ratchet.testing import CassetteFile

AGENT = load_agent("log_detective")


async def read(agents: AgentClient, run: str) -> RunResult:
    reveal_type(AGENT.task("go"))
    reveal_type((await Local(AGENT, model=ScriptedModel(["go"])).run("go")).answer)
    reveal_type(at_most("one", 1, calls("pay")).name)
    reveal_type(CassetteFile.check)
    return await agents.result(run)


def wrong(task: AgentTask) -> int:
    return task.name
"""


@pytest.mark.exhaustive
def test_types_are_seen_by_strict_mypy(
    wheel: Path, environment: Callable[..., Environment], tmp_path: Path
) -> None:
    """The one error is the planted one, and nothing is `Any`."""
    one = environment(f"{wheel}[server]", "pytest", "mypy")
    (tmp_path / "program.py").write_text(TYPED)
    checked = one.run(tmp_path, "mypy", "--strict", "program.py")
    errors = re.findall(r"error: (.*)", checked.stdout)
    assert errors == ['Incompatible return value type (got "str", expected "int")  [return-value]']
    revealed = re.findall(r'Revealed type is "(.*)"', checked.stdout)
    assert [one for one in revealed if "Any" in one] == []
    assert revealed[:2] == ["ratchet.workflows.api.AgentTask", "str | None"]


@pytest.mark.exhaustive
def test_tests_of_kernel_gate_and_machines_pass_with_the_wheel(
    wheel: Path, environment: Callable[..., Environment], tmp_path: Path
) -> None:
    """And what was recorded with the checkout replays with it."""
    one = environment(f"{wheel}[all]", "pytest", "pytest-asyncio", "hypothesis")
    modules = module_names(ROOT)
    for folder in ("tests", "docs", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    for file in (tmp_path / "tests").rglob("*.py"):
        file.write_text(moved(file.read_text(), modules, str(file)))
    ended = one.run(
        tmp_path, "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not exhaustive",
        "tests/kernel", "tests/gate", "tests/machines", "tests/test_local.py",
        "tests/cassette/test_injection.py", "tests/server/test_replay.py",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-5000:]


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_newer_python_runs_it(
    wheel: Path, environment: Callable[..., Environment], version: str, tmp_path: Path
) -> None:
    found = uv("python", "find", "--no-python-downloads", version)
    if found.returncode != 0:
        pytest.skip(f"no Python {version} here")
    one = environment(f"{wheel}[server,code]", "pytest", python=found.stdout.strip())
    assert one.run(tmp_path, "python", "-W", "error", "-c", EVERY_NAME).stderr == ""
    assert one.run(tmp_path, "ratchet", "init").returncode == 0
    ran = one.run(tmp_path, "ratchet", "run", "--agent", "agent.yaml", GOAL)
    assert re.search(r"agent.yaml has \d+ words", ran.stdout), ran.stderr
    assert one.run(tmp_path, "pytest", "-q", "test_agent.py").returncode == 0
    one.run(tmp_path, "ratchet", "down")


EVERY_NAME = "import ratchet; [getattr(ratchet, name) for name in ratchet.__all__]"
