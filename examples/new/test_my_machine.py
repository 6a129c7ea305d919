from pathlib import Path

from ratchet import Local, ScriptedModel, load_agent
from ratchet.verify import verify

AGENT = Path(__file__).with_name("my_machine.yaml")


def test_my_machine_asks_again_for_an_answer_that_fits() -> None:
    model = ScriptedModel(["far too many words", "", "few words"])
    outcome = Local(load_agent(AGENT), model=model).run_sync("Say it.", options={"words": 2})
    assert outcome.answer == "few words"
    assert outcome.states == ("write", "check") * 3 + ("done",)
    assert [asked.text for asked in model.asked[1:]] == ["4 words: write 1 to 2.", "0 words: write 1 to 2."]


def test_properties_hold_in_every_run() -> None:
    report = verify(AGENT.with_suffix(".py"), seconds=20)
    assert report.ok, report.text
    assert report.complete
