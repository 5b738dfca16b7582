"""A language model that says whether an answer is right, behind any endpoint that speaks OpenAI's chat API.

An endpoint that is busy or broken for a moment is asked again, after as long as it says.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from inferscale_sdk._retry import MAX_RETRY_AFTER_S, RETRIED_STATUSES, backoff_s, retry_after_s
from inferscale_server.bench.accuracy.case import Case
from inferscale_server.errors import Unavailable

TIMEOUT_S = 120.0
TRIES = 5
MAX_TOKENS = 512
"""Room for a model that thinks aloud first; the last verdict counts."""
VERDICT = re.compile(r"\b(NOT )?(CORRECT|WRONG)\b")
ONE_WORD = re.compile(r"\W*(correct|wrong)\W*", re.IGNORECASE)
"""Small letters count only alone: elsewhere they tell of the gold answer."""

PROMPT = """Judge an answer to a question about somebody's past conversations. The gold answer is right. The answer is
CORRECT if it says what the gold answer says, in whatever words and however long, dates in any format; else it is WRONG.

Question: {question}
Gold answer: {gold}
Answer: {answer}

Reply with one word, CORRECT or WRONG."""


@dataclass(frozen=True)
class Judge:
    """`url` is the API's base, such as `http://127.0.0.1:9000/v1`."""

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    sleep: Callable[[float], None] = time.sleep
    http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=TIMEOUT_S, trust_env=False), repr=False)

    def finds_right(self, case: Case, answer: str) -> bool:
        """Raises Unavailable when the judge does not answer, after TRIES, or says neither."""
        said = self._ask(PROMPT.format(question=case.question, gold=case.answer, answer=answer))
        found = read_verdict(said)
        if found is None:
            raise Unavailable(f"the judge said neither CORRECT nor WRONG: {said[:100]!r}")
        return found

    def _ask(self, prompt: str) -> str:
        headers = {} if self.key is None else {"authorization": f"Bearer {self.key}"}
        messages = [{"role": "user", "content": prompt}]
        body = {"model": self.model, "messages": messages, "temperature": 0, "max_tokens": MAX_TOKENS}
        url = f"{self.url.rstrip('/')}/chat/completions"
        try:
            response = self._post(url, body, headers)
            response.raise_for_status()
            return str(response.json()["choices"][0]["message"]["content"])
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, IndexError, TypeError) as error:
            raise Unavailable(f"the judge at {self.url} does not answer: {type(error).__name__}: {error}") from error

    def _post(self, url: str, body: object, headers: dict[str, str]) -> httpx.Response:
        """The last try's response; raises httpx's error of the last try."""
        for tries in range(TRIES):
            asked_s: float | None = None
            try:
                response = self.http.post(url, json=body, headers=headers)
                asked_s = retry_after_s(response.headers.get("retry-after"), time.time())
                if not _busy(response) or tries + 1 == TRIES or (asked_s or 0.0) > MAX_RETRY_AFTER_S:
                    return response
            except httpx.TransportError:
                if tries + 1 == TRIES:
                    raise
            self.sleep(backoff_s(tries, random.random()) if asked_s is None else asked_s)
        raise AssertionError("the last try returns or raises")


def read_verdict(said: str) -> bool | None:
    """Was the answer found right? None when the judge said neither."""
    if alone := ONE_WORD.fullmatch(said):
        return alone[1].upper() == "CORRECT"
    *_, last = [None, *VERDICT.finditer(said)]
    return None if last is None else (last[2] == "CORRECT") is (last[1] is None)


def _busy(response: httpx.Response) -> bool:
    return response.status_code in RETRIED_STATUSES or response.status_code >= 500
