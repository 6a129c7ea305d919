"""Material for a run: from the SDK and the command line, as text or by reference, to the answer."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.context import LongText
from activities.contracts import ContextRef, ModelSpec, ScriptedReply
from activities.settings import Settings
from activities.store import BlobStore
from activities.utf8 import Utf8
from client.agent import AgentClient
from client.context import MOST_BYTES, SHORT_BYTES, context_for, read_context, store_of
from client.errors import RatchetError, UsageError
from tests.client.conftest import Ratchet
from tests.workflows.trials import final, task
from workflows.api import AgentTask

LONG = "".join(f"{n}: {'ERROR' if n % 1000 == 1 else 'fine'} é\n" for n in range(120_000))
BLOCK = """\
found = context_search(r'(?m)^\\d+: ERROR')
print(context_len(), len(found), context_slice(found[-1]['start'], found[-1]['end']))
"""
"""For a long context."""


def code(*replies: Any, **more: Any) -> AgentTask:
    """A run in code mode with this script."""
    model = ModelSpec(provider="scripted", name="script", script=tuple(ScriptedReply(**r) for r in replies))
    return AgentTask(
        goal="How many errors?", machine="code", models={"default": model}, heartbeat_seconds=3, **more
    )


def counting(block: str) -> AgentTask:
    """Runs a block and answers with what it printed."""
    return code(
        {"reply": f"```repl\n{block}```"},
        {
            "expect": r"(?P<chars>\d+) (?P<count>\d+) (?P<last>.+)",
            "reply": "FINAL({count} of {chars}: {last})",
        },
    )


@pytest.fixture
def store(settings: Settings, working: Client) -> BlobStore:
    """The store that the clients of the tests share with their worker."""
    store = store_of(working)
    assert store.path == settings.data_dir / "blobs.db"
    return store


# -- what becomes of it ----------------------------------------------------------------------------


async def test_a_short_text_travels_itself_and_a_long_one_by_reference(store: BlobStore) -> None:
    assert await context_for("short é", store) == "short é"
    assert await context_for("x" * SHORT_BYTES, store) == "x" * SHORT_BYTES
    ref = await context_for("é" * (SHORT_BYTES // 2 + 1), store)
    assert isinstance(ref, ContextRef)
    assert (ref.chars, ref.bytes) == (SHORT_BYTES // 2 + 1, SHORT_BYTES + 2)
    assert await (await LongText.open(ref, store)).part(0) == "é" * (SHORT_BYTES // 2 + 1)


async def test_a_text_its_utf8_and_its_file_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_bytes(b"\xef\xbb\xbfh\xc3\xa9\r\n")
    for material in (tmp_path / "file.txt", b"h\xc3\xa9\r\n", "h\u00e9\r\n"):
        assert await read_context(material) == Utf8(b"h\xc3\xa9\r\n", 4)


async def test_a_byte_order_mark_is_taken_away_once(tmp_path: Path, store: BlobStore) -> None:
    (tmp_path / "file.txt").write_bytes(b"\xef\xbb\xbf" * 2 + b"x")
    read = await read_context(tmp_path / "file.txt")
    assert await context_for(read, store) == await context_for(tmp_path / "file.txt", store) == "\ufeffx"


async def test_a_large_text_is_kept_as_it_is_however_its_characters_lie(store: BlobStore) -> None:
    """Characters of one to four bytes, at every place of the pieces in which it is read."""
    for shift in range(4):
        text = "x" * shift + "a\u00e9\u20ac\U0001f600" * 300_000
        ref = await context_for(text, store)
        assert isinstance(ref, ContextRef)
        assert (ref.chars, ref.bytes) == (len(text), len(text.encode()))
        kept = await LongText.open(ref, store)
        assert "".join([await kept.part(n) for n in range(-(-ref.chars // kept.part_chars))]) == text


PEAK = """
import asyncio, resource, sys
from pathlib import Path
from activities.store import BlobStore
from client.context import context_for

async def main():
    folder = Path(sys.argv[1])
    store = BlobStore(folder / "blobs.db", durable=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    longest = 0.0
    async def watch():
        nonlocal longest
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            await asyncio.sleep(0.01)
            longest = max(longest, clock() - began)
    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    await context_for(folder / "large.txt", store)
    watching.cancel()
    store.close()
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, longest)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count memory in other units")
def test_a_large_file_is_in_memory_once_and_holds_nothing_up(tmp_path: Path) -> None:
    """In MB: 64 of them, where one character takes four bytes as Python keeps it."""
    (tmp_path / "large.txt").write_bytes(("x" * 63 + "\U0001f600\n").encode() * 1_000_000)
    command = [sys.executable, "-c", PEAK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    grown, late = done.stdout.split()
    assert int(grown) < 150, done.stdout
    assert float(late) < 0.5, done.stdout


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("", "the context is empty"),
        (b"", "the context is empty"),
        (b"ab\xff", "no UTF-8 text .*position 2.*iconv"),
        (b"\xef\xbb\xbfab\xff", "no UTF-8 text .*position 5.*iconv"),
        (b"\xef\xbb\xbf", "the context is empty"),
        (Path("/dev/zero"), "/dev/zero cannot be read as context: .*device; put its content into a file"),
        ("a\ud800", "no UTF-8 text"),
        (Path("nowhere/file.txt"), "nowhere/file.txt cannot be read as context: No such file"),
        (Path(__file__).parent, "cannot be read as context: Is a directory"),
    ],
)
async def test_what_is_no_text_is_refused_in_words(given: str | bytes | Path, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        await read_context(given)


async def test_a_file_that_is_far_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    large = tmp_path / "large.txt"
    with large.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(UsageError, match=r"large.txt is 268,435,457 bytes; at most"):
        await read_context(large)


async def test_what_is_wrong_with_a_large_text_is_told_by_its_place() -> None:
    with pytest.raises(UsageError, match="position 3000000: unexpected end of data"):
        await read_context(b"a" * 3_000_000 + b"\xe2\x82")
    with pytest.raises(UsageError, match="position 0: invalid start byte"):
        await read_context(b"\x80" * 3_000_000)


async def test_bytes_that_are_far_too_many_are_refused() -> None:
    with pytest.raises(UsageError, match=r"the context is 268,435,457 bytes; at most 268,435,456"):
        await read_context(bytes(MOST_BYTES + 1))


async def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="it is a pipe"):
        await asyncio.wait_for(read_context(tmp_path / "pipe"), 5)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system has no such file")
