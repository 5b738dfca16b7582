"""C6: over the project's sample memories, injected facts answer as well as prefilled ones, within the published margin.

Both recipes are asked the same questions over the same prompts; facts that were encoded apart must be found out. The
answers are sentences, since the margin is one of means over an answer's tokens: most of a lone word's KL is in whether
a sentence comes first. Of 20 questions the share recovered is known to some hundredths, so its interval must reach what
is published, and KL's must lie below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from inferscale_server.bench.accuracy.case import Case
from inferscale_server.bench.accuracy.cell import KL_AT_MOST, RECOVERED_AT_LEAST
from inferscale_server.bench.accuracy.estimate import Estimate, mean, recovered
from inferscale_server.bench.accuracy.haystacks import sample_haystack
from inferscale_server.bench.accuracy.opinion import Opinion, distance, endings_of, read_opinion
from inferscale_server.demo.conversations import load_memories
from inferscale_server.recipe import RecipeSizes, make_recipe

from .live import LiveServer

ROUTE = "/v1/inferscale/admin/score"
K, TOP = 20, 100
SAMPLE = sample_haystack(load_memories())
ASKED = (
    ("What is the name of Mara's dog?", "Mara's dog is called Pickle."),
    ("What is Mara allergic to?", "Mara is allergic to hazelnuts."),
    ("Who lent Mara a rowing boat?", "Stellan lent Mara a rowing boat."),
    ("Where does Mara's sister Paula live?", "Paula lives in Valencia."),
    ("Who is Mara's boss?", "Mara's boss is Ingrid Solheim."),
    ("When is Mara's birthday?", "Mara's birthday is on the 19th of November."),
    ("Where does Mara work?", "Mara works at the Polar Institute."),
    ("Which bus does Mara take to work?", "Mara takes the number 34 bus."),
    ("What is Mara's favourite dinner?", "Mara's favourite dinner is mushroom risotto with lemon."),
    ("Which wrist did Mara break?", "Mara broke her left wrist."),
    ("Where is Tomas the head chef?", "Tomas is the head chef of a restaurant called Blue Heron."),
    ("What is Tomas's mechanic called?", "Tomas's mechanic is called Fernando."),
    ("What size are Tomas's running shoes?", "Tomas's running shoes are size 44."),
    ("What is the name of Tomas's cat?", "Tomas's cat is called Marzipan."),
    ("On which island does Tomas spend his summer holiday?", "Tomas spends his summer holiday on Faial."),
    ("What is the name of Clara's school play?", "Clara's school play is called The Moon Thief."),
    ("What colour is Tomas's Volvo?", "Tomas's Volvo is green."),
    ("Where does Tomas's brother Miguel live?", "Miguel lives in Zurich."),
    ("Who is Tomas's accountant?", "Tomas's accountant is called Teresa."),
    ("What does Beatriz teach?", "Beatriz teaches chemistry."),
)
CASES = tuple(Case(str(at), question, answer, "sample") for at, (question, answer) in enumerate(ASKED))


@dataclass(frozen=True)
class Quality:
    """Of one recipe, over all questions."""

    recovered: Estimate
    kl: Estimate


async def remember(server: LiveServer, user: str) -> None:
    """All sample memories as one user's."""
    facts: Any = [{"text": fact.text, "timestamp": str(fact.said_at)} for fact in SAMPLE.facts]
    await server.remember(user, *facts)


async def opinions(server: LiveServer, user: str, mode: str) -> list[Opinion]:
    """One a question."""
    said = []
    for case in CASES:
        body = {"user_id": user, "question": case.question, "mode": mode, "k": K, "top": TOP}
        answer = await server.client.post(ROUTE, json=body | {"endings": endings_of(case.answer)})
        assert answer.status_code == 200, answer.text
        said.append(read_opinion(answer.json()))
    return said


def nll(said: Sequence[Opinion]) -> list[float]:
    """Nats a token, over the lead-ins."""
    return [sum(one.nll) / len(one.nll) for one in said]


def quality(off: Sequence[Opinion], text: Sequence[Opinion], kv: Sequence[Opinion]) -> Quality:
    """Of the same questions in three modes."""
    far = [distance(a.distributions, b.distributions).kl for a, b in zip(text, kv, strict=True)]
    return Quality(recovered(nll(off), nll(text), nll(kv), seed=0), mean(far, seed=0))


async def test_C6_kv_is_within_the_published_margin_of_text_and_facts_encoded_apart_are_not(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await remember(server, "quality")
    off, text, kv = [await opinions(server, "quality", mode) for mode in ("off", "text", "kv")]
    apart = make_recipe("isolated", RecipeSizes())
    for holder in (server.brain.encoder, server.brain.encoder._primers):
        monkeypatch.setattr(holder, "_recipe", apart)
    await remember(server, "quality-apart")
    isolated = await opinions(server, "quality-apart", "kv")
    for user in ("quality", "quality-apart"):
        await server.client.delete("/v1/memories", params={"user_id": user})
    assert [one.prompt_digest for one in isolated] == [one.prompt_digest for one in text]
    assert all(one.memory_as_text == 0 for one in (*kv, *isolated))
    found, alone = quality(off, text, kv), quality(off, text, isolated)
    print(f"{len(CASES)} questions, primer: {found}\nisolated: {alone}")
    assert found.kl.high <= KL_AT_MOST < alone.kl.low
    assert found.recovered.high >= RECOVERED_AT_LEAST > alone.recovered.high
