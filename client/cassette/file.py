"""The file: one run, readable in a diff, with everything that is needed to play it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from activities.contracts import Answer, JsonObject, Strict, ToolSpec
from client.agents.yaml import problem_text
from client.cassette.recording import INPUTS, Entry, Recorder, final_of, sealed
from client.cassette.secrets import without_secrets
from client.errors import UsageError
from workflows.api import AgentTask

__all__ = [
    "Cassette", "Counterexample", "GivenAnswer", "cassette_of", "cassette_text", "read_cassette",
    "write_cassette", "yaml_text",
]  # fmt: skip

VERSION = 2
FILE_BYTES = 100_000_000
BREAKS = "\r\x85\u2028\u2029\ufeff"
"""YAML takes each for another character where it is not escaped."""


class GivenAnswer(Strict):
    """One answer that the run of a counterexample is given."""

    state: str = Field(description="where the machine asked")
    asks: str = Field(description="kind of what it asked")
    label: str = ""
    tools: tuple[str, ...] = Field(default=(), description="of the calls that it asked for")
    answer: Answer


class Counterexample(Strict):
    """The answers by which a run comes to break a property. The course is only for people to read."""

    module: str = Field(default="", description="the machine's file, relative to the folder of this one")
    scenario: str = Field(default="", description="where it was found")
    answers: tuple[GivenAnswer, ...]
    rounds: int = Field(default=0, ge=0, description="so many answers at the end come again and again")


class Cassette(Strict):
    """One run. `client/cassette/recording.py` says what the entries of its course are."""

    cassette: Literal[2] = Field(description="version of this format")
    run: str = Field(description="workflow id")
    trace_id: str = Field(description="what the machine knows as the run's id")
    runs: dict[str, str] = Field(description="workflow id -> first run id, inner runs included")
    began: float = Field(description="in seconds since 1970")
    removed: int = Field(default=0, description="values that were taken out as secrets")
    task: AgentTask = Field(description="the agent as it was, and what it was asked")
    tools: tuple[ToolSpec, ...] = Field(description="as they were")
    course: tuple[Entry, ...]
    final: JsonObject = Field(description="how it ended, or where it was")
    violates: str = Field(
        default="", description="a property that this run breaks: `ratchet test` fails while it does"
    )
    counterexample: Counterexample | None = Field(default=None, description="what comes with `violates`")

    @property
    def is_over(self) -> bool:
        """The run had come to its end."""
        return "exit_reason" in self.final

    def count(self, *keys: str) -> int:
        """How many entries of these kinds there are."""
        return sum(any(key in entry for key in keys) for entry in self.course)


def cassette_of(recorder: Recorder, **secrets: Any) -> Cassette:
    """What was recorded; `secrets` are arguments of `without_secrets`. Raises UsageError for what cannot be
    taken out."""
    drive, task = recorder.drives[""], recorder.task
    assert task is not None
    models = {role: model.model_copy(update={"script": ()}) for role, model in task.models.items()}
    given = drive.run.suspension.program
    values = {
        "cassette": VERSION,
        "run": drive.run.identity.workflow_id,
        "trace_id": given.input.trace_id,
        "runs": recorder.origins,
        "began": recorder.began,
        "removed": 0,
        "task": task.model_copy(
            update={"models": models, "machine_version": given.machine.version}
        ).model_dump(mode="json"),
        "tools": [spec.model_dump(mode="json") for spec in drive.run.specs.values()],
        "course": recorder.entries(),
        "final": recorder.final or final_of(drive),
    }
    clean, removed = without_secrets(values, **secrets)
    clean["course"] = [sealed(entry) for entry in clean["course"]]
    try:
        return Cassette.model_validate({**clean, "removed": removed})
    except ValidationError as error:
        raise UsageError(
            f"without its secrets the run is not a run any more: {problem_text(error, Cassette)}; what was "
            "removed is part of its settings: name other values"
        ) from error


def write_cassette(cassette: Cassette, path: Path) -> None:
    """Write it as YAML, or as JSON where the name ends in `.json`. Raises UsageError."""
    text = cassette_text(cassette, as_json=path.suffix == ".json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error


def cassette_text(cassette: Cassette, *, as_json: bool = False) -> str:
    """The file's text."""
    values = cassette.model_dump(mode="json")
    return json.dumps(values, ensure_ascii=False, indent=1) + "\n" if as_json else yaml_text(values)


def read_cassette(path: Path) -> Cassette:
    """Raises UsageError for a file that is missing, too large, or no cassette of this version."""
    values = _values(_text(path), path)
    if not isinstance(values, dict) or "cassette" not in values:
        raise UsageError(f"{path}: is no cassette; `ratchet export RUN --out {path}` writes one")
    if values["cassette"] != VERSION:
        raise UsageError(
            f"{path}: has the format version {values['cassette']!r}, expected {VERSION}; export the run again"
        )
    try:
        found = Cassette.model_validate(values)
    except ValidationError as error:
        raise UsageError(f"{path}: {problem_text(error, Cassette)}") from error
    for number, entry in enumerate(found.course):
        if any(key in entry for key in INPUTS) and not isinstance(entry.get("at"), int | float):
            raise UsageError(f"{path}: course[{number}].at: expected seconds since the beginning")
    return found


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES + 1)
        text = content.decode()
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file; `ratchet export RUN --out {path}` writes one") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > FILE_BYTES:
        raise UsageError(f"{path}: larger than {FILE_BYTES:,} bytes")
    return text


def _values(text: str, path: Path) -> Any:
    from ruamel.yaml.error import YAMLError

    if text.startswith("{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: not valid JSON: {error}") from error
    try:
        return _yaml().load(text)
    except (YAMLError, ArithmeticError, LookupError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not valid YAML: {str(error).strip()[:300]}") from error


def yaml_text(values: Any) -> str:
    """As YAML: keys in their order, texts of several lines as they are."""
    from io import StringIO

    text = StringIO()
    _yaml().dump(values, text)
    return text.getvalue()


def _yaml() -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.composer import Composer, ComposerError
    from ruamel.yaml.events import AliasEvent
    from ruamel.yaml.representer import SafeRepresenter

    class Texts(SafeRepresenter):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    class NoAliases(Composer):
        """A small text with aliases can mean billions of values; we write none."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.parser.check_event(AliasEvent):
                raise ComposerError(None, None, "aliases are not allowed", None)
            return super().compose_node(parent, index)

    def text_node(representer: Any, text: str) -> Any:
        style = '"' if any(one in text for one in BREAKS) else "|" if "\n" in text else None
        return representer.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Texts.add_representer(str, text_node)
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Representer, yaml.Composer = Texts, NoAliases
    yaml.default_flow_style, yaml.allow_unicode, yaml.width = False, True, 110
    yaml.sort_base_mapping_type_on_output = False
    return yaml
