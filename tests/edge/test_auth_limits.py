"""S5, S6, S11 and S12, as far as the edge is concerned."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from time import perf_counter

import httpx
import pytest
from prometheus_client import generate_latest
from starlette.types import Message

from inferscale_server.cli.app import main
from inferscale_server.config import load_config
from inferscale_server.edge import access_log
from inferscale_server.edge.auth import Access
from inferscale_server.edge.guard import Guard
from inferscale_server.edge.keys import change_keys, make_key
from inferscale_server.edge.services import Services
from inferscale_server.edge.wire import parse_completion_owner
from inferscale_server.engine.launch import check_access
from inferscale_server.errors import ConfigError, InvalidRequest
from inferscale_server.types import Owner
from tests.edge.asgi import JSON_TYPE, EchoApp, http_scope, send_raw
from tests.edge.conftest import app_with

TWINS = {
    "decomposed": "Zoe\u0308",
    "joined": "a\u200db",
    "zero width": "ali\u200bce",
    "byte order mark": "\ufeffalice",
    "soft hyphen": "al\u00adice",
    "right to left mark": "alice\u200f",
    "line separator": "a\u2028b",
    "variation selector": "a\ufe0f",
    "joiner in front": "\u200d\U0001f469",
    "joiner behind": "\U0001f469\u200d",
    "two joiners": "\U0001f469\u200d\u200d\U0001f467",
    "right to left override": "a\u202eb",
    "isolate": "a\u2067b",
    "Hangul filler": "alice\u3164",
    "NUL": "a\0b",
    "tab": "a\tb",
    "escape": "a\x1bb",
    "blank in front": " alice",
    "wide blank behind": "alice\u3000",
    "10k": "x" * 10_000,
}
PLAIN = (
    "..",
    "../../etc/passwd",
    "a/b",
    "a+b",
    "C:\\users\\a",
    "Zo\u00eb",
    "王小明",
    "สมชาย",
    "שלום",
    "a:b",
    "a|b",
    "😀",
    "👨\u200d👩\u200d👧",
    "❤\ufe0f\u200d🔥",
    "1\ufe0f\u20e3",
    "می\u200cخواهم",
)


def names_in(folder: Path) -> set[str]:
    """Files of the folder; SQLite's own companions count as the database."""
    return {file.name.split("-")[0] for file in folder.iterdir()}


@pytest.mark.parametrize("name", TWINS)
async def test_S5_an_id_with_an_unseen_difference_is_400(client: httpx.AsyncClient, name: str) -> None:
    user = TWINS[name]
    answers = [
        await client.post("/v1/memories", json={"user_id": user, "facts": ["a"]}),
        await client.post("/v1/memories/search", json={"user_id": user, "query": "a"}),
        await client.get("/v1/memories", params={"user_id": user}),
    ]
    codes = {(answer.status_code, answer.json()["error"]["code"]) for answer in answers}
    assert codes <= {(400, "invalid_id"), (400, "invalid_url")}


@pytest.mark.parametrize("user", PLAIN)
async def test_S5_an_id_is_a_name_and_never_a_path(
    client: httpx.AsyncClient, services: Services, tmp_path: Path, user: str
) -> None:
    before = names_in(tmp_path)
    added = await client.post("/v1/memories", json={"user_id": user, "facts": ["a"]})
    listed = await client.get("/v1/memories", params={"user_id": user})
    assert (added.status_code, [fact["text"] for fact in listed.json()["data"]]) == (200, ["a"])
    assert names_in(tmp_path) == before
    assert services.memory.owners() == (Owner("local", user),)


def test_a_text_completion_takes_no_memory() -> None:
    for value in ({"user_id": "alice"}, None, 5):
        with pytest.raises(InvalidRequest, match="chat/completions and /v1/responses") as caught:
            parse_completion_owner({"prompt": "a", "inferscale": value})
        assert caught.value.param == "inferscale"
    assert parse_completion_owner({"prompt": "a", "user": "alice"}) == Owner("local", "alice")


def test_those_who_name_no_user_share_a_cache_with_their_tenant_alone() -> None:
    acme, rival = (make_key(tenant, "read", (), None, 0).key.identity() for tenant in ("acme", "rival"))
    assert parse_completion_owner({}, acme) == Owner("acme", "") != parse_completion_owner({}, rival)


