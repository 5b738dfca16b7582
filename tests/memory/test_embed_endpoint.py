"""The endpoint embedder against a small endpoint in process, behind httpx's transport."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx
import numpy as np
import pytest

from inferscale_server.embed import load_embedder
from inferscale_server.embed_endpoint import (
    BATCH,
    PATIENCE_S,
    PIECE_BYTES,
    TIMEOUT_S,
    TRIES,
    Clock,
    Endpoint,
    EndpointEmbedder,
    parse_endpoint,
)
from inferscale_server.errors import ConfigError, ModelUnavailable, Unavailable

KEY = "sk-very-secret"


@dataclass
class SmallEndpoint:
    """Vectors (length of the text, 1), in reverse order; before that, whatever `troubles` says."""

    troubles: list[httpx.Response | Exception] = field(default_factory=list)
    requests: list[httpx.Request] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        trouble = self.troubles.pop(0) if self.troubles else None
        if isinstance(trouble, Exception):
            raise trouble
        return trouble or self.answer(json.loads(request.content)["input"])

    def answer(self, texts: list[str]) -> httpx.Response:
        rows = [{"index": i, "embedding": [len(text), 1.0]} for i, text in enumerate(texts)]
        return httpx.Response(200, json={"data": rows[::-1]})

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds

    def embedder(self) -> EndpointEmbedder:
        clock = Clock(lambda: self.seconds, self.sleep)
        made = EndpointEmbedder(Endpoint("m", "http://there/v1", KEY), httpx.MockTransport(self), clock)
        self.requests.clear()
        return made


def forever(response: Callable[[], httpx.Response | Exception]) -> list[httpx.Response | Exception]:
    return [response() for _ in range(TRIES)]


class Trickle(httpx.SyncByteStream):
    """A byte a second, without end."""

    def __init__(self, endpoint: SmallEndpoint) -> None:
        self.endpoint = endpoint

    def __iter__(self) -> Iterator[bytes]:
        while True:
            self.endpoint.seconds += 1
            yield b" "


def test_an_answer_that_trickles_in_is_given_up_and_tried_again_like_none() -> None:
    endpoint = SmallEndpoint()
    made = endpoint.embedder()
    endpoint.troubles = forever(lambda: httpx.Response(200, stream=Trickle(endpoint)))
    with pytest.raises(Unavailable, match="no whole answer in 10 s") as caught:
        made.embed(["x"])
    assert caught.value.retry_after_s and len(endpoint.requests) == TRIES
    assert endpoint.seconds <= TRIES * (TIMEOUT_S + 1) + PATIENCE_S
    endpoint.troubles, endpoint.seconds = [httpx.Response(200, stream=Trickle(endpoint))], endpoint.seconds + 60
    assert made.embed(["x"]).shape == (1, 2)


def test_the_dimension_comes_from_one_probe_and_the_name_from_the_model() -> None:
    endpoint = SmallEndpoint()
    made = EndpointEmbedder(Endpoint("m", "http://there/v1", KEY), httpx.MockTransport(endpoint))
    assert (made.name, made.dimension, len(endpoint.requests)) == ("openai:m", 2, 1)
    assert str(endpoint.requests[0].url) == "http://there/v1/embeddings"
    assert endpoint.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_vectors_are_of_length_one_and_in_the_order_of_the_texts_over_all_batches() -> None:
    endpoint = SmallEndpoint()
    vectors = endpoint.embedder().embed(["x" * (i + 1) for i in range(BATCH + 3)])
    assert vectors.dtype == np.float32 and len(endpoint.requests) == 2
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)
    assert np.allclose(vectors[:, 0] / vectors[:, 1], np.arange(1, BATCH + 4), rtol=1e-4)


def test_an_empty_text_and_a_lone_surrogate_are_sent_as_something_the_endpoint_takes() -> None:
    endpoint = SmallEndpoint()
    endpoint.embedder().embed(["", " ", "a\ud800"])
    assert json.loads(endpoint.requests[0].content)["input"] == ["-", "-", "a?"]
    assert endpoint.embedder().embed([]).shape == (0, 2)


@pytest.mark.parametrize(
    "trouble",
    [
        httpx.Response(429),
        httpx.Response(500),
        httpx.Response(503),
        httpx.ReadTimeout("slow"),
        httpx.ConnectError("down"),
    ],
)
def test_what_may_pass_is_tried_again(trouble: httpx.Response | Exception) -> None:
    endpoint = SmallEndpoint()
    embedder = endpoint.embedder()
    endpoint.troubles = [trouble, trouble]
    assert embedder.embed(["text"]).shape == (1, 2)
    assert len(endpoint.requests) == 3 and endpoint.slept == [0.5, 1.0]


def test_the_endpoints_own_delay_is_obeyed() -> None:
    endpoint = SmallEndpoint()
    embedder = endpoint.embedder()
    endpoint.troubles = [httpx.Response(429, headers={"retry-after": "7"})]
    embedder.embed(["text"])
    assert endpoint.slept == [7.0]


def test_tries_are_bounded_and_the_error_says_when_to_come_back() -> None:
    endpoint = SmallEndpoint()
    embedder = endpoint.embedder()
    endpoint.troubles = forever(lambda: httpx.ReadTimeout("slow"))
    with pytest.raises(Unavailable) as caught:
        embedder.embed(["my secret text"])
    assert len(endpoint.requests) == TRIES and sum(endpoint.slept) <= PATIENCE_S
    assert caught.value.status == 503 and caught.value.retry_after_s == 5
    assert "secret" not in str(caught.value) and KEY not in str(caught.value)


def test_a_delay_longer_than_our_patience_is_passed_on_and_not_slept() -> None:
    endpoint = SmallEndpoint()
    embedder = endpoint.embedder()
    endpoint.troubles = [httpx.Response(429, headers={"retry-after": "42"})]
    with pytest.raises(Unavailable) as caught:
        embedder.embed(["text"])
    assert endpoint.slept == [] and caught.value.retry_after_s == 42


def test_an_endpoint_that_is_down_is_left_alone_for_a_while_and_then_asked_again() -> None:
    endpoint = SmallEndpoint()
    embedder = endpoint.embedder()
    endpoint.troubles = forever(lambda: httpx.ConnectError("down"))
    for _ in range(3):
        with pytest.raises(Unavailable):
            embedder.embed(["text"])
    assert len(endpoint.requests) == TRIES
    endpoint.seconds += 5
    assert embedder.embed(["text"]).shape == (1, 2)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_names_the_setting_and_never_the_key(status: int) -> None:
    endpoint = SmallEndpoint()
    embedder = endpoint.embedder()
    endpoint.troubles = [httpx.Response(status, json={"error": {"message": f"bad key {KEY}"}})]
    with pytest.raises(Unavailable, match="INFERSCALE_EMBEDDER_KEY") as caught:
        embedder.embed(["text"])
    assert len(endpoint.requests) == 1 and KEY not in str(caught.value)
    assert embedder.embed(["text"]).shape == (1, 2)


def rows(*vectors: object) -> httpx.Response:
    return httpx.Response(200, json={"data": [{"index": i, "embedding": row} for i, row in enumerate(vectors)]})


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json=[]),
        httpx.Response(200, json={"data": []}),
        httpx.Response(200, json={"data": [{"index": 0}]}),
        rows([1.0, 2.0, 3.0]),
        rows([0.0, 0.0]),
        rows(["a", "b"]),
        rows(1.0),
        httpx.Response(400),
        httpx.Response(404),
    ],
)
def test_an_answer_without_a_usable_vector_is_unavailable(answer: httpx.Response) -> None:
    endpoint = SmallEndpoint()
    embedder = endpoint.embedder()
    endpoint.troubles = [answer]
    with pytest.raises(Unavailable):
        embedder.embed(["text"])
    assert len(endpoint.requests) == 1


def test_an_endpoint_that_is_down_at_the_start_is_one_line() -> None:
    endpoint = SmallEndpoint(troubles=forever(lambda: httpx.ConnectError("down")))
    with pytest.raises(ModelUnavailable, match="openai:m") as caught:
        endpoint.embedder()
    assert "\n" not in str(caught.value)


def test_a_long_text_has_pieces_that_fit_and_lose_nothing() -> None:
    embedder = SmallEndpoint().embedder()
    for text in ("A sentence of a story. " * 200, "ก" * 3_000, "short", ""):
        pieces = embedder.pieces(text)
        assert "".join(pieces) == text and max(len(piece.encode()) for piece in pieces) <= PIECE_BYTES
        assert len(pieces) == 1 or len(pieces) >= math.ceil(len(text.encode()) / PIECE_BYTES)


def test_where_an_endpoint_is_comes_from_the_name_then_the_setting_then_openai() -> None:
    assert parse_endpoint("openai:m", "http://a/v1/", "k") == Endpoint("m", "http://a/v1", "k")
    assert parse_endpoint("openai:m@https://b/v1", "http://a/v1").url == "https://b/v1"
    assert parse_endpoint("openai:m").url == "https://api.openai.com/v1"
    assert KEY not in repr(parse_endpoint("openai:m", None, KEY))


@pytest.mark.parametrize(
    "name", ["openai:", "openai:@http://a", "openai:m@a/v1", "openai:m@ftp://a", "openai:m@http://u:p@a/v1"]
)
def test_a_name_that_is_no_endpoint_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="option 'embedder"):
        load_embedder(name)
