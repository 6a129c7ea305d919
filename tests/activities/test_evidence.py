"""The verifier of evidence files: each change is named, and what it cannot see is known."""

from __future__ import annotations

import base64
import copy
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from activities.contracts import ArchiveRequest, ToolEffect, ToolSpec
from activities.evidence import verify_evidence
from activities.evidence.events import attested, public_text
from activities.evidence.verify_evidence import Finding, Json, canonical, chained, check, unknown
from activities.settings import Settings
from activities.store.stores import Stores
from activities.telemetry.report import Telemetry
from activities.worker import worker_activities
from client.history.evidence import with_signature
from tests.activities.evidencekit import (
    CHANGES,
    KEY,
    PROOF,
    RUNS,
    Change,
    evidence,
    forged,
    other,
    parts_of,
    retold,
)
from workflows.api import WORKFLOW_TYPE, AgentSpec, AgentTask
from workflows.engine.calls.done import HARMLESS_EFFECTS, MAX_CALLS
from workflows.engine.calls.records import NOT_MADE
from workflows.gate.approvals import ApprovalPolicy
from workflows.gate.decisions import IMMEDIATE, PASSED_DOWN
from workflows.gate.requests import COMMENT_CHARS, OUTCOMES, EventName
from workflows.kernel.log import FORKED, NO_CALLS, STARTED
from workflows.people import (
    DEFAULT_EFFECT_MODES,
    ApprovalMode,
    ApprovalRule,
    Approvals,
    AtMost,
    Command,
    Decision,
    Group,
    People,
    RequestSettings,
    StandingApproval,
)

PUBLIC = public_text(KEY)
THEIRS = Ed25519PrivateKey.from_private_bytes(b"f" * 32)
"""Of whoever changes a file."""
IDENTITY = base64.b64encode(b"\1" + bytes(31)).decode()
"""A public key of small order."""
ANYBODYS = base64.b64encode(b"\1" + bytes(63)).decode()
"""A signature that fits it, whatever is signed, and needs no secret."""
VERIFIER = Path(verify_evidence.__file__)


def wrong(pack: Any, *keys: str) -> list[Finding]:
    return [one for one in check(pack, keys) if one.verdict == "wrong"]


def verdict(found: list[Finding], what: str) -> str:
    return next(one.verdict for one in found if one.what == what)


@pytest.fixture(scope="module")
async def packs() -> dict[str, list[Json]]:
    """Each recorded run; those of one execution also as if they had begun under a certificate."""
    found = {name: [await evidence(name)] for name in RUNS}
    for name in ("edited call", "unknown outcome"):
        found[name].append(await evidence(name, PROOF))
    return found


@pytest.mark.parametrize("name", RUNS)
def test_evidence_of_every_recorded_run_is_right(name: str, packs: dict[str, list[Json]]) -> None:
    for pack in packs[name]:
        found = check(with_signature(pack, KEY), [PUBLIC])
        assert [one for one in found if one.verdict == "wrong"] == []
        proven = ["signature", "log", "history", "log and history", "result", "agent", "completeness"]
        assert [what for what in proven if verdict(found, what) != "ok"] == []


def test_run_that_began_under_a_certificate_names_it(packs: dict[str, list[Json]]) -> None:
    without, under = packs["edited call"]
    assert (verdict(check(without), "certificate"), verdict(check(under), "certificate")) == ("unknown", "ok")
    assert {one.what for one in wrong(forged({**without, "certificate": PROOF}))} == {"certificate"}
    assert verdict(check(forged({**under, "certificate": None})), "certificate") == "unknown"


@given(seed=st.integers(0, 10**9))
def test_each_change_of_a_certificate_is_named(seed: int, packs: dict[str, list[Json]]) -> None:
    pack = packs["edited call"][1]
    edited = {**pack, "certificate": other(pack["certificate"], Random(seed))}
    assert {one.what for one in wrong(edited)} == {"head", "certificate"}
    assert {one.what for one in wrong(forged(edited))} == {"certificate"}, "though all hashes are made anew"


