"""MCP servers as processes and over HTTP: calls, content, progress, cancellation, death, and bad manners."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError
from temporalio.exceptions import ApplicationError

from activities.contracts import ToolSpec
from activities.mcp.config import McpConfig, tool_name
from activities.mcp.results import path_problem, schema_problem, with_paths
from activities.mcp.servers import McpServer, McpServers, Unusable
from activities.settings import Settings
from activities.tools import TransientError
from client.agents.catalog import Catalog
from tests.activities.toolkit import KEY, Memory, request_for
from tests.conftest import Environ
from tests.mcp.conftest import RUDE, Served, own_config, runner_of
from tests.mcp.rude_server import ODD_NAME
from workflows.gate.arguments import arguments_for


async def specs_of(served: Served) -> dict[str, ToolSpec]:
    """The server's tools, as a run gets them."""
    tools = await served.runner.mcp.servers["own"].tools()
    return {name: tool.spec() for name, tool in tools[0].items()}


async def test_tools_have_the_servers_schema_and_effect(served: Served) -> None:
    specs = await specs_of(served)
    effects = {name: spec.effect for name, spec in specs.items()}
    assert (effects["own__add"], effects["own__put"], effects["own__pay"]) == ("read", "idempotent", "unsafe")
    assert specs["own__add"].description == "Add two numbers."
    assert arguments_for(specs["own__add"], {"a": "1", "b": 2}) == {"a": 1, "b": 2}
    assert isinstance(arguments_for(specs["own__add"], {"a": 1, "b": 2, "c": 3}), str)


@pytest.mark.parametrize(
    ("kind", "output"),
    [
        ("text", "one\ntwo"),
        ("image", "[image, image/png, 11 bytes; kept, not shown]"),
        ("audio", "[audio, audio/wav, damaged; kept, not shown]"),
        (
            "resource",
            "[resource memo://1]\na memo\n[resource memo://2, of unknown kind, 11 bytes; kept, not shown]",
        ),
        ("link", "[link to file:///report.pdf: report]"),
        ("structured", '3 rows\n{"rows": [1, 2, 3]}'),
        ("nothing", ""),
    ],
)
async def test_each_kind_of_content_is_shown_as_text(served: Served, kind: str, output: str) -> None:
    result = await served.call("show", kind=kind)
    assert (result.output, result.error) == (output, None)
    if "kept" in output:
        assert isinstance(served.runner.blobs, Memory)
        whole = json.loads(served.runner.blobs.get(result.whole or ""))
        assert whole["content"][-1]["type"] == kind


async def test_error_of_a_tool_is_told_to_the_model(served: Served) -> None:
    result = await served.call("show", kind="error")
    assert (result.output, result.error) == ("there is no such account", "failed")
    result = await served.call("add", a="no number", b=1)
    assert result.error == "failed"
    assert "valid integer" in result.output


async def test_long_result_is_cut_and_kept(served: Served) -> None:
    result = await served.call("show", kind="huge")
    assert result.output.endswith("[184,000 of 200,000 characters left out; the whole is kept]")
    assert (result.bytes, len(result.whole or "")) == (200_000, 64)


@pytest.mark.parametrize(
    "running", [pytest.param("stdio", marks=pytest.mark.exhaustive), "http"], indirect=True
)
async def test_result_without_bounds_costs_the_connection_alone(served: Served) -> None:
    result = await served.call("show", kind="too_large")
    assert "4,194,304 bytes" in result.output
    assert (await served.call("add", a=1, b=2)).output == "3"


async def test_idempotency_key_is_in_the_calls_meta(served: Served) -> None:
    assert (await served.call("put", line="x")).output == KEY


async def test_progress_is_shown_while_a_call_runs(served: Served) -> None:
    calling = asyncio.create_task(served.call("slow_read"))
    async with asyncio.timeout(60):
        while not any("still at it" in beat for beat in served.beats):  # noqa: ASYNC110  # another process sends it
            await asyncio.sleep(0.02)
    (served.folder / "go").touch()
    assert (await calling).output == "slow_read done"
    (served.folder / "go").unlink()
    assert any(beat.startswith("own slow_read: still at it (") for beat in served.beats)


