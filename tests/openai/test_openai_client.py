"""The openai package as it is, by address and `user` alone: edge and memory are real, the model is a function."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from inferscale_sdk import InferScaleClient
from tests.cli.memory_server import memory_server
from tests.edge.test_http_page import Curl
from tests.openai.chat_app import MODEL, ChatApp

PAGE = (Path(__file__).parents[2] / "docs" / "openai.md").read_text("utf-8")


@pytest.fixture
def chats() -> ChatApp:
    return ChatApp()


@pytest.fixture
def url(tmp_path: Path, chats: ChatApp) -> Iterator[str]:
    with memory_server(tmp_path, chats.over) as address:
        yield address


@pytest.fixture
def sdk(url: str) -> Iterator[InferScaleClient]:
    with InferScaleClient(base_url=url, max_retries=0) as client:
        client.memories.add("alice", facts=["My dog is called Bruno."])
        yield client


@pytest.fixture
def client(url: str, sdk: InferScaleClient) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def asking(question: str = "My dog is called what?", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": question}], **more}


def test_the_user_is_all_that_it_takes(client: OpenAI) -> None:
    answer = client.chat.completions.create(**asking(user="alice"))
    assert answer.choices[0].message.content == "My dog is called Bruno."
    told = (answer.model_extra or {})["inferscale"]
    assert [fact["text"] for fact in told["facts"]] == ["My dog is called Bruno."]
    assert answer._request_id


def test_without_a_user_there_is_no_memory(client: OpenAI) -> None:
    answer = client.chat.completions.create(**asking())
    assert (answer.model_extra or {})["inferscale"]["reason"] == "no_user"
    assert answer.choices[0].message.content == "I do not know."


def test_neither_of_openais_newer_ids_names_a_user(client: OpenAI) -> None:
    answer = client.chat.completions.create(**asking(safety_identifier="alice", prompt_cache_key="alice"))
    assert (answer.model_extra or {})["inferscale"]["facts"] == []


@pytest.mark.parametrize("counted", [True, False])
def test_a_stream_ends_with_usage_and_with_what_was_used(client: OpenAI, counted: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if counted else {}
    chunks = list(client.chat.completions.create(**asking(user="alice"), stream=True, **options))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text.strip() == "My dog is called Bruno."
    usage = chunks[-1].usage
    assert (usage is not None and usage.completion_tokens == 5) if counted else usage is None
    assert (chunks[-1].model_extra or {})["inferscale"]["mode"] == "text"


def test_a_forced_tool_is_called_with_memory(client: OpenAI) -> None:
    tool = {"type": "function", "function": {"name": "say", "parameters": {"type": "object", "properties": {}}}}
    choice = {"type": "function", "function": {"name": "say"}}
    answer = client.chat.completions.create(**asking(user="alice", tools=[tool], tool_choice=choice))
    [call] = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) == ("say", '{"said": "My dog is called Bruno."}')


def test_the_extension_says_what_user_cannot(client: OpenAI) -> None:
    extra = {"inferscale": {"user_id": "alice", "memory": {"mode": "off"}}}
    assert client.chat.completions.create(**asking(extra_body=extra)).choices[0].message.content == "I do not know."


@pytest.mark.parametrize(
    ("asked", "kind", "code", "param"),
    [
        (asking(user=" alice"), openai.BadRequestError, "invalid_id", "user"),
        (asking(user=""), openai.BadRequestError, "invalid_id", "user"),
        (
            asking(user="bob", extra_body={"inferscale": {"user_id": "alice"}}),
            openai.BadRequestError,
            "conflicting_user",
            "user",
        ),
        (
            asking(extra_body={"inferscale": {"user_id": "alice", "x": 1}}),
            openai.BadRequestError,
            "unknown_field",
            "inferscale.x",
        ),
        (asking(extra_body={"cache_salt": "x"}), openai.BadRequestError, "refused_field", "cache_salt"),
    ],
)
def test_errors_are_the_clients_own(client: OpenAI, asked: Any, kind: Any, code: str, param: str) -> None:
    with pytest.raises(kind) as refused:
        client.chat.completions.create(**asked)
    assert (refused.value.code, refused.value.param) == (code, param)
    assert refused.value.request_id and refused.value.type == "invalid_request_error"


def test_a_route_that_is_not_there_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.files.list()


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_the_embedder_answers_in_both_encodings(client: OpenAI, encoding: Any) -> None:
    rows = client.embeddings.create(model="default", input=["a dog", "a cat"], encoding_format=encoding).data
    assert [row.index for row in rows] == [0, 1] and rows[0].embedding != rows[1].embedding
    if encoding == "float":
        assert len(rows[0].embedding) == 16


async def test_two_users_ask_100_times_each_and_never_meet(url: str, sdk: InferScaleClient) -> None:
    for user in ("ann", "ben"):
        sdk.memories.add(user, facts=[f"the code of {user} is {user}-4417"])
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        for start in range(0, 100, 10):
            users = ["ann", "ben"] * 10
            answers = await asyncio.gather(
                *(
                    client.chat.completions.create(**asking(f"what is the code {start + at}", user=user))
                    for at, user in enumerate(users)
                )
            )
            said = [answer.choices[0].message.content for answer in answers]
            assert said == [f"the code of {user} is {user}-4417" for user in users]


def test_the_pages_python_runs_as_written(url: str, sdk: InferScaleClient, capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    assert "http://127.0.0.1:8000" in code
    exec(compile(code.replace("http://127.0.0.1:8000", url), "openai.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == [
        "My dog is called Bruno.",
        "text",
        "My dog is called Bruno. 5 text",
    ]


def test_the_pages_curl_runs_as_written(url: str) -> None:
    for command in re.findall(r"```sh\n(.*?)\n```", PAGE, re.DOTALL):
        with httpx.Client() as http:
            response = http.send(Curl.read(command, {"URL": url}).request({}))
        assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["message"]["content"] == "Alice lives in Oslo."
