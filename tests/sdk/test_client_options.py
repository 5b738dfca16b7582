"""Options, environment, readiness, life cycle; what must never be shown."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from inferscale_sdk import AsyncInferScaleClient, AuthenticationError, InferScaleClient
from inferscale_sdk._config import ClientConfig, load_config, set_log_level

from .script import CHAT, answer, failure, script

KEY = "sk-canary-4711"


def config(environ: dict[str, str] | None = None, **options: Any) -> ClientConfig:
    given = dict(base_url=None, api_key=None, timeout=None, max_retries=2, default_headers=None)
    return load_config(**(given | options), environ=environ or {})


def timeouts(request: httpx.Request) -> dict[str, float]:
    found: dict[str, float] = request.extensions["timeout"]
    return found


def test_an_argument_wins_over_the_environment_and_that_over_the_default() -> None:
    environ = {"INFERSCALE_BASE_URL": "http://env:1", "INFERSCALE_API_KEY": "from-env"}
    assert config().base_url == "http://127.0.0.1:8000"
    assert (config(environ).base_url, config(environ).api_key) == ("http://env:1", "from-env")
    told = config(environ, base_url="https://arg:2/", api_key="from-arg")
    assert (told.base_url, told.api_key) == ("https://arg:2", "from-arg")


def test_the_clients_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERSCALE_BASE_URL", "http://env:1")
    monkeypatch.setenv("INFERSCALE_API_KEY", KEY)
    for client in (InferScaleClient(), AsyncInferScaleClient()):
        assert client._transport.config == ClientConfig("http://env:1", KEY)


def test_an_openai_style_base_url_means_the_same_server() -> None:
    assert config(base_url="http://h:8000/v1/").base_url == config(base_url="http://h:8000").base_url


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"base_url": "localhost:8000"}, "base_url='localhost:8000'"),
        ({"base_url": "ftp://h"}, "base_url='ftp://h'"),
        ({"base_url": "http://h?x=1"}, "base_url"),
        ({"base_url": "http://h:99999"}, "base_url"),
        ({"base_url": "http://h:port"}, "base_url"),
        ({"base_url": "http://u:secret@h"}, "credentials"),
        ({"api_key": "two words"}, "api_key"),
        ({"api_key": "line\nbreak"}, "api_key"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": float("nan")}, "timeout=nan"),
        ({"max_retries": -1}, "max_retries=-1"),
        ({"max_retries": True}, "max_retries=True"),
    ],
)
def test_a_bad_option_is_an_error_that_names_it(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        config(**options)
    assert "secret" not in str(caught.value) and "two words" not in str(caught.value)


@pytest.mark.parametrize("timeout", ["a", "3", (1, 2), object()])
def test_a_timeout_that_is_no_number_is_refused_at_once(timeout: Any) -> None:
    for refused in (
        lambda: InferScaleClient(timeout=timeout),
        lambda: AsyncInferScaleClient(timeout=timeout),
        lambda: InferScaleClient().with_options(timeout=timeout),
        lambda: InferScaleClient().chat("alice", "hi", timeout=timeout),
    ):
        with pytest.raises(TypeError, match=r"timeout=.*: must be a number of seconds or an httpx\.Timeout"):
            refused()


def test_the_key_is_sent_but_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    server = script(failure(503), answer(json=CHAT))
    client = server.client(api_key=KEY)
    with caplog.at_level(logging.DEBUG, logger="inferscale_sdk"):
        client.chat("alice-canary", "question-canary")
    assert server.headers["authorization"] == f"Bearer {KEY}"
    logged = "\n".join(record.getMessage() for record in caplog.records if record.name == "inferscale_sdk")
    assert "trying again" in logged and "status 200" in logged
    shown = logged + repr(client) + repr(client._transport.config) + repr(client.for_user("alice"))
    assert "canary" not in shown


def test_default_headers_are_sent_with_every_request() -> None:
    http = httpx.Client(transport=httpx.MockTransport(lambda request: answer(json={"seen": request.headers["x-team"]})))
    client = InferScaleClient(http_client=http, default_headers={"X-Team": "blue"})
    assert client.status().model_extra == {"seen": "blue"}


def test_the_log_level_of_the_environment_touches_this_sdk_alone() -> None:
    logger = logging.getLogger("inferscale_sdk")
    root_handlers, before = list(logging.getLogger().handlers), logger.level
    try:
        set_log_level("debug")
        set_log_level("info")
        assert (logger.level, len(logger.handlers)) == (logging.INFO, 1)
        assert logging.getLogger().handlers == root_handlers
    finally:
        logger.handlers.clear()
        logger.setLevel(before)
    with pytest.raises(ValueError, match="INFERSCALE_LOG='loud'"):
        config({"INFERSCALE_LOG": "loud"})


def test_chats_may_take_minutes_and_reads_may_not() -> None:
    server = script(answer(json=CHAT))
    client = server.client()
    client.chat("alice", "hi")
    client.status()
    chat, status = (timeouts(request) for request in server.requests)
    assert (chat["connect"], chat["read"]) == (5.0, 600.0)
    assert (status["connect"], status["read"]) == (5.0, 30.0)


def test_a_timeout_of_the_call_wins_over_the_clients() -> None:
    server = script(answer(json=CHAT))
    client = server.client().with_options(timeout=3)
    client.chat("alice", "hi")
    assert timeouts(server.requests[-1]) == {"connect": 3.0, "read": 3.0, "write": 3.0, "pool": 3.0}
    client.chat("alice", "hi", timeout=httpx.Timeout(9.0))
    assert timeouts(server.requests[-1])["read"] == 9.0
    with pytest.raises(ValueError, match="timeout=-1"):
        client.chat("alice", "hi", timeout=-1)


def test_with_options_leaves_the_original_alone() -> None:
    server = script(failure(500))
    client = server.client(max_retries=2)
    hasty = client.with_options(max_retries=0)
    assert hasty._transport.http is client._transport.http
    assert (hasty._transport.config.max_retries, client._transport.config.max_retries) == (0, 2)
    with pytest.raises(ValueError, match="max_retries=-1"):
        client.with_options(max_retries=-1)


@pytest.mark.parametrize(
    ("step", "is_ready"), [(answer(), True), (failure(503), False), (httpx.ConnectError("refused"), False)]
)
async def test_ready_asks_once_and_says_yes_or_no(step: Any, is_ready: bool) -> None:
    server, twin = script(step), script(step)
    assert server.client().ready() is is_ready
    assert await twin.async_client().ready() is is_ready
    assert len(server.requests) == len(twin.requests) == 1


def test_ready_does_not_hide_a_wrong_key() -> None:
    with pytest.raises(AuthenticationError):
        script(failure(401)).client().ready()


async def test_a_client_closes_its_own_connections_and_not_yours() -> None:
    with InferScaleClient() as own:
        own.with_options(timeout=3).close()
        assert not own._transport.http.is_closed
    async with AsyncInferScaleClient() as twin:
        pass
    assert own._transport.http.is_closed and twin._transport.http.is_closed
    async with httpx.AsyncClient() as yours:
        await AsyncInferScaleClient(http_client=yours).close()
        assert not yours.is_closed


def test_a_bound_client_asks_for_its_user() -> None:
    server = script(answer(json=CHAT))
    alice = server.client().for_user("alice")
    assert alice.chat("hi", session_id="s1", temperature=0).text == "Bruno"
    assert server.body["inferscale"] == {"user_id": "alice", "session_id": "s1"}
    with pytest.raises(TypeError, match="temprature"):
        alice.chat("hi", temprature=1)  # type: ignore[call-overload]


async def test_a_bound_client_remembers_for_its_user() -> None:
    server = script(answer(json={"results": []}), answer(json={"deleted": 1}))
    alice = server.async_client().for_user("alice")
    await alice.memories.add(facts=["x"])
    assert server.body["user_id"] == "alice"
    await alice.memories.delete("f1")
    assert server.requests[-1].url.params["user_id"] == "alice"


def test_many_threads_share_one_client() -> None:
    http = httpx.Client(
        transport=httpx.MockTransport(lambda request: answer(json={"id": request.url.path[-3:], "text": "x"}))
    )
    client = InferScaleClient(http_client=http)
    wanted = [f"f{number:02d}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        assert [fact.id for fact in pool.map(client.for_user("alice").memories.get, wanted)] == wanted
