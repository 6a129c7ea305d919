"""The tool `my_tool`. What it does is an example: `Params` says what a model gives, and `run` does the work.

`ratchet docs tools` says what else a tool can be told.
"""

from pydantic import BaseModel, Field

from ratchet import Tool, ToolCallContext


class Params(BaseModel):
    """Write a line into the notebook."""

    text: str = Field(min_length=1, max_length=1_000, description="The line.")


def run(params: Params, call: ToolCallContext) -> str:
    with (call.files_root / "notebook.txt").open("a", encoding="utf-8") as notebook:
        notebook.write(f"{params.text}\n")
    return "written"


# unsafe: never repeated by itself, and a person approves each call
# others: pure, read, idempotent, keyed
# brings, sends: who may have written what it returns, and how far the line goes (`ratchet docs labels`)
TOOL = Tool(name="my_tool", params=Params, run=run, effect="unsafe", brings=(), sends="internal")
