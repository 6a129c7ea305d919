"""JSON schemas (draft 2020-12) of what people and programs write and read: agent files, tasks, messages.

Descriptions come from the models: a field's `description`, else the text under it in the source.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from client.agents.agentfile import AgentFile
from client.agents.options import DefaultsToo, without_marks
from workflows import api, people, status

if TYPE_CHECKING:
    from workflows.kernel.machine import Machine

__all__ = ["MESSAGES", "agent_schema", "class_nodes", "described_schema", "field_texts", "message_schema"]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
TEXT = {"type": "string"}
Schema = dict[str, Any]
Mode = Literal["validation", "serialization"]
MESSAGES: Mapping[str, tuple[type[BaseModel], Mode]] = {
    "task": (api.AgentTask, "validation"),
    "result": (status.RunResult, "serialization"),
    "decision": (people.Decision, "validation"),
    "decided": (status.Decided, "serialization"),
    "command": (people.Command, "validation"),
    "command-done": (people.CommandDone, "serialization"),
    "status": (status.RunStatus, "serialization"),
    "page-query": (api.PageQuery, "validation"),
    "log": (api.LogPage, "serialization"),
    "steps": (api.StepsPage, "serialization"),
    "requests-query": (api.RequestsQuery, "validation"),
    "requests": (people.RequestsPage, "serialization"),
    "effects-query": (api.EffectsQuery, "validation"),
    "effects": (people.EffectsPage, "serialization"),
    "transcript": (api.TranscriptPage, "serialization"),
    "result-page": (api.ResultPage, "serialization"),
}
"""What programs exchange with a run, and whether they write it or read it."""


class _Described(DefaultsToo):
    """Describes each field, and gives none a title: an editor would show its name twice."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def normalize_name(self, name: str) -> str:
        """A type's name begins with its module: the same in a wheel, where all are below `ratchet`."""
        return super().normalize_name(name.removeprefix("ratchet."))

    def ser_schema(self, schema: Any) -> Any:
        """A serializer that wraps another one leaves only defaults out: what is declared holds."""
        return None if schema["type"] == "function-wrap" else super().ser_schema(schema)

    def model_schema(self, schema: Any) -> Any:
        found = super().model_schema(schema)
        texts = field_texts(schema["cls"])
        for name, field in found.get("properties", {}).items():
            if text := texts.get(name):
                field.setdefault("description", text)
        return found


def agent_schema(machines: Iterable[str], tools: Iterable[str]) -> Schema:
    """Of an agent file, in which an editor offers these machines and tools.

    It knows the options of these machines, in their newest version; those of others may be anything.
    """
    from workflows import registry  # which imports the shipped machines

    newest = [registry.machine(name) for name in dict.fromkeys(machines)]
    models: list[type[BaseModel]] = [AgentFile, *(machine.options for machine in newest)]
    types, definitions = _schemas(models, "validation")
    whole = definitions.pop("AgentFile")
    definitions.pop("Certificate")
    keys = whole["properties"]
    keys["machine"]["examples"] = [machine.name for machine in newest]
    keys["tools"]["items"]["examples"] = list(tools)
    # a file names what a task carries
    keys["certificate"] |= {"anyOf": [TEXT, {"type": "null"}], "examples": ["proof.json"]}
    keys["output"]["anyOf"].insert(0, TEXT)
    keys["output"]["examples"][:0] = ["Refund", "refund.json"]
    options = [_options_of(machine, types[machine.options]) for machine in newest]
    return {"$schema": DRAFT, **whole, "allOf": options, "$defs": definitions}


def message_schema(name: str) -> Schema:
    """Of one of `MESSAGES`."""
    return described_schema(*MESSAGES[name])


def described_schema(model: type[BaseModel], mode: Mode = "validation") -> Schema:
    """Of a model, with the text of each field."""
    _, definitions = _schemas([model], mode)
    return {"$schema": DRAFT, **definitions.pop(model.__name__), "$defs": definitions}


def _schemas(models: Iterable[type[BaseModel]], mode: Mode) -> tuple[dict[Any, Any], dict[str, Any]]:
    """A reference to the schema of each model; all schemas by name."""
    generator: type[GenerateJsonSchema] = _Described
    found, whole = models_json_schema([(model, mode) for model in models], schema_generator=generator)
    return {model: schema for (model, _), schema in found.items()}, without_marks(whole["$defs"])


def _options_of(machine: Machine, schema: Schema) -> Schema:
    """The options that an agent with this machine may have."""
    named = {"machine": {"const": machine.name}, "machine_version": {"enum": [None, machine.version]}}
    is_default = machine.name == AgentFile.model_fields["machine"].default
    return {
        "if": {"properties": named, "required": [] if is_default else ["machine"]},
        "then": {"properties": {"options": schema}},
    }


def field_texts(kind: type) -> dict[str, str]:
    """The text under each field of a class in its source, those of its base classes too."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        known = {} if base in (object, BaseModel) else class_nodes(base.__module__)
        node = known.get(base.__name__)
        for field, text in pairwise(node.body if node else ()):
            match field, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(written))),
                ):
                    found[name] = " ".join(written.split())
    return found


@cache
def class_nodes(module: str) -> Mapping[str, ast.ClassDef]:
    """The classes at the top of a module, by name."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
