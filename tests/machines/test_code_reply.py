"""Reading a reply of code mode, sentence by sentence of spec 2.3."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workflows.machines.code_reply import MOST_BLOCKS, Reply, is_variable, read_reply

# -- blocks --------------------

BLOCKS = [
    pytest.param("```repl\nx = 1\n```", ("x = 1",), id="a fence with the tag is a block"),
    pytest.param("```repl\n\n  x = 1\n\n```", ("x = 1",), id="its content is stripped"),
    pytest.param(
        "```repl\nif x:\n    y = 1\n\n    z = 2\n```", ("if x:\n    y = 1\n\n    z = 2",), id="inside not"
    ),
    pytest.param("a\n```repl\n1\n```\nb\n```repl\n2\n```\nc", ("1", "2"), id="all of them in their order"),
    pytest.param("```repl\n1\n```\n```repl\n2\n```", ("1", "2"), id="also one right behind the other"),
    pytest.param("See: ```repl\n1\n```", ("1",), id="words may stand before the fence"),
    pytest.param("  ```repl\n1\n  ```", ("1",), id="blanks too"),
    pytest.param("```repl\n1\n``` ", ("1",), id="blanks behind the closing fence"),
    pytest.param(
        "```repl\r\nx = 1\r\ny = 2\r\n```\r\n", ("x = 1\ny = 2",), id="line breaks of other systems"
    ),
    pytest.param("```repl\n```", ("",), id="an empty fence gives one empty block"),
    pytest.param("```repl\n\n```", ("",), id="so does one with an empty line"),
    pytest.param("```python\n1\n```", (), id="another language is ignored"),
    pytest.param("```\n1\n```", (), id="no language too"),
    pytest.param("``` repl\n1\n```", (), id="a blank before the tag"),
    pytest.param("```repl please\n1\n```", (), id="words behind the tag"),
    pytest.param("```repl \n1\n```", (), id="a blank behind the tag"),
    pytest.param("```replx\n1\n```", (), id="a longer tag"),
    pytest.param("```REPL\n1\n```", (), id="the tag is exact"),
    pytest.param("````repl\n1\n```", (), id="four backticks"),
    pytest.param("``repl\n1\n```", (), id="two backticks"),
    pytest.param("```repl\nx = 1", (), id="a fence that is not closed is ignored"),
    pytest.param("```repl", (), id="also at the very end"),
    pytest.param("```repl\nx = 1 ```", (), id="the closing fence has a line of its own"),
    pytest.param('```repl\ns = "```"\n```', ('s = "```"',), id="backticks among code close nothing"),
    pytest.param("```repl\n1\n```python\n2\n```", ("1\n```python\n2",), id="nor does an opening fence"),
    pytest.param("no block", (), id="no fence at all"),
    pytest.param("", (), id="nothing at all"),
]


@pytest.mark.parametrize(("text", "blocks"), BLOCKS)
def test_blocks(text: str, blocks: tuple[str, ...]) -> None:
    assert read_reply(text).blocks == blocks


def test_a_fence_that_is_left_open_is_known_to_be() -> None:
    assert read_reply("```repl\nx = 1").open_fence
    assert not read_reply("```repl\nx = 1\n```").open_fence
    assert read_reply("```repl\n1\n```\n```repl\n2") == Reply(("1",), open_fence=True)


# -- FINAL --------------------

FINALS = [
    pytest.param("FINAL(42)", "42", id="at the start of the text"),
    pytest.param("So:\nFINAL(42)\nDone.", "42", id="at the start of a line"),
    pytest.param("So:\n \t FINAL(42)", "42", id="behind blanks"),
    pytest.param("So: FINAL(42)", None, id="not behind words"),
    pytest.param("`FINAL(42)`", None, id="nor behind a quote"),
    pytest.param("final(42)", None, id="case counts"),
    pytest.param("FINAL (42)", None, id="the bracket follows at once"),
    pytest.param("FINAL(  42 \n)", "42", id="the result is stripped"),
    pytest.param("FINAL()", "", id="nothing is the empty text"),
    pytest.param("FINAL(   )", "", id="blanks too"),
    pytest.param("FINAL(f(x) and (g(y)))", "f(x) and (g(y))", id="brackets may be nested"),
    pytest.param("FINAL(a) and (b)", "a", id="it ends where they are balanced"),
    pytest.param("FINAL(first\n\nsecond (and more)\nthird)", "first\n\nsecond (and more)\nthird", id="lines"),
    pytest.param('FINAL(a ")" b)', 'a ")" b', id="a bracket between quotes does not count, quotes are kept"),
    pytest.param("FINAL(a ')' b)", "a ')' b", id="single quotes too"),
    pytest.param('FINAL("it\'s)" fine)', '"it\'s)" fine', id="an apostrophe between quotes is none"),
    pytest.param(r'FINAL("a \") b" c)', r'"a \") b" c', id="an escaped quote ends nothing"),
    pytest.param(r"FINAL(a \) b)", r"a \) b", id="an escaped bracket does not count"),
    pytest.param("FINAL('all')", "'all'", id="quotes around all of it are kept"),
    pytest.param("FINAL(1)\nFINAL(2)", "2", id="of two the last one wins"),
    pytest.param("FINAL(1)\nno, FINAL(2)", "1", id="one in the middle of a line does not count"),
    pytest.param("FINAL(1) FINAL(2)", "1", id="also right behind the first"),
    pytest.param("FINAL(42", None, id="not closed: no answer"),
    pytest.param("FINAL(a (b)", None, id="closed too seldom"),
    pytest.param("FINAL(1)\nFINAL(2", None, id="the last one wins, also when it is not closed"),
    pytest.param("FINAL", None, id="no bracket"),
    pytest.param("```python\nFINAL(42)\n```", "42", id="other fences are text"),
]


@pytest.mark.parametrize(("text", "final"), FINALS)
def test_final(text: str, final: str | None) -> None:
    assert read_reply(text).final == final
    assert read_reply(text).final_var is None


@pytest.mark.parametrize(
    ("text", "final"),
    [
        ("FINAL(it's 42)", "it's 42"),
        ("FINAL(it's (about) 42)\nThat is all.", "it's (about) 42"),
        ('FINAL(5" wide)', '5" wide'),
        ("FINAL(it's \\) it)", "it's \\) it"),
        ("FINAL('a)' isn't)", "'a"),
        ("FINAL(it's 42", None),
    ],
)
def test_R_001_4_an_apostrophe_does_not_hide_the_end(text: str, final: str | None) -> None:
    """R-001-4: where no balanced end is found with quotes, they are taken as ordinary characters."""
    assert read_reply(text).final == final


def test_quotes_are_tried_first() -> None:
    assert read_reply("FINAL('a)' b)").final == "'a)' b"


# -- FINAL_VAR --------------------

VARIABLES = [
    pytest.param("FINAL_VAR(x)", "x", id="a name"),
    pytest.param("So:\n  FINAL_VAR(x)\nDone.", "x", id="at the start of a line, behind blanks"),
    pytest.param("So: FINAL_VAR(x)", None, id="not behind words"),
    pytest.param("FINAL_VAR( x )", "x", id="blanks are dropped"),
    pytest.param('FINAL_VAR("x")', "x", id="quotes are dropped"),
    pytest.param("FINAL_VAR('x')", "x", id="single ones too"),
    pytest.param("FINAL_VAR(x", None, id="not closed"),
    pytest.param("FINAL_VAR()", "", id="without a name"),
    pytest.param("FINAL_VAR(x + 1)", "x + 1", id="whatever stands there"),
    pytest.param("FINAL_VAR(f(x))", "f(x", id="up to the first bracket"),
    pytest.param("FINAL_VAR(a)\nFINAL_VAR(b)", "a", id="the first one"),
    pytest.param("```python\nFINAL_VAR(x)\n```", "x", id="other fences are text"),
]


@pytest.mark.parametrize(("text", "name"), VARIABLES)
def test_final_var(text: str, name: str | None) -> None:
    assert read_reply(text).final_var == name


@pytest.mark.parametrize("text", ["FINAL_VAR(x)\nFINAL(42)", "FINAL(42)\nFINAL_VAR(x)"])
def test_final_does_not_count_beside_final_var(text: str) -> None:
    read = read_reply(text)
    assert (read.final_var, read.final) == ("x", None)


@pytest.mark.parametrize("text", ["FINAL(FINAL_VAR(x))", "FINAL_VAR(x\nFINAL(42"])
def test_what_is_no_final_var_leaves_the_rest_as_it_is(text: str) -> None:
    assert read_reply(text).final_var is None


# -- blocks and answers --------------------


@pytest.mark.parametrize(
    ("text", "final", "name"),
    [
        ("```repl\nFINAL(42)\n```", None, None),
        ("```repl\nFINAL_VAR('x')\n```", None, None),
        ("```repl\nFINAL_VAR('x')\n```\nFINAL(1)", "1", None),
        ("```repl\nx = (\n```\nFINAL(1)", "1", None),
        ("FINAL(1)\n```repl\nFINAL(2)\n```", "1", None),
        ("FINAL(a\n```repl\n)\n```\nb)", "a\n\nb", None),
    ],
)
def test_R_001_5_an_answer_inside_a_block_is_not_one(text: str, final: str | None, name: str | None) -> None:
    """R-001-5: text inside `repl` fences is code, and is not searched."""
    read = read_reply(text)
    assert (read.final, read.final_var) == (final, name)


@pytest.mark.parametrize(
    ("text", "final", "name"),
    [
        ("```repl\nx = 1\nFINAL(42)", "42", None),
        ("```repl\nx = 1\nSo I am done.\nFINAL_VAR(x)", None, "x"),
        ("FINAL(1)\n```repl\nx = 1", "1", None),
        ("```repl\n1\n```\n```repl\n```repl\nFINAL(2)", "2", None),
        ("FINAL(a\n```repl\nb)", "a\n\nb", None),
    ],
)
def test_a_fence_that_is_left_open_is_ignored_and_an_answer_behind_it_counts(
    text: str, final: str | None, name: str | None
) -> None:
    """Spec 2.3: unclosed fences are ignored, so what follows them is text."""
    read = read_reply(text)
    assert (read.final, read.final_var, read.open_fence) == (final, name, True)


def test_only_so_many_blocks_of_a_reply_are_kept_and_the_others_are_counted() -> None:
    many = "".join(f"```repl\n{n}\n```\n" for n in range(MOST_BLOCKS))
    assert (len(read_reply(many).blocks), read_reply(many).not_run) == (MOST_BLOCKS, 0)
    read = read_reply(many + "```repl\n```\n" * 7 + "FINAL(42)")
    assert (read.blocks, read.not_run, read.final) == (read_reply(many).blocks, 7, "42")


@pytest.mark.parametrize("name", ["x", "_x1", "é", "context"])
def test_a_variables_name_is_looked_up(name: str) -> None:
    assert is_variable(name)


@pytest.mark.parametrize(
    "name", ["", "1x", "x.y", "x y", "x)", "x,y", "None", "class", "x\n", "x;y", "x[0]", "'x'"]
)
def test_anything_else_is_not(name: str) -> None:
    assert not is_variable(name)


# -- any text --------------------

PIECES = st.sampled_from(
    [
        "```repl\n",
        "```",
        "\n",
        "FINAL(",
        "FINAL_VAR(",
        "(",
        ")",
        "'",
        '"',
        "\\",
        " ",
        "x",
        "`",
        "\r\n",
        "\x00",
        "é",
    ]
)


@given(st.lists(PIECES, max_size=60).map("".join) | st.text(max_size=200))
@example("FINAL(\\")
@example("FINAL('\\")
def test_any_text_can_be_read(text: str) -> None:
    read = read_reply(text)
    assert read.final is None or read.final_var is None
    assert all(part == part.strip() for part in (*read.blocks, read.final or ""))
    assert not any(block not in text.replace("\r\n", "\n") for block in read.blocks)


MEGABYTE = 1_000_000
BRACKETS = ["(", ")", "'", '"', "\\", "()", "('", "\\'", ' "(']
FENCES = ["`", "```repl\n", "```\n", "```repl\n```\n", "\n", "\r\n", "\t\n", " "]
WORDS = ["FINAL(", "FINAL(\n", "FINAL('\n", "FINAL_VAR(", "FINAL_VAR(\n"]
HOSTILE = [*BRACKETS, *FENCES, *WORDS]


@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.parametrize("opening", ["", "FINAL(", "FINAL('", "FINAL_VAR("])
def test_hostile_text_takes_no_longer_than_it_is(piece: str, opening: str) -> None:
    text = opening + piece * (MEGABYTE // len(piece)) + ")"
    began = time.process_time()
    read_reply(text)
    assert time.process_time() - began < 2, "a megabyte is read in well below a second"