async def test_certificate_of_other_code_proves_nothing_of_the_run() -> None:
    pack = await evidence("edited call", PROOF, ["code desk.py"])
    (found,) = [one for one in check(with_signature(pack, KEY), [PUBLIC]) if one.what == "certificate"]
    assert found.verdict == "unknown"
    assert found.text.endswith("what ran differs from it: code desk.py")
    under = await evidence("edited call", PROOF)
    under["log"]["result"] = under["log"]["result"].replace('"code":{}', '"code":{"desk.py":"0"}')
    told = [one.text for one in wrong(forged(under)) if one.what == "certificate"]
    assert told == ["the run was compared with other digests than those in it"]
    pack["log"]["records"][0] = pack["log"]["records"][0].replace('["code desk.py"]', "[]")
    assert {one.what for one in wrong(forged(pack))} >= {"attestation 0"}, "what the worker signed says it"


async def test_certificate_of_an_exploration_that_is_not_complete_says_so() -> None:
    pack = await evidence("edited call", PROOF.replace("true", "false"))
    (found,) = [one for one in check(with_signature(pack, KEY), [PUBLIC]) if one.what == "certificate"]
    assert (found.verdict, "; its exploration is not complete: sha256" in found.text) == ("ok", True)


OTHERS = pytest.param(range(3, 13), marks=pytest.mark.exhaustive)


