"""The model under measurement, behind a running server: takes facts in, scores given answers, answers itself."""

from __future__ import annotations

from collections.abc import Sequence
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
    """A model with memory. Scoring and answering may be called from several threads."""

    @property
    def fingerprint(self) -> str:
        """Names what its chunks are."""

    def take_in(self, facts: Sequence[DatedFact], tell: Report) -> str:
        """Remember facts for a new user, encode them all, and return the user."""

    def opinion(self, user: str, case: Case, mode: str, k: int) -> Opinion:
        """What it thinks of the gold answer. `k` is ignored without memory. Raises Unavailable."""

    def answer(self, user: str, question: str, mode: str, k: int) -> str:
        """What it answers, greedily."""


class ServedModel:
    """A server at `url`. `top` likeliest tokens are asked for at each position."""

    def __init__(self, client: InferScaleClient, url: str, api_key: str | None, top: int) -> None:
        self._client, self._top = client, top
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=False)

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    @property
    def fingerprint(self) -> str:
        """As the server names it."""
        return str(self._client.status().raw["fingerprint"])

    def take_in(self, facts: Sequence[DatedFact], tell: Report) -> str:
        """Raises Unavailable when a fact was not encoded."""
        user = new_user()
        if complaints := take_in(self._client, user, facts, tell).complaints:
            raise Unavailable(complaints[0])
        return user

    def opinion(self, user: str, case: Case, mode: str, k: int) -> Opinion:
        """One call of the operator's scoring route."""
        body: dict[str, Any] = {"user_id": user, "question": case.question, "mode": mode, "top": self._top}
        body |= {"endings": endings_of(case.answer), "k": k or None}
        try:
            response = self._http.post(ROUTE, json=body)
            told = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise Unavailable(f"scoring failed: {type(error).__name__}: {error}") from error
        if not response.is_success:
            raise Unavailable(f"scoring failed: {told['error']['message']}")
        return read_opinion(told)

    def answer(self, user: str, question: str, mode: str, k: int) -> str:
        """Raises the SDK's errors, and Unavailable when the answer was served in another mode."""
        memory: Any = {"mode": mode, "k": k} if mode != "off" else {"mode": mode}
        response = self._client.chat(user, question, memory=memory, temperature=0, max_tokens=ANSWER_TOKENS)
        if response.mode != mode:
            raise Unavailable(f"an answer in mode {mode} was served as {response.mode} ({response.reason})")
        return response.text or ""
