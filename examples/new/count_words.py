"""A tool: a model of its arguments, whose docstring the language model reads, and a function."""

from pydantic import BaseModel, Field

from ratchet import RelativePath, Tool, ToolCallContext


class Params(BaseModel):
    """Count the words of a text file."""

    path: RelativePath = Field(description="Below the folder of the agent's files.")


def run(params: Params, call: ToolCallContext) -> int:
    """What it raises, the model reads, such as that there is no such file."""
    return len((call.files_root / params.path).read_text(encoding="utf-8").split())


# brings, sends: a number is all that it returns, and nothing leaves the folder (`ratchet docs labels`)
TOOL = Tool(name="count_words", params=Params, run=run, effect="read", brings=(), sends="nowhere")
