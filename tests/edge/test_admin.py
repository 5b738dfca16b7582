"""The operator's routes, through the guard, on real stores."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from inferscale_server import orphans
from inferscale_server import upkeep as upkeep_module
from inferscale_server.edge.admin import PREFIX, build_admin_router
from inferscale_server.edge.allowlist import ADMIN_ROUTES
from inferscale_server.edge.guard import Guard
from inferscale_server.edge.identity import LOCAL, Identity, with_identity
from inferscale_server.edge.routes import build_router
from inferscale_server.edge.services import Services
from inferscale_server.errors import Conflict, ModelUnavailable
from inferscale_server.kv_codec import KvFile
from inferscale_server.kv_files import read_kv
from inferscale_server.types import FactDraft, Owner
from inferscale_server.upkeep import Upkeep
from inferscale_server.verify import verify
from tests.memory.fakes import FakeEmbedder

ALICE = Owner("local", "alice")
HERE = "http://127.0.0.1:8000"


@pytest.fixture
def upkeep(services: Services, tmp_path: Path) -> Upkeep:
    return Upkeep(tmp_path / "facts.sqlite3", services.memory, tmp_path / "kv", other_embedder)


def other_embedder(name: str) -> FakeEmbedder:
    if name == "missing":
        raise ModelUnavailable("embedder 'missing' is not here")
    if name == "broken":
        raise ZeroDivisionError
    return Unsound(name, 8) if name == "unsound" else FakeEmbedder(name, 8)


@pytest.fixture
def app(services: Services, upkeep: Upkeep) -> FastAPI:
    app = FastAPI()
    app.include_router(build_router(lambda: services))
    app.include_router(build_admin_router(lambda: upkeep))
    app.add_middleware(Guard)
    return app


@pytest.fixture
async def here(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client on the server's machine."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HERE) as client:
        yield client


def bytes_below(folder: Path) -> bytes:
    """Every byte of every file."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def app_as(app: ASGIApp, identity: Identity) -> ASGIApp:
    """The app as it is behind a guard that has recognised `identity`."""

    async def known(scope: Scope, receive: Receive, send: Send) -> None:
        await app(with_identity(scope, identity), receive, send)

    return known


def code_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_the_guard_lists_every_admin_route_and_no_other() -> None:
    served: dict[str, set[str]] = {}
    for route in build_admin_router(lambda: None).routes:
        assert isinstance(route, APIRoute)
        served.setdefault(route.path, set()).update(route.methods)
    assert served == {path: set(needs) for path, needs in ADMIN_ROUTES.items()}
    assert all(need == "admin" for needs in ADMIN_ROUTES.values() for need in needs.values())


async def test_a_backup_is_written_where_it_was_asked_for(
    here: httpx.AsyncClient, services: Services, tmp_path: Path
) -> None:
    await services.memory.add(ALICE, [FactDraft("one"), FactDraft("two")])
    target = tmp_path / "b"
    answer = await here.post(f"{PREFIX}/backup", json={"path": str(target)})
    assert answer.json() == {"path": str(target), "facts": 2, "bytes": target.stat().st_size}
    again = await here.post(f"{PREFIX}/backup", json={"path": str(target)})
    assert code_of(again) == (409, "file_exists")
    assert (await here.post(f"{PREFIX}/backup", json={"path": str(target), "force": True})).status_code == 200


@pytest.mark.parametrize("path", ["b", "", "/tmp/\0b", "/nowhere/at/all/b", 7])
async def test_a_path_that_will_not_do_is_400(here: httpx.AsyncClient, path: object) -> None:
    answer = await here.post(f"{PREFIX}/backup", json={"path": path})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "path"


async def test_verify_says_what_is_wrong_and_still_answers_200(
    here: httpx.AsyncClient, services: Services, tmp_path: Path
) -> None:
    await services.memory.add(ALICE, [FactDraft("one")])
    assert (await here.post(f"{PREFIX}/verify", json={})).json()["ok"] is True
    with closing(sqlite3.connect(tmp_path / "facts.sqlite3", isolation_level=None)) as other:
        other.execute("UPDATE usage SET facts = 7")
    answer = (await here.post(f"{PREFIX}/verify", json={})).json()
    assert answer["ok"] is False
    assert [check["name"] for check in answer["checks"] if not check["ok"]] == ["usage"]


@pytest.mark.parametrize("lost", ["index", "read cache", "store"])
async def test_verify_finds_a_fact_that_index_read_cache_and_store_do_not_all_have(
    here: httpx.AsyncClient, services: Services, lost: str, tmp_path: Path
) -> None:
    memory = services.memory
    [kept, gone] = await memory.add(ALICE, [FactDraft("one"), FactDraft("two")])
    verdict = (await here.post(f"{PREFIX}/verify", json={})).json()
    assert verdict["ok"] and "index" in [check["name"] for check in verdict["checks"]]
    assert kept.id and gone.id
    if lost == "index":
        memory._index.remove(ALICE, [gone.id])
    elif lost == "read cache":
        memory._known.drop(ALICE, gone.id)
    else:
        memory._store.delete(ALICE, gone.id)
    verdict = (await here.post(f"{PREFIX}/verify", json={})).json()
    assert [check["name"] for check in verdict["checks"] if not check["ok"]] == ["index"]


