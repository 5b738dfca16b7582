"""Claims about the outermost layer: which requests reach an app at all, and in what state."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from inferscale_server.edge.body import DISCARD_IDLE_SECONDS, PARSE_IN_THREAD_BYTES
from inferscale_server.edge.guard import BrokenResponse, Guard
from inferscale_server.edge.refused import REFUSED_FIELDS
from inferscale_server.limits import MAX_BODY_BYTES
from tests.edge.asgi import FEW, JSON_TYPE, EchoApp, http_scope, post_raw, send_raw

UNLISTED = (
    "/invocations",
    "/inference/v1/generate",
    "/v1/messages",
    "/v1/responses/resp_1",
    "/v1/responses/resp_1/cancel",
    "/v1/completions/",
    "/",
    "//health",
)
POST_PATHS = (
    *("/v1/chat/completions", "/v1/responses", "/v1/completions", "/tokenize", "/detokenize"),
    *("/v1/memories", "/v1/embeddings"),
)


@pytest.fixture
def echo() -> EchoApp:
    return EchoApp()


@pytest.mark.parametrize("path", UNLISTED)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD"])
async def test_a_route_that_is_not_listed_does_not_exist(echo: EchoApp, path: str, method: str) -> None:
    answer = await send_raw(Guard(echo), http_scope(method, path))
    assert (answer.status, answer.error["code"]) == (404, "route_not_found")
    assert echo.scopes == []


async def test_a_listed_route_with_another_method_is_405_and_names_the_right_ones(echo: EchoApp) -> None:
    answer = await send_raw(Guard(echo), http_scope("PUT", "/v1/memories"))
    assert answer.status == 405
    assert answer.headers["allow"] == "DELETE, GET, POST"


async def test_options_passes_on_a_listed_route(echo: EchoApp) -> None:
    answer = await send_raw(Guard(echo), http_scope("OPTIONS", "/v1/memories", headers=()))
    assert answer.status == 200


async def test_a_body_that_is_declared_too_large_and_never_comes_is_refused_after_a_pause(echo: EchoApp) -> None:
    asked = 0
    sent: list[Message] = []

    async def receive() -> Message:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()
        raise AssertionError("nothing comes")

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [JSON_TYPE, (b"content-length", str(MAX_BODY_BYTES + 1).encode())]
    await Guard(echo)(http_scope(headers=headers), receive, send)
    assert (sent[0]["status"], asked) == (413, 1)
    assert (b"connection", b"close") in sent[0]["headers"]
    assert DISCARD_IDLE_SECONDS < 1


@pytest.mark.parametrize("sent", ["abc-1._Z", "x" * 128])
async def test_a_clean_request_id_is_kept_and_seen_by_the_app(echo: EchoApp, sent: str) -> None:
    scope = http_scope("GET", "/health", headers=[(b"X-Request-Id", sent.encode())])
    answer = await send_raw(Guard(echo), scope)
    assert answer.headers["x-request-id"] == sent
    assert (b"x-request-id", sent.encode()) in echo.scopes[0]["headers"]


@pytest.mark.parametrize("sent", ["x" * 129, "a b", "a\nb", "", "ä"])
async def test_any_other_request_id_is_replaced_for_client_and_app(echo: EchoApp, sent: str) -> None:
    scope = http_scope("GET", "/health", headers=[(b"x-request-id", sent.encode("latin-1"))])
    answer = await send_raw(Guard(echo), scope)
    assert len(answer.headers["x-request-id"]) == 32
    ids = [value for name, value in echo.scopes[0]["headers"] if name == b"x-request-id"]
    assert ids == [answer.headers["x-request-id"].encode()]


@pytest.mark.parametrize("scope", [http_scope("GET", "/nope"), http_scope("PUT", "/health"), http_scope(headers=())])
async def test_errors_of_the_guard_carry_a_request_id_too(echo: EchoApp, scope: Scope) -> None:
    answer = await send_raw(Guard(echo), scope)
    assert answer.status >= 400
    assert len(answer.headers["x-request-id"]) == 32


@pytest.mark.parametrize("path", POST_PATHS)
@pytest.mark.parametrize("field", sorted(REFUSED_FIELDS))
async def test_a_refused_field_is_named_on_every_route(echo: EchoApp, path: str, field: str) -> None:
    answer = await post_raw(Guard(echo), f'{{"model": "m", "{field}": null}}'.encode(), path)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "refused_field", field)
    assert echo.bodies == []


@pytest.mark.parametrize("outer", ["extra_body", "sampling_params"])
async def test_a_refused_field_one_level_down_is_found(echo: EchoApp, outer: str) -> None:
    answer = await post_raw(Guard(echo), f'{{"{outer}": {{"cache_salt": "x"}}}}'.encode())
    assert (answer.status, answer.error["param"]) == (400, f"{outer}.cache_salt")


async def test_a_refused_field_written_with_escapes_is_found(echo: EchoApp) -> None:
    answer = await post_raw(Guard(echo), rb'{"cache\u005fsalt": "x"}')
    assert answer.error["param"] == "cache_salt"


async def test_a_metadata_key_may_be_called_like_a_refused_field(echo: EchoApp) -> None:
    answer = await post_raw(Guard(echo), b'{"metadata": {"priority": 1}}')
    assert answer.status == 200


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_the_priority_header_is_refused(echo: EchoApp, method: str) -> None:
    answer = await send_raw(Guard(echo), http_scope(method, headers=[JSON_TYPE, (b"X-VLLM-Priority", b"0")]))
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "refused_field", "X-Vllm-Priority")


@pytest.mark.parametrize(
    "content_type",
    [b"text/plain", b"multipart/form-data; boundary=x", b"application/json; charset=utf-16", b"application/jsonx", b""],
)
async def test_a_body_that_is_not_declared_as_json_is_refused(echo: EchoApp, content_type: bytes) -> None:
    answer = await send_raw(Guard(echo), http_scope(headers=[(b"content-type", content_type)]))
    assert (answer.status, answer.error["code"]) == (400, "invalid_content_type")


@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"identity, gzip", b""])
async def test_a_compressed_body_is_refused(echo: EchoApp, encoding: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-encoding", encoding)]
    answer = await send_raw(Guard(echo), http_scope(headers=headers))
    assert (answer.status, answer.error["code"]) == (400, "invalid_content_encoding")


async def test_two_content_types_are_refused(echo: EchoApp) -> None:
    answer = await send_raw(Guard(echo), http_scope(headers=[JSON_TYPE, (b"content-type", b"text/plain")]))
    assert answer.status == 400


async def test_a_declared_charset_of_utf_8_is_json(echo: EchoApp) -> None:
    scope = http_scope(headers=[(b"content-type", b'Application/JSON; charset="UTF-8"')])
    answer = await send_raw(Guard(echo), scope, {"type": "http.request", "body": b"{}", "more_body": False})
    assert answer.status == 200


@pytest.mark.parametrize("declared", [str(MAX_BODY_BYTES + 1).encode(), b"9" * 5000])
async def test_a_declared_length_over_the_limit_is_413(echo: EchoApp, declared: bytes) -> None:
    answer = await send_raw(Guard(echo), http_scope(headers=[JSON_TYPE, (b"content-length", declared)]))
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")
    assert echo.scopes == []


@pytest.mark.parametrize("path", ["/v1/memories", "/nope"])
async def test_a_refused_body_is_read_on_so_that_the_client_hears_why(echo: EchoApp, path: str) -> None:
    half: Message = {"type": "http.request", "body": b" " * (MAX_BODY_BYTES // 2 + 1), "more_body": True}
    last: Message = {"type": "http.request", "body": b"", "more_body": False}
    unread = [half, half, half, last]
    sent: list[Message] = []

    async def receive() -> Message:
        return unread.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    await Guard(echo)(http_scope(path=path), receive, send)
    assert (sent[0]["status"], unread) == (413 if path == "/v1/memories" else 404, [])
    assert b"connection" not in dict(sent[0]["headers"])


async def test_a_body_without_end_is_cut_off(echo: EchoApp) -> None:
    chunk: Message = {"type": "http.request", "body": b" " * MAX_BODY_BYTES, "more_body": True}
    sent: list[Message] = []

    async def receive() -> Message:
        return chunk

    async def send(message: Message) -> None:
        sent.append(message)

    await Guard(echo)(http_scope(), receive, send)
    assert (sent[0]["status"], dict(sent[0]["headers"])[b"connection"]) == (413, b"close")


async def test_a_body_of_exactly_the_limit_passes_unchanged(echo: EchoApp) -> None:
    body = b'{"a": "' + b"x" * (MAX_BODY_BYTES - 9) + b'"}'
    assert len(body) == MAX_BODY_BYTES
    assert (await post_raw(Guard(echo), body)).status == 200
    assert echo.bodies == [body]


async def test_a_body_parsed_in_a_thread_is_checked_as_well(echo: EchoApp) -> None:
    body = b'{"a": "' + b"x" * PARSE_IN_THREAD_BYTES + b'", "cache_salt": 1}'
    assert (await post_raw(Guard(echo), body)).error["code"] == "refused_field"


async def test_a_body_in_pieces_is_replayed_whole(echo: EchoApp) -> None:
    pieces: list[Message] = [
        {"type": "http.request", "body": b'{"a"', "more_body": True},
        {"type": "http.request", "more_body": True},
        {"type": "http.request", "body": b": 1}", "more_body": False},
    ]
    await send_raw(Guard(echo), http_scope(), *pieces)
    assert echo.bodies == [b'{"a": 1}']


async def test_after_the_body_the_app_hears_the_disconnect() -> None:
    heard: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        heard.extend([(await receive())["type"], (await receive())["type"]])

    await post_raw(Guard(app), b"{}")
    assert heard == ["http.request", "http.disconnect"]


async def test_a_client_that_leaves_mid_body_never_reaches_the_app(echo: EchoApp) -> None:
    answer = await send_raw(Guard(echo), http_scope(), {"type": "http.request", "body": b"{", "more_body": True})
    assert (answer.messages, echo.scopes) == ([], [])


async def test_websockets_are_closed(echo: EchoApp) -> None:
    answer = await send_raw(Guard(echo), {"type": "websocket", "path": "/v1/realtime", "headers": []})
    assert [message["type"] for message in answer.messages] == ["websocket.close"]
    assert echo.scopes == []


@pytest.mark.parametrize("raw", [b"/v1/memories/%", b"/v1/memories/%zz", b"/v1/memories/%ff", b"/v1/memories/a%00b"])
async def test_a_malformed_or_nul_path_is_refused(echo: EchoApp, raw: bytes) -> None:
    scope = http_scope("GET", "/v1/memories/\N{REPLACEMENT CHARACTER}", raw_path=raw)
    assert (await send_raw(Guard(echo), scope)).error["code"] == "invalid_url"


@pytest.mark.parametrize("query", [b"user_id=%", b"user_id=%e4", b"user_id=a%00", b"user_id=\xff", b"a=%0a"])
async def test_a_malformed_query_is_refused(echo: EchoApp, query: bytes) -> None:
    answer = await send_raw(Guard(echo), http_scope("GET", query=query))
    assert (answer.status, answer.error["code"]) == (400, "invalid_url")


async def test_a_root_path_is_not_part_of_the_route(echo: EchoApp) -> None:
    scope = {**http_scope("GET", "/api/health"), "root_path": "/api"}
    assert (await send_raw(Guard(echo), scope)).status == 200


async def test_a_fault_of_the_app_is_500_and_its_words_stay_inside(caplog: pytest.LogCaptureFixture) -> None:
    canary = "canary-7f3"

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError(canary)

    with caplog.at_level(logging.ERROR):
        answer = await post_raw(Guard(broken), b"{}")
    assert (answer.status, answer.error["type"], answer.error["code"]) == (500, "server_error", "internal_error")
    assert answer.headers["x-request-id"] in caplog.text
    assert "ValueError in POST /v1/memories" in caplog.text
    assert canary not in caplog.text + answer.body.decode()


async def test_a_fault_after_the_head_cuts_the_connection_without_its_words() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("canary-7f3")

    with pytest.raises(BrokenResponse) as caught:
        await post_raw(Guard(broken), b"{}")
    assert "canary" not in str(caught.value)


@FEW
@given(st.binary(max_size=400))
async def test_no_bytes_make_the_guard_raise(body: bytes) -> None:
    answer = await post_raw(Guard(EchoApp()), body)
    assert answer.status in (200, 400)


json_values: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(sorted(REFUSED_FIELDS)), inner),
    max_leaves=8,
)


@FEW
@given(st.dictionaries(st.text() | st.sampled_from(["extra_body", "sampling_params", "a"]), json_values))
async def test_no_json_makes_the_guard_raise(value: dict[str, object]) -> None:
    answer = await post_raw(Guard(EchoApp()), json.dumps(value).encode())
    assert answer.status in (200, 400)


@FEW
@given(st.text(), st.text(), st.binary())
async def test_no_path_or_query_makes_the_guard_raise(path: str, raw_path: str, query: bytes) -> None:
    scope = http_scope("GET", "/" + path, raw_path=raw_path.encode("utf-8", "surrogatepass"), query=query)
    answer = await send_raw(Guard(EchoApp()), scope)
    assert answer.status in (200, 400, 404, 405)
