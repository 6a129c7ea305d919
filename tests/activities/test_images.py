"""Images for models: what may be one, where they are kept, how a question brings them."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import zlib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.testing import ActivityEnvironment

from activities.contracts import (
    IMAGE_BYTES,
    Conversation,
    Message,
    ModelInput,
    ModelSpec,
    NativeCall,
    Setup,
    ToolInput,
    bytes_of_images,
    without_digests,
)
from activities.images import MAX_IMAGE_BYTES, MAX_IMAGES, Images
from activities.model import ModelActivities
from activities.pricing import estimated_usage
from activities.providers.openai import OpenAIProvider
from activities.settings import Settings
from activities.store.blobs import BlobStore
from activities.store.cache import ConversationCache
from activities.store.secret import StoreSecret
from activities.tools import Tool, ToolReturn
from activities.tools.run import ToolRunner
from client.errors import UsageError
from client.sdk.material import goal_with_images
from tests.activities.modelkit import CONVERSATION, ask, setup
from tests.fake_openai import FakeOpenAI
from workflows.engine.compaction import size


def png(number: int = 0) -> bytes:
    """A picture of one point."""
    return b"\x89PNG\r\n\x1a\n" + zlib.compress(bytes([number]))


def url(data: bytes) -> str:
    """As a data URL."""
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return Images(BlobStore(tmp_path / "blobs"), StoreSecret(tmp_path / "blobs"))


def user(text: str) -> Message:
    return Message(role="user", content=text)


def test_mark_stands_for_what_was_kept(images: Images) -> None:
    mark = images.keep(png(), "a chart: [1].png")
    assert mark.startswith("[image a_chart_1_.png: ")
    (found,) = images.of([user(f"look at {mark}")]).values()
    assert (found.name, found.media_type, found.data) == ("a_chart_1_.png", "image/png", png())


def test_mark_that_nobody_here_has_made_is_text(images: Images, tmp_path: Path) -> None:
    mark = images.keep(png())
    other = Images(BlobStore(tmp_path / "blobs"), StoreSecret(tmp_path / "elsewhere" / "blobs"))
    assert other.of([user(mark)]) == {}
    forged = mark[:-3] + ("00]" if not mark.endswith("00]") else "11]")
    assert images.of([user(forged)]) == {}


def test_mark_that_was_cut_in_two_shows_no_digest(images: Images) -> None:
    mark = images.keep(png(), "chart.png")
    start = mark.index(": ") + 2
    assert without_digests(f"{mark}\n{mark}") == "[image chart.png]\n[image chart.png]"
    for end in range(start + 8, len(mark)):
        for rest in ("", "…", " [... 7,403 characters]", f"…{mark}"):
            shown = without_digests(f"see {mark[:end]}{rest}")
            assert shown == f"see [image chart.png]{without_digests(rest)}"


def test_words_that_begin_like_a_mark_stay() -> None:
    text = "[image a.png: bad] [image b: a face] [image c.png: "
    assert without_digests(text) == text


def test_image_of_a_reply_is_not_sent(images: Images) -> None:
    assert images.of([Message(role="assistant", content=images.keep(png()))]) == {}


def test_question_brings_the_newest_images(images: Images) -> None:
    marks = [images.keep(png(number)) for number in range(MAX_IMAGES + 2)]
    assert set(images.of(map(user, marks))) == set(marks[2:])


@pytest.mark.parametrize(("data", "kind"), [
    (b"\xff\xd8\xff\xe0", "image/jpeg"),
    (b"GIF89a", "image/gif"),
    (b"RIFF\x00\x00\x00\x00WEBP", "image/webp"),
])  # fmt: skip
def test_other_kinds_are_known_by_their_bytes(images: Images, data: bytes, kind: str) -> None:
    assert [one.media_type for one in images.of([user(images.keep(data))]).values()] == [kind]


@pytest.mark.parametrize(
    "data", [b"<svg/>", b"", png() + bytes(MAX_IMAGE_BYTES)], ids=["svg", "empty", "large"]
)
def test_what_no_model_takes_is_refused(images: Images, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"no PNG|bytes"):
        images.keep(data)


def test_image_counts_where_tokens_are_estimated(images: Images) -> None:
    message = user(images.keep(png()))
    assert bytes_of_images(message.content) == IMAGE_BYTES
    assert size([message]) > IMAGE_BYTES
    assert estimated_usage([message], "", ()).input_tokens > IMAGE_BYTES / 4


def test_text_full_of_forged_marks_counts_as_few_images() -> None:
    assert bytes_of_images(f"[image a.png: {'0' * 64}.{'0' * 32}]" * 1000) == 20 * IMAGE_BYTES


# -- what is sent --------------------------------------------------------------------------------------


def conversation(images: Images) -> Conversation:
    """A goal with an image, then two results with one each."""
    calls = tuple(NativeCall(id=id, name="draw", arguments="{}") for id in "ab")
    results = [
        Message(role="tool", content=f"drawn {images.keep(png(number), f'{id}.png')}", tool_call_id=id)
        for number, id in enumerate("ab", 1)
    ]
    goal = user(f"What is it?\n\n{images.keep(png(), 'goal.png')}")
    return Conversation([goal, Message(role="assistant", content="", tool_calls=calls), *results, user("on")])


async def test_chat_gets_parts_and_those_of_results_behind_them(
    provider: OpenAIProvider, server: FakeOpenAI, images: Images
) -> None:
    asked = conversation(images)
    await ask(provider, setup("say:hi"), asked, images=images.of(asked))
    goal, _, first, second, shown, last = server.completion_requests[0].body["messages"]

    def part(number: int) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": url(png(number))}}

    assert goal["content"] == [{"type": "text", "text": "What is it?\n\n[image goal.png]"}, part(0)]
    assert (first["content"], second["content"]) == ("drawn [image a.png]", "drawn [image b.png]")
    assert shown["role"] == "user"
    assert sorted(map(str, shown["content"][1:])) == sorted([str(part(1)), str(part(2))])
    assert last["content"] == "on"


async def test_responses_get_images_in_the_results(
    provider: OpenAIProvider, server: FakeOpenAI, images: Images
) -> None:
    asked = conversation(images)
    await ask(provider, setup("say:hi", api="responses"), asked, images=images.of(asked))
    items = server.completion_requests[0].body["input"]
    assert items[0]["content"] == [
        {"type": "input_text", "text": "What is it?\n\n[image goal.png]"},
        {"type": "input_image", "image_url": url(png())},
    ]
    assert items[3]["output"] == [
        {"type": "input_text", "text": "drawn [image a.png]"},
        {"type": "input_image", "image_url": url(png(1))},
    ]


async def test_activity_reads_images_from_the_store(
    provider: OpenAIProvider, server: FakeOpenAI, images: Images, tmp_path: Path
) -> None:
    model = ModelActivities({"openai": provider}, ConversationCache(tmp_path / "cache.db"), images=images)
    wanted = Setup(model=ModelSpec(name="say:hi"))
    asked = (user(images.keep(png())),)
    request = ModelInput(role="default", setup=wanted.digest, full_setup=wanted, messages=asked)
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, attempt=1)
    reply = await environment.run(model.ask_model, request)
    assert reply.text == "hi"
    assert url(png()) in str(server.completion_requests[0].body["messages"])
    assert reply.conversation == CONVERSATION.until(0).add(*asked, reply.message).digest


# -- where they come from ------------------------------------------------------------------------------


class Params(BaseModel):
    """Draw."""


@pytest.mark.parametrize(("data", "shown"), [
    (png(), "drawn\n[image draw-1: "), (b"<svg/>", "drawn\n[image 1 cannot be shown: it is no PNG"),
])  # fmt: skip
async def test_tool_may_return_images(images: Images, data: bytes, shown: str) -> None:
    tool = Tool(name="draw", params=Params, run=lambda _: ToolReturn("drawn", images=(data,)), effect="pure")
    runner = ToolRunner({"draw": tool}, Settings(), images=images)
    request = ToolInput(id="1", tool="draw", arguments={}, key="k", attempts=1)
    result = await runner.run_tool(request)
    assert result.output.startswith(shown)
    assert len(images.of([user(result.output)])) == (data == png())


async def test_goal_names_the_images_of_files(images: Images, tmp_path: Path) -> None:
    file = tmp_path / "chart.png"
    await asyncio.to_thread(file.write_bytes, png())
    goal = await goal_with_images("What is it?", [file, png(1)], images)
    assert [one.name for one in images.of([user(goal)]).values()] == ["image-2", "chart.png"]
    assert goal.startswith("What is it?\n\n[image chart.png: ")


@pytest.mark.parametrize(("content", "words"), [(None, "No such file"), (b"text", "no PNG")])
async def test_file_that_is_no_image_is_refused(
    images: Images, tmp_path: Path, content: bytes | None, words: str
) -> None:
    file = tmp_path / "chart.png"
    if content is not None:
        await asyncio.to_thread(file.write_bytes, content)
    with pytest.raises(UsageError, match=f"chart.png .*{words}"):
        await goal_with_images("What is it?", [file], images)
