"""Texts to unit vectors by an OpenAI-compatible endpoint.

Knows: POST /embeddings, batches, retries, how an endpoint that is down is left alone for a while. Refuses to know:
facts. Nothing here repeats the key or a text in an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from math import ceil

import httpx
import numpy as np
import numpy.typing as npt

from inferscale_server.errors import ConfigError, ModelUnavailable, Unavailable
from inferscale_server.pieces import cut_text

PREFIX = "openai:"
DEFAULT_URL = "https://api.openai.com/v1"
URL_SETTING = "INFERSCALE_EMBEDDER_URL"
KEY_SETTING = "INFERSCALE_EMBEDDER_KEY"

BATCH = 64
PIECE_BYTES = 1_500
"""About 400 tokens of English, 500 of Chinese: fits the window of every model that is in use."""
TIMEOUT_S = 10.0
"""Of one try, and of each of its reads."""
TRIES = 4
FIRST_DELAY_S = 0.5
PATIENCE_S = 20.0
"""How long one call may wait between tries, all in all."""
REST_S = 5.0
MAX_REST_S = 60.0
"""How long an endpoint that did not answer is left alone: everybody else's request fails at once meanwhile."""
RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model is served, and the key for it, which stays out of `repr`."""

    model: str
    url: str
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a try gave nothing, how long the endpoint asked to wait, and whether another try is pointless."""

    reason: str
    asked_s: float | None = None
    final: bool = False


