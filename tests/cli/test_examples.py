"""Every example that asks the model caps its answer and is greedy: a small model left alone goes on for minutes."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MODELS = {"ChatInferScale", "InferScaleChatModel", "InferScaleLLM", "init_chat_model"}
"""What carries the sampling for all of its calls."""
CARRIED = {"llm", "engine"}
"""Names of objects on these pages whose `chat` samples as their model says."""
CAPS = {"max_tokens", "max_output_tokens"}
ASKING = re.compile(r"/v1/(?:chat/completions|responses|completions)\b.*?-d '(.*?)'", re.DOTALL)


def fenced(page: Path, languages: str) -> list[str]:
    """The page's code in these languages."""
    return re.findall(rf"```(?:{languages})\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


def asks(call: ast.Call) -> bool:
    """Does it ask the model, or make what asks it?"""
    named = call.func
    if isinstance(named, ast.Name):
        return named.id in MODELS
    if not isinstance(named, ast.Attribute):
        return False
    if named.attr == "chat":
        return not (isinstance(named.value, ast.Name) and named.value.id in CARRIED)
    return ast.unparse(named).endswith(("chat.completions.create", "litellm.completion"))


def calls(page: Path) -> Iterator[ast.Call]:
    """All calls of the page's Python that ask."""
    for code in fenced(page, "python|py"):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Call) and asks(node):
                yield node


def bodies(page: Path) -> list[dict[str, object]]:
    """What the page's curl commands send when they ask."""
    return [json.loads(body) for code in fenced(page, "sh|bash") for body in ASKING.findall(code)]


def keywords(call: ast.Call) -> set[str]:
    """Names of a call's keywords; those of `**sampling` are the dictionary's."""
    return {word.arg if word.arg is not None else ast.unparse(word.value) for word in call.keywords}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_example_that_asks_caps_its_answer(page: Path) -> None:
    uncapped = [ast.unparse(call) for call in calls(page) if not keywords(call) & {*CAPS, "sampling"}]
    uncapped += [str(body) for body in bodies(page) if not body.keys() & CAPS]
    assert uncapped == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_example_that_asks_is_greedy(page: Path) -> None:
    sampled = [ast.unparse(call) for call in calls(page) if not keywords(call) & {"temperature", "sampling"}]
    sampled += [str(body) for body in bodies(page) if body.get("temperature") != 0]
    assert sampled == []


def test_examples_that_ask_are_found_in_python_and_in_curl() -> None:
    assert {page.name for page in PAGES if list(calls(page))} >= {"README.md", "sdk.md", "langchain.md", "openai.md"}
    assert {page.name for page in PAGES if bodies(page)} >= {"http.md", "openai.md", "sessions.md"}