@pytest.mark.parametrize("seeds", [range(3), OTHERS], ids=["some", "others"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_each_random_change_is_named(change: Change, seeds: range, packs: dict[str, list[Json]]) -> None:
    """16 kinds of change, 13 of each; signed again by somebody else, or not at all, they are found, too."""
    for seed in seeds:
        random = Random(f"{change.__name__} {seed}")
        pack = with_signature(random.choice(random.choice(sorted(packs.values(), key=len))), KEY)
        changed = copy.deepcopy(pack)
        named = change(changed, random)
        found = {one.what for one in wrong(changed, PUBLIC)}
        assert any(re.fullmatch(named, what) for what in found), (seed, named, found)
        again = forged(changed)
        if again["head"] != pack["head"]:  # a hash that was changed alone is whole again
            for one in (again, with_signature(again, THEIRS)):
                assert "signature" in {one.what for one in wrong(one, PUBLIC)}
            unsigned = check({**again, "signature": None}, [PUBLIC])
            assert verdict(unsigned, "signature") in ("wrong", "unknown")


# -- without a signature --------------------


def consistent(pack: Json) -> Json:
    """What a careful forger makes of a changed run of one execution: all that hangs on it is changed, too."""
    result = json.loads(pack["log"]["result"])
    result |= {"log_head": chained(pack["log"]["records"])[-1], "records": len(pack["log"]["records"])}
    pack["log"]["result"] = json.dumps(result)
    end = chained([*pack["log"]["records"], pack["log"]["result"]])[-1]
    for item in pack["messages"]["items"]:
        if item["name"] == "archive_log":
            item["text"] = canonical({"log": result["log_head"], "result": True, "end": end})
    return forged({**pack, "attestations": [], "signature": None})


def without_call(pack: Json) -> str:
    """Take the call out of the log."""
    for number, text in enumerate(pack["log"]["records"]):
        record = json.loads(text)
        shown = {name: value for name, value in record.items() if name not in ("asked", "answered")}
        pack["log"]["records"][number] = json.dumps(shown)
    return r"execution .*: event \d+"


def without_activity(pack: Json) -> str:
    """Take the call out of the history."""
    events = pack["history"][0]["events"]
    (call,) = [event for event in events if event.get("name") == "call_tool"]
    kept = [event for event in events if call["id"] not in (event["id"], event.get("of"))]
    moved = {event["id"]: number for number, event in enumerate(kept, start=1)}
    for event in kept:
        event.update({name: moved[event[name]] for name in ("id", "of") if name in event})
    for item in pack["messages"]["items"]:
        item["event"] = moved[item["event"]]
    pack["history"][0]["events"] = kept
    return r"record \d+"


def with_other_arguments(pack: Json) -> str:
    """Let people have been asked about another call than was made."""
    (number,) = [n for n, text in enumerate(pack["log"]["records"]) if '"Requested"' in text]
    record = json.loads(pack["log"]["records"][number])
    record["about"]["arguments"] = {"line": "harmless"}
    pack["log"]["records"][number] = json.dumps(record)
    return f"record {number}"


def with_other_answer(pack: Json) -> str:
    """Let the run have said something else."""
    pack["log"]["result"] = json.dumps({**json.loads(pack["log"]["result"]), "answer": "all is well"})
    return ""


@pytest.mark.parametrize(
    "forge", [without_call, without_activity, with_other_arguments], ids=lambda one: one.__name__
)
def test_forged_file_without_signature_is_found_where_it_contradicts_itself(
    forge: Callable[[Json], str], packs: dict[str, list[Json]]
) -> None:
    pack = copy.deepcopy(packs["edited call"][0])
    named = forge(pack)
    found = {one.what for one in wrong(consistent(pack))}
    assert found
    assert all(re.fullmatch(named, what) for what in found), found


def test_whole_forgery_is_found_by_a_signature_alone(packs: dict[str, list[Json]]) -> None:
    pack = copy.deepcopy(packs["edited call"][0])
    with_other_answer(pack)
    whole = consistent(pack)
    assert wrong(whole) == []
    assert verdict(check(whole), "signature") == "unknown"
    assert [one.what for one in wrong(whole, PUBLIC)] == ["signature"]
    assert [one.what for one in wrong(with_signature(whole, THEIRS), PUBLIC)] == ["signature"]
    signed_by_them = check(with_signature(whole, THEIRS))  # nobody said whose key counts
    assert verdict(signed_by_them, "signature") == "unknown"


def cut(pack: Json, executions: int) -> Json:
    """A long run as if it had ended with one of its executions, and without a result."""
    pack = copy.deepcopy(pack)
    kept = pack["history"][:executions]
    names = [one["execution"] for one in kept]
    pack |= {"history": kept, "attestations": pack["attestations"][:executions]}
    pack["messages"]["items"] = [one for one in pack["messages"]["items"] if one["execution"] in names]
    head = json.loads(pack["attestations"][-1]["statement"])["log"]
    texts = pack["log"]["records"]
    pack["log"] |= {"records": texts[: chained(texts).index(head) + 1], "result": None}
    pack["run"] |= {"agent": "", "agent_digest": "", "last_execution": names[-1]}
    return forged(pack)


def test_long_run_cut_where_it_continues_has_no_end(packs: dict[str, list[Json]]) -> None:
    """What a worker signs of a part of a run is no signature of its end."""
    whole = packs["chain"][0]
    for executions in range(1, len(whole["history"])):
        found = check(cut(whole, executions), [PUBLIC])
        assert {one.what for one in found if one.verdict == "wrong"} == {"signature"}
        assert unknown("history", "its end is missing") in found
        assert verdict(found, "completeness") == "unknown"
    assert wrong(whole, PUBLIC) == [], "its last attestation is of the end"


def test_worker_signs_only_logs_that_their_own_run_sends() -> None:
    parts = parts_of(RUNS["edited call"])
    events = parts.executions[0].events
    sent = ArchiveRequest(workflow_id="payroll", run_id=parts.run_id, after="", records=())
    assert attested(KEY, sent, "", parts.run_id, events) is None
    sent = ArchiveRequest(workflow_id=parts.workflow_id, run_id="another", after="", records=())
    assert attested(KEY, sent, "", parts.run_id, events) is None


def test_agent_says_whom_each_entry_of_its_approvals_asks() -> None:
    """The verifier does not judge arguments: the entry that the engine takes is among those that it knows."""
    board = RequestSettings(group="board", quorum=2)
    rules = (
        ApprovalRule(tools=("pay*",), arguments={"usd": {"minimum": 100}}, request=board),
        ApprovalRule(tools=("look",), ask="never"),
        ApprovalRule(tools=("write",), ask="never", at_most=AtMost(calls=1)),
        ApprovalRule(cost_above=1, request=board),
        ApprovalRule(tools=("pay_once",), ask="first_time"),
    )
    approvals = Approvals(rules=rules, tools={"list": "always", "read": "never"}, effects={"keyed": "always"})
    groups = {"board": Group(members=("ann", "bob")), "desk": Group(members=("eve",))}
    people = People(groups=groups, kinds={"approval": RequestSettings(group="desk")})
    given = {"approvals": approvals.model_dump(mode="json"), "people": people.model_dump(mode="json")}
    known = {
        "pay": ["rules.0", "rules.3", "effects.keyed", "effects.unsafe"], "look": [],
        "write": ["rules.2"], "pay_once": ["rules.0", "rules.3", "rules.4"],
        "list": ["rules.3", "tools.list"], "read": ["rules.3"],
    }  # fmt: skip
    specs = {name: ToolSpec(name=name, description="", parameters={}) for name in known}
    policy = ApprovalPolicy(approvals, people, specs)
    asked = set()
    for tool, entries in known.items():
        ways = verify_evidence._ways(given, {"kind": "approval", "tool": tool})
        assert [*ways] == entries
        of_outcome = verify_evidence._ways(given, {"kind": "outcome", "tool": tool})
        assert of_outcome == {"": RequestSettings().model_dump(mode="json"), **ways}
        for usd, spent_usd in ((5, 0), (500, 0), (5, 2)):
            needed = policy.required_approval(tool, {"usd": usd}, spent_usd=spent_usd)
            if needed is not None:
                assert ways[needed.rule] == needed.settings.model_dump(mode="json")
                asked.add((tool, needed.rule))
    assert len(asked) == 9


def test_commands_that_nobody_signed_are_not_shown(packs: dict[str, list[Json]]) -> None:
    def with_group(pack: Json, _records: list[Json]) -> None:
        result = json.loads(pack["log"]["result"])
        people = People(groups={"desk": Group(members=("ann",))}, commands="desk")
        result["task"]["people"] = people.model_dump(mode="json")
        pack["log"]["result"] = json.dumps(result)

    def without_result(pack: Json, _records: list[Json]) -> None:
        pack["log"]["result"] = None

    pack, cancelled, silent = (packs[name][0] for name in ("commands", "cancelled", "edited call"))
    claimed = "of groups without keys: their names are only claimed"
    told = {
        f"5 {claimed}": [pack, retold(pack, with_group)],
        "5 without a signature: their names are only claimed": [retold(pack, without_result)],
        "who cancelled the run (record 3) is not shown: Temporal asks for no name": [cancelled],
    }
    for text, those in told.items():
        for one in those:
            assert [found for found in check(one) if found.what == "commands"] == [unknown("commands", text)]
    assert "commands" not in {one.what for one in check(silent)}


# -- the file for machines without Ratchet --------------------


def test_verifier_knows_the_words_of_this_release(tmp_path: Path) -> None:
    """It imports nothing of Ratchet, so what it knows by name is held against what runs write."""

    def defaults(model: type[BaseModel]) -> Json:
        fields = {name: one for name, one in model.model_fields.items() if name != "signature"}
        return {
            n: one.get_default(call_default_factory=True)
            for n, one in fields.items()
            if not one.is_required()
        }

    assert defaults(Decision) == verify_evidence.UNSAID["decide"]
    assert defaults(Command) == verify_evidence.UNSAID["command"]
    assert defaults(StandingApproval) == {"arguments": {}, "same": False}
    assert set(AgentTask.model_fields) - set(AgentSpec.model_fields) == verify_evidence.NOT_OF_THE_AGENT
    assert OUTCOMES == verify_evidence.OUTCOMES
    assert {*IMMEDIATE} == verify_evidence.IMMEDIATE
    assert COMMENT_CHARS == verify_evidence.COMMENT_CHARS
    assert {*PASSED_DOWN} == verify_evidence.PASSED_DOWN
    assert {*get_args(EventName)} - {"Warned"} == verify_evidence.OF_REQUESTS
    assert DEFAULT_EFFECT_MODES == verify_evidence.USUAL_MODES
    assert get_args(ToolEffect) == verify_evidence.EFFECTS
    assert ({*verify_evidence.HARMLESS}, verify_evidence.RESULT_CALLS) == (HARMLESS_EFFECTS, MAX_CALLS)
    assert {*get_args(ApprovalMode)} - {"never", "rules"} == verify_evidence.NEVER_UNASKED
    assert {*get_args(ApprovalMode)} - {"never", "rules", "reject"} == verify_evidence.ASKING
    assert verify_evidence.NOT_MADE - {"depth_limit", "inner_machine"} == NOT_MADE
    assert verify_evidence.NO_ACTIVITY - {"more"} == NO_CALLS - {"ask_model"}
    assert (verify_evidence.WORKFLOW, FORKED, STARTED) == (WORKFLOW_TYPE, "Forked", "Started")
    settings = Settings(data_dir=tmp_path)
    made, _ = worker_activities(settings, Stores(settings), Telemetry())
    known = (verify_evidence.CALLS | verify_evidence.OF_CALLS | verify_evidence.OF_RATCHET) | {
        "ask_model", "compensate_tool", "notify",
    }  # fmt: skip
    assert {one.__name__ for one in made} == known


def test_verifier_runs_where_nothing_of_ratchet_is(tmp_path: Path, packs: dict[str, list[Json]]) -> None:
    """Of all packages only `cryptography`, and what that needs, can be imported."""
    site = tmp_path / "site"
    site.mkdir()
    installed = Path(sysconfig.get_path("purelib"))
    for name in ("cryptography", "cffi", "_cffi_backend*", "pycparser"):
        for found in installed.glob(name):
            (site / found.name).symlink_to(found)
    (tmp_path / "verify_evidence.py").write_bytes(VERIFIER.read_bytes())
    start = (
        "import sys, importlib.util, runpy\n"
        "sys.path.append(sys.argv.pop(1))\n"
        "assert not any(map(importlib.util.find_spec, ('activities', 'client', 'pydantic', 'temporalio')))\n"
        "del sys.argv[0]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )

    def run(pack: Any, *more: str, name: str = "run.json") -> subprocess.CompletedProcess[str]:
        (tmp_path / "run.json").write_text(json.dumps(pack))
        command = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            start,
            str(site),
            "verify_evidence.py",
            name,
            *more,
        ]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    pack = with_signature(packs["chain"][0], KEY)
    done = run(pack, "--key", PUBLIC)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ok       completeness: the log has 7 calls and 9 model calls" in done.stdout
    assert run(pack, "--key", f'"the worker: ada": {PUBLIC}').stdout == done.stdout, "as `ratchet key show`"
    nobodys = {f'"x": {IDENTITY}': "a point of small order"}
    for junk in ("junk", f"{PUBLIC}=", f"{PUBLIC} ada", *nobodys):
        refused = run(pack, "--key", junk)
        assert (refused.returncode, refused.stdout) == (2, ""), "nothing was checked, so nothing is wrong"
        assert nobodys.get(junk, "not an Ed25519 public key") in refused.stderr
    unreadable = run(pack, "--key", PUBLIC, name="missing.json")
    assert (unreadable.returncode, unreadable.stdout) == (2, "")
    assert "missing.json cannot be read as JSON" in unreadable.stderr
    others = [run(json.loads(text), "--key", PUBLIC) for text in ("[]", "{}", '{"format": "a"}')]
    assert all(one.stdout.startswith("wrong    file: it is no evidence of a run: ") for one in others)
    assert [one.returncode for one in others] == [1, 1, 1]
    pack["log"]["records"][7] = pack["log"]["records"][7].replace("state", "stale", 1)
    done = run(pack, "--key", PUBLIC)
    assert done.returncode == 1
    assert "wrong    record 7: " in done.stdout
    assert "wrong; " in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("sign", [0, 0x80])
@pytest.mark.parametrize("point", verify_evidence.SMALL_ORDER_POINTS)
def test_key_of_small_order_is_refused_everywhere(point: str, sign: int) -> None:
    key = bytes.fromhex(point)
    text = base64.b64encode(key[:31] + bytes([key[31] | sign])).decode()
    with pytest.raises(ValueError, match="small order"):
        verify_evidence.key_of(text)
    with pytest.raises(ValueError, match="small order"):
        Group(keys={"ann": text})


def test_signature_that_anybody_can_make_never_fits(packs: dict[str, list[Json]]) -> None:
    identity = Ed25519PublicKey.from_public_bytes(base64.b64decode(IDENTITY))
    identity.verify(base64.b64decode(ANYBODYS), b"whatever it is")
    signature = {"key": IDENTITY, "signature": ANYBODYS}
    found = check({**packs["chain"][0], "signature": signature}, [IDENTITY])
    assert verdict(found, "signature") == "wrong"


TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | TEXTS
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda one: st.lists(one, max_size=4) | st.dictionaries(TEXTS, one, max_size=4),
))  # fmt: skip
def test_canonical_json_is_that_of_rfc_8785(value: Any) -> None:
    assert canonical(value).encode() == rfc8785.dumps(value)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=5), one, max_size=3),
)


