"""Claims about export and import."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from inferscale_server.edge import ndjson, transfer
from inferscale_server.edge.ndjson import LineSplitter
from inferscale_server.edge.services import Services
from inferscale_server.limits import (
    MAX_IMPORT_BLANK_LINES,
    MAX_IMPORT_BYTES,
    MAX_IMPORT_FAILURES,
    MAX_IMPORT_LINE_BYTES,
)
from inferscale_server.memory import MemoryService
from inferscale_server.types import Fact, Owner
from inferscale_server.verify import verify
from tests.edge.asgi import FEW, http_scope, send_raw
from tests.edge.conftest import guarded

NDJSON = {"content-type": "application/x-ndjson"}
ALICE = {"user_id": "alice"}
HOSTILE = [
    {
        "text": "ฉันชอบกินมะม่วง 👩‍👩‍👧 שלום",
        "speaker": "Änn",
        "timestamp": "2023-05-08T13:56:00Z",
        "metadata": {"a": [1, {"b": None}]},
    },
    {"text": 'C:\\new\\table "quoted"\u2028line', "session_id": "s1", "expires_at": "2100-01-01T00:00:00Z"},
    {"text": "two\nlines", "metadata": {"x": "\n"}},
]


async def export(client: httpx.AsyncClient, user: str = "alice") -> list[dict[str, Any]]:
    response = await client.get("/v1/memories/export", params={"user_id": user})
    assert (response.status_code, response.headers["content-type"]) == (200, "application/x-ndjson")
    return [json.loads(line) for line in response.text.split("\n") if line]


async def import_(client: httpx.AsyncClient, content: bytes, user: str = "alice") -> httpx.Response:
    return await client.post("/v1/memories/import", params={"user_id": user}, content=content, headers=NDJSON)


def lines(*facts: object) -> bytes:
    return b"".join(json.dumps(fact).encode() + b"\n" for fact in facts)


def error_of(response: httpx.Response) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


async def test_blank_lines_are_skipped_up_to_a_limit(client: httpx.AsyncClient) -> None:
    few = b"\n \r\n" * 10 + lines({"text": "one"})
    assert (await import_(client, few)).json() == {"imported": 1, "duplicates": 0, "failed": []}
    many = lines({"text": "two"}) + b"\n" * (MAX_IMPORT_BLANK_LINES + 1)
    assert error_of(await import_(client, many)) == (400, "too_many_blank_lines", None)


async def test_lines_that_fill_no_batch_let_other_requests_have_their_turn(services: Services) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    scope = http_scope(
        path="/v1/memories/import", headers=[(b"content-type", b"application/x-ndjson")], query=b"user_id=alice"
    )
    blank = {"type": "http.request", "body": b"\n" * MAX_IMPORT_BLANK_LINES, "more_body": False}
    answer = await send_raw(guarded(services), scope, blank)
    counting.cancel()
    assert answer.status == 200
    assert turns >= MAX_IMPORT_BLANK_LINES // transfer.LINES_AT_A_STRETCH


async def test_what_was_exported_comes_back_equal_with_its_ids_and_times(client: httpx.AsyncClient) -> None:
    await client.post("/v1/memories", json={**ALICE, "facts": [*HOSTILE, *(f"fact {n}" for n in range(700))]})
    before = await client.get("/v1/memories/export", params=ALICE)
    assert before.content.count(b"\n") == len(before.text.splitlines()) == 703
    await client.delete("/v1/memories", params=ALICE)
    result = await import_(client, before.content)
    assert result.json() == {"imported": 703, "duplicates": 0, "failed": []}
    assert (await client.get("/v1/memories/export", params=ALICE)).content == before.content
    again = await import_(client, before.content)
    assert again.json() == {"imported": 0, "duplicates": 703, "failed": []}


async def test_an_import_cannot_take_another_users_fact_away(client: httpx.AsyncClient) -> None:
    await client.post("/v1/memories", json={**ALICE, "facts": ["Rex is a dog."]})
    [fact] = await export(client)
    result = await import_(client, lines(fact | {"text": "Taken over."}), "bob")
    assert result.json()["imported"] == 1
    [bobs] = await export(client, "bob")
    assert bobs["id"] != fact["id"]
    assert await export(client) == [fact]


async def test_a_users_facts_can_be_moved_to_another_user_and_the_store_stays_sound(
    client: httpx.AsyncClient, tmp_path: Path
) -> None:
    await client.post("/v1/memories", json={**ALICE, "facts": ["Rex is a dog.", "Ann is a vet."]})
    exported = (await client.get("/v1/memories/export", params=ALICE)).content
    [rex, _] = await export(client)
    await client.delete("/v1/memories", params=ALICE)
    moved = await import_(client, exported + lines({"text": "Sue is a cook."}), "bob")
    assert moved.json() == {"imported": 3, "duplicates": 0, "failed": [], "new_ids": 2}
    assert rex["id"] not in {fact["id"] for fact in await export(client, "bob")}
    assert verify(tmp_path / "facts.sqlite3").broken == ()
    back = await import_(client, exported)
    assert back.json() == {"imported": 2, "duplicates": 0, "failed": []}
    assert rex in await export(client)
    assert verify(tmp_path / "facts.sqlite3").broken == ()


async def test_a_line_that_fails_is_named_and_the_others_are_stored(client: httpx.AsyncClient) -> None:
    content = b"\n".join(
        [
            b'{"text": "one"}',
            b"",
            b"not json",
            b'{"text": ""}',
            b'{"text": "two", "colour": 1}',
            b'{"text": "\\ud800"}',
            b'{"text": "three", "created_at": "2100-01-01"}',
            b'{"text": "four", "expires_at": "2001-01-01"}',
            b"[1]",
            b'{"text": "' + b"x" * MAX_IMPORT_LINE_BYTES + b'"}',
            b'{"text": "five"}\r',
            b'{"text": "one"}',
            b'{"text": "six", "created_at": "2024-01-02", "updated_at": "2024-01-01"}',
        ]
    )
    result = (await import_(client, content)).json()
    assert (result["imported"], result["duplicates"]) == (2, 1)
    assert [one["line"] for one in result["failed"]] == [3, 4, 5, 6, 7, 8, 9, 10, 13]
    reasons = " ".join(one["reason"] for one in result["failed"])
    assert result["failed"][-1]["reason"] == "updated_at lies before created_at"
    assert "colour" in reasons and "facts[0]" not in reasons and "body" not in reasons
    assert [fact["text"] for fact in await export(client)] == ["one", "five"]


async def test_more_failures_than_can_be_told_end_the_import(client: httpx.AsyncClient) -> None:
    good = lines(*({"text": f"fact {n}"} for n in range(transfer.BATCH)))
    response = await import_(client, good + b"x\n" * (MAX_IMPORT_FAILURES + 1))
    assert error_of(response)[:2] == (400, "too_many_failures")
    assert f"{transfer.BATCH} facts are imported" in response.json()["error"]["message"]
    assert len(await export(client)) == transfer.BATCH


async def test_a_full_store_says_how_far_the_import_came(client: httpx.AsyncClient, services: Services) -> None:
    await client.post("/v1/memories", json={**ALICE, "facts": ["Rex is a dog."]})
    services.memory._store._max_facts_per_owner = transfer.BATCH + 1
    response = await import_(client, lines(*({"text": f"fact {n}"} for n in range(transfer.BATCH * 2))))
    assert error_of(response)[:2] == (507, "storage_full")
    assert f"stopped at line {transfer.BATCH + 1}; {transfer.BATCH} facts" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "params", "expected"),
    [
        ({"content-type": "application/json"}, ALICE, (400, "invalid_content_type", None)),
        (NDJSON, {}, (400, "missing_field", "user_id")),
        (NDJSON, {"user_id": " a"}, (400, "invalid_id", "user_id")),
        (NDJSON, {**ALICE, "overwrite": "1"}, (400, "unknown_field", "overwrite")),
        ({**NDJSON, "content-length": str(MAX_IMPORT_BYTES + 1)}, ALICE, (413, "body_too_large", None)),
    ],
)
async def test_a_bad_import_is_refused(
    client: httpx.AsyncClient, headers: dict[str, str], params: dict[str, str], expected: tuple[int, str, str | None]
) -> None:
    response = await client.post("/v1/memories/import", params=params, content=b"x", headers=headers)
    assert error_of(response) == expected


async def test_an_import_over_its_limit_is_stopped_while_it_streams(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ndjson, "MAX_IMPORT_BYTES", 1_000)

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 99 + b"\n"

    response = await client.post("/v1/memories/import", params=ALICE, content=endless(), headers=NDJSON)
    assert error_of(response)[:2] == (413, "body_too_large")


async def test_a_client_that_hangs_up_leaves_what_was_complete(services: Services) -> None:
    scope = http_scope(
        path="/v1/memories/import", headers=[(b"content-type", b"application/x-ndjson")], query=b"user_id=alice"
    )
    content = lines(*({"text": f"fact {n}"} for n in range(transfer.BATCH + 1)))
    answer = await send_raw(guarded(services), scope, {"type": "http.request", "body": content, "more_body": True})
    assert answer.messages == []
    assert services.memory.count(Owner("local", "alice")) == transfer.BATCH


class Endless:
    """A memory without an end; counts what was taken of it."""

    def __init__(self) -> None:
        self.taken = 0

    async def export(self, owner: Owner) -> AsyncIterator[Fact]:
        while True:
            self.taken += 1
            yield Fact(f"{self.taken:032x}", owner, self.taken, "again", None, None, None, {}, 0.0)


async def test_an_export_takes_no_more_than_the_client_reads(services: Services) -> None:
    memory, pieces, hung_up = Endless(), 0, asyncio.Event()

    async def receive() -> Message:
        await hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal pieces
        pieces += message["type"] == "http.response.body"
        if pieces == 3:
            hung_up.set()
            await asyncio.Event().wait()  # a client that reads no further

    app = guarded(replace(services, memory=cast(MemoryService, memory)))
    await app(http_scope("GET", "/v1/memories/export", (), query=b"user_id=alice"), receive, send)
    assert memory.taken == 3 * transfer.CHUNK


async def test_an_export_of_nothing_is_empty(client: httpx.AsyncClient) -> None:
    assert await export(client, "nobody") == []


def split(pieces: Sequence[bytes]) -> list[tuple[int, bytes | None]]:
    splitter = LineSplitter()
    found = [line for piece in pieces for line in splitter.push(piece)]
    return [(line.number, line.content) for line in [*found, *splitter.close()]]


@FEW
@given(st.lists(st.binary(max_size=5).map(lambda b: b.replace(b"\r", b"\n"))))
def test_lines_are_the_same_however_the_bytes_arrive(pieces: list[bytes]) -> None:
    whole = b"".join(pieces).split(b"\n")
    expected = whole if whole[-1] else whole[:-1]
    assert split(pieces) == list(enumerate(expected, 1))


def test_a_line_that_is_too_long_is_not_kept_and_does_not_shift_the_next() -> None:
    half = b"x" * (MAX_IMPORT_LINE_BYTES // 2 + 1)
    assert split([half, half, half, b"\nok\n", half]) == [(1, None), (2, b"ok"), (3, half)]
