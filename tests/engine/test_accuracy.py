"""The scoring route on the real engine: text is what transformers computes, and kv is what was injected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from inferscale_server.bench.accuracy.opinion import LEAD_INS, Opinion, distance, endings_of, read_opinion
from inferscale_server.config import ServerConfig
from inferscale_server.models import prepare_generator
from inferscale_server.wording import DEFAULT_SYSTEM, MEMORY_INTRO, fact_line

from .live import LiveServer

ROUTE = "/v1/inferscale/admin/score"
FACTS = (
    "Nora keeps three goats called Flint, Opal and Jasper.",
    "Nora moved from Bergen to Porto in March 2021.",
    "Nora repairs accordions in a workshop behind her house.",
    "Nora is allergic to walnuts.",
    "Nora's brother Emil sails a red catamaran.",
    "Nora won a chess tournament in Lisbon last autumn.",
)
QUESTION, ANSWER = "Where did Nora live before Porto?", "Nora lived in Bergen."
WITHIN = 0.01
TOP = 100
"""What `bench accuracy` asks of a server that runs already, which was told nothing."""


async def opinion(server: LiveServer, user: str, mode: str, k: int = 6, question: str = QUESTION) -> Opinion:
    """What the model thinks of the answer."""
    body: dict[str, Any] = {"user_id": user, "question": question, "mode": mode, "k": k, "top": TOP}
    more = {"endings": endings_of(ANSWER), "answer_tokens": 12}
    answer = await server.client.post(ROUTE, json=body | more)
    assert answer.status_code == 200, answer.text
    return read_opinion(answer.json())


async def found(server: LiveServer, user: str) -> list[str]:
    """The facts as they stand in the prompt: worst first."""
    hits = await server.client.post("/v1/memories/search", json={"user_id": user, "query": QUESTION, "k": 6})
    return [hit["text"] for hit in reversed(hits.json()["data"])]


def plain_nll(lines: Sequence[str]) -> list[float]:
    """For each lead-in: nats a token of the answer, from transformers alone, in float32."""
    path = str(prepare_generator(ServerConfig().cache_path, lambda line: None))
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModelForCausalLM.from_pretrained(path)
    model = model.to(torch.float32).eval()
    system = f"{DEFAULT_SYSTEM}\n\n{MEMORY_INTRO}{''.join(lines)}"
    messages = [{"role": "system", "content": system}, {"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    found = []
    for lead_in in LEAD_INS:
        before = tokenizer(prompt + lead_in.text, add_special_tokens=False)["input_ids"]
        answer = tokenizer(lead_in.glue + ANSWER, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([[*before, *answer]])).logits[0]  # (tokens, vocabulary)
        logprobs = torch.log_softmax(logits[len(before) - 1 : -1], dim=-1)
        found.append(-float(logprobs.gather(1, torch.tensor(answer)[:, None]).mean()))
    return found


async def test_texts_likelihood_is_transformers_own(server: LiveServer) -> None:
    await server.remember("accuracy-plain", *FACTS)
    measured = await opinion(server, "accuracy-plain", "text")
    expected = plain_nll([fact_line(text) for text in await found(server, "accuracy-plain")])
    print(measured.nll, expected)
    assert measured.nll == pytest.approx(expected, rel=WITHIN)


async def test_without_memory_only_the_facts_are_left_out(server: LiveServer) -> None:
    measured = await opinion(server, "accuracy-plain", "off")
    assert measured.nll == pytest.approx(plain_nll([]), rel=WITHIN)
    assert (measured.facts, measured.memory_tokens, measured.injected_tokens) == (0, 0, 0)


async def test_kv_is_scored_over_injected_memory_and_the_very_same_prompt(server: LiveServer) -> None:
    await server.remember("accuracy-kv", *FACTS)
    kv, text = [await opinion(server, "accuracy-kv", mode) for mode in ("kv", "text")]
    assert kv.prompt_digest == text.prompt_digest and kv.facts == 6
    assert kv.injected_tokens > 0 and kv.memory_as_text < kv.memory_tokens
    assert text.injected_tokens == 0


async def test_an_answer_of_the_models_own_is_the_one_that_a_chat_gets(server: LiveServer) -> None:
    await server.remember("accuracy-answer", *FACTS)
    for mode in ("text", "kv"):
        told = await opinion(server, "accuracy-answer", mode)
        chat = await server.send(server.body("accuracy-answer", QUESTION, {"mode": mode, "k": 6}, max_tokens=12))
        assert chat.told["mode"] == mode and told.answer == chat.text


async def test_without_memory_the_answer_is_given_in_the_very_same_frame(server: LiveServer) -> None:
    off, text = [await opinion(server, "accuracy-plain", mode) for mode in ("off", "text")]
    assert off.prompt_digest == off.frame_digest == text.frame_digest != text.prompt_digest
    assert off.answer and off.answer != text.answer


async def test_a_fact_encoded_right_behind_the_header_is_scored_like_text(server: LiveServer) -> None:
    await server.remember("accuracy-one", FACTS[1])
    kv, text = [await opinion(server, "accuracy-one", mode) for mode in ("kv", "text")]
    assert kv.injected_tokens > 0
    assert kv.nll == pytest.approx(text.nll, abs=1e-3)
    far = distance(text.distributions, kv.distributions)
    assert far.kl < 1e-4 and far.agreement == 1.0


async def test_scoring_twice_gives_the_same_figures(server: LiveServer) -> None:
    await server.remember("accuracy-twice", *FACTS)
    for mode in ("text", "kv"):
        first, again = [await opinion(server, "accuracy-twice", mode) for _ in range(2)]
        assert again.nll == pytest.approx(first.nll, abs=1e-3)


async def test_more_likeliest_tokens_than_vllm_names_are_refused(server: LiveServer) -> None:
    body = {"user_id": "accuracy-plain", "question": QUESTION, "mode": "off", "top": 500}
    answer = await server.client.post(ROUTE, json=body | {"endings": endings_of(ANSWER)})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "top"


async def test_a_user_without_facts_has_nothing_to_be_scored_with(server: LiveServer) -> None:
    body = {"user_id": "accuracy-nobody", "question": QUESTION, "mode": "kv"}
    answer = await server.client.post(ROUTE, json=body | {"endings": endings_of(ANSWER)})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "user_id"
