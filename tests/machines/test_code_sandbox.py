"""The code machine with the real sandbox, in the loop of production."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from activities.contracts import EffectFailed
from activities.tools import Tool
from client.sdk.local import Local, ScriptedModel
from tests.machines.code_scripts import fences
from workflows.api import AgentSpec
from workflows.hosts.memory import LocalOutcome


class Params(BaseModel, frozen=True, extra="forbid"):
    """Count the words of a text."""

    text: str


COUNT = Tool(
    name="count-words", params=Params, run=lambda p: f'{{"words": {len(p.text.split())}}}', effect="pure"
)


SOURCE = """\
answers = llm_query_batched([f"Is {word} a number?" for word in context.split()])
failed = [answer for answer in answers if answer.startswith("Error: ")]
try:
    count_words(txt="a")
except RuntimeError as error:
    print("refused:", error)
total = count_words(text=context)["words"]
print(answers[0], len(failed))"""


async def run(replies: list[Any], sub: list[Any] | None = None, **options: Any) -> LocalOutcome:
    """A run about the text `one two three`."""
    agent = AgentSpec(name="coder", machine="code", options=options, tools=("count-words",))
    model = ScriptedModel({"default": replies, "sub": sub or []})
    outcome = await Local(agent, model=model, tools=[COUNT]).run("How many?", material="one two three")
    assert model.unused == 0
    return outcome


async def test_blocks_use_context_models_and_tools() -> None:
    down = EffectFailed(error="fatal", type="HTTP500", message="down")
    outcome = await run(
        [fences(SOURCE), lambda asked: fences(f"seen = {asked.text!r}\nFINAL_VAR('total')")],
        ["yes", down, "no"],
    )
    assert (outcome.ok, outcome.answer) == (True, "3")
    assert outcome.tool_calls[-1] == ("count-words", {"text": "one two three"})
    assert any("refused:" in text and "yes 1" in text for text in map(str, outcome.records))


async def test_nested_runs_write_code_of_their_own() -> None:
    asks = fences("print(llm_query_batched(['say 1', 'say 2']))")
    nested = [fences("FINAL(context + '!')")] * 2
    answer = [lambda asked: f"FINAL({asked.text.splitlines()[-1]})"]
    outcome = await run([asks, *answer], nested, nested="always", max_depth=2)
    assert outcome.answer == "['say 1!', 'say 2!']"


async def test_block_that_is_stopped_leaves_the_variables() -> None:
    outcome = await run(
        [fences("x = 1", "x = 2\nwhile True: pass", "print(x)"), "FINAL_VAR(x)"],
        block={"seconds": 0.3},
    )  # fmt: skip
    assert (outcome.ok, outcome.answer) == (True, "1")
