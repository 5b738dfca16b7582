"""The frame: the client's messages rendered by the model's chat template with a slot where the memory goes.

The slot stands at the end of the system text (seat.py). vLLM's own renderer does the rendering, so tools, template
arguments and content formats are vLLM's. What cannot be framed in tokens gets the memory as message text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMValidationError
from vllm.renderers.chat_utils import ChatTemplateResolutionError
from vllm.renderers.online_renderer import OnlineRenderer

from inferscale_server.plan import Frame
from inferscale_server.seat import Message, Seat, find_seat, with_memory
from inferscale_server.seat import last_user_text as last_user_text
from inferscale_server.tokens import LineTokenizer
from inferscale_server.wording import Wording


class Framer:
    """Renders requests around a slot. `slot` is a text that no client can guess."""

    def __init__(self, renderer: OnlineRenderer, tokenize: LineTokenizer, slot: str, wording: Wording) -> None:
        self._renderer = renderer
        self._tokenize = tokenize
        self.slot = slot
        self.wording = wording
        self._seat: Seat = "system"

    async def frame(self, request: ChatCompletionRequest) -> Frame | None:
        """Token ids before and after the memory; None when this request or template cannot be framed in tokens."""
        if unframeable(request):
            return None
        copy = request.model_copy(update={"messages": self.with_memory(request.messages, self.slot)})
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

    async def question(self, model: str, text: str) -> Frame | None:
        """The frame of a chat that is one question and nothing else."""
        messages: list[Any] = [{"role": "user", "content": text}]
        return await self.frame(ChatCompletionRequest(model=model, messages=messages))

    def with_memory(self, messages: Sequence[Any], memory: str) -> list[Any]:
        """The messages with intro and memory where this model's template shows them first."""
        return with_memory(messages, memory, self._seat, self.wording)

    async def default_header(self, model: str) -> tuple[int, ...] | None:
        """The ids before the memory when the client sends no system prompt; None if there is no template to frame.

        Finds the seat that the template bears. To be called once, before anything is framed.
        """
        seated = await find_seat(partial(self._header_of, model))
        self._seat = "system" if seated is None else seated.seat
        return None if seated is None else seated.header

    async def _header_of(self, model: str, seat: Seat, messages: Sequence[Message]) -> tuple[int, ...] | None:
        self._seat = seat
        try:
            frame = await self.frame(ChatCompletionRequest(model=model, messages=list(messages)))  # type: ignore[arg-type]
        except (VLLMValidationError, ChatTemplateResolutionError):  # it refuses a system message, or there is none
            return None
        return None if frame is None else frame.before


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