async def test_flood_of_progress_makes_few_heartbeats(served: Served) -> None:
    """However fast it is sent: what counts is how long it is read."""
    began = time.monotonic()
    await served.call("flood", count=2_000)
    assert 1 <= len(served.beats) <= 2 + 5 * (time.monotonic() - began)


async def test_cancelled_call_is_cancelled_in_the_server(served: Served) -> None:
    calling = asyncio.create_task(served.call("slow_read"))
    await served.noted("slow_read begun")
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await served.noted("slow_read cancelled")
    assert (await served.call("add", a=2, b=2)).output == "4"


@pytest.mark.parametrize(
    "running", ["stdio", pytest.param("http", marks=pytest.mark.exhaustive)], indirect=True
)
async def test_killed_server_is_opened_again_and_a_read_repeated(served: Served) -> None:
    calling = asyncio.create_task(served.call("slow_read"))
    await served.noted("slow_read begun")
    await served.kill()
    (served.folder / "go").touch()
    assert (await calling).output == "slow_read done"
    (served.folder / "go").unlink()
    assert served.notes() == ["slow_read begun", "slow_read begun", "slow_read done"]


@pytest.mark.parametrize(
    "running", ["stdio", pytest.param("http", marks=pytest.mark.exhaustive)], indirect=True
)
async def test_unsafe_call_is_not_repeated_when_its_server_is_killed(served: Served) -> None:
    calling = asyncio.create_task(served.call("slow_pay"))
    await served.noted("slow_pay begun")
    await served.kill()
    result = await calling
    assert result.error == "unknown_outcome"
    assert result.output.endswith("the outcome is unknown. It is not run again.")
    assert (await served.call("add", a=2, b=3)).output == "5"
    assert served.notes() == ["slow_pay begun"]


async def test_unsafe_call_is_not_repeated_when_broken_answer_stays_lost() -> None:
    """The client takes up a broken stream of events by GET; that it is not there says nothing of the call."""
    calls = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = re.search(r"content-length: (\d+)", head)
        asked = json.loads(await reader.readexactly(int(length[1]))) if length else {}
        kind, status, found = "application/json", "200 OK", dict[str, Any]()
        match asked.get("method"):
            case "initialize":
                of = {"name": "x", "version": "1"}
                found = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": of}
            case "tools/list":
                found = {"tools": [{"name": "pay", "inputSchema": {"type": "object"}}]}
            case "tools/call":
                calls, kind = calls + 1, "text/event-stream"
            case _:
                status = "202 Accepted" if asked else "404 Not Found"
        answer = json.dumps({"jsonrpc": "2.0", "id": asked.get("id"), "result": found})
        body = "id: 1\nretry: 10\ndata:\n\n" if kind == "text/event-stream" else answer
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    runner = runner_of(shop=McpConfig(url=f"http://127.0.0.1:{port}/mcp", timeout_seconds=5))
    result = await runner.run_tool(request_for("shop__pay", attempts=3))
    assert (result.error, calls) == ("unknown_outcome", 1)
    await runner.mcp.close()
    server.close()


# -- as processes only --------------------


async def test_process_gets_no_secret_of_the_worker(tmp_path: Path, environ: Environ) -> None:
    environ["OPENAI_API_KEY"] = "sk-of-the-worker"
    environ["FOR_IT"] = "a value for it"
    config = own_config(tmp_path, env={"GIVEN": "${FOR_IT}", "OTHER": "${NOT_SET:-default}"})
    runner = runner_of(own=config)
    found = json.loads((await runner.run_tool(request_for("own__environment"))).output)
    await runner.mcp.close()
    assert (found["GIVEN"], found["OTHER"]) == ("a value for it", "default")
    assert not {name for name in found if "KEY" in name or name.startswith(("RATCHET", "FOR_"))}


