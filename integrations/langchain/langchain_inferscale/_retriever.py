"""The retriever: a user's facts as documents, for chains that want them as text or with another model."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig
from pydantic import ConfigDict

from inferscale_sdk import Hit
from langchain_inferscale._identity import USER, pick_user
from langchain_inferscale._server import ServerFields


class InferScaleRetriever(ServerFields, BaseRetriever):
    """Finds one user's facts by meaning, best first. The user is named as for the chat model.

    A document's `id` is the fact's, its metadata the fact's own with `score` (cosine similarity, -1 to 1), `speaker`,
    `session_id` and `timestamp` (ISO 8601) beside it. `k`, `min_score` and `filter` can be given a call too.
    Raises the SDK's errors; ValueError if nobody is named.
    """

    model_config = ConfigDict(extra="forbid", populate_by_name=True, arbitrary_types_allowed=True)

    user_id: str | None = None
    """Whose facts, where neither the call nor the run names a user."""
    k: int | None = None
    """How many at most; the server's own number where not given."""
    min_score: float | None = None
    """Leave out facts less similar than this."""
    filter: dict[str, Any] | None = None
    """Leave out facts that it does not match."""

    def invoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> list[Document]:
        kwargs[USER] = pick_user(kwargs.get(USER), config, self.user_id)
        return super().invoke(input, config, **kwargs)

    async def ainvoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> list[Document]:
        kwargs[USER] = pick_user(kwargs.get(USER), config, self.user_id)
        return await super().ainvoke(input, config, **kwargs)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **wanted: Any
    ) -> list[Document]:
        user = wanted.pop(USER)
        return [_document(hit) for hit in self.client.memories.search(user, query, **self._wanted(wanted))]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **wanted: Any
    ) -> list[Document]:
        user = wanted.pop(USER)
        found = await self._clients.for_loop().memories.search(user, query, **self._wanted(wanted))
        return [_document(hit) for hit in found]

    def _wanted(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"k": self.k, "min_score": self.min_score, "filter": self.filter, **given}


def _document(hit: Hit) -> Document:
    own = {
        "score": hit.score,
        "speaker": hit.speaker,
        "session_id": hit.session_id,
        "timestamp": None if hit.timestamp is None else hit.timestamp.isoformat(),
    }
    named = {key: value for key, value in own.items() if value is not None}
    return Document(id=hit.id, page_content=hit.text, metadata={**hit.metadata, **named})
