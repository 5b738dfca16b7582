"""The operator's scoring route, through the guard, in front of a scorer that remembers what it was asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from inferscale_server.edge.admin import PREFIX, build_admin_router
from inferscale_server.edge.guard import Guard
from inferscale_server.edge.scoring import (
    MAX_ANSWER_TOKENS,
    MAX_ENDINGS,
    MAX_TOP,
    Ending,
    ScoreAsk,
    ScoredToken,
    ScoreReply,
)
from inferscale_server.errors import Unavailable
from inferscale_server.types import Owner

HERE = "http://127.0.0.1:8000"
BODY: dict[str, Any] = {
    "user_id": "alice",
    "question": "What is my dog called?",
    "mode": "kv",
    "k": 3,
    "top": 2,
    "endings": [{"answer": "Rex"}, {"lead_in": "He is", "answer": " Rex"}],
}


@dataclass
class Answering:
    """A scorer with one answer."""

    asked: list[ScoreAsk] = field(default_factory=list)
    injects: bool = True

    async def score(self, ask: ScoreAsk) -> ScoreReply:
        """Remembers."""
        self.asked.append(ask)
        if not self.injects:
            raise Unavailable("nothing is encoded", code="not_injected")
        token = ScoredToken(7, -0.5, (7, 8), (-0.5, -1.5))
        own = f"{ask.answer_tokens} tokens" if ask.answer_tokens else None
        return ScoreReply(ask.mode, 3, "d", 50, 30, 0, 30, ((token,), (token, token)), "f", own)


@pytest.fixture
def scorer() -> Answering:
    return Answering()


@pytest.fixture
async def here(scorer: Answering) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.include_router(build_admin_router(lambda: None, lambda: scorer))
    app.add_middleware(Guard)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HERE) as client:
        yield client


async def test_an_answer_is_scored_token_by_token(here: httpx.AsyncClient, scorer: Answering) -> None:
    answer = await here.post(f"{PREFIX}/score", json=BODY)
    assert answer.status_code == 200
    told = answer.json()
    assert [len(ending) for ending in told["endings"]] == [1, 2]
    assert told["endings"][0][0] == {"token_id": 7, "logprob": -0.5, "top_ids": [7, 8], "top_logprobs": [-0.5, -1.5]}
    assert (told["prompt_digest"], told["injected_tokens"], told["memory_as_text"]) == ("d", 30, 0)
    endings = (Ending("", "Rex"), Ending("He is", " Rex"))
    assert scorer.asked == [ScoreAsk(Owner("local", "alice"), BODY["question"], endings, "kv", 3, 2)]
    assert (told["frame_digest"], told["answer"]) == ("f", None)


async def test_an_answer_of_the_models_own_is_told_when_it_is_asked_for(here: httpx.AsyncClient) -> None:
    answer = await here.post(f"{PREFIX}/score", json=BODY | {"answer_tokens": MAX_ANSWER_TOKENS})
    assert answer.json()["answer"] == f"{MAX_ANSWER_TOKENS} tokens"


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"mode": "auto"}, "mode"),
        ({"endings": []}, "endings"),
        ({"endings": [{"answer": "a"}] * (MAX_ENDINGS + 1)}, "endings"),
        ({"endings": [{"answer": ""}]}, "endings[0].answer"),
        ({"top": MAX_TOP + 1}, "top"),
        ({"answer_tokens": MAX_ANSWER_TOKENS + 1}, "answer_tokens"),
        ({"answer_tokens": -1}, "answer_tokens"),
        ({"user_id": " alice"}, "user_id"),
        ({"question": ""}, "question"),
        ({"cache_salt": "x"}, "cache_salt"),
    ],
)
async def test_what_will_not_do_is_named_and_never_reaches_the_scorer(
    here: httpx.AsyncClient, scorer: Answering, changed: dict[str, Any], param: str
) -> None:
    answer = await here.post(f"{PREFIX}/score", json=BODY | changed)
    assert answer.status_code in (400, 413)
    assert answer.json()["error"]["param"] == param
    assert scorer.asked == []


async def test_memory_that_cannot_be_injected_is_an_error_and_no_figure(
    here: httpx.AsyncClient, scorer: Answering
) -> None:
    scorer.injects = False
    answer = await here.post(f"{PREFIX}/score", json=BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_injected")


async def test_scoring_is_for_the_servers_own_machine(here: httpx.AsyncClient, scorer: Answering) -> None:
    answer = await here.post(f"{PREFIX}/score", json=BODY, headers={"host": "example.org"})
    assert answer.status_code == 403 and scorer.asked == []