async def test_process_that_ends_says_why_without_its_secret(tmp_path: Path) -> None:
    runner = runner_of(own=own_config(tmp_path, env={"TOKEN": "out of cheese"}))
    with pytest.raises(TransientError, match=r"it ended with exit code 3. Its last words: \[secret\]"):
        await runner.run_tool(request_for("own__die", attempts=3))
    await runner.mcp.close()


async def test_error_shows_no_secret_of_the_command_line(environ: Environ) -> None:
    environ["SHOP_TOKEN"] = "sk-of-the-shop"
    program = "import sys; sys.exit(f'wrong key {sys.argv[1]}')"
    config = McpConfig(command=sys.executable, args=("-c", program, "${SHOP_TOKEN}"))
    async with McpServers({"own": config}) as servers:
        with pytest.raises(TransientError, match=r"Its last words: wrong key \[secret\]"):
            await servers.tools(["own__add"])


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (McpConfig(command="no-such-program"), "there is no program no-such-program"),
        (McpConfig(command="x", args=("${NOT_SET}",)), "the worker's environment has no NOT_SET"),
    ],
)
async def test_server_that_cannot_start_is_not_tried_again_and_again(config: McpConfig, reason: str) -> None:
    async with McpServers({"own": config}) as servers:
        with pytest.raises(Unusable, match=f"the MCP server own cannot be used: {reason}"):
            await servers.tools(["own__add"])


async def test_server_that_is_away_is_a_failure_that_goes_away() -> None:
    async with McpServers(
        {"own": McpConfig(command=sys.executable, args=("-c", "exit('no disk')"))}
    ) as servers:
        with pytest.raises(
            TransientError, match=r"own is away: it ended with exit code 1. Its last words: no disk"
        ):
            await servers.tools(["own__add"])


async def test_rude_server_harms_nobody() -> None:
    config = McpConfig(command=sys.executable, args=(str(RUDE),))
    runner = runner_of(rude=config)
    tools, left_out = await runner.mcp.servers["rude"].tools()
    odd = tool_name("rude", ODD_NAME)
    assert sorted(tools) == sorted(["rude__bad_result", odd, "rude__twice", "rude__trap"])
    assert left_out == {
        "twice": "another one is called rude__twice",
        "deep": "its schema has more than 20,000 parts, with its references written out",
        "long": "its schema has more than 65,536 bytes",
    }
    result = await runner.run_tool(request_for("rude__bad_result", text="x"))
    assert result.error == "failed"
    assert result.output.startswith("the tool ran, but its answer is not one of MCP: content")
    assert arguments_for(tools["rude__trap"].spec(), {"text": "a" * 50_000 + "!"}) is not None
    await runner.mcp.close()


async def test_two_servers_may_have_tools_of_one_name(tmp_path: Path) -> None:
    runner = runner_of(
        one=own_config(tmp_path), two=own_config(tmp_path, effects={"a*": "unsafe"}, tools=("add",))
    )
    one, two = await runner.describe(["one__add", "two__add"])
    assert (one.effect, two.effect) == ("read", "unsafe")
    with pytest.raises(ApplicationError, match="unknown tools: two__pay"):
        await runner.describe(["two__pay"])
    found = [await runner.run_tool(request_for(f"{name}__add", a=1, b=2)) for name in ("one", "two")]
    assert [result.output for result in found] == ["3", "3"]
    await runner.mcp.close()


async def test_arguments_that_the_configuration_calls_paths_are_checked_as_paths(tmp_path: Path) -> None:
    paths = {"put": ("line",), "pay": ("line",), "add": ("a",), "*": ("nothing",)}
    server = McpServer("own", own_config(tmp_path, paths=paths))
    tools, left_out = await server.tools()
    put = tools["own__put"].spec()
    assert arguments_for(put, {"line": "./reports//a.txt"}) == {"line": "reports/a.txt"}
    for path in ("reports/../../etc/passwd", "/etc/passwd", "reports\\..\\x"):
        assert isinstance(arguments_for(put, {"line": path}), str)
    assert left_out == {
        "pay": "`paths` names an argument 'line' that it lacks; it has: amount",
        "add": "`paths` names its argument 'a', but its schema does not say that it is a text or a list of "
        "texts and nothing else",
    }
    await server.close()