async def test_a_file_that_says_nothing_of_its_size_is_read() -> None:
    told = await read_context(Path("/proc/self/status"))
    assert told.chars > 100


async def test_a_store_that_cannot_be_used_is_an_error_that_says_that_nothing_started(tmp_path: Path) -> None:
    (tmp_path / "blobs.db").mkdir()
    broken = BlobStore(tmp_path / "blobs.db", durable=True)
    with pytest.raises(RatchetError, match="cannot be kept, so nothing was started"):
        await context_for(LONG, broken)


# -- the SDK ---------------------------------------------------------------------------------------


async def test_a_run_reads_a_long_context_by_reference(agents: AgentClient, tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_text(LONG)
    result = await agents.run(counting(BLOCK), context=file)
    assert result.ok, result.error
    assert result.answer == f"120 of {len(LONG)}: 119001: ERROR"


async def test_a_run_reads_a_short_context_as_a_variable(agents: AgentClient) -> None:
    block = "print(len(context), context.count('a'), context[:3])\n"
    result = await agents.run(counting(block), context=b"banana")
    assert (result.ok, result.answer) == (True, "3 of 6: ban")


async def test_a_machine_that_takes_none_is_refused_before_anything_starts(agents: AgentClient) -> None:
    with pytest.raises(UsageError, match=r"machine react takes no context \(machines that do: .*code.*;"):
        await agents.start(task(final("x")), "never-started", context="text")
    with pytest.raises(RatchetError, match="never-started"):
        await agents.describe("never-started")


async def test_a_client_without_the_plugin_says_what_it_needs(working: Client, agents: AgentClient) -> None:
    bare = Client(working.service_client)
    with pytest.raises(RatchetError, match="RatchetPlugin"):
        store_of(bare)


# -- the command line ------------------------------------------------------------------------------

AGENT = f"""\
machine: code
models:
  default:
    provider: scripted
    script:
      - reply: |
          ```repl
{"".join("          " + line + chr(10) for line in BLOCK.splitlines())}\
          ```
      - expect: '(?P<chars>\\d+) (?P<count>\\d+) (?P<last>\\d+: ERROR)'
        reply: 'FINAL({{count}} errors, the last one is {{last}})'
"""


@pytest.fixture
def agent(tmp_path: Path) -> str:
    """The file of an agent that counts errors in a long context."""
    (tmp_path / "counter.yaml").write_text(AGENT)
    (tmp_path / "long.txt").write_text(LONG)
    (tmp_path / "short.txt").write_text("short")
    return str(tmp_path / "counter.yaml")


def test_a_file_is_given_with_context(served: Ratchet, agent: str, tmp_path: Path) -> None:
    run = served("run", "--agent", agent, "--context", str(tmp_path / "long.txt"), "--json", "How many?")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1])["answer"] == "120 errors, the last one is 119001: ERROR"


def test_the_input_of_a_run_names_a_long_context_and_holds_a_short_one(
    served: Ratchet, served_dir: Path, agent: str, tmp_path: Path
) -> None:
    told = served("task", agent, "--context", str(tmp_path / "long.txt"), "How many?")
    assert told.returncode == 0, told.stderr
    context = AgentTask.model_validate_json(told.stdout).context
    assert isinstance(context, ContextRef)
    assert context.chars == len(LONG)
    store = BlobStore(served_dir / "blobs.db", durable=True)
    assert store.database.rows("SELECT count(*) FROM blobs WHERE digest=?", (context.digest,)) == [(1,)]
    store.close()
    told = served("task", agent, "--context", str(tmp_path / "short.txt"), "How many?")
    assert AgentTask.model_validate_json(told.stdout).context == "short"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("run", "--agent", "{agent}", "--context", "{folder}/no.txt", "x"),
            "no.txt cannot be read as context",
        ),
        (("task", "{agent}", "--context", "{folder}/no.txt", "x"), "no.txt cannot be read as context"),
        (("run", "--model", "scripted", "--context", "{folder}/short.txt", "x"), "react takes no context"),
        (("run", "--resume", "--context", "{folder}/short.txt"), "leave --context out"),
    ],
)
def test_a_wrong_context_is_refused_with_exit_code_2(
    served: Ratchet, agent: str, tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    run = served(*(word.format(agent=agent, folder=tmp_path) for word in words))
    assert (run.returncode, run.stdout) == (2, "")
    assert says in " ".join(run.stderr.split())
