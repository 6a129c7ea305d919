"""Arguments in an editor: what is read of them, and that nothing that a person wrote is lost."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client.editing import Draft, arguments_from
from client.errors import Refused, UsageError
from tests.client.editorkit import Editor, editor_in


@pytest.fixture
def editor(tmp_path: Path) -> Iterator[Editor]:
    """The person's editor."""
    with editor_in(tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("before", "after"),
    [({"a": True}, {"a": 1}), ({"a": 1}, {"a": 1.0}), ({"a": [0]}, {"a": [False]})],
)
async def test_a_change_of_type_alone_is_a_change(editor: Editor, before: Any, after: Any) -> None:
    editor.does(f"""echo '{str(after).replace("'", '"').replace("False", "false")}' > "$1" """)
    assert repr(await Draft(before).edit()) == repr(after)


@pytest.mark.parametrize("script", ["true", ': > "$1"', """echo '{"b": 2, "a": 1}' > "$1" """])
async def test_what_is_left_as_it_was_or_emptied_is_no_edit(editor: Editor, script: str) -> None:
    editor.does(script)
    assert await Draft({"a": 1, "b": 2}).edit() is None
    assert editor.kept() == []


async def test_only_its_writer_may_read_a_draft(editor: Editor) -> None:
    editor.does("""echo "mode: '$(stat -c %a "$1")'" > "$1" """)
    assert await Draft({}).edit() == {"mode": "600"}


async def test_what_is_refused_is_kept_named_and_what_the_next_edit_begins_with(
    editor: Editor, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = Draft({"cents": "1"})
    editor.does("""echo 'cents: "4,8"  # careful' > "$1" """)
    assert await draft.edit() == {"cents": "4,8"}
    with pytest.raises(Refused), draft:
        raise Refused("cents: '4,8' is not of type 'integer'")
    said = capsys.readouterr().err
    assert re.search(rf"what you wrote is kept in {editor.drafts()[0]}\n", said)
    assert editor.kept() == ['cents: "4,8"  # careful\n']
    assert "an argument of type" in said
    editor.does("""sed -i 's/"4,8"/48/' "$1" """)
    assert await draft.edit() == {"cents": 48}
    with draft:
        pass
    assert editor.kept() == []


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ('echo "[1, 2" > "$1"', "no valid YAML"),
        ('echo "[1, 2]" > "$1"', "expected an object"),
        ('echo "a: 2" > "$1"; exit 3', "ended with 3"),
        (r'printf "a: caf\351" > "$1"', "not written in UTF-8"),
        ("""echo '{"a": 2, "a": 3}' > "$1" """, "`a` stands twice"),
    ],
)
async def test_what_cannot_be_taken_is_kept(
    editor: Editor,
    capsys: pytest.CaptureFixture[str],
    script: str,
    fault: str,
) -> None:
    editor.does(script)
    with pytest.raises(UsageError, match=fault):
        await Draft({"a": 1}).edit()
    assert "what you wrote is kept in" in capsys.readouterr().err
    assert len(editor.kept()) == 1


@pytest.mark.parametrize(
    ("named", "fault"), [('vi "', "No closing quotation"), ("/no/such/editor", "cannot be run")]
)
async def test_an_editor_that_cannot_be_run_is_named_and_no_draft_is_left(
    editor: Editor, named: str, fault: str
) -> None:
    os.environ["EDITOR"] = named
    with pytest.raises(UsageError, match=fault):
        await Draft({"a": 1}).edit()
    assert editor.kept() == []


async def test_a_draft_that_the_editor_removed_or_that_cannot_be_written_is_an_error_of_use(
    editor: Editor,
) -> None:
    editor.does('rm "$1"')
    with pytest.raises(UsageError, match="cannot be read any more"):
        await Draft({"a": 1}).edit()
    with pytest.raises(UsageError, match="no file could be written"):
        await Draft({"a": "\ud800"}).edit()


async def test_a_cancelled_edit_ends_the_editor_and_keeps_what_was_saved(
    editor: Editor, capsys: pytest.CaptureFixture[str]
) -> None:
    editor.does(
        f'echo "a: long text" > "$1"; echo $$ > {editor.folder}/pid; touch {editor.folder}/up; exec sleep 60'
    )
    task = asyncio.create_task(Draft({"a": 1}).edit())
    async with asyncio.timeout(10):
        while not editor.done("up"):  # noqa: ASYNC110  # it is another process
            await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(int((editor.folder / "pid").read_text()), 0)
    assert "what you wrote is kept in" in capsys.readouterr().err
    assert editor.kept() == ["a: long text\n"]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {"b": 1, "b": 1}}',
        "a: 1\nb: 2\na: 3\n",
        "a: [{b: 1, b: 2}]",
        '{"a": 1, a: 2}',
        "x: &x {b: 1, b: 2}\ny: *x",
    ],
)
def test_a_key_that_stands_twice_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"`\w` stands twice"):
        arguments_from(text, "--args")


def test_aliases_and_merged_keys_are_no_repetition() -> None:
    assert arguments_from("a: &a {x: 1}\nb: {<<: *a, x: 2}\nc: *a", "--args") == {
        "a": {"x": 1},
        "b": {"x": 2},
        "c": {"x": 1},
    }


def test_what_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(UsageError, match="nested too deeply"):
        arguments_from(f'{{"a": {"[" * 100_000}', "--args")
