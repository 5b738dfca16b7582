"""S4: every route with every kind of key, and claims about who is let in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse
from starlette.types import Message

from inferscale_server.edge.admin import build_admin_router
from inferscale_server.edge.allowlist import ADMIN_ROUTES, MEMORY_ROUTES, VLLM_ROUTES
from inferscale_server.edge.answers import error_response
from inferscale_server.edge.auth import Access, Closed, is_local
from inferscale_server.edge.guard import Guard
from inferscale_server.edge.identity import Role, identity_of
from inferscale_server.edge.keys import ApiKey, change_keys, make_key
from inferscale_server.edge.services import Services
from inferscale_server.edge.wire import parse_chat_memory, parse_completion_owner
from inferscale_server.errors import RequestError, TooManyRequests
from inferscale_server.types import FactDraft, Owner
from tests.edge.asgi import JSON_TYPE, EchoApp, http_scope, post_raw, send_raw
from tests.edge.conftest import app_with

NOW = 1_800_000_000.0
WEAK = ("none", "wrong", "expired", "revoked")
STRONG: Mapping[str, Role] = {"read": "read", "write": "write", "other": "admin", "admin": "admin"}
LISTED = {**VLLM_ROUTES, **MEMORY_ROUTES, **ADMIN_ROUTES}
ALICE = {"user_id": "alice"}
CHAT = {"model": "m", "messages": [], "inferscale": {"user_id": "alice"}}


@dataclass(frozen=True)
class Probe:
    """A request that succeeds for alice's own tenant, and what another tenant's key gets."""

    needs: Role | None
    query: Mapping[str, str] | None = None
    body: Mapping[str, object] | bytes | None = None
    admitted: int = 200
    foreign: int | None = None


PROBES: Mapping[tuple[str, str], Probe] = {
    ("GET", "/health"): Probe(None),
    ("GET", "/ready"): Probe(None),
    ("GET", "/metrics"): Probe("read"),
    ("GET", "/version"): Probe("read"),
    ("GET", "/openapi.json"): Probe("read"),
    ("GET", "/docs"): Probe("read"),
    ("GET", "/v1/models"): Probe("read"),
    ("POST", "/v1/chat/completions"): Probe("read", body=CHAT),
    ("POST", "/v1/responses"): Probe("read", body={"model": "m", "input": "", "user": "alice"}),
    ("POST", "/v1/completions"): Probe("read", body={"model": "m", "prompt": "", "user": "alice"}),
    ("POST", "/tokenize"): Probe("read", body={"prompt": "a"}),
    ("POST", "/detokenize"): Probe("read", body={"tokens": [1]}),
    ("GET", "/v1/inferscale/status"): Probe("read"),
    ("GET", "/v1/memories"): Probe("read", ALICE),
    ("POST", "/v1/memories"): Probe("write", body={"user_id": "alice", "facts": ["Tom is a cat."]}),
    ("DELETE", "/v1/memories"): Probe("write", ALICE),
    ("POST", "/v1/memories/search"): Probe("read", body={"user_id": "alice", "query": "dog"}),
    ("GET", "/v1/memories/{fact_id}"): Probe("read", ALICE, foreign=404),
    ("PATCH", "/v1/memories/{fact_id}"): Probe("write", ALICE, {"metadata": {"a": 1}}, foreign=404),
    ("DELETE", "/v1/memories/{fact_id}"): Probe("write", ALICE, foreign=404),
    ("GET", "/v1/memories/{fact_id}/history"): Probe("read", ALICE, foreign=404),
    ("GET", "/v1/memories/export"): Probe("read", ALICE),
    ("POST", "/v1/memories/import"): Probe("write", ALICE, b'{"text": "Tom is a cat."}'),
    ("GET", "/v1/users"): Probe("admin"),
    ("GET", "/v1/users/{user_id:path}/footprint"): Probe("read"),
    ("POST", "/v1/embeddings"): Probe("read", body={"input": "a"}),
    ("POST", "/v1/inferscale/admin/backup"): Probe("admin", body={"path": "/nowhere"}, admitted=503),
    ("POST", "/v1/inferscale/admin/verify"): Probe("admin", body={}, admitted=503),
    ("POST", "/v1/inferscale/admin/gc"): Probe("admin", body={}, admitted=503),
    ("POST", "/v1/inferscale/admin/reindex"): Probe("admin", body={"embedder": "minilm"}, admitted=503),
    ("GET", "/v1/inferscale/admin/reindex"): Probe("admin", admitted=503),
    ("POST", "/v1/inferscale/admin/score"): Probe("admin", body={}, admitted=503),
}
"""Written apart from the server's own table, so that neither changes unseen."""