@dataclass(frozen=True, slots=True)
class Clock:
    """Time as the retries see it, in seconds."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def parse_endpoint(name: str, url: str | None = None, key: str | None = None, option: str = "embedder") -> Endpoint:
    """The endpoint of "openai:MODEL" or "openai:MODEL@URL"; an URL in the name wins.

    Raises ConfigError that names `option`.
    """
    model, _, written = name.removeprefix(PREFIX).partition("@")
    base = (written or url or DEFAULT_URL).rstrip("/")
    if not model:
        raise ConfigError(f"option {option!r}: value {name!r} names no model: write {PREFIX}MODEL")
    try:
        parsed = httpx.URL(base)
    except httpx.InvalidURL as error:
        raise ConfigError(f"option '{option}_url': value {base!r} is not a URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo:
        raise ConfigError(f"option '{option}_url': value {base!r} must be http(s)://host/path, without a password")
    return Endpoint(model, base, key)


class EndpointEmbedder:
    """See Embedder. Its name is the model's, so the endpoint may move without the facts being embedded again."""

    def __init__(self, endpoint: Endpoint, transport: httpx.BaseTransport | None = None, clock: Clock | None = None):
        """Ask for one vector, to learn the dimension. Raises ModelUnavailable, one line, when none comes."""
        self.name = PREFIX + endpoint.model
        self._endpoint = endpoint
        self._clock = clock or Clock()
        self._rests_until = -float("inf")
        headers = {} if endpoint.key is None else {"authorization": f"Bearer {endpoint.key}"}
        self._http = httpx.Client(base_url=endpoint.url, headers=headers, timeout=TIMEOUT_S, transport=transport)
        self.dimension = 0
        try:
            self.dimension = self._fetch(["dimension"]).shape[1]
        except Unavailable as error:
            raise ModelUnavailable(f"embedder {self.name!r}: {error.message}") from error

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """See Embedder. Raises Unavailable with `retry_after_s` when the endpoint does not answer."""
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        # An empty text is refused by many endpoints, and stands for nothing anyway.
        sent = [text.encode("utf-8", "replace").decode("utf-8") if text.strip() else "-" for text in texts]
        return np.concatenate([self._fetch(sent[start : start + BATCH]) for start in range(0, len(sent), BATCH)])

    def pieces(self, text: str) -> Sequence[str]:
        """See Embedder."""
        return cut_text(text, lambda part: len(part.encode("utf-8", "replace")) <= PIECE_BYTES)

    def represents(self, text: str) -> float:
        """Everything: such models read bytes."""
        return 1.0

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _fetch(self, texts: list[str]) -> npt.NDArray[np.float32]:
        """Float32 [texts, dimension] of length 1."""
        response = self._post({"model": self._endpoint.model, "input": texts, "encoding_format": "float"})
        try:
            vectors = self._vectors(response.json(), len(texts))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._unavailable("its answer is not a list of embeddings", None) from error
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.isfinite(lengths).all() or (lengths == 0).any():
            raise self._unavailable("it gave a vector that is zero or not finite", None)
        return np.asarray(vectors / lengths, dtype=np.float32)

    def _vectors(self, answer: dict[str, list[dict[str, object]]], texts: int) -> npt.NDArray[np.float64]:
        """In the order of the texts. Raises ValueError for another shape than expected."""
        by_index = {row["index"]: row["embedding"] for row in answer["data"]}
        vectors = np.array([by_index[i] for i in range(texts)], np.float64)  # [texts, dimension]
        if vectors.ndim != 2 or 0 in vectors.shape or self.dimension not in (0, vectors.shape[1]):
            raise ValueError(f"vectors of shape {vectors.shape}")
        return vectors

    def _post(self, body: dict[str, object]) -> httpx.Response:
        """A 200. Tries again what may pass, within bounds; raises Unavailable for the rest."""
        rest_s = self._rests_until - self._clock.now()
        if rest_s > 0:
            raise self._unavailable("a moment ago it did not answer", rest_s)
        waited_s, failure = 0.0, _Failure("")
        for number in range(TRIES):
            answer = self._try(body)
            if isinstance(answer, httpx.Response):
                return answer
            failure = answer
            delay_s = FIRST_DELAY_S * 2**number if failure.asked_s is None else failure.asked_s
            if failure.final or number == TRIES - 1 or waited_s + delay_s > PATIENCE_S:
                break
            self._clock.sleep(delay_s)
            waited_s += delay_s
        if failure.final:
            raise self._unavailable(failure.reason, None)
        rest_s = min(max(REST_S, failure.asked_s or 0.0), MAX_REST_S)
        self._rests_until = self._clock.now() + rest_s
        raise self._unavailable(failure.reason, rest_s)

    def _try(self, body: dict[str, object]) -> httpx.Response | _Failure:
        """httpx's own timeout is that of one read: an answer that trickles in would never be too late."""
        deadline = self._clock.now() + TIMEOUT_S
        content = bytearray()
        try:
            with self._http.stream("POST", "embeddings", json=body) as response:
                for piece in response.iter_bytes():
                    content += piece
                    if self._clock.now() > deadline:
                        return _Failure(f"no whole answer in {TIMEOUT_S:.0f} s")
        except httpx.TimeoutException:
            return _Failure(f"no answer in {TIMEOUT_S:.0f} s")
        except (httpx.TransportError, httpx.DecodingError) as error:
            return _Failure(f"{type(error).__name__}")
        if response.status_code == 200:
            return httpx.Response(200, content=bytes(content))
        return _refusal(response)

    def _unavailable(self, reason: str, rest_s: float | None) -> Unavailable:
        retry_after_s = None if rest_s is None else max(ceil(rest_s), 1)
        return Unavailable(f"{self._where()}: {reason}", code="embedder_unavailable", retry_after_s=retry_after_s)

    def _where(self) -> str:
        return f"the embedder endpoint {self._endpoint.url}"


def _refusal(response: httpx.Response) -> _Failure:
    reason = f"status {response.status_code}"
    if response.status_code in (401, 403):
        return _Failure(f"{reason}: it does not take the key; set {KEY_SETTING}", final=True)
    asked_s = _seconds(response.headers.get("retry-after"))
    return _Failure(reason, asked_s, final=response.status_code not in RETRIED)


def _seconds(header: str | None) -> float | None:
    """Retry-After in seconds: a number or a date; None when there is none that can be read."""
    if header is None:
        return None
    try:
        return max(float(header), 0.0)
    except ValueError:
        pass
    try:
        return max(parsedate_to_datetime(header).timestamp() - time.time(), 0.0)
    except ValueError:
        return None