TEXT: dict[str, Any] = {"type": "string"}
NULL: dict[str, Any] = {"type": "null"}
TEXTS: dict[str, Any] = {"type": "array", "items": TEXT}


def spec_with_path(schema: Any) -> ToolSpec:
    """A tool whose argument `path` has this schema, and is called a path."""
    whole = with_paths({"type": "object", "properties": {"path": schema}}, ["path"])
    return ToolSpec(name="fs__read", description="Reads.", parameters=whole, effect="read", timeout_seconds=1)


@pytest.mark.parametrize(
    "schema",
    [
        TEXT,
        TEXTS,
        {"type": ["string", "null"]},
        {"type": ["array", "null"], "items": TEXT},
        {"type": ["string", "array"], "items": TEXT},
        {"type": ["string", "array"], "items": TEXT, "pattern": "."},
        {"anyOf": [TEXT, NULL]},
        {"anyOf": [TEXT, TEXTS, NULL]},
        {"oneOf": [TEXTS, {"anyOf": [TEXT, NULL]}], "anyOf": [{"minLength": 1}]},
        {"type": "array", "items": {"type": "array", "items": {"anyOf": [TEXT, NULL]}}},
        {"type": "array", "prefixItems": [TEXT], "items": TEXT},
        {"type": "array", "prefixItems": [TEXT, {"anyOf": [TEXT, NULL]}], "items": False},
    ],
)
def test_path_is_checked_in_each_form_that_its_schema_takes(schema: Any) -> None:
    problem = path_problem({"type": "object", "properties": {"path": schema}}, {"path": True})
    assert problem == ""
    spec, plain = spec_with_path(schema), Draft202012Validator(schema)
    forms: list[Callable[[str], Any]] = [
        str, lambda one: [one], lambda one: ["a", one], lambda one: [[one]],
    ]  # fmt: skip
    if plain.is_valid(["a"]):  # servers made with MCP's SDK read such a text as a list
        forms.append(lambda one: f" {json.dumps([one])}")
    for form in forms:
        for bad in ("../../etc/passwd", "reports/../x", "../x", "/etc/passwd"):
            found = arguments_for(spec, {"path": form(bad)})
            assert isinstance(found, str), found
    taken = [form for form in forms if plain.is_valid(form("./reports//a.txt"))]
    good = [arguments_for(spec, {"path": form("./reports//a.txt")}) for form in taken]
    assert any("reports/a.txt" in str(one) and "//" not in str(one) for one in good), good


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        NULL,
        {"type": "integer"},
        {"type": ["string", "integer"]},
        {"type": ["string", "array"]},
        {"type": ["string", "object"]},
        {"type": "array"},
        {"type": "array", "items": {}},
        {"type": "array", "items": True},
        {"type": "array", "prefixItems": [TEXT]},
        {"type": "array", "prefixItems": [{}], "items": TEXT},
        {"type": "array", "prefixItems": [TEXT, {"type": "integer"}], "items": False},
        {"type": "array", "items": [TEXT]},
        {"anyOf": [TEXT, {"type": "array"}]},
        {"anyOf": [TEXT, {"type": "array", "items": {}}]},
        {"anyOf": [TEXT, {}]},
        {"anyOf": [TEXT, True]},
        {"oneOf": [TEXT, {"type": "integer"}]},
        {"anyOf": [NULL, {"$ref": "#/$defs/path"}]},
        {"type": "string", "$ref": "#/$defs/path"},
    ],
)
def test_argument_that_may_be_more_than_a_path_is_refused(schema: Any) -> None:
    whole = {"type": "object", "properties": {"path": schema}}
    for must_be in (True, False):
        problem = path_problem(whole, {"path": must_be})
        assert "`paths` names its argument 'path', but its schema does not say" in problem


