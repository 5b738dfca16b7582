"""mem0's extraction alone: messages in, facts out, nothing stored.

Knows: what mem0's pipeline calls while it extracts. Refuses to know: where facts go. The pipeline runs as it is, over
stores that only listen, so a new version of its prompt comes with a new version of mem0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mem0 import Memory
from mem0.memory.utils import extract_json, remove_code_blocks

from mem0_inferscale.store import Memory as Remembered

Message = Mapping[str, object]

SPEAKERS = ("user", "assistant")
NOTHING = '{"memory": []}'


class Llm(Protocol):
    """What a mem0 LLM has, such as `mem0.llms.vllm.VllmLLM`."""

    def generate_response(self, messages: list[dict[str, str]], response_format: object = None) -> str:
        """The model's answer to a conversation."""


@dataclass(frozen=True, slots=True)
class ExtractedFact:
    """A sentence that stands on its own, and whether the user or the assistant said it, if the model told."""

    text: str
    attributed_to: str | None


class ExtractionFailed(RuntimeError):
    """The model's answer could not be read: not the same as an answer without facts."""


class Mem0Extractor:
    """mem0's extraction with one LLM. One call at a time."""

    def __init__(self, llm: Llm, instructions: str | None = None) -> None:
        """`instructions` are added to mem0's prompt, which has more than 8,000 tokens."""
        self._llm, self._instructions = llm, instructions

    def extract(
        self, messages: Sequence[Message], known: Sequence[str] = (), ids: Mapping[str, str] | None = None
    ) -> tuple[ExtractedFact, ...]:
        """The new facts in what the user and the assistant said; `known` are texts that are remembered already, `ids`
        mem0's scope. System text and tool output hold memories that were recalled before, so they are not looked at.

        Raises mem0's LLMError when the model cannot be reached, ExtractionFailed when its answer cannot be read.
        """
        said = conversation(messages)
        if not said:
            return ()
        ear = _Ear(self._llm)
        store = _Catch(known)
        pipeline = _Pipeline(ear, store, self._instructions)
        scope = dict(ids or {"user_id": "user"})
        pipeline._add_to_vector_store(said, {}, scope, infer=True)
        if ear.fault is not None:
            raise ear.fault
        return tuple(store.caught)


def conversation(messages: Sequence[Message]) -> list[dict[str, object]]:
    """What users and assistants said in words."""
    return [dict(message) for message in messages if message.get("role") in SPEAKERS and message.get("content")]


class _Pipeline(Memory):
    """Memory with nothing behind it but what extraction uses."""

    def __init__(self, llm: Llm, store: _Catch, instructions: str | None) -> None:
        self.llm, self.vector_store, self.custom_instructions = llm, store, instructions
        self.embedding_model, self.db, self._entity_store = _NoVectors(), _NoHistory(), _NoEntities()
        self.api_version = "v1.1"


class _Ear:
    """The LLM, and what was wrong with its answer: the pipeline would take that for "nothing", or break."""

    def __init__(self, llm: Llm) -> None:
        self._llm = llm
        self.fault: ExtractionFailed | None = None

    def generate_response(self, messages: list[dict[str, str]], response_format: object = None) -> str:
        answer = self._llm.generate_response(messages=messages, response_format=response_format)
        self.fault = _fault_in(answer)
        return answer if self.fault is None else NOTHING


def _fault_in(answer: object) -> ExtractionFailed | None:
    """None for an answer that the pipeline reads as the model meant it."""
    try:
        memory = _parsed(answer)["memory"]
    except (ValueError, TypeError, KeyError, AttributeError):
        return ExtractionFailed('the model did not answer with JSON like {"memory": [{"text": …}]}')
    if not isinstance(memory, list) or not all(isinstance(one, dict) for one in memory):
        return ExtractionFailed('the model\'s "memory" is not a list of objects')
    if memory and not any(isinstance(one.get("text"), str) and one["text"] for one in memory):
        return ExtractionFailed('the model listed memories without a "text"')
    return None


def _parsed(answer: object) -> Any:
    """Read as mem0 reads it."""
    written = remove_code_blocks(answer)
    try:
        return json.loads(written, strict=False)
    except json.JSONDecodeError:
        return json.loads(extract_json(written), strict=False)


class _Catch:
    """A vector store that knows some texts and catches what is inserted."""

    def __init__(self, known: Sequence[str]) -> None:
        self._known = [Remembered(str(number), {"data": text}) for number, text in enumerate(known)]
        self.caught: list[ExtractedFact] = []

    def search(self, **_: Any) -> list[Remembered]:
        return self._known

    def insert(self, payloads: Sequence[Mapping[str, Any]], **_: Any) -> None:
        self.caught += [ExtractedFact(payload["data"], payload.get("attributed_to")) for payload in payloads]


class _NoVectors:
    """An embedder for stores that look at no vector."""

    def embed(self, text: str, *_: Any) -> list[float]:
        return []

    def embed_batch(self, texts: Sequence[str], *_: Any) -> list[list[float]]:
        return [[] for _ in texts]


class _NoHistory:
    """mem0's history, for facts whose history the server keeps."""

    def get_last_messages(self, *_: Any, **__: Any) -> list[Any]:
        return []

    def save_messages(self, *_: Any) -> None:
        """The messages are the caller's."""

    def batch_add_history(self, *_: Any) -> None:
        """The facts' history begins on the server."""


class _NoEntities:
    """mem0's entity links, which need a store of their own."""

    def search_batch(self, queries: Sequence[str], *_: Any, **__: Any) -> list[list[Any]]:
        return [[] for _ in queries]

    def list(self, *_: Any, **__: Any) -> Any:
        return [[]]

    def insert(self, *_: Any, **__: Any) -> None:
        """Nothing is linked."""
