from pathlib import Path
from typing import Literal

from ratchet import AgentSpec, Local, Request, ScriptedModel, Settings, tool_call

TOOL = str(Path(__file__).with_name("my_tool.py"))


def decide(request: Request) -> Literal["approve", "reject"]:
    return "approve" if request.arguments == {"text": "two"} else "reject"


def test_my_tool_writes_what_a_person_approved(tmp_path: Path) -> None:
    agent = AgentSpec(machine="tools", tools=("my_tool",))
    model = ScriptedModel([tool_call("my_tool", text="one"), tool_call("my_tool", text="two"), "Done."])
    settings = Settings(files_root=tmp_path, modules=(TOOL,))
    Local(agent, model=model, settings=settings, decide=decide).run_sync("Note it.")
    assert (tmp_path / "notebook.txt").read_text() == "two\n"
