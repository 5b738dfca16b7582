"""Claims about an extractor behind an OpenAI-compatible endpoint, and about which extractor a configuration means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from inferscale_server.config import load_config
from inferscale_server.embed_endpoint import Endpoint
from inferscale_server.errors import ConfigError, Unavailable
from inferscale_server.extraction.build import build_extraction, choose_extractor
from inferscale_server.extraction.endpoint import EndpointWriter
from inferscale_server.extraction.extractor import LlmExtractor, VerbatimExtractor
from inferscale_server.extraction.judge import ModelJudge, RuleJudge
from inferscale_server.extraction.prompt import Prompt, extract_prompt
from inferscale_server.memory import MemoryService
from tests.extraction.script import SAID_AT, script, turns

KEY = "sk-secret"
PROMPT = Prompt("Note facts.", "user: I have a dog", {"type": "object"}, 99)


def writer(response: httpx.Response | Exception, seen: list[httpx.Request]) -> EndpointWriter:
    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if isinstance(response, Exception):
            raise response
        return response

    return EndpointWriter(Endpoint("big", "http://models/v1", KEY), httpx.MockTransport(answer))


async def test_the_schema_is_sent_as_a_response_format() -> None:
    seen: list[httpx.Request] = []
    reply = httpx.Response(200, json={"choices": [{"message": {"content": "{}"}}]})
    assert await writer(reply, seen)(PROMPT) == "{}"
    [request] = seen
    body = json.loads(request.content)
    assert str(request.url) == "http://models/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("big", 99, 0.0)


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(500, text="I have a dog"),
        httpx.Response(401, text=KEY),
        httpx.Response(200, text="I have a dog"),
        httpx.Response(200, json={"choices": []}),
        httpx.Response(200, json=[]),
        httpx.ConnectError("I have a dog"),
        httpx.ReadTimeout(KEY),
        httpx.DecodingError("I have a dog"),
        httpx.TooManyRedirects(KEY),
    ],
)
async def test_an_endpoint_that_fails_is_unavailable_and_nothing_secret_is_repeated(
    response: httpx.Response | Exception,
) -> None:
    with pytest.raises(Unavailable) as caught:
        await writer(response, [])(PROMPT)
    assert KEY not in caught.value.message and "dog" not in caught.value.message


async def test_an_answer_without_text_is_an_empty_one() -> None:
    assert await writer(httpx.Response(200, json={"choices": [{"message": {"content": None}}]}), [])(PROMPT) == ""


@pytest.mark.parametrize(
    ("flags", "extractor", "judge"),
    [
        ({}, VerbatimExtractor, RuleJudge),
        ({"extractor": "llm"}, LlmExtractor, RuleJudge),
        ({"model": "big", "extractor": "verbatim"}, VerbatimExtractor, ModelJudge),
        ({"model": "big"}, LlmExtractor, ModelJudge),
        ({"model": "big", "contradictions": "rule"}, LlmExtractor, RuleJudge),
        ({"contradictions": "model"}, VerbatimExtractor, ModelJudge),
        ({"extractor": "openai:big@http://models/v1"}, LlmExtractor, ModelJudge),
        ({"extractor": "verbatim"}, VerbatimExtractor, RuleJudge),
    ],
)
async def test_the_configuration_chooses_extractor_and_judge(
    memory: MemoryService, flags: dict[str, object], extractor: type, judge: type
) -> None:
    built = build_extraction(load_config(flags, {}), memory, script().write, lambda status: None)
    assert built is not None
    assert (type(built.extractor), type(built.judge), built.sources) == (extractor, judge, "user")


@pytest.mark.parametrize(
    ("flags", "name", "reason"),
    [
        ({}, "verbatim", "too small"),
        ({"model": "big"}, "llm", "the served model"),
        ({"extractor": "llm"}, "llm", "asked for"),
        ({"model": "big", "extractor": "off"}, "off", "asked for"),
    ],
)
def test_auto_says_what_it_chose_and_why(flags: dict[str, object], name: str, reason: str) -> None:
    chosen = choose_extractor(load_config(flags, {}))
    assert chosen.name == name and reason in chosen.reason


async def test_with_the_extraction_its_connections_are_closed(memory: MemoryService) -> None:
    config = load_config({"extractor": "openai:big@http://models/v1"}, {})
    built = build_extraction(config, memory, script().write, lambda status: None)
    assert built is not None and built.writer is not None
    await built.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await built.writer(PROMPT)


async def test_extraction_can_be_switched_off(memory: MemoryService) -> None:
    assert build_extraction(load_config({"extractor": "off"}, {}), memory, script().write, lambda status: None) is None


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"extractor": "magic"}, "extractor.*magic"),
        ({"extract_from": "nobody"}, "extract_from.*nobody"),
        ({"contradictions": "vectors"}, "contradictions.*vectors"),
    ],
)
def test_an_unknown_value_is_an_error_that_names_key_and_value(flags: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_config(flags, {})


@pytest.mark.parametrize(("name", "option"), [("openai:", "extractor"), ("openai:m@ftp://x", "extractor_url")])
async def test_a_bad_endpoint_is_an_error_at_the_start(memory: MemoryService, name: str, option: str) -> None:
    with pytest.raises(ConfigError, match=f"'{option}'"):
        build_extraction(load_config({"extractor": name}, {}), memory, script().write, lambda status: None)


@pytest.mark.parametrize(
    ("name", "asked"),
    [("llm", 1), ("verbatim", 0), ("openai:big@http://127.0.0.1:9/v1", 0)],
    ids=["llm", "verbatim", "endpoint"],
)
async def test_before_the_first_chat_the_served_model_alone_is_asked_once(
    memory: MemoryService, name: str, asked: int
) -> None:
    model = script(None)  # whatever it answers, or not
    built = build_extraction(load_config({"extractor": name}, {}), memory, model.write, lambda status: None)
    assert built is not None
    await built.warm_up()
    assert len(model.asked) == asked
    real = extract_prompt(turns("I have a dog")[0], SAID_AT).schema
    assert all((one.max_tokens, fact_rule(one.schema)) == (1, fact_rule(real)) for one in model.asked)


def fact_rule(schema: Mapping[str, Any]) -> object:
    """What takes long to compile."""
    return schema["properties"]["facts"]["items"]["properties"]["text"]
