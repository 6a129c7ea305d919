from pathlib import Path

from ratchet import Local, ScriptedModel, load_agent
from ratchet.verify import verify

AGENT = Path(__file__).with_name("my_machine.yaml")


def test_my_machine_asks_again_for_a_shorter_answer() -> None:
    model = ScriptedModel(["far too many words", "few words"])
    outcome = Local(load_agent(AGENT), model=model).run_sync("Say it.", options={"words": 2})
    assert outcome.answer == "few words"
    assert outcome.states == ("write", "check", "write", "check", "done")
    assert model.asked[1].text == "4 words are too many: write at most 2."


def test_properties_hold_in_every_run() -> None:
    report = verify(AGENT.with_suffix(".py"), seconds=20)
    assert report.ok, report.text
    assert report.complete
