"""mem0's vector store on an InferScale server.

Knows: what mem0 expects of a store, and the client's calls. Refuses to know: mem0's pipeline.

The server embeds texts itself, so the vectors that mem0 brings are only checked for their size: a search goes by the
text of the query, which also finds by letters what an embedder does not know, and by the vector when there is no text.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from mem0.vector_stores.base import VectorStoreBase

from inferscale_sdk import NOT_GIVEN, Fact, Hit, InferScaleClient, NotFoundError
from mem0_inferscale.filters import Wanted, wanted
from mem0_inferscale.payload import (
    COLLECTION_KEY,
    expiry_of,
    line_of,
    metadata_of,
    payload_of,
    says,
    text_of,
    vector_id_of,
)
from mem0_inferscale.places import Place, Places
from mem0_inferscale.scope import Scope, check_collection, collection_of, scope_of, scope_of_owner

MAX_K = 1_000
MAX_QUERY_CHARS = 32_000
PAGE = 1_000
ALIKE = 50
"""How many facts with the words of a repeat are looked through for the first one."""

Payload = dict[str, Any]
Vector = Sequence[float]


@dataclass(frozen=True, slots=True)
class Memory:
    """What mem0 gets for one memory; `score` is 0 to 1, higher is better, None when nothing was searched."""

    id: str
    payload: Payload
    score: float | None = None


Memories = list[Memory]
Listed = list[Memories]
Names = list[str]


@dataclass(slots=True)
class _Group:
    """Memories of one owner that are inserted together."""

    scope: Scope
    ids: list[str] = field(default_factory=list)
    payloads: list[Payload] = field(default_factory=list)


class InferScaleVectorStore(VectorStoreBase):
    """See VectorStoreBase. Methods raise the client's APIError, and ValueError for what cannot be kept or asked."""

    def __init__(
        self,
        collection_name: str,
        embedding_model_dims: int | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float | None = None,
        client: InferScaleClient | None = None,
    ) -> None:
        """No network here. `client` takes the place of address, key and timeout, and stays the caller's to close."""
        self.collection_name = check_collection(collection_name)
        self.embedding_model_dims = embedding_model_dims
        self._client = client or InferScaleClient(base_url=base_url, api_key=api_key, timeout=timeout)
        self._memories = self._client.memories
        self._places = Places(self._client)

    def create_col(self, name: str, vector_size: int, distance: str = "cosine") -> None:
        """Use this collection from now on: there is nothing to create."""
        if str(distance).lower() != "cosine":
            raise ValueError(f"distance={distance!r}: the server compares by cosine")
        self.collection_name, self.embedding_model_dims = check_collection(name), vector_size

    def insert(
        self,
        vectors: Sequence[Vector],
        payloads: Sequence[Payload] | None = None,
        ids: Sequence[str] | None = None,
    ) -> None:
        """Store the payloads' texts, durably. What an owner has already keeps its first id; the new one leads there."""
        given = [{} for _ in vectors] if payloads is None else payloads
        names = [str(uuid.uuid4()) for _ in vectors] if ids is None else [str(one) for one in ids]
        if not len(vectors) == len(given) == len(names):
            raise ValueError(f"{len(vectors)} vectors, {len(given)} payloads and {len(names)} ids")
        self._check_size(vectors)
        for group in self._groups(names, given):
            self._insert(group)

    def search(
        self, query: str, vectors: Vector, top_k: int = 5, filters: Mapping[str, object] | None = None
    ) -> Memories:
        """The nearest memories, best first."""
        self._check_size([vectors] if len(vectors) else [])
        asked = wanted(self.collection_name, filters)
        words = query.strip()[-MAX_QUERY_CHARS:] if isinstance(query, str) else ""
        found = [
            self._memory(hit, scope)
            for scope in self._scopes(asked)
            for hit in self._hits(scope, words, vectors, min(top_k, MAX_K), asked)
        ]
        return sorted(found, key=lambda memory: -(memory.score or 0.0))[:top_k]

    def keyword_search(self, query: str, top_k: int = 5, filters: Mapping[str, object] | None = None) -> None:
        """None, as in the base class, and without the warning: the server's search weighs letters by itself."""

    def delete(self, vector_id: str) -> None:
        """Forget one memory; harmless when it is gone."""
        place = self.place(vector_id)
        if place is None:
            return
        with suppress(NotFoundError):
            self._memories.delete(place.fact_id, place.owner)

    def update(self, vector_id: str, vector: Vector | None = None, payload: Payload | None = None) -> None:
        """Let the memory say what `payload` says; a vector alone changes nothing. Raises ValueError for an unknown
        id."""
        self._check_size([] if vector is None else [vector])
        if payload is None:
            return
        fact, place = self._fact(vector_id), self.place(vector_id)
        if fact is None or place is None:
            raise ValueError(f"no memory {vector_id!r}")
        new = metadata_of(payload, self.collection_name)
        gone = {key: None for key in fact.metadata if key not in new}
        dated = "expiration_date" in {**fact.metadata, **payload}  # else the end is not mem0's to change
        self._memories.update(
            place.fact_id,
            place.owner,
            text=text_of(payload),
            metadata={**gone, **new},
            expires_at=expiry_of(payload) if dated else NOT_GIVEN,
        )

    def get(self, vector_id: str) -> Memory | None:
        """One memory, or None."""
        fact, place = self._fact(vector_id), self.place(vector_id)
        scope = None if place is None else scope_of_owner(self.collection_name, place.owner)
        if fact is None or scope is None:
            return None
        return Memory(str(vector_id), payload_of(fact, scope))

    def place(self, vector_id: str) -> Place | None:
        """Where the server has this memory; None when this collection has none. Raises like Places.of."""
        place = self._places.of(vector_id)
        return None if place is None or scope_of_owner(self.collection_name, place.owner) is None else place

    def named(self, fact_id: str, owner: str) -> str:
        """mem0's id of a fact of the server; from now on it leads there without asking whose it is."""
        name = vector_id_of(fact_id)
        self._places.note(name, owner)
        return name

    def list_cols(self) -> Names:
        """The collections that hold something, and this one."""
        return sorted({collection_of(user.user_id) for user in self._client.users.list()} | {self.collection_name})

    def delete_col(self) -> None:
        """Forget what mem0 has put into this collection; facts that came otherwise stay."""
        for scope in self._everybody():
            for fact in list(self._memories.list(scope.owner, limit=PAGE, filter=self._ours())):
                self._memories.delete(fact.id, scope.owner)

    def col_info(self) -> dict[str, object]:
        """Name of the collection, numbers in a vector, users and memories in it."""
        counts = Counter(
            {
                user.user_id: user.facts
                for user in self._client.users.list()
                if scope_of_owner(self.collection_name, user.user_id)
            }
        )
        sizes = {"users": len(counts), "memories": counts.total()}
        return {"name": self.collection_name, "embedding_model_dims": self.embedding_model_dims, **sizes}

    def list(self, filters: Mapping[str, object] | None = None, top_k: int | None = None) -> Listed:
        """All memories that match, oldest first, in one list within a list."""
        asked = wanted(self.collection_name, filters)
        size = PAGE if top_k is None else max(1, min(top_k, PAGE))
        memories = (
            self._memory(fact, scope)
            for scope in self._scopes(asked)
            for fact in self._memories.list(scope.owner, limit=size, filter=asked.where)
        )
        return [list(islice(memories, top_k))]

    def reset(self) -> None:
        """See `delete_col`: an empty collection needs no creating."""
        self.delete_col()

    def _insert(self, group: _Group) -> None:
        given = zip(group.ids, group.payloads, strict=True)
        lines = [line_of(name, payload, self.collection_name) for name, payload in given]
        result = self._memories.import_(group.scope.owner, lines)
        if result.failed:
            first = result.failed[0]
            raise ValueError(f"memory {group.ids[first.line - 1]} was not stored: {first.reason}")
        for name, line in zip(group.ids, lines, strict=True):
            self._places.note(name, group.scope.owner)
            if result.duplicates:
                self._places.note(name, group.scope.owner, self._kept(group.scope, line))

    def _kept(self, scope: Scope, line: Mapping[str, object]) -> str:
        """The id under which the server has what this line says."""
        fact_id = str(line["id"])
        try:
            return self._memories.get(fact_id, scope.owner).id
        except NotFoundError:
            alike = self._memories.search(scope.owner, str(line["text"]).strip()[-MAX_QUERY_CHARS:], k=ALIKE)
            return next((hit.id for hit in alike if says(hit, line)), fact_id)

    def _groups(self, ids: Sequence[str], payloads: Sequence[Payload]) -> Iterable[_Group]:
        groups: dict[str, _Group] = {}
        for name, payload in zip(ids, payloads, strict=True):
            scope = scope_of(self.collection_name, payload)
            group = groups.setdefault(scope.owner, _Group(scope))
            group.ids.append(name)
            group.payloads.append(payload)
        return groups.values()

    def _hits(self, scope: Scope, words: str, vector: Vector, k: int, asked: Wanted) -> Iterable[Hit]:
        if words:
            return self._memories.search(scope.owner, words, k=k, filter=asked.where)
        return self._memories.search(scope.owner, vector=vector, k=k, filter=asked.where)

    def _scopes(self, asked: Wanted) -> Iterable[Scope]:
        return self._everybody() if asked.scope.kind is None else (asked.scope,)

    def _everybody(self) -> Iterator[Scope]:
        """Everyone who has something in this collection; needs a key with the role admin."""
        scopes = (scope_of_owner(self.collection_name, user.user_id) for user in list(self._client.users.list()))
        yield from (scope for scope in scopes if scope is not None)

    def _fact(self, vector_id: str) -> Fact | None:
        place = self.place(vector_id)
        try:
            return None if place is None else self._memories.get(place.fact_id, place.owner)
        except NotFoundError:
            return None

    def _memory(self, fact: Fact, scope: Scope) -> Memory:
        score = max(0.0, min(1.0, fact.score)) if isinstance(fact, Hit) else None
        return Memory(self.named(fact.id, scope.owner), payload_of(fact, scope), score)

    def _ours(self) -> dict[str, object]:
        return {COLLECTION_KEY: self.collection_name}

    def _check_size(self, vectors: Iterable[Vector]) -> None:
        for vector in vectors:
            if self.embedding_model_dims is None:
                self.embedding_model_dims = len(vector)
            if len(vector) != self.embedding_model_dims:
                raise ValueError(f"a vector has {len(vector)} numbers, this collection's {self.embedding_model_dims}")
