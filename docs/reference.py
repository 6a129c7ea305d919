"""The reference pages, made from models, docstrings and commands."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer
from pydantic import BaseModel
from temporalio import workflow

from activities.contracts import LabelSource, Message, NativeCall
from activities.endpoints import ENDPOINTS
from activities.settings import Settings
from activities.tools import load_tools
from client import errors
from client.agents.agentfile import AgentFile
from client.agents.options import Option, allowed_text, options_in
from client.agents.schema import MESSAGES, agent_schema, class_nodes, described_schema, field_texts
from client.cli.app import COMMANDS, EXIT_CODES, GROUPS, app
from client.history import checkpoints, compare, fork, replay, resets
from client.history.differences import Difference
from client.runs import listing, reader
from client.runs.steps import CheckpointLine
from client.sdk.agent import AgentClient
from client.sdk.sending import SentSignal
from docs.markdown import anchor_of, table_of
from workflows import api, people, registry, status
from workflows.kernel.log import LoggedCall, Record
from workflows.steps import StepLine
from workflows.workflow import AgentWorkflow

__all__ = [
    "WRITTEN", "agent_file_page", "client_page", "commands_page", "fields_page", "messages_page",
    "settings_page", "shipped_agent_schema",
]  # fmt: skip

MADE = "<!-- Made by `make docs` from the code; do not edit. -->"
WIDTH = 110
"""Characters of a call; a longer one has a line for each argument."""


def _page(title: str, *parts: str) -> str:
    blocks = [f"# {title}", MADE, *(part.strip("\n") for part in parts)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _paragraph(text: str | None) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((text or "").split("\n\n")[0].split())


# -- the agent file --------------------

AGENT_FILE = """
An agent file is YAML; a key that is not here is refused.
[assistant.yaml](../examples/agents/assistant.yaml) has them all. `options` are those of [the
machine](machines.md), or of [your own](own-machine.md). *Default* and *examples* are JSON, which is YAML,
too. `*` stands for a name that you choose, `[]` for each item of a list. A name has letters, digits,
`_`, `.` and `-`, at most 64. Times are in seconds.

`ratchet schema agent` prints this page as a JSON schema (draft 2020-12). Editors with a YAML language
server (in VS Code the extension *YAML*) complete and check a file that begins with

    # yaml-language-server: $schema=agent.schema.json

`ratchet init` and `ratchet new machine` write both. The schema knows the options of the shipped machines;
for a machine of yours: `ratchet schema agent --agent FILE > agent.schema.json`.
"""

NAME = r"text matching `^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`"


def shipped_agent_schema() -> dict[str, Any]:
    """Of an agent file with the machines and tools that come with Ratchet."""
    return agent_schema(
        [machine.name for machine in registry.shipped()], load_tools(Settings.model_construct())
    )


def agent_file_page() -> str:
    """Each object of an agent file with its keys."""
    schema = shipped_agent_schema()
    types = {AgentFile.__name__: schema, **schema["$defs"]}
    places: dict[str, list[str]] = {}
    for place, name in _places(types):
        places.setdefault(name, []).append(place)
    parts = []
    for name, (title, *others) in places.items():
        body = types[name]
        rows = [_key_row(key, field, body, types, places) for key, field in body["properties"].items()]
        also = ", ".join(f"`{place}`" for place in others)
        parts += [
            f"## {title}",
            _paragraph(body.get("description")),
            f"Also in {also}." if also else "",
            table_of(["key", "type", "default", "examples", "meaning"], rows),
        ]
    return _page("The agent file", AGENT_FILE, *parts)


def _places(types: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each place of an agent file where an object stands, and the name of its type; the outermost first."""
    waiting = [("The file", AgentFile.__name__)]
    while waiting:
        place, name = waiting.pop(0)
        yield place, name
        above = "" if name == AgentFile.__name__ else f"{place}."
        waiting += [
            (f"{above}{key}{mark}", found)
            for key, field in types[name]["properties"].items()
            for found, mark in _objects(field, types)
        ]