@given(data=st.data())
def test_no_junk_stops_the_verifier(data: st.DataObject, packs: dict[str, list[Json]]) -> None:
    pack = {**packs["edited call"][0]}
    name = data.draw(st.sampled_from(sorted(pack)))
    pack[name] = data.draw(JUNK)
    if data.draw(st.booleans()):
        part = data.draw(st.sampled_from(["log", "messages", "run"]))
        inside = data.draw(st.sampled_from(sorted(packs["edited call"][0][part])))
        pack[part] = {**packs["edited call"][0][part], inside: data.draw(JUNK)}
    check(pack, [PUBLIC])
    check(data.draw(JUNK))


class _Authority(BaseHTTPRequestHandler):
    """A time stamping authority: `openssl ts` with the key of a folder."""

    folder: Path

    def do_POST(self) -> None:
        query = self.folder / "asked.tsq"
        query.write_bytes(self.rfile.read(int(self.headers["Content-Length"])))
        command = [
            "openssl",
            "ts",
            "-reply",
            "-config",
            "tsa.cnf",
            "-queryfile",
            query.name,
            "-out",
            "it.tsr",
        ]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)
        self.send_response(200)
        self.end_headers()
        self.wfile.write((self.folder / "it.tsr").read_bytes())

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


TSA = """
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -subj /CN=ca -days 2
openssl req -newkey rsa:2048 -nodes -keyout tsa.key -out tsa.csr -subj /CN=tsa
echo extendedKeyUsage=critical,timeStamping > ext
openssl x509 -req -in tsa.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile ext -days 2 -out tsa.pem
echo 01 > serial
"""
TSA_SETTINGS = """
[tsa]
default_tsa = it
[it]
serial = serial
signer_digest = sha256
default_policy = 1.2.3.4
digests = sha256
signer_cert = tsa.pem
signer_key = tsa.key
certs = ca.pem
"""


