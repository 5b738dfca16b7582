"""`mem0.Memory` that uses mem0 for extraction and leaves the rest to InferScale.

Knows: which of mem0's steps the server does better. Refuses to know: prompts, HTTP.

Against `Memory` with the store alone: a fact that is known already is reported as NONE with its own id, an answer of
the model that cannot be read is an error, and history is the server's: it outlives this process and covers all clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mem0 import Memory
from mem0.configs.base import MemoryConfig

from inferscale_sdk import AddOutcome, FactEvent, InferScaleClient
from mem0_inferscale.config import memory_config
from mem0_inferscale.extractor import ExtractedFact, Llm, Mem0Extractor, conversation
from mem0_inferscale.payload import IDS, expiry_of, metadata_of
from mem0_inferscale.scope import scope_of
from mem0_inferscale.store import InferScaleVectorStore

EVENTS = {"stored": "ADD", "duplicate": "NONE", "failed": "FAILED", "superseded": "DELETE"}
HAPPENED = {"added": "ADD", "updated": "UPDATE"}
KNOWN = 10
"""Memories that the model is shown, so that it does not extract them again."""


class InferScaleMemory(Memory):
    """See `mem0.Memory`. The model is the server's, unless `llm` is another one of mem0's."""

    vector_store: InferScaleVectorStore

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        api_key: str | None = None,
        llm: Llm | None = None,
        history_db_path: str = ":memory:",
    ) -> None:
        """No network here. mem0's own history holds only what it asks for by itself: see `history`."""
        written = memory_config(base_url, model=model, api_key=api_key, history_db_path=history_db_path)
        super().__init__(MemoryConfig.model_validate(written))
        if llm is not None:
            self.llm = llm
        self._client = InferScaleClient(base_url=base_url.rstrip("/").removesuffix("/v1"), api_key=api_key)

    def history(self, memory_id: str) -> list[dict[str, object]]:
        """What happened to one memory, oldest first, as mem0 writes it; of a deleted one not what it said.

        Of one that another process has deleted: nothing.
        """
        place = self.vector_store.place(memory_id)
        events = () if place is None else tuple(self._client.memories.history(place.fact_id, place.owner))
        before = (None, *(event.text for event in events))
        return [_shown(memory_id, event, old) for event, old in zip(events, before, strict=False)]

    def close(self) -> None:
        """See Memory.close."""
        super().close()
        self._client.close()

    def _add_to_vector_store(
        self,
        messages: Sequence[Mapping[str, Any]],
        metadata: dict[str, Any],
        filters: dict[str, Any],
        infer: bool,
        prompt: str | None = None,
    ) -> list[dict[str, object]]:
        """Called by Memory.add with its arguments checked."""
        if not infer:
            stored: list[dict[str, object]] = super()._add_to_vector_store(messages, metadata, filters, infer, prompt)
            return stored
        ids = {key: str(filters[key]) for key in ("user_id", *IDS) if filters.get(key)}
        said = "\n".join(str(message["content"]) for message in conversation(messages))
        known = self.vector_store.search(said, [], top_k=KNOWN, filters=ids) if said.strip() else []
        extractor = Mem0Extractor(self.llm, prompt or self.custom_instructions)
        facts = extractor.extract(messages, [str(memory.payload["data"]) for memory in known], ids)
        return self._store(facts, metadata) if facts else []

    def _store(self, facts: Sequence[ExtractedFact], metadata: dict[str, Any]) -> list[dict[str, object]]:
        scope = scope_of(self.vector_store.collection_name, metadata)
        drafts: list[Any] = [
            {
                "text": fact.text,
                "metadata": metadata_of(
                    {**metadata, "attributed_to": fact.attributed_to}, self.vector_store.collection_name
                ),
                "expires_at": expiry_of(metadata),
                **{key: metadata[key] for key in IDS if metadata.get(key)},
            }
            for fact in facts
        ]
        outcomes = self._client.memories.add(scope.owner, facts=drafts)
        return [self._reported(outcome, scope.owner) for outcome in outcomes]

    def _reported(self, outcome: AddOutcome, owner: str) -> dict[str, object]:
        said: dict[str, object] = {
            "id": None if outcome.id is None else self.vector_store.named(outcome.id, owner),
            "memory": outcome.text,
            "event": EVENTS.get(outcome.status, outcome.status.upper()),
        }
        return said if outcome.reason is None else {**said, "reason": outcome.reason}


def _shown(memory_id: str, event: FactEvent, old: str | None) -> dict[str, object]:
    return {
        "memory_id": memory_id,
        "old_memory": old,
        "new_memory": event.text,
        "event": HAPPENED.get(event.event, "DELETE"),
        "created_at": event.at.isoformat(),
        "is_deleted": event.event not in HAPPENED,
    }
