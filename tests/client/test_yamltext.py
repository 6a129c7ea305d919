"""Agent files that are no agent files: refused at once, with the place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from client.agentfile import Draft
from client.cli import execute
from client.errors import UsageError
from client.yamltext import YamlText

LAUGHS = "\n".join(
    ["options:", "  a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(LAUGHS, "more than 100,000 values", id="aliases of aliases"),
        pytest.param(LAUGHS.replace("options:", "script:"), "more than 100,000", id="in another key"),
        pytest.param("options: &a {b: [*a]}", "line 1, column 10: holds itself", id="a loop"),
        pytest.param(f"options: {'[' * 5000}{']' * 5000}", "nested too deeply", id="deep lists"),
        pytest.param(f"options: {'{a: ' * 200}{'}' * 200}", "nested too deeply", id="deep mappings"),
        pytest.param(
            f"options: {{n: {'9' * 5000}}}", "line 1, column 14: .999.*is no value of", id="integer"
        ),
        pytest.param(f"options: {{n: 0x{'f' * 9000}}}", "column 14: .0xfff", id="hexadecimal"),
        pytest.param(
            "options: {on: 2024-99-99}", "column 15: `2024-99-99` is no value of type timestamp", id="date"
        ),
        pytest.param(f"options: {{n: {'1:' * 400_000}1}}", "is no value of type int", id="base of sixty"),
        pytest.param("options: {on: !!bool maybe}", "`maybe` is no value of type bool", id="bool"),
        pytest.param("options: {on: !!timestamp x}", "`x` is no value of type timestamp", id="timestamp"),
        pytest.param("options: {on: !!int ''}", "`` is no value of type int", id="empty integer"),
    ],
)
def test_what_would_hang_or_break_the_reader_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"bad.yaml.*{said}") as refused:
        YamlText(path)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "value",
    ["2024-99-99", "9" * 5000, "[" * 5000 + "]" * 5000, "&a [*a]"],
    ids=["date", "integer", "deep", "loop"],
)
def test_a_setting_that_would_break_the_reader_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match=r"--set max_steps="):
        Draft(values={"name": "a"}).assign(f"max_steps={value}")


def test_a_value_that_is_used_again_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text("name: good\nmodels: {default: &m {name: a}, other: *m}\n")
    assert YamlText(path).values["models"] == {"default": {"name": "a"}, "other": {"name": "a"}}


def test_what_is_no_regular_file_is_refused_unread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fifo = tmp_path / "fifo.yaml"
    os.mkfifo(fifo)
    large = tmp_path / "large.yaml"
    large.write_bytes(b"x" * 1_000_001)
    for path, said in [
        ("/dev/zero", "is no regular file"),
        (str(fifo), "is no regular file"),
        (str(tmp_path), "Is a directory"),
        (str(large), "larger than 1,000,000 bytes"),
    ]:
        assert execute(["run", "x", "--agent", path, "--data-dir", str(tmp_path / "data")]) == 2
        assert said in capsys.readouterr().err