@pytest.mark.skipif(not (shutil.which("openssl") and shutil.which("curl")), reason="needs openssl and curl")
def test_head_is_stamped_as_the_page_says(tmp_path: Path, packs: dict[str, list[Json]]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "evidence.md").read_text()
    recipe = re.search(r"```sh\n(.*?)```", page, re.DOTALL)
    assert recipe is not None
    subprocess.run(["sh", "-ec", TSA], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "tsa.cnf").write_text(TSA_SETTINGS)
    pack = packs["edited call"][0]
    (tmp_path / "run.json").write_text(json.dumps(pack))
    kind = type("Authority", (_Authority,), {"folder": tmp_path})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = {"https://AUTHORITY": f"http://127.0.0.1:{server.server_port}", "AUTHORITY.pem": "ca.pem"}
        commands = recipe[1]
        for name, value in here.items():
            assert name in commands
            commands = commands.replace(name, value)
        done = subprocess.run(
            ["sh", "-ec", commands], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        server.shutdown()
    assert (done.returncode, "Verification: OK" in done.stdout + done.stderr) == (0, True), done.stderr
    last = commands.strip().splitlines()[-1]
    other_head = f"HEAD={'0' * 64}; {last}"
    assert subprocess.run(["sh", "-c", other_head], cwd=tmp_path, capture_output=True, check=False).returncode