class Keys:
    """A file with one key of each kind; `secrets` by kind, None for no key at all."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "keys"
        self.secrets: dict[str, str | None] = {"none": None, "wrong": "isk_" + "x" * 43}
        self.add("expired", "acme", "admin", expires_at=NOW)
        for kind, role in STRONG.items():
            self.add(kind, "rival" if kind == "other" else "acme", role)
        revoked = self.add("revoked", "acme", "admin")
        self.access = Access(self.file, now=lambda: NOW)
        change_keys(self.file, lambda keys: [key for key in keys if key.id != revoked.id])
        self.access.reload()

    def add(
        self, kind: str, tenant: str, role: Role, users: tuple[str, ...] = (), expires_at: float | None = None
    ) -> ApiKey:
        new = make_key(tenant, role, users, expires_at, NOW - 60)
        self.secrets[kind] = new.secret
        change_keys(self.file, lambda keys: (*keys, new.key))
        return new.key

    def header(self, kind: str) -> dict[str, str]:
        secret = self.secrets[kind]
        return {} if secret is None else {"authorization": f"Bearer {secret}"}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture
def app(services: Services) -> FastAPI:
    """The memory routes, and stand-ins for vLLM's that read the caller as the plugin's do."""
    app = app_with(services)
    app.include_router(build_admin_router(lambda: None))

    async def stand_in(request: Request) -> JSONResponse:
        return JSONResponse({})

    async def named(request: Request) -> JSONResponse:
        parse = parse_completion_owner if request.url.path == "/v1/completions" else parse_chat_memory
        try:
            parse(await request.json(), identity_of(request))
        except RequestError as error:
            return error_response(error)
        return JSONResponse({})

    there = {"/docs", "/openapi.json"}
    for path, methods in VLLM_ROUTES.items():
        if path not in there:
            app.add_api_route(path, named if path.endswith("completions") else stand_in, methods=list(methods))
    return app


def client_with(app: FastAPI, access: Access) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(Guard(app, access=access))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


async def ask(
    client: httpx.AsyncClient, method: str, template: str, fact_id: str, headers: Mapping[str, str]
) -> httpx.Response:
    probe = PROBES[method, template]
    path = template.replace("{user_id:path}", "alice").replace("{fact_id}", fact_id)
    if isinstance(probe.body, bytes):
        lines = {**headers, "content-type": "application/x-ndjson"}
        return await client.request(method, path, params=probe.query, content=probe.body, headers=lines)
    return await client.request(method, path, params=probe.query, json=probe.body, headers=dict(headers))


def expected(probe: Probe, kind: str) -> int:
    if probe.needs is None:
        return 200
    if kind in WEAK:
        return 401
    if ("read", "write", "admin").index(STRONG[kind]) < ("read", "write", "admin").index(probe.needs):
        return 403
    return probe.foreign if kind == "other" and probe.foreign else probe.admitted


def test_S4_every_listed_route_has_a_row() -> None:
    listed = {(method, path) for path, needs in LISTED.items() for method in needs}
    assert set(PROBES) == listed


def test_S4_every_route_of_the_app_is_listed(app: FastAPI) -> None:
    served = {route.path for route in app.routes if isinstance(route, APIRoute)}
    assert served <= set(LISTED)


@pytest.mark.parametrize(("method", "template"), PROBES)
async def test_S4_each_kind_of_key_gets_its_status(
    app: FastAPI, services: Services, keys: Keys, method: str, template: str
) -> None:
    owner = Owner("acme", "alice")
    got = {}
    async with client_with(app, keys.access) as client:
        for kind in (*WEAK, *STRONG):
            [outcome] = await services.memory.add(owner, [FactDraft(f"Rex, {kind}, is a dog.")])
            got[kind] = (await ask(client, method, template, str(outcome.id), keys.header(kind))).status_code
    print(method, template, got)
    assert got == {kind: expected(PROBES[method, template], kind) for kind in got}


async def test_S4_what_one_tenant_remembers_another_does_not_find(app: FastAPI, services: Services, keys: Keys) -> None:
    await services.memory.add(Owner("acme", "alice"), [FactDraft("Rex is a dog.")])
    async with client_with(app, keys.access) as client:
        search = {"user_id": "alice", "query": "Rex is a dog."}
        mine = await client.post("/v1/memories/search", json=search, headers=keys.header("read"))
        theirs = await client.post("/v1/memories/search", json=search, headers=keys.header("other"))
    assert [hit["text"] for hit in mine.json()["data"]] == ["Rex is a dog."]
    assert theirs.json()["data"] == []


async def test_every_wrong_key_gets_the_same_words(app: FastAPI, keys: Keys) -> None:
    async with client_with(app, keys.access) as client:
        answers = [await client.get("/v1/models", headers=keys.header(kind)) for kind in WEAK]
    assert len({answer.text for answer in answers}) == 1
    assert {answer.json()["error"]["code"] for answer in answers} == {"invalid_api_key"}
    assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}


@pytest.mark.parametrize("scheme", ["Basic", "bearer ", "Token", ""])
async def test_a_key_counts_as_a_bearer_token_only(app: FastAPI, keys: Keys, scheme: str) -> None:
    written = f"{scheme} {keys.secrets['admin']}"
    async with client_with(app, keys.access) as client:
        answer = await client.get("/v1/models", headers={"authorization": written})
    assert answer.status_code == (200 if scheme.strip() == "bearer" else 401)


async def test_two_keys_in_one_request_are_none(keys: Keys) -> None:
    header = (b"authorization", f"Bearer {keys.secrets['admin']}".encode())
    answer = await send_raw(Guard(EchoApp(), access=keys.access), http_scope("GET", "/v1/models", [header, header]))
    assert answer.status == 401


async def test_a_request_without_a_key_is_refused_before_its_body_is_parsed(keys: Keys) -> None:
    answer = await post_raw(Guard(EchoApp(), access=keys.access), b"not JSON")
    assert answer.status == 401


async def test_a_preflight_request_needs_no_key(keys: Keys) -> None:
    answer = await send_raw(Guard(EchoApp(), access=keys.access), http_scope("OPTIONS", "/v1/memories", headers=()))
    assert answer.status == 200


async def test_a_chat_that_remembers_needs_the_role_write(app: FastAPI, keys: Keys) -> None:
    body = {**CHAT, "inferscale": {"user_id": "alice", "memory": {"remember": True}}}
    async with client_with(app, keys.access) as client:
        answer = await client.post("/v1/chat/completions", json=body, headers=keys.header("read"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_role")


NAMED = [
    ("POST", "/v1/memories", None, {"user_id": "{}", "facts": ["a"]}),
    ("POST", "/v1/memories/search", None, {"user_id": "{}", "query": "a"}),
    ("POST", "/v1/chat/completions", None, {"user": "{}"}),
    ("POST", "/v1/chat/completions", None, {"inferscale": {"user_id": "{}"}}),
    ("POST", "/v1/responses", None, {"inferscale": {"user_id": "{}"}}),
    ("POST", "/v1/completions", None, {"user": "{}"}),
    ("GET", "/v1/memories", {"user_id": "{}"}, None),
    ("DELETE", "/v1/memories", {"user_id": "{}"}, None),
    ("GET", "/v1/memories/nothing", {"user_id": "{}"}, None),
    ("GET", "/v1/users/{}/footprint", None, None),
]


def naming(value: object, user: str) -> object:
    if isinstance(value, dict):
        return {key: naming(inner, user) for key, inner in value.items()}
    return value.replace("{}", user) if isinstance(value, str) else value


@pytest.mark.parametrize(("method", "path", "query", "body"), NAMED)
async def test_S5_a_key_for_some_users_is_403_for_the_others_wherever_they_are_named(
    app: FastAPI, keys: Keys, method: str, path: str, query: object, body: object
) -> None:
    keys.add("alices", "acme", "write", users=("alice",))
    keys.access.reload()
    got = {}
    async with client_with(app, keys.access) as client:
        for user in ("alice", "alice1", "Alice", "bob"):
            named: dict[str, object] = {"params": naming(query, user), "json": naming(body, user)}
            answer = await client.request(
                method,
                path.replace("{}", user),
                headers=keys.header("alices"),
                **named,  # type: ignore[arg-type]
            )
            got[user] = answer.status_code
    own, others = (404, 404) if path.endswith("nothing") else (200, 403)
    assert got == {"alice": own, "alice1": others, "Alice": others, "bob": others}


async def test_S5_a_body_and_a_query_that_disagree_do_not_slip_past_the_key(app: FastAPI, keys: Keys) -> None:
    keys.add("alices", "acme", "write", users=("alice",))
    keys.access.reload()
    body = {"user_id": "alice", "query": "a"}
    async with client_with(app, keys.access) as client:
        answer = await client.post(
            "/v1/memories/search", params={"user_id": "bob"}, json=body, headers=keys.header("alices")
        )
    assert answer.status_code == 403


async def test_without_keys_everybody_is_the_local_tenant_and_only_this_machine_its_admin() -> None:
    roles = {}
    for peer in ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "10.0.0.7", "::ffff:10.0.0.7", "example"):
        identity = Access().identify({"type": "http", "headers": [], "client": (peer, 5000)})
        assert (identity.tenant, identity.users) == ("local", None)
        roles[peer] = identity.role
    assert [peer for peer, role in roles.items() if role == "admin"] == [
        "127.0.0.1",
        "127.8.8.8",
        "::1",
        "::ffff:127.0.0.1",
    ]
    assert set(roles.values()) == {"admin", "write"}
    assert is_local({"type": "http", "client": None})


async def test_until_the_server_has_started_nobody_is_let_in_but_probes_are_answered() -> None:
    guard = Guard(EchoApp(), access=Closed())
    assert (await send_raw(guard, http_scope("GET", "/v1/models"))).status == 503
    assert (await send_raw(guard, http_scope("GET", "/health"))).status == 200


async def test_the_guard_asks_the_app_for_its_access(app: FastAPI, keys: Keys) -> None:
    app.add_middleware(Guard)
    app.state.access = keys.access
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/v1/models", headers=keys.header("read"))).status_code == 200


async def test_a_key_made_later_counts_after_a_reload_and_a_broken_file_changes_nothing(
    app: FastAPI, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    keys.add("new", "acme", "read")
    async with client_with(app, keys.access) as client:
        before = await client.get("/v1/models", headers=keys.header("new"))
        said = keys.access.reload()
        assert said == caplog.messages[-1] and said.startswith("API keys read again: ")
        after = await client.get("/v1/models", headers=keys.header("new"))
        keys.file.write_text('{"id": "canary-7", ', "utf-8")
        caplog.clear()
        assert keys.access.reload().startswith("the old API keys stay: ")
        broken = await client.get("/v1/models", headers=keys.header("new"))
    assert (before.status_code, after.status_code, broken.status_code) == (401, 200, 200)
    [record] = caplog.records
    assert "line 1" in record.getMessage() and "canary-7" not in record.getMessage()


class WaitingApp:
    """Holds each request until it is let go; `full` is set when `places` are inside."""

    def __init__(self, places: int) -> None:
        self._free = places
        self.full = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, scope: object, receive: object, send: object) -> None:
        self._free -= 1
        if self._free == 0:
            self.full.set()
        await self.go.wait()
        await EchoApp()(scope, receive, send)  # type: ignore[arg-type]


async def test_a_user_has_a_limited_number_of_requests_in_flight_and_others_are_not_held_up() -> None:
    app = WaitingApp(3)
    guard = Guard(app, access=Access(max_requests_per_user=2))
    search = b'{"user_id": "alice", "query": "a"}'
    tasks = [asyncio.create_task(post_raw(guard, search, "/v1/memories/search")) for _ in range(2)]
    tasks.append(asyncio.create_task(post_raw(guard, b'{"user": "bob"}', "/v1/chat/completions")))
    await app.full.wait()
    refused = await post_raw(guard, b'{"inferscale": {"user_id": "alice"}}', "/v1/chat/completions")
    app.go.set()
    assert [answer.status for answer in await asyncio.gather(*tasks)] == [200, 200, 200]
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    assert refused.error["code"] == "too_many_requests_in_flight"
    assert (await post_raw(guard, search, "/v1/memories/search")).status == 200


async def test_a_request_that_fails_gives_its_place_back() -> None:
    async def failing(scope: object, receive: object, send: object) -> None:
        raise OSError

    access = Access(max_requests_per_user=1)
    for _ in range(3):
        answer = await post_raw(Guard(failing, access=access), b'{"user_id": "alice"}')
        assert answer.status == 500
    with access.in_flight([Owner("local", "alice")]), pytest.raises(TooManyRequests):
        access.in_flight([Owner("local", "alice")]).__enter__()


async def test_S6_a_hundred_megabytes_without_a_key_are_not_kept(keys: Keys) -> None:
    piece: Message = {"type": "http.request", "body": b" " * 1_000_000, "more_body": True}
    answer = await send_raw(Guard(EchoApp(), access=keys.access), http_scope(headers=[JSON_TYPE]), *([piece] * 100))
    assert answer.status == 401