def _objects(field: Any, types: Mapping[str, Any], mark: str = "") -> Iterator[tuple[str, str]]:
    """The objects with keys in a key's schema, and what is written between the key and theirs."""
    name = field.get("$ref", "").rpartition("/")[2]
    if "properties" in types.get(name, {}):
        yield name, mark
    for way in field.get("anyOf", ()):
        yield from _objects(way, types, mark)
    for inner, added in ((field.get("items"), "[]"), (field.get("additionalProperties"), ".*")):
        if isinstance(inner, dict):
            yield from _objects(inner, types, mark + added)


def _key_row(key: str, field: Any, body: Any, types: Any, places: Mapping[str, list[str]]) -> list[str]:
    titles = [places[name][0] for name in dict.fromkeys(name for name, _ in _objects(field, types))]
    links = "".join(f", [{title}](#{anchor_of(title)})" for title in titles)
    default = "must be given" if key in body.get("required", ()) else _json(field.get("default"))
    return [
        f"`{key}`",
        allowed_text(field, types).replace(NAME, "name") + links,
        "that of its keys" if titles and len(default) > 20 else default,
        ", ".join(map(_json, field.get("examples", ()))),
        field.get("description", ""),
    ]


def _json(value: object) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


# -- settings --------------------

SETTINGS = """
A worker's settings are variables of its environment. A wrong value is refused when it starts, with the
reason. Lists and objects are JSON. What they are good for: [workers.md](workers.md),
[encryption.md](encryption.md), [telemetry.md](telemetry.md), [mcp.md](mcp.md).
"""
OTHERS = {
    "OPENAI_BASE_URL": "an OpenAI-compatible server, as `--base-url`: [providers.md](providers.md)",
    "RATCHET_KEY_PASSPHRASE": "of an encrypted private key; else it is asked for",
    "TEMPORAL_...": "Temporal's own configuration: server, namespace, keys, profiles of `temporal.toml`",
    "OTEL_...": "OpenTelemetry's own: [telemetry.md](telemetry.md)",
}
"""Variables that are read as they are."""


def settings_page() -> str:
    """The variables of the environment."""
    own: list[Option] = []
    inside: dict[str, list[Option]] = {}
    for option in options_in(described_schema(Settings)):
        above, _, name = option.name.rpartition(".*.")
        if above:
            inside.setdefault(above, []).append(dataclasses.replace(option, name=name))
        else:
            own.append(dataclasses.replace(option, name=f"RATCHET_{name.upper()}"))
    parts = [_option_table("setting", own)]
    for name, keys in inside.items():
        parts += [f"## Each entry of RATCHET_{name.upper()}", _option_table("key", keys)]
    model_keys = {name: f"key of {one.title}" for one in ENDPOINTS.values() for name in one.key_variables}
    variables = [
        [f"`{name}`", meaning] for name, meaning in {**_of_commands(), **model_keys, **OTHERS}.items()
    ]
    return _page(
        "Settings", SETTINGS, *parts, "## Other variables", table_of(["variable", "meaning"], variables)
    )


def _option_table(kind: str, options: Iterable[Option]) -> str:
    rows = []
    for one in options:
        default = {None: "must be given", "null": "none"}.get(one.default, f"`{one.default}`")
        rows.append([f"`{one.name}`", one.allowed.removesuffix(" or `null`"), default, one.meaning])
    return table_of([kind, "type", "default", "meaning"], rows)


def _of_commands() -> dict[str, str]:
    """Variables that stand for options of commands, and are no settings of workers."""
    settings = {f"RATCHET_{name.upper()}" for name in Settings.model_fields}
    return {
        one.envvar: f"`{one.opts[0]}` of commands: {one.help}"
        for command in _commands().values()
        for one in command.params
        if one.envvar and one.envvar not in settings
    }


# -- commands --------------------

