"""The agent in the test's own process: the tool is real, the model is a list of replies."""

from pathlib import Path

from ratchet import Local, ScriptedModel, Settings, load_agent, tool_call


def test_agent_counts_before_it_answers(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("one two three")
    model = ScriptedModel([tool_call("count_words", path="notes.txt"), "There are 3 words."])
    agent = load_agent(Path(__file__).with_name("agent.yaml"))
    outcome = Local(agent, model=model, settings=Settings(files_root=tmp_path)).run_sync("How many words?")
    assert model.asked[1].text == "3"
    assert outcome.answer == "There are 3 words."
