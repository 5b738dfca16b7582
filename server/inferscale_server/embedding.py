"""The one thread that runs the embedder: facts in slices, questions from a cache.

Knows: what a vector must look like before anything is committed with it. Refuses to know: where vectors are kept.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from inferscale_server.embed import Embedder
from inferscale_server.errors import Unavailable
from inferscale_server.pieces import cut_all
from inferscale_server.types import Owner

T = TypeVar("T")
Floats = npt.NDArray[np.float32]

EMBED_SLICE = 8
"""Texts embedded at a stretch: a query waits behind one slice of a bulk load (45 ms on one core), not behind all of it.
Longer slices took as long a text."""
QUERY_CACHE_SIZE = 1_024
UNIT_TOLERANCE = 1e-3


class EmbeddingThread:
    """An embedder behind async methods, each of which raises Unavailable when embedding fails. For one event loop."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inferscale-embed")
        self._queries: OrderedDict[tuple[Owner, str], Floats] = OrderedDict()
        self._closed = False

    async def facts(self, texts: Sequence[str]) -> tuple[Floats, ...]:
        """For each text float32 [pieces, dimension], unit rows: one piece, or several of a long text."""
        pieces = await self._run(cut_all, texts, self.embedder.pieces)
        return pieces.group(await self.texts(pieces.texts))

    async def texts(self, texts: Sequence[str]) -> Floats:
        """Float32 [texts, dimension], unit rows."""
        slices = [texts[start : start + EMBED_SLICE] for start in range(0, len(texts), EMBED_SLICE)]
        rows = [await self._run(self.embedder.embed, part) for part in slices]
        vectors = np.concatenate(rows) if rows else np.zeros((0, self.embedder.dimension), np.float32)
        assert vectors.shape == (len(texts), self.embedder.dimension), (vectors.shape, len(texts))
        if not np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=UNIT_TOLERANCE):
            raise Unavailable("the embedder returned a vector that is not finite or not of length 1")
        return vectors

    async def query(self, owner: Owner, text: str) -> Floats:
        """Float32 [dimension]. Cached per owner: a shared cache would tell one owner what another asked."""
        key = (owner, text)
        while (vector := self._queries.get(key)) is None:
            embedder = self.embedder
            row = (await self.texts([text]))[0]
            if embedder is self.embedder:  # else another one took its place meanwhile
                self._queries[key] = row
        self._queries.move_to_end(key)
        while len(self._queries) > QUERY_CACHE_SIZE:
            self._queries.popitem(last=False)
        return vector

    def forget(self, owner: Owner) -> None:
        """Drop what this owner asked."""
        for key in [key for key in self._queries if key[0] == owner]:
            del self._queries[key]

    def replace(self, embedder: Embedder) -> None:
        """Use another embedder from now on."""
        self.embedder = embedder
        self._queries.clear()

    async def aclose(self) -> None:
        """Finish what has begun. Later calls raise Unavailable."""
        self._closed = True
        await asyncio.to_thread(self._thread.shutdown)

    async def _run(self, function: Callable[..., T], *args: object) -> T:
        if self._closed:
            raise Unavailable("the server is shutting down")
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)
