"""The codec server: it decodes what is encrypted or large for those who may ask, and nothing for others."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from pydantic import SecretStr
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.client import Client
from temporalio.converter import DataConverter

from activities.settings import Settings
from activities.store.converter import data_converter
from activities.store.stores import Stores
from client.errors import UsageError
from client.server.codec import REQUEST_BYTES, serving_codec
from client.server.embedded import temporal_binary

KEYS = {name: SecretStr(base64.b64encode(os.urandom(64)).decode()) for name in ("k1", "k2")}
UI = "http://localhost:8233"
LARGE = "a large value " * 2000


@pytest.fixture
def coded(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / ".ratchet", encryption_keys={"k1": KEYS["k1"]})


def converter(coded: Settings) -> DataConverter:
    stores = Stores(coded)
    return data_converter((stores.blobs, stores.secret), stores.keys)


@pytest.fixture
async def server(coded: Settings) -> AsyncIterator[str]:
    async with serving_codec(coded, origins=[UI]) as url:
        yield url


async def started(coded: Settings, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
    """Start a server, and stop it."""
    async with serving_codec(coded, address):
        pass


async def post(server: str, payloads: Any, path: str = "/decode", **headers: str) -> httpx.Response:
    content = payloads if isinstance(payloads, (str, bytes)) else json.dumps({"payloads": payloads})
    async with httpx.AsyncClient(base_url=server, headers={"X-Namespace": "default"}) as client:
        return await client.post(path, content=content, headers=headers)


async def asked_for(server: str, headers: dict[str, str]) -> httpx.Response:
    """What a browser gets that asks whether a page may ask."""
    async with httpx.AsyncClient() as client:
        return await client.options(server + "/decode", headers=headers)


def sent(payloads: list[Payload]) -> list[Any]:
    found: list[Any] = MessageToDict(Payloads(payloads=payloads))["payloads"]
    return found


def received(answer: httpx.Response) -> list[Payload]:
    assert answer.status_code == 200, answer.text
    return list(ParseDict(answer.json(), Payloads()).payloads)


async def test_encrypted_large_and_plain_values_are_decoded(server: str, coded: Settings) -> None:
    plain = Payload(metadata={"encoding": b"json/plain"}, data=b'"typed"')
    made = await converter(coded).encode(["small", LARGE])
    found = received(await post(server, sent([*made, plain])))
    assert [json.loads(one.data) for one in found] == ["small", LARGE, "typed"]
    assert {one.metadata["encoding"] for one in found} == {b"json/plain"}


async def test_huge_values_wait_for_download_where_ui_wants_it(server: str, coded: Settings) -> None:
    small, huge = made = await converter(coded).encode([LARGE, "x" * 2_000_000])
    found = received(await post(server, sent(made), "/decode?preserveStorageRefs=true"))
    assert (json.loads(found[0].data), found[1]) == (LARGE, huge)
    (whole,) = received(await post(server, sent([huge]), "/download?preserveStorageRefs=true"))
    assert len(whole.data) == 2_000_002
    assert small.external_payloads


async def test_encoded_values_are_those_of_a_worker(server: str, coded: Settings) -> None:
    plain = data_converter(None).payload_converter.to_payloads(["small", LARGE])
    encoded = received(await post(server, sent(plain), "/encode"))
    assert encoded == await converter(coded).encode(["small", LARGE])
    assert received(await post(server, sent(encoded[:1]), "/encode")) == encoded[:1]
    assert received(await post(server, sent(encoded), "/some-namespace/decode")) == plain


async def test_what_cannot_be_decoded_is_left_as_it_is(server: str, coded: Settings) -> None:
    other = coded.model_copy(update={"encryption_keys": {"k2": KEYS["k2"]}})
    strange, lost = await converter(other).encode(["small", LARGE])
    for blob in coded.blobs_dir.glob("*/*"):
        blob.unlink()
    forged = Payload()
    forged.CopyFrom(lost)
    forged.data = lost.data.replace(b'"signature":"', b'"signature":"0')
    (good,) = await converter(coded).encode(["good"])
    found = received(await post(server, sent([strange, lost, forged, good])))
    assert found[:3] == [strange, lost, forged]
    assert json.loads(found[3].data) == "good"


async def test_page_of_the_ui_may_ask_and_others_may_not(server: str) -> None:
    wanted = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-namespace",
    }
    asked = await asked_for(server, {"Origin": UI, **wanted})
    assert asked.is_success
    assert asked.headers["Access-Control-Allow-Origin"] == UI
    assert asked.headers["Access-Control-Allow-Headers"] == wanted["Access-Control-Request-Headers"]
    assert (await post(server, [], Origin=UI)).headers["Access-Control-Allow-Origin"] == UI
    for strange in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example"},
        {"Host": "[localhost"},
    ):
        for answer in (
            await post(server, [], **strange),
            await asked_for(server, {**wanted, **strange}),
        ):
            assert answer.status_code == 403
            assert "Access-Control-Allow-Origin" not in answer.headers


async def test_token_is_asked_for_where_there_is_one(coded: Settings) -> None:
    guarded = coded.model_copy(update={"codec_token": SecretStr("a-long-enough-token")})
    async with serving_codec(guarded) as server:
        assert (await post(server, [])).status_code == 401
        assert (await post(server, [], Authorization="Bearer another token")).status_code == 401
        assert (await post(server, [], Authorization="Bearer a-long-enough-token")).status_code == 200
        assert (await post(server, [], "/a-long-enough-token/decode")).status_code == 200


async def test_another_key_of_a_known_name_is_refused(server: str, coded: Settings) -> None:
    with pytest.raises(UsageError, match="the key 'k1' in RATCHET_ENCRYPTION_KEYS is not the key that"):
        await started(coded.model_copy(update={"encryption_keys": {"k1": KEYS["k2"]}}))


async def test_others_are_not_served_without_a_token(coded: Settings) -> None:
    with pytest.raises(UsageError, match="set RATCHET_CODEC_TOKEN"):
        await started(coded, ("0.0.0.0", 0))
    await started(coded.model_copy(update={"codec_token": SecretStr("x" * 16)}), ("0.0.0.0", 0))


@pytest.mark.parametrize(
    ("body", "path", "status"),
    [
        ("{", "/decode", 400),
        ('{"payloads": 7}', "/decode", 400),
        (b"\xff", "/decode", 400),
        ("{}", "/other", 404),
        ("{}", "/", 404),
        (b" " * (REQUEST_BYTES + 1), "/decode", 413),
        ("{}", "/decode", 200),
    ],
)
async def test_wrong_requests_are_named(body: str | bytes, path: str, status: int, server: str) -> None:
    try:
        answer = await post(server, body, path)
    except httpx.TransportError:  # it does not wait for the rest of a long one
        assert status == 413
    else:
        assert (answer.status_code, bool(answer.text)) == (status, True)


async def test_port_in_use_is_named(server: str, coded: Settings) -> None:
    with pytest.raises(UsageError, match=r"cannot listen at 127.0.0.1:.*in use.*--listen"):
        await started(coded, ("127.0.0.1", int(server.rpartition(":")[2])))


async def test_temporals_command_line_reads_and_sends_through_it(
    temporal: Client, server: str, tmp_path: Path
) -> None:
    """A run that is encrypted and large: started, shown and signalled by `temporal`."""
    file = tmp_path / "input.json"
    file.write_text(json.dumps({"goal": LARGE}))
    address = temporal.service_client.config.target_host

    async def cli(*words: str) -> str:
        command = [temporal_binary(), "workflow", *words, "--codec-endpoint", server]
        done = await asyncio.to_thread(
            subprocess.run,
            [*command, "--address", address, "-o", "json"],
            capture_output=True,
            text=True,
            check=True,
        )
        return str(done.stdout)

    await cli("start", "--type", "Nobody", "-t", "nowhere", "-w", "through-codec", "--input-file", str(file))
    await cli("signal", "-w", "through-codec", "--name", "told", "--input", '"the signal"')
    run = temporal.get_workflow_handle("through-codec")
    raw = b"".join(event.SerializeToString() for event in (await run.fetch_history()).events)
    assert b"a large value" not in raw
    assert b"the signal" not in raw
    events = json.loads(await cli("show", "-w", "through-codec"))["events"]
    inputs = [part["input"] for event in events for part in event.values() if "input" in part]
    values = [json.loads(base64.b64decode(one["payloads"][0]["data"])) for one in inputs]
    assert values == [{"goal": LARGE}, "the signal"]
    await run.terminate()