COMMANDS_HEAD = """
What to do with them: [commands.md](commands.md). `ratchet COMMAND --help` says the same.
"""
EVERYWHERE = ("data_dir", "debug", "address", "namespace", "port", "ui_port")
"""Options of all commands that need a directory or a server."""


def commands_page() -> str:
    """Every command with its options."""
    commands = _commands()
    common = [one for one in commands["list"].params if one.name in EVERYWHERE]
    parts = [
        "## Exit codes",
        table_of(["code", "meaning"], [[f"`{code}`", text] for code, text in EXIT_CODES.items()]),
        "## Options of most commands",
        table_of(["option", "meaning"], map(_parameter_row, common)),
    ]
    for group, names in GROUPS.items():
        parts.append(f"## {group}")
        for name, command in commands.items():
            parts += _command_parts(name, command) if name.split()[0] in names.split() else []
    return _page("Commands and exit codes", COMMANDS_HEAD, *parts)


def _commands() -> dict[str, Any]:
    """Each command by its name, also those below another one."""
    group: Any = typer.main.get_command(app)
    found = {name: group.get_command(None, name) for name in COMMANDS}
    for name, command in list(found.items()):
        if below := getattr(command, "commands", None):
            del found[name]
            found |= {f"{name} {inner}": one for inner, one in below.items()}
    return found


def _command_parts(name: str, command: Any) -> list[str]:
    own = [one for one in command.params if one.name not in (*EVERYWHERE, "help") and not one.hidden]
    given = [one for one in own if one.param_type_name == "argument"]
    words = [_word(one) if one.required else f"[{_word(one)}]" for one in given]
    return [
        f"### {name}",
        f"`{' '.join(['ratchet', name, *words])}`",
        (command.help or "").strip(),
        table_of(["argument or option", "meaning"], map(_parameter_row, own)) if own else "",
    ]


def _word(one: Any) -> str:
    """What stands for a value."""
    return str(one.metavar or max(one.opts, key=len).lstrip("-").upper())


def _parameter_row(one: Any) -> list[str]:
    if one.param_type_name == "argument":
        return [f"`{_word(one)}`", one.help or ""]
    value = "" if one.is_flag else f" {_word(one)}"
    return [f"`{', '.join([*one.opts, *one.secondary_opts])}{value}`", one.help or ""]


# -- the client --------------------

CLIENT = """
    from ratchet import AgentClient

A first program: [python.md](python.md); decisions:
[people.md](people.md). What methods return: [reference-fields.md](reference-fields.md).
"""
SECTIONS = {
    "AgentClient": "Connect, start, stop, go back",
    "RunCommander": "See requests, decide, command",
    "ConnectedReader": "Follow runs, ask the server",
    "RunReader": "Read runs",
}
"""The classes that `AgentClient` is made of, in its order, and what their methods do."""


def client_page() -> str:
    """Every public method of `AgentClient`."""
    parts = []
    known = set[str]()
    for kind in AgentClient.__mro__[:-1]:
        parts.append(f"## {SECTIONS[kind.__name__]}")
        for node in class_nodes(kind.__module__)[kind.__name__].body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in known:
                known.add(node.name)
                parts += [] if node.name.startswith("_") else _method_parts(node)
    return _page("The client", CLIENT, *parts, "## Errors", _errors())


