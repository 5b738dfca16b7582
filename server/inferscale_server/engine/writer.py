"""The served model as a writer of facts: guided JSON through the engine's door, behind all chats.

What users wrote is made harmless first: a special token's string in it never becomes a control token.
"""

from __future__ import annotations

import logging
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers.online_renderer import OnlineRenderer

from inferscale_server.engine.door import EngineDoor
from inferscale_server.errors import Unavailable
from inferscale_server.extraction.prompt import Prompt
from inferscale_server.tokens import LineTokenizer

logger = logging.getLogger(__name__)


class ServedWriter:
    """See extraction.prompt.Writer."""

    def __init__(
        self, door: EngineDoor, renderer: OnlineRenderer, tokenize: LineTokenizer, model: str, max_model_len: int
    ) -> None:
        self._door = door
        self._renderer = renderer
        self._tokenize = tokenize
        self._model = model
        self._max_model_len = max_model_len

    async def __call__(self, prompt: Prompt) -> str:
        """See Writer."""
        try:
            ids = await self._ids(prompt)
            room = self._max_model_len - len(ids)
            if room < 1:
                raise Unavailable(f"the question has {len(ids)} tokens, the model's context {self._max_model_len}")
            tokens = min(prompt.max_tokens, room)
            return await self._door.write(ids, prompt.schema, tokens, prompt.temperature)
        except Unavailable:
            raise
        except Exception as error:  # vLLM's own; their messages may quote the prompt
            logger.warning("inferscale: the model did not answer an extraction: %s", type(error).__name__)
            raise Unavailable(f"the served model did not answer: {type(error).__name__}") from error

    async def _ids(self, prompt: Prompt) -> tuple[int, ...]:
        system, user = (self._tokenize.harmless(text) for text in (prompt.system, prompt.user))
        apart = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        try:
            return await self._rendered(apart)
        except Exception:  # a template without system messages raises whatever its author thought of
            return await self._rendered([{"role": "user", "content": f"{system}\n\n{user}"}])

    async def _rendered(self, messages: list[Any]) -> tuple[int, ...]:
        request = ChatCompletionRequest(
            model=self._model, messages=messages, chat_template_kwargs={"enable_thinking": False}
        )
        rendered = await self._renderer.render_chat(request)
        text = rendered[1][0].get("prompt") if isinstance(rendered, tuple) else None
        if not isinstance(text, str):
            raise Unavailable("the served model's chat template gives no text")
        return self._tokenize.template_text(text)
