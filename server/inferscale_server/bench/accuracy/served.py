"""The model under measurement, behind a running server: takes facts in, scores given answers, answers itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import httpx

from inferscale_server.bench.accuracy.case import Case
from inferscale_server.bench.accuracy.opinion import Opinion, endings_of, read_opinion
from inferscale_server.bench.conversation import DatedFact
from inferscale_server.bench.encoding import take_in
from inferscale_server.bench.ttft import new_user
from inferscale_server.demo.server import Report
from inferscale_server.errors import Unavailable

if TYPE_CHECKING:
    from inferscale_sdk import InferScaleClient

ROUTE = "/v1/inferscale/admin/score"
TIMEOUT_S = 600.0
ANSWER_TOKENS = 48


class Served(Protocol):
    """A model with memory. `opinion` may be called from several threads."""

    @property
    def about(self) -> Mapping[str, object]:
        """What its rows depend on, and the machine that it runs on."""

    def take_in(self, facts: Sequence[DatedFact], tell: Report) -> str:
        """Remember facts for a new user, encode them all, and return the user. Raises Unavailable."""

    def let_go(self, user: str) -> None:
        """Forget the user: nobody else's memory has its room until then."""

    def opinion(self, user: str, case: Case, mode: str, k: int) -> Opinion:
        """What it thinks of the gold answer. `k` is ignored without memory. Raises Unavailable."""


Machine = Callable[["InferScaleClient"], Mapping[str, object]]
"""What is to be told of the machine that a server runs on."""


class ServedModel:
    """A server at `url`. `top` likeliest tokens are asked for at each position, and the model's own answer of up to
    `answer_tokens`, where that is not 0."""

    def __init__(
        self, client: InferScaleClient, url: str, api_key: str | None, top: int, answer_tokens: int, machine: Machine
    ) -> None:
        self._client, self._top, self._answer_tokens, self._machine = client, top, answer_tokens, machine
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=False)

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    @property
    def about(self) -> Mapping[str, object]:
        """As the server names it."""
        status = self._client.status().raw
        kv = status["kv"]
        assert isinstance(kv, dict), f"status.kv is {kv!r}"
        named = {key: status.get(key) for key in ("model", "fingerprint", "recipe", "embedder")}
        engine = {key: kv.get(key) for key in ("tail_tokens", "backend", "vllm")}
        return {**named, **engine, "machine": dict(self._machine(self._client))}

    def take_in(self, facts: Sequence[DatedFact], tell: Report) -> str:
        """Raises Unavailable when a fact was refused or not encoded; nothing of the user is left then."""
        from inferscale_sdk import APIStatusError

        user = new_user()
        with ExitStack() as failed:
            failed.callback(self.let_go, user)
            try:
                taken_in = take_in(self._client, user, facts, tell)
            except APIStatusError as error:
                raise Unavailable(f"the facts were refused: {error}") from error
            if complaints := taken_in.complaints:
                raise Unavailable(complaints[0])
            failed.pop_all()
        return user

    def let_go(self, user: str) -> None:
        """Its facts and its KV are gone when this returns."""
        self._client.memories.delete_all(user)

    def opinion(self, user: str, case: Case, mode: str, k: int) -> Opinion:
        """One call of the operator's scoring route."""
        body: dict[str, Any] = {"user_id": user, "question": case.question, "mode": mode, "top": self._top}
        body |= {"endings": endings_of(case.answer), "k": k or None, "answer_tokens": self._answer_tokens}
        try:
            response = self._http.post(ROUTE, json=body)
            told = response.json()
            if response.is_success:
                return read_opinion(told)
            message = str(told["error"]["message"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise Unavailable(f"scoring failed: {type(error).__name__}: {error}") from error
        raise Unavailable(f"scoring failed: {message}")