def _method_parts(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    decorators = {ast.unparse(one) for one in node.decorator_list}
    returns = ast.unparse(node.returns) if node.returns else "None"
    called = f"{'AgentClient' if 'classmethod' in decorators else 'agents'}.{node.name}"
    if "property" in decorators:
        called += f": {returns}"
    else:
        arguments = list(_arguments(node.args))
        head, end = f"{_how(node, returns, decorators)}{called}(", f") -> {returns}"
        called = f"{head}{', '.join(arguments)}{end}"
        if len(called) > WIDTH:
            called = "\n".join([head, *(f"    {one}," for one in arguments), end])
    return [f"### {node.name}", f"```python\n{called}\n```", _prose(ast.get_docstring(node) or "")]


def _how(node: ast.AST, returns: str, decorators: set[str]) -> str:
    """What stands in front of a call."""
    if "asynccontextmanager" in decorators:
        return "async with "
    if returns.startswith(("AsyncGenerator", "AsyncIterator")):
        return "async for one in "
    return "await " if isinstance(node, ast.AsyncFunctionDef) else ""


def _arguments(given: ast.arguments) -> Iterator[str]:
    """What a method takes, without the object itself."""
    defaults = [None] * (len(given.args) - len(given.defaults)) + given.defaults
    pairs = list(zip(given.args, defaults, strict=True))[1:]
    yield from (_argument(one, default) for one, default in pairs)
    if given.kwonlyargs:
        yield "*"
    yield from map(_argument, given.kwonlyargs, given.kw_defaults)
    if given.kwarg:
        yield f"**{ast.unparse(given.kwarg)}"


def _argument(one: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(one) + (f" = {ast.unparse(default)}" if default else "")


def _prose(text: str) -> str:
    """A docstring in Markdown: its lists of arguments and errors as such."""
    return "\n\n".join(map(_prose_part, re.split(r"\n\s*\n", text)))


def _prose_part(text: str) -> str:
    head, _, entries = text.partition("\n")
    if head not in ("Args:", "Raises:", "Returns:"):
        return text
    items = [" ".join(item.split()) for item in re.split(r"^    (?=\S)", entries, flags=re.MULTILINE)[1:]]
    return "\n".join([f"{head}\n", *(re.sub(r"^(\w+): ", r"- `\1`: ", item) for item in items)])


def _errors() -> str:
    named = (getattr(errors, name) for name in errors.__all__)
    kinds: list[type[errors.RatchetError]] = [one for one in named if isinstance(one, type)]
    rows = [
        [f"`{kind.__name__}`", f"`{kind.__mro__[1].__name__}`", str(kind.exit_code), _paragraph(kind.__doc__)]
        for kind in kinds
    ]
    return table_of(["error", "is a", "exit code of commands", "meaning"], rows)


# -- fields --------------------

FIELDS = """
What runs, queries and the client give, and what is sent to a run. As JSON, a tuple is a list, and `None` is
`null`; properties are of Python alone. Times are seconds since 1970, costs are USD.
"""
SHOWN: Mapping[str, tuple[type, ...]] = {
    "A run": (status.RunResult, status.RunStatus, listing.RunLine, StepLine, Record, LoggedCall),
    "What a run asks": (
        people.Request, people.RequestsPage, listing.RequestSummary, status.Bound, people.Vote,
    ),
    "What people say": (
        people.Decision, people.StandingApproval, status.Decided, people.Command, people.CommandDone,
        SentSignal,
    ),
    "Pages of queries": (
        api.PageQuery, api.RequestsQuery, api.EffectsQuery, api.LogPage, api.StepsPage, people.EffectsPage,
        api.TranscriptPage, api.ResultPage,
    ),
    "Parts": (status.DoneCall, LabelSource, status.Origin, Message, NativeCall, reader.RunLog),
    "The past": (
        CheckpointLine, checkpoints.StepSnapshot, fork.ForkChanges, fork.PastEffects, fork.PastCall,
        replay.ReplayResult, replay.StepDifference, compare.Comparison, compare.StepPair, compare.Side,
        compare.StepOf, Difference, resets.Reset, resets.StandingCall,
    ),
}  # fmt: skip


def fields_page() -> str:
    """The fields of what is exchanged."""
    known = {kind.__name__ for kinds in SHOWN.values() for kind in kinds}
    parts = []
    for title, kinds in SHOWN.items():
        parts.append(f"## {title}")
        for kind in kinds:
            rows = [
                [f"`{name}`", _linked_type(written, known), meaning]
                for name, written, meaning in _fields(kind)
            ]
            parts += [
                f"### {kind.__name__}",
                _paragraph(kind.__doc__),
                table_of(["field", "type", "meaning"], rows),
            ]
    return _page("Fields", FIELDS, *parts)


def _fields(kind: Any) -> Iterator[tuple[str, str, str]]:
    """Name, type and meaning of each field, then of each property."""
    is_model = issubclass(kind, BaseModel)
    names = list(kind.model_fields) if is_model else [field.name for field in dataclasses.fields(kind)]
    texts = field_texts(kind)
    if is_model:
        texts |= {name: one.description for name, one in kind.model_fields.items() if one.description}
    types, properties = dict[str, str](), dict[str, tuple[str, str]]()
    for base in reversed(kind.__mro__[:-1]):
        node = None if base is BaseModel else class_nodes(base.__module__).get(base.__name__)
        for one in node.body if node else ():
            if isinstance(one, ast.AnnAssign):
                types[ast.unparse(one.target)] = _plain_type(ast.unparse(one.annotation), base.__module__)
            elif isinstance(one, ast.FunctionDef) and "property" in map(ast.unparse, one.decorator_list):
                returns = ast.unparse(one.returns) if one.returns else ""
                properties[one.name] = (returns, f"Property: {_paragraph(ast.get_docstring(one))}")
    yield from ((name, types[name], texts.get(name, "")) for name in names)
    yield from ((name, *found) for name, found in properties.items() if not name.startswith("_"))


def _plain_type(written: str, module: str) -> str:
    """A type as it is written, with the values or the plain type that its own names stand for."""

    def plain(name: re.Match[str]) -> str:
        value = getattr(sys.modules[module], name[0], None)
        if get_origin(value) is Literal:
            return " | ".join(map(repr, get_args(value)))
        inner = getattr(value, "__origin__", None) if hasattr(value, "__metadata__") else None
        return getattr(inner, "__name__", name[0])

    return re.sub(
        r"\b[A-Z]\w+\b", plain, re.sub(r"Literal\[(.*?)\]", lambda one: one[1].replace(", ", " | "), written)
    )


def _linked_type(written: str, known: set[str]) -> str:
    inside = next((word for word in re.findall(r"\w+", written) if word in known), None)
    return f"[`{written}`](#{anchor_of(inside)})" if inside else f"`{written}`"


# -- messages --------------------

MESSAGES_HEAD = """
For programs with a plain Temporal client, in any language. From Python, [the client](reference-client.md)
does all this. By hand: [temporal.md](temporal.md); inside an application: [embedding.md](embedding.md).
Beside each message is its JSON schema.
"""
START = f"""
The workflow type is `{api.WORKFLOW_TYPE}`, the task queue `{api.TASK_QUEUE}`. The one input has the [keys
of an agent file](reference-agent-file.md) without `description` and `modules`, each model and the certificate
written out, and those below; `ratchet task` prints one.
"""
SENT = """
Signal and update have the same names and inputs. The update answers, or fails with the type `Refused` and
the reason. What became of a signal is in the log.
"""
ASKED = f"""
The input may be left out. A page is at most {api.PAGE_BYTES // 1024} KiB long: ask again from its `next`
until that is its `total`. What is too long for a page is cut, unless `full` is asked for. A query fails
with the type `NotBegun` until the run has begun, `result` with `NotOver` until it is over.
"""
WRITTEN: Mapping[str, tuple[dict[str, Any], ...]] = {
    "task": (
        {"goal": "Count the words of notes.txt.", "machine": "tools", "tools": ["read_file"],
         "models": {"default": {"name": "gpt-5-mini"}}},
    ),
    "decision": (
        {"request": "r1", "digest": "DIGEST", "decision": "approve", "by": "ann"},
        {"request": "r1", "digest": "DIGEST", "decision": "edit", "arguments": {"cents": 4800}, "by": "ann"},
        {"request": "r2", "digest": "DIGEST", "decision": "topup", "amounts": {"tokens": 9000}, "by": "ann"},
    ),
    "command": (
        {"command": "pause", "by": "ann"},
        {"command": "steer", "text": "Look at March only.", "by": "ann"},
        {"command": "rollback", "step": 1, "compensate": True, "by": "ann"},
        {"command": "limits", "limits": {"model_calls": 100, "cost_usd": None}, "by": "ann"},
    ),
    "page-query": ({"since": 100}, {"since": 100, "full": True}),
    "requests-query": ({"schemas": True},),
    "effects-query": ({"step": 2},),
}  # fmt: skip
"""What programs write, by the name of its schema. A test reads each."""
ANSWER = people.RequestsPage(
    open=(people.Request(
        id="r1", kind="approval", run="payments-k3v9x2mp", machine="tools", state="act", step=2,
        activity_id="act#5:0", text="Call transfer?", tool="transfer",
        arguments={"to": "Harbour Realty", "cents": 48000}, digest="5f2b8c1e9a04d7736b1f0e8d2c4a9b37",
        rule="effects.unsafe", options=("approve", "reject", "edit", "abort"), created=1795307000.0,
    ),),
    next=1,
    total=1,
)  # fmt: skip
ATTRIBUTES = {
    "AgentName": "the agent",
    "AgentMachine": "its machine",
    "AgentState": "the machine's state, with `visibility: state`",
    "AgentWaiting": "kind of the oldest open request, or `paused`; of a run that is over `archive`, if its "
    "log could not be archived then",
    "AgentWaitingSince": "when that began",
    "AgentDeadline": "the earliest deadline of open requests",
    "AgentExit": "the exit reason of a run that is over",
}


def messages_page() -> str:
    """What a plain client sends, and gets."""
    keys = [
        one for one in options_in(described_schema(api.AgentTask)) if one.name in api.AgentTask.model_fields
        and one.name not in AgentFile.model_fields
    ]  # fmt: skip
    sent = [
        ["`decide`", _link("decision"), _link("decided")],
        ["`command`", _link("command"), _link("command-done")],
    ]
    attributes = [[f"`{name}`", kind, ATTRIBUTES[name]] for name, kind in api.ATTRIBUTES.items()]
    return _page(
        "Messages of a run",
        MESSAGES_HEAD,
        "## Start",
        START,
        table_of(["input", "result of the workflow"], [[_link("task"), _link("result")]]),
        _option_table("key", keys),
        _lines("task"),
        "## Signals and updates",
        SENT,
        table_of(["name", "input", "answer of the update"], sent),
        _lines("decision", "command"),
        "## Queries",
        ASKED,
        table_of(["name", "input", "answer", "what it is"], _queries()),
        _lines("page-query", "requests-query", "effects-query"),
        "An answer of `requests`:",
        f"```json\n{ANSWER.model_dump_json(indent=1)}\n```",
        "## Search attributes",
        table_of(["name", "type", "meaning"], attributes),
    )


def _queries() -> Iterator[list[str]]:
    names = {model: name for name, (model, _) in MESSAGES.items()}
    found = workflow._Definition.must_from_class(AgentWorkflow).queries
    for name, query in sorted((str(name), query) for name, query in found.items()):
        hints = get_type_hints(query.fn)
        read = [_link(names[one]) for one in get_args(hints.get("query")) if one in names]
        answer = _link(names[hints["return"]]) if hints["return"] in names else "text"
        yield [f"`{name}`", *(read or [""]), answer, _paragraph(query.fn.__doc__)]


def _link(name: str) -> str:
    """A message's fields and its schema."""
    kind = MESSAGES[name][0].__name__
    fields = f"[`{kind}`](reference-fields.md#{anchor_of(kind)})" if kind != "AgentTask" else f"`{kind}`"
    return f"{fields} ([schema](schemas/{name}.json))"


def _lines(*names: str) -> str:
    return "\n".join(f"    {json.dumps(one)}" for name in names for one in WRITTEN[name])
