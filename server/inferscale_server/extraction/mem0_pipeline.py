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
from inferscale_server.extraction.answer import MAX_FACTS_PER_TURN, BadAnswer, read_facts, read_json, salvage_facts
from inferscale_server.extraction.dates import said_on
from inferscale_server.extraction.extractor import CUT_SHORT, ExtractionFailed, checked
from inferscale_server.extraction.prompt import AGAIN_TOKENS, Prompt, Writer
from inferscale_server.extraction.salient import Extracted
from inferscale_server.extraction.turn import Turn

_INSTRUCTIONS = "{} That is the Observation Date. Write in the language of the messages."
"""mem0's own observation date is today."""
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
    """Stands for mem0's stores, embedder and history: finds nothing, keeps nothing."""

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


class _Catch(_Nowhere):
    """The store of memories keeps what would be stored: only there mem0 tells who said a fact."""

    def __init__(self) -> None:
        self.caught: list[Mapping[str, Any]] = []

    def insert(self, payloads: Sequence[Mapping[str, Any]], **kwargs: object) -> None:
        """Memories in mem0's words."""
        self.caught += payloads


@dataclass(slots=True)
class _Model:
    """mem0's idea of an LLM: called in a thread, it asks our writer on the server's loop. `answer`: its last one."""

    write: Callable[[Prompt], Coroutine[Any, Any, str]]
    loop: asyncio.AbstractEventLoop
    again: bool = False
    answer: str = ""

    def generate_response(self, messages: Sequence[Mapping[str, str]], **kwargs: object) -> str:
        """The answer's text. Raises BadAnswer for what mem0 would take for "nothing to remember"."""
        system, user = (message["content"] for message in messages)
        prompt = Prompt(system, user, _SCHEMA, AGAIN_TOKENS, 0.5 if self.again else 0.0)
        self.answer = asyncio.run_coroutine_threadsafe(self.write(prompt), self.loop).result()
        read_json(self.answer)
        return self.answer


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
        return checked(await self._found(turn), turn, self._now())

    async def _found(self, turn: Turn) -> Extracted:
        model, reason = _Model(self._asked, asyncio.get_running_loop()), ""
        for again in (False, True):
            model.again = again
            try:
                return _read(await asyncio.to_thread(self._run, model, turn), turn)
            except BadAnswer as error:
                reason = str(error)
            except RequestError as error:
                reason = error.message
            except Exception as error:  # whatever another project's pipeline raises
                reason = _reason(error)
        try:
            found = salvage_facts(model.answer, turn.speakers, _who(turn))
        except BadAnswer:
            raise ExtractionFailed(reason) from None
        return Extracted(found.facts, (*found.lost, f"{reason}; {CUT_SHORT}"))

    async def _asked(self, prompt: Prompt) -> str:
        return await self._write(prompt)

    def _run(self, model: _Model, turn: Turn) -> Sequence[Mapping[str, Any]]:
        """What mem0 would store, in its own words."""
        pipeline, nowhere, catch = self._memory.__new__(self._memory), _Nowhere(), _Catch()
        pipeline.embedding_model = pipeline.db = pipeline._entity_store = pipeline.config = nowhere
        pipeline.llm, pipeline.vector_store, pipeline.reranker = model, catch, None
        pipeline.custom_instructions = _INSTRUCTIONS.format(said_on(turn.said_at(self._now())))
        pipeline.api_version, pipeline.collection_name = "v1.1", "none"
        messages = [
            {"role": "assistant" if draft.speaker == "assistant" else "user", "content": draft.text}
            for draft in turn.sources
        ]
        scope = {"user_id": "user"}
        pipeline._add_to_vector_store(messages, {}, scope, True)
        return catch.caught


def _read(caught: Sequence[Mapping[str, Any]], turn: Turn) -> Extracted:
    """Raises BadAnswer."""
    listed = [{"text": one["data"], "attributed_to": one.get("attributed_to")} for one in caught]
    return read_facts(json.dumps({"facts": listed}), turn.speakers, _who(turn))


def _who(turn: Turn) -> Mapping[str, str]:
    """What mem0 calls who speaks in a turn: a user who has a name speaks under it."""
    users = [name for name in turn.speakers if name != "assistant"]
    return {"user": users[0]} if users else {}


def _reason(error: BaseException) -> str:
    """Our own words if ours were the cause; of mem0's, which quote, only the kind."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BadAnswer | RequestError):
            return str(cause)
        cause = cause.__cause__
    return f"mem0: {type(error).__name__}"
