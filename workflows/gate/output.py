"""The form of an answer: an agent's `output`, a JSON schema. Asked for and checked here, for all machines;
`kernel/transition.py` asks again where an answer does not fit. Pure."""

from __future__ import annotations

import json

from activities.contracts import JsonObject
from workflows.gate.arguments import fitted
from workflows.machines.common.json_schema import checked_schema
from workflows.machines.common.json_text import NotJson, sole_object_in

__all__ = ["AnswerForm", "form_problem"]

WORDS = """\
The final answer must be one JSON object that fits this JSON schema, without other words around it:
{schema}"""
AGAIN = "That answer cannot be used: {problem}.\n{words}\nGive the final answer again."


class AnswerForm:
    """What a run's answer must be; see `AnswerForm` of the kernel."""

    def __init__(self, schema: JsonObject) -> None:
        """`schema`: of an object, as `AgentSpec.output` has checked it."""
        self.schema = schema
        self.words = WORDS.format(schema=json.dumps(schema, ensure_ascii=False))

    def read(self, answer: str | None) -> JsonObject:
        """The object that an answer holds, brought to the schema as a tool's arguments are. Raises ValueError
        that says what is wrong with it."""
        found = sole_object_in(answer or "")
        if isinstance(found, NotJson):
            raise ValueError(found.problem)
        return fitted(self.schema, found)

    def again(self, problem: str) -> str:
        """What the model is told about an answer that cannot be used."""
        return AGAIN.format(problem=problem, words=self.words)


def form_problem(schema: JsonObject) -> str:
    """Why a schema cannot be an agent's `output`; empty when it can."""
    if schema.get("type", "object") != "object":
        return f"must be the JSON schema of an object, not of type {schema['type']!r}: put it into a field"
    if not {"properties", "$ref", "additionalProperties"} & schema.keys():
        return "names no `properties`, so it says nothing of the answer"
    try:
        checked_schema("output", schema)
    except ValueError as error:
        return str(error).removeprefix("output: ")
    return ""