async def test_a_backup_of_a_store_that_does_not_check_out_is_refused_with_the_check_that_failed(
    here: httpx.AsyncClient, services: Services, tmp_path: Path
) -> None:
    await services.memory.add(ALICE, [FactDraft("one")])
    with closing(sqlite3.connect(tmp_path / "facts.sqlite3", isolation_level=None)) as other:
        other.execute("UPDATE usage SET facts = 7")
    answer = await here.post(f"{PREFIX}/backup", json={"path": str(tmp_path / "b")})
    assert code_of(answer) == (500, "store_corrupt")
    assert "usage: 2 differ from a count" in answer.json()["error"]["message"]
    assert not (tmp_path / "b").exists()


async def test_facts_can_be_added_while_gc_reads_kv_files(
    here: httpx.AsyncClient, services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kv" / "ab").mkdir(parents=True)
    (tmp_path / "kv" / "ab" / "x.kv").write_bytes(b"no KV")
    begun, added = threading.Event(), threading.Event()

    def slow(path: Path) -> KvFile:
        begun.set()
        assert added.wait(10), "the add waited for the KV files"
        return read_kv(path)

    monkeypatch.setattr(orphans, "read_kv", slow)
    cleaning = asyncio.ensure_future(here.post(f"{PREFIX}/gc", json={}))
    assert await asyncio.to_thread(begun.wait, 10)
    await services.memory.add(ALICE, [FactDraft("meanwhile")])
    added.set()
    assert (await cleaning).json()["kv_files"] == 1
    assert not (tmp_path / "kv" / "ab" / "x.kv").exists()


async def test_gc_frees_the_bytes_of_deleted_facts(here: httpx.AsyncClient, services: Services, tmp_path: Path) -> None:
    await services.memory.add(ALICE, [FactDraft(f"{i} " + "canary" * 500) for i in range(300)])
    await services.memory.delete_owner(ALICE)
    answer = (await here.post(f"{PREFIX}/gc", json={"tombstone_days": 0})).json()
    assert answer["tombstones"] == 300
    assert answer["bytes_after"] < answer["bytes_before"] / 4
    assert b"canary" not in bytes_below(tmp_path)


async def test_facts_can_be_added_and_found_while_gc_runs(here: httpx.AsyncClient, services: Services) -> None:
    adds = [services.memory.add(ALICE, [FactDraft(f"fact {i}")]) for i in range(20)]
    cleaned, *outcomes = await asyncio.gather(here.post(f"{PREFIX}/gc", json={}), *adds)
    assert cleaned.status_code == 200
    assert [outcome.status for (outcome,) in outcomes] == ["stored"] * 20
    assert len(await services.memory.search(ALICE, "fact", 50)) == 20


async def test_one_thing_at_a_time(upkeep: Upkeep) -> None:
    first = asyncio.ensure_future(upkeep.verify())
    await asyncio.sleep(0)
    with pytest.raises(Conflict, match="verify is running"):
        await upkeep.clean()
    assert (await first).broken == ()
    await upkeep.clean()


async def reindexed(here: httpx.AsyncClient, upkeep: Upkeep, name: str) -> Mapping[str, object]:
    """Start it, and wait for its end."""
    begun = await here.post(f"{PREFIX}/reindex", json={"embedder": name})
    assert begun.status_code == 202 and begun.json()["state"] in ("loading", "running", "done", "failed")
    async with asyncio.timeout(10):
        await upkeep.ended()
    progress: Mapping[str, object] = (await here.get(f"{PREFIX}/reindex")).json()
    return progress


async def test_a_reindexing_ends_with_the_new_embedder_in_use(
    here: httpx.AsyncClient, upkeep: Upkeep, services: Services, tmp_path: Path
) -> None:
    await services.memory.add(ALICE, [FactDraft(f"fact number {i}") for i in range(100)])
    assert (await here.get(f"{PREFIX}/reindex")).json() == {"state": "none"}
    progress = await reindexed(here, upkeep, "fake-8")
    assert progress == {"embedder": "fake-8", "state": "done", "done": 100, "total": 100, "reason": None}
    assert services.memory.embedder.name == "fake-8"
    (best, *_) = await services.memory.search(ALICE, "fact number 7", 3)
    assert best.fact.text == "fact number 7"
    assert verify(tmp_path / "facts.sqlite3").broken == ()


class Unsound(FakeEmbedder):
    """Loads, and fails at work."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        raise ZeroDivisionError


async def test_a_reindexing_that_fails_says_why_and_changes_nothing(
    here: httpx.AsyncClient, upkeep: Upkeep, services: Services
) -> None:
    await services.memory.add(ALICE, [FactDraft("one")])
    progress = await reindexed(here, upkeep, "unsound")
    assert progress["state"] == "failed" and "ZeroDivisionError" in str(progress["reason"])
    assert services.memory.embedder.name == "fake-16"
    assert (await here.post(f"{PREFIX}/verify", json={})).json()["ok"] is True


async def test_while_an_embedder_is_loaded_other_commands_go_on_and_a_second_reindexing_does_not(
    here: httpx.AsyncClient, services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep_module, "EARLY_S", 0.0)
    downloaded = threading.Event()

    def slow(name: str) -> FakeEmbedder:
        assert downloaded.wait(30)
        return FakeEmbedder(name, 8)

    upkeep = Upkeep(tmp_path / "facts.sqlite3", services.memory, None, slow)
    begun = await upkeep.reindex("fake-8")
    assert begun.state == "loading" and (await upkeep.verify()).broken == ()
    await upkeep.clean()
    with pytest.raises(Conflict, match="reindex is running"):
        await upkeep.reindex("fake-8")
    downloaded.set()
    await upkeep.ended()
    assert upkeep.reindexing is not None and upkeep.reindexing.state == "done"


@pytest.mark.parametrize(("name", "words"), [("missing", "is not here"), ("broken", "ZeroDivisionError")])
async def test_an_embedder_that_cannot_be_loaded_is_refused_at_once(
    here: httpx.AsyncClient, upkeep: Upkeep, services: Services, name: str, words: str
) -> None:
    await services.memory.add(ALICE, [FactDraft("one")])
    refused = await here.post(f"{PREFIX}/reindex", json={"embedder": name})
    assert code_of(refused) == (400, "embedder_unavailable") and words in refused.json()["error"]["message"]
    progress = (await here.get(f"{PREFIX}/reindex")).json()
    assert progress["state"] == "failed" and words in str(progress["reason"])
    assert services.memory.embedder.name == "fake-16"
    assert (await here.post(f"{PREFIX}/verify", json={})).json()["ok"] is True


async def test_an_endpoint_of_somebody_elses_choice_is_not_sent_all_facts(upkeep: Upkeep) -> None:
    app = FastAPI()
    app.include_router(build_admin_router(lambda: upkeep))
    transport = httpx.ASGITransport(app_as(app, Identity("acme", "admin", key_id="k1")), client=("192.0.2.7", 5))
    async with httpx.AsyncClient(transport=transport, base_url=HERE) as client:
        answer = await client.post(f"{PREFIX}/reindex", json={"embedder": "openai:m@https://evil.example/v1"})
    assert code_of(answer) == (403, "not_local")
    assert upkeep.reindexing is None


@pytest.mark.parametrize("base_url", ["http://evil.example", "http://127.0.0.1.evil.example", "http://10.0.0.1"])
async def test_a_web_page_under_another_name_is_refused(app: FastAPI, base_url: str) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base_url) as client:
        assert code_of(await client.post(f"{PREFIX}/verify", json={})) == (403, "not_local")


@pytest.mark.parametrize("header", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Proto", "X-Real-IP", "Via"])
async def test_what_a_proxy_on_this_machine_passes_on_is_refused_on_every_admin_route(
    here: httpx.AsyncClient, app: FastAPI, header: str
) -> None:
    for path, needs in ADMIN_ROUTES.items():
        for method in needs:
            answer = await here.request(method, path, json={}, headers={header: "203.0.113.9"})
            assert code_of(answer) == (403, "not_local")


async def test_another_machine_is_refused_without_keys(app: FastAPI) -> None:
    transport = httpx.ASGITransport(app, client=("192.0.2.7", 5))
    async with httpx.AsyncClient(transport=transport, base_url=HERE) as client:
        for path in ADMIN_ROUTES:
            assert (await client.post(path, json={})).status_code == 403


@pytest.mark.parametrize(
    ("identity", "peer", "host", "status"),
    [
        (Identity("acme", "admin", key_id="k1"), "127.0.0.1", "localhost", 200),
        (Identity("acme", "admin", key_id="k1"), "192.0.2.7", "localhost", 403),
        (Identity("acme", "admin", key_id="k1"), "127.0.0.1", "memory.example", 403),
        (Identity("acme", "write", key_id="k1"), "127.0.0.1", "localhost", 403),
        (Identity("acme", "read", key_id="k1"), "127.0.0.1", "localhost", 403),
        (LOCAL, "127.0.0.1", "localhost", 200),
        (LOCAL, "192.0.2.7", "localhost", 403),
    ],
)
async def test_admin_routes_need_the_role_and_this_machine(
    upkeep: Upkeep, identity: Identity, peer: str, host: str, status: int
) -> None:
    bare = FastAPI()
    bare.include_router(build_admin_router(lambda: upkeep))
    transport = httpx.ASGITransport(app_as(bare, identity), client=(peer, 5))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
        assert (await client.post(f"{PREFIX}/verify", json={})).status_code == status


async def test_a_server_that_starts_says_so() -> None:
    bare = FastAPI()
    bare.include_router(build_admin_router(lambda: None))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(bare), base_url=HERE) as client:
        assert code_of(await client.post(f"{PREFIX}/gc", json={})) == (503, "not_ready")
