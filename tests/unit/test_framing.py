"""What a start makes of the model's chat template and of its name, before any engine is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.exceptions import VLLMValidationError
from vllm.renderers.chat_utils import ChatTemplateResolutionError

from inferscale_server.engine.assemble import _unframed, _weights_of
from inferscale_server.engine.framing import Framer
from inferscale_server.wording import MEMORY_INTRO, Wording


class Letters:
    """A token a character."""

    def template_text(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))


class Renderer:
    """Renders roles and texts, unless `refuses` is raised for a system message, or for all where `always`."""

    def __init__(self, refuses: Exception | None = None, always: bool = False) -> None:
        self._refuses, self._always = refuses, always

    async def render_chat(self, request: Any) -> tuple[object, list[dict[str, str]]]:
        roles = [message["role"] for message in request.messages]
        if self._refuses is not None and (self._always or "system" in roles):
            raise self._refuses
        text = "".join(f"<{message['role']}>{message['content']}" for message in request.messages)
        return request, [{"prompt": text}]


def framer(renderer: Renderer) -> Framer:
    return Framer(renderer, Letters(), "slot-0f4c", Wording())  # type: ignore[arg-type]


async def test_the_default_header_is_what_stands_before_the_memory() -> None:
    header = await framer(Renderer()).default_header("tiny")
    assert header is not None
    text = "".join(map(chr, header))
    assert text.startswith("<system>") and text.endswith(MEMORY_INTRO) and "slot" not in text


async def test_where_a_system_message_is_refused_the_memory_opens_the_first_question() -> None:
    one = framer(Renderer(VLLMValidationError("System role not supported")))
    header = await one.default_header("tiny")
    assert header is not None and "".join(map(chr, header)).startswith("<user>")
    assert [message["role"] for message in one.with_memory([{"role": "user", "content": "Who?"}], "m")] == ["user"]


@pytest.mark.parametrize(
    "refuses", [ChatTemplateResolutionError("you must provide a chat template"), VLLMValidationError("never")]
)
async def test_a_model_whose_template_is_missing_or_refuses_everything_has_no_header_and_can_start(
    refuses: Exception,
) -> None:
    assert await framer(Renderer(refuses, always=True)).default_header("tiny") is None


def test_the_reason_says_whether_there_is_a_template_at_all() -> None:
    assert "brings no chat template" in _unframed(None) and "--chat-template FILE" in _unframed(None)
    assert "does not let a system message stand" in _unframed("{{ messages }}")


def named(commit: str | None = None, revision: str | None = None, quantization: str | None = None) -> str:
    """How the fingerprint names a model of the hub."""
    config = SimpleNamespace(_commit_hash=commit)
    return _weights_of(
        SimpleNamespace(model="who/what", revision=revision, hf_config=config, quantization=quantization)
    )


def test_another_commit_of_the_same_branch_and_another_quantisation_are_other_weights() -> None:
    names = [named("a1"), named("b2"), named(), named(revision="main"), named("a1", quantization="fp8")]
    assert len(set(names)) == len(names) and named("a1", "main") == named("a1")