async def test_server_has_the_labels_of_the_configuration(tmp_path: Path) -> None:
    server = McpServer("own", own_config(tmp_path, brings={"add": ()}, sends={"a*": "nowhere"}))
    tools, _ = await server.tools()
    specs = [tools[name].spec() for name in ("own__add", "own__put")]
    assert [(one.brings, one.sends) for one in specs] == [((), "nowhere"), (("untrusted",), "external")]
    await server.close()


# -- names and configuration --------------------


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        ("git_log", "git__git_log"),
        ("a.b", "git__a_b-2e7d8b8a"),
        ("a/b", "git__a_b-c14cddc0"),
        ("x" * 90, f"git__{'x' * 50}-"),
    ],
)
def test_names_are_what_providers_accept(tool: str, name: str) -> None:
    made = tool_name("git", tool)
    assert made.startswith(name.rpartition("-")[0] or name)
    assert len(made) <= 64
    assert made == tool_name("git", tool)
    assert tool_name("git", f"{tool}.") != made


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("[]", "expected a JSON object"),
        ("{", "expected JSON:"),
        ("/missing.json", "the file /missing.json cannot be read: No such file or directory"),
        ("pyproject.toml", f"If that one is meant: {Path('pyproject.toml').absolute()}"),
        ('{"a__b": {"command": "x"}}', "a server's name has 1 to 32 letters"),
        ('{"a": {}}', "expected either command or url"),
        ('{"a": {"url": "ftp://x"}}', "expected an address such as https://host/mcp"),
        ('{"a": {"url": "http://x", "env": {"A": "b"}}}', "belong to a command"),
        ('{"a": {"command": "x", "efects": {}}}', "Extra inputs are not permitted"),
        ('{"a": {"command": "x", "effects": {"pay": "safe"}}}', "Input should be 'pure'"),
    ],
)
def test_wrong_configuration_is_named(given: str, problem: str, environ: Environ) -> None:
    environ["RATCHET_MCP"] = given
    with pytest.raises(ValidationError) as raised:
        Settings()
    assert problem in str(raised.value)


def test_configuration_is_the_file_that_other_hosts_read(tmp_path: Path, environ: Environ) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(
        '{"mcpServers": {"git": {"type": "stdio", "command": "mcp-server-git", "args": ["-r", "."]}}}'
    )
    environ["RATCHET_MCP"] = str(file)
    assert Settings().mcp == {"git": McpConfig(type="stdio", command="mcp-server-git", args=("-r", "."))}


def test_agent_may_name_tools_of_servers_that_the_worker_has(tmp_path: Path) -> None:
    catalog = Catalog.load(Settings(data_dir=tmp_path, mcp={"git": McpConfig(command="mcp-server-git")}))
    assert catalog.tool_problem("git__git_log") == catalog.tool_problem("calculator") == ""
    assert catalog.tool_problem("got__git_log") == (
        "there is no tool `got__git_log`: no MCP server is called `got`; RATCHET_MCP names: git"
    )


def test_arguments_that_are_too_much_to_check_are_refused() -> None:
    """A schema of a server's may double its work with each level of the arguments."""
    node = {"$ref": "#/$defs/n"}
    kinds = [{"type": "object", "properties": {"c": node}, "required": ["c", name]} for name in "xy"]
    schema = {"type": "object", "$defs": {"n": {"anyOf": kinds}}, "properties": {"c": node}}
    assert not schema_problem(schema)
    arguments: dict[str, Any] = {}
    for _ in range(30):
        arguments = {"c": arguments}
    spec = ToolSpec(name="t", description="x", parameters=schema, effect="read")
    assert "too much to check" in str(arguments_for(spec, arguments))