MALFORMED = {
    "deep": b"[" * 500_000,
    "deep object": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "NaN": b'{"user_id": "a", "query": "b", "min_score": NaN}',
    "infinity": b'{"user_id": "a", "query": "b", "min_score": 1e999}',
    "k": b'{"user_id": "a", "query": "b", "k": 1000000000}',
    "huge k": b'{"user_id": "a", "query": "b", "k": ' + b"9" * 1_000_000 + b"}",
    "half a pair": b'{"user_id": "a", "query": "\\ud83d"}',
    "bad UTF-8": b'{"user_id": "a", "query": "\xff"}',
    "cut": b'{"user_id": "a"',
    "nothing": b"",
    "twice": b'{"user_id": "a", "user_id": "b", "query": "c"}',
    "zeros": b"\0" * 1_000_000,
    "a million facts": b'{"user_id": "a", "facts": [' + b'"",' * 1_000_000 + b'""]}',
    "a million levels in a string": json.dumps({"user_id": "a", "query": "[" * 1_000_000}).encode(),
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("path", ["/v1/memories", "/v1/memories/search", "/v1/embeddings"])
async def test_S6_what_is_malformed_or_too_large_is_4xx(client: httpx.AsyncClient, path: str, name: str) -> None:
    answer = await client.post(path, content=MALFORMED[name], headers={"content-type": "application/json"})
    assert answer.status_code in (400, 413)
    assert set(answer.json()["error"]) == {"message", "type", "code", "param"}
    assert len(answer.content) < 1_000


@pytest.mark.parametrize("declared", [True, False])
async def test_S6_of_a_hundred_megabytes_no_more_than_the_limit_is_kept(declared: bool) -> None:
    app = EchoApp()
    length = [(b"content-length", b"100000000")] if declared else []
    piece: Message = {"type": "http.request", "body": b" " * 1_000_000, "more_body": True}
    last: Message = {"type": "http.request", "body": b"", "more_body": False}
    answer = await send_raw(Guard(app), http_scope(headers=[JSON_TYPE, *length]), *([piece] * 100), last)
    assert (answer.status, answer.error["code"], app.scopes) == (413, "body_too_large", [])


CANARIES = ("canary-fact-4417", "canary-user-8123")


@pytest.fixture
async def watched(services: Services, tmp_path: Path) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """A client with a key, and that key."""
    new = make_key("acme", "write", (), None, 0)
    change_keys(tmp_path / "keys", lambda keys: (*keys, new.key))
    guard = Guard(app_with(services), access=Access(tmp_path / "keys"))
    headers = {"authorization": f"Bearer {new.secret}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(guard), base_url="http://testserver", headers=headers
    ) as client:
        yield client, new.secret


async def test_S11_logs_metrics_and_errors_hold_no_fact_no_user_and_no_key(
    watched: tuple[httpx.AsyncClient, str], services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    client, secret = watched
    fact, user = CANARIES
    body = {"user_id": user, "facts": [fact]}
    query = {"user_id": user}
    caplog.set_level(logging.DEBUG)
    assert (await client.post("/v1/memories", json=body)).status_code == 200
    errors = [
        await client.get(f"/v1/memories/{'0' * 32}", params=query),
        await client.post("/v1/memories", json={**body, "colour": "red"}),
        await client.post("/v1/memories", json={**body, "facts": [fact, 5]}),
        await client.post("/v1/memories", json={**body, "user_id": user + " "}),
        await client.post("/v1/memories", json={**body, "facts": [fact * 1_000]}),
        await client.post("/v1/memories", content=json.dumps(body)[:-1], headers={"content-type": "application/json"}),
        await client.get("/v1/memories", params={**query, "limit": "0"}),
        await client.get("/v1/users", params=query),
        await client.get("/nowhere", params=query),
        await client.get("/v1/memories", params=query, headers={"authorization": f"Basic {secret}"}),
        await client.get("/v1/memories", params=query, headers={"authorization": f"Bearer {secret}x"}),
    ]
    await services.memory.aclose()
    errors.append(await client.post("/v1/memories", json=body))
    assert [answer.status_code // 100 for answer in errors] == [4] * 11 + [5]
    ours = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore", "asyncio"))]
    seen = {
        "errors": "".join(answer.text for answer in errors),
        "logs": "".join(logging.Formatter().format(record) for record in ours),
        "metrics": generate_latest().decode(),
    }
    found = {(place, canary) for place, text in seen.items() for canary in (*CANARIES, secret) if canary in text}
    assert found == set()
    lines = [record.getMessage() for record in ours if record.name == access_log.logger.name]
    assert len(lines) == len(errors) + 1
    assert re.fullmatch(r"POST /v1/memories 200 \d+\.\d ms request [0-9a-f]{32} key \w+", lines[0])
    assert lines[1].startswith("GET /v1/memories/{fact_id} 404 ") and lines[9].startswith("GET - 404 ")
    assert lines[-2].startswith("GET /v1/memories 401 ") and lines[-2].endswith(" key -")
    print(*lines, sep="\n")


async def test_a_method_that_a_client_made_up_and_a_request_that_was_broken_off_are_no_words_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    guard = Guard(EchoApp())
    await send_raw(guard, http_scope(method="CANARY"))
    await send_raw(guard, http_scope(), {"type": "http.disconnect"})
    lines = [record.getMessage() for record in caplog.records if record.name == access_log.logger.name]
    assert lines[0].startswith("- - 405 ") or lines[0].startswith("- - 404 ")
    assert lines[1].startswith("POST /v1/memories - ") and len(lines) == 2


async def test_without_the_setting_there_is_no_line(caplog: pytest.LogCaptureFixture) -> None:
    await send_raw(Guard(EchoApp()), http_scope())
    assert not access_log.logger.isEnabledFor(logging.INFO)
    assert [record for record in caplog.records if record.name == access_log.logger.name] == []


async def test_S6_a_refused_body_that_trickles_on_is_answered_and_others_are_not_kept_waiting() -> None:
    app = EchoApp()
    guard = Guard(app)
    pieces = 0

    async def trickle() -> Message:
        nonlocal pieces
        pieces += 1
        await asyncio.sleep(0.01 if pieces > 1 else 0)
        return {"type": "http.request", "body": b" " * 100, "more_body": True}

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    started = perf_counter()
    scope = http_scope(headers=[JSON_TYPE, (b"content-length", b"100000000")])
    refused = asyncio.ensure_future(guard(scope, trickle, send))
    await asyncio.sleep(0.1)
    asked = perf_counter()
    last: Message = {"type": "http.request", "body": b"{}", "more_body": False}
    assert (await send_raw(guard, http_scope(), last)).status == 200
    other_s = perf_counter() - asked
    await refused
    refused_s = perf_counter() - started
    print(f"refused after {refused_s:.2f} s, another request beside it took {1e3 * other_s:.1f} ms")
    assert sent[0]["status"] == 413 and refused_s < 5 * 1.0
    assert other_s < 5 * 0.1


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5"])
def test_S12_a_public_address_without_keys_is_refused_in_one_line(
    host: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INFERSCALE_API_KEYS", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--host", host])
    err = capsys.readouterr().err
    assert ended.value.code == 2
    assert err.count("\n") == 1 and "--insecure" in err and "--api-keys" in err


def test_S12_insecure_serves_and_warns(caplog: pytest.LogCaptureFixture) -> None:
    check_access(load_config({"host": "0.0.0.0", "insecure": True}, {}))
    [record] = caplog.records
    assert record.levelno == logging.WARNING and "0.0.0.0" in record.getMessage()


def test_S12_keys_or_a_loopback_address_need_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    change_keys(tmp_path / "keys", lambda keys: (*keys, make_key("acme", "read", (), None, 0).key))
    check_access(load_config({"host": "0.0.0.0", "api_keys": tmp_path / "keys"}, {}))
    check_access(load_config({}, {}))
    assert caplog.records == []


def test_S12_a_broken_keys_file_is_an_error_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("broken", "utf-8")
    (tmp_path / "keys").chmod(0o600)
    with pytest.raises(ConfigError, match="line 1"):
        check_access(load_config({"api_keys": tmp_path / "keys"}, {}))
