"""mem0's extraction pipeline around our model: its prompt and its reading of the answer, and nothing of its stores.

Knows: which attributes of `mem0.Memory` the pipeline touches (mem0ai 2.2). Refuses to store: what it would insert is
what it found. Its prompt has about 8,000 tokens, so the model's context must be longer than that.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferscale_server.errors import ConfigError, RequestError
from inferscale_server.extraction.answer import MAX_FACTS_PER_TURN, BadAnswer, read_facts, read_json
from inferscale_server.extraction.extractor import ExtractionFailed, checked
from inferscale_server.extraction.prompt import EXTRACT_TOKENS, Prompt, Writer
from inferscale_server.extraction.salient import Extracted
from inferscale_server.extraction.turn import Turn

_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "memory": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"text": {"type": "string"}, "attributed_to": {"type": "string"}},
                "required": ["text"],
            },
            "maxItems": MAX_FACTS_PER_TURN,
        }
    },
    "required": ["memory"],
}


class _Nowhere:
    """Stands for mem0's vector store, embedder and history: finds nothing, keeps nothing."""

    def search(self, *args: object, **kwargs: object) -> list[object]:
        """No memories of mem0's own."""
        return []

    def get_last_messages(self, *args: object, **kwargs: object) -> list[object]:
        """No messages before these."""
        return []

    def embed(self, text: str, action: str | None = None) -> list[float]:
        """Nobody compares it."""
        return [1.0]

    def embed_batch(self, texts: Sequence[str], action: str | None = None) -> list[list[float]]:
        """See embed."""
        return [[1.0] for _ in texts]

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


@dataclass(frozen=True, slots=True)
class _Model:
    """mem0's idea of an LLM: called in a thread, it asks our writer on the server's loop."""

    write: Callable[[Prompt], Coroutine[Any, Any, str]]
    loop: asyncio.AbstractEventLoop
    again: bool

    def generate_response(self, messages: Sequence[Mapping[str, str]], **kwargs: object) -> str:
        """The answer's text. Raises BadAnswer for what mem0 would take for "nothing to remember"."""
        system, user = (message["content"] for message in messages)
        prompt = Prompt(system, user, _SCHEMA, EXTRACT_TOKENS, 0.5 if self.again else 0.0)
        answer = asyncio.run_coroutine_threadsafe(self.write(prompt), self.loop).result()
        read_json(answer)
        return answer


class Mem0Extractor:
    """See Extractor. mem0's answer is read by us as well, so that a broken one is not an empty one."""

    def __init__(self, write: Writer, folder: Path, now: Callable[[], float] = time.time) -> None:
        """`folder` is where mem0 writes its settings. Raises ConfigError when mem0 is not installed."""
        os.environ["MEM0_TELEMETRY"], os.environ["MEM0_DIR"] = "false", str(folder)  # read when it is imported
        logging.getLogger("mem0").setLevel(logging.CRITICAL)  # its messages quote what was said
        try:
            self._memory = importlib.import_module("mem0").Memory
        except ImportError as error:
            message = "option 'extractor': value 'mem0' needs mem0: pip install inferscale-sdk[mem0]"
            raise ConfigError(message) from error
        self._write = write
        self._now = now

    async def extract(self, turn: Turn) -> Extracted:
        """See Extractor."""
        reason = ""
        for again in (False, True):
            try:
                return checked(await self._ask(turn, again), turn, self._now())
            except BadAnswer as error:
                reason = str(error)
            except RequestError as error:
                reason = error.message
            except Exception as error:  # whatever another project's pipeline raises
                reason = _reason(error)
        raise ExtractionFailed(reason)

    async def _ask(self, turn: Turn, again: bool) -> Extracted:
        async def write(prompt: Prompt) -> str:
            return await self._write(prompt)

        pipeline = self._memory.__new__(self._memory)
        nowhere = _Nowhere()
        pipeline.vector_store = pipeline.embedding_model = pipeline.db = pipeline._entity_store = nowhere
        pipeline.llm = _Model(write, asyncio.get_running_loop(), again)
        pipeline.custom_instructions, pipeline.config, pipeline.reranker = None, nowhere, None
        pipeline.api_version, pipeline.collection_name = "v1.1", "none"
        messages = [
            {"role": "assistant" if draft.speaker == "assistant" else "user", "content": draft.text}
            for draft in turn.sources
        ]
        scope = {"user_id": "user"}
        found = await asyncio.to_thread(pipeline._add_to_vector_store, messages, scope, scope, True)
        texts = [record["memory"] for record in found]
        return read_facts(json.dumps({"facts": texts}), turn.speakers)


def _reason(error: BaseException) -> str:
    """Our own words if ours were the cause; of mem0's, which quote, only the kind."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BadAnswer | RequestError):
            return str(cause)
        cause = cause.__cause__
    return f"mem0: {type(error).__name__}"
