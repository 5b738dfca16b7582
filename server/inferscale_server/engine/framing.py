"""The frame: the client's messages rendered by the model's chat template with a slot where the memory goes.

The slot stands at the end of the system message. vLLM's own renderer does the rendering, so tools, template arguments
and content formats are vLLM's. What cannot be framed in tokens gets the memory as message text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers.online_renderer import OnlineRenderer

from inferscale_server.plan import Frame
from inferscale_server.tokens import LineTokenizer
from inferscale_server.wording import DEFAULT_SYSTEM, MEMORY_INTRO

Message = Mapping[str, Any]
SYSTEM_ROLES = ("system", "developer")


class Framer:
    """Renders requests around a slot. `slot` is a text that no client can guess."""

    def __init__(self, renderer: OnlineRenderer, tokenize: LineTokenizer, slot: str) -> None:
        self._renderer = renderer
        self._tokenize = tokenize
        self.slot = slot

    async def frame(self, request: ChatCompletionRequest) -> Frame | None:
        """Token ids before and after the memory; None when this request or template cannot be framed in tokens."""
        if unframeable(request):
            return None
        copy = request.model_copy(update={"messages": with_memory(request.messages, self.slot)})
        rendered = await self._renderer.render_chat(copy)
        if not isinstance(rendered, tuple):
            return None
        return self.around(rendered[1][0].get("prompt"))

    def around(self, text: object) -> Frame | None:
        """Token ids before and after the slot in rendered text; None when it does not stand there once."""
        if not isinstance(text, str) or text.count(self.slot) != 1:
            return None
        before, after = text.split(self.slot)
        return Frame(self._tokenize.template_text(before), self._tokenize.template_text(after))

    async def default_header(self, model: str) -> tuple[int, ...] | None:
        """The ids before the memory when the client sends no system prompt; None if the template cannot be framed."""
        request = ChatCompletionRequest(model=model, messages=[{"role": "user", "content": "?"}])
        frame = await self.frame(request)
        return None if frame is None else frame.before


def with_memory(messages: Sequence[Any], memory: str) -> list[Any]:
    """The messages with intro and memory at the end of the system message, which is made if there is none."""
    first = messages[0] if messages else None
    if isinstance(first, Mapping) and first.get("role") in SYSTEM_ROLES:
        merged = {**first, "content": f"{plain_text(first.get('content'))}\n\n{MEMORY_INTRO}{memory}"}
        return [merged, *messages[1:]]
    return [{"role": "system", "content": f"{DEFAULT_SYSTEM}\n\n{MEMORY_INTRO}{memory}"}, *messages]


def plain_text(content: Any) -> str:
    """The text of a message's content: a string, or OpenAI's text parts joined by line breaks."""
    if isinstance(content, str):
        return content
    parts = content or ()
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))


def last_user_text(messages: Sequence[Any]) -> str:
    """What the user asked last: the query that facts are retrieved for."""
    for message in reversed(messages):
        if isinstance(message, Mapping) and message.get("role") == "user":
            return plain_text(message.get("content"))
    return ""


def unframeable(request: ChatCompletionRequest) -> bool:
    """Requests whose tokens vLLM must make itself: it would ignore ours, or change the prompt afterwards."""
    return bool(
        request.echo
        or request.add_special_tokens
        or request.truncate_prompt_tokens is not None
        or request.use_beam_search
        or any(_has_media(message) for message in request.messages)
    )


def _has_media(message: Any) -> bool:
    content = message.get("content") if isinstance(message, Mapping) else None
    return not isinstance(content, str) and any(
        isinstance(part, Mapping) and part.get("type", "text") != "text" for part in content or ()
    )
