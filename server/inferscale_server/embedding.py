"""The one thread that runs the embedder: facts in slices, one after the other; questions before them, from a cache.

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
from inferscale_server.pieces import Pieces, cut_all
from inferscale_server.types import Owner
from inferscale_server.vectors import checked

T = TypeVar("T")
Floats = npt.NDArray[np.float32]

EMBED_SLICE = 8
"""Texts embedded at a stretch (45 ms on one core): a query waits behind one slice, however many adds are under way.
Longer slices took as long a text."""
CUT_SLICE_CHARS = 8_000
"""Texts looked at at a stretch, for whether they must be cut: about as long."""
QUERY_CACHE_SIZE = 1_024


class EmbeddingThread:
    """An embedder behind async methods, each of which raises Unavailable when embedding fails. For one event loop."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inferscale-embed")
        self._queries: OrderedDict[tuple[Owner, str], Floats] = OrderedDict()
        self._closed = False
        self._one_slice = asyncio.Lock()  # of all adds together, so that the thread's queue holds no more than one

    async def facts(self, texts: Sequence[str]) -> tuple[Floats, ...]:
        """For each text float32 [pieces, dimension], unit rows: one piece, or several of a long text."""
        cut = [await self._slice(cut_all, part, self.embedder.pieces) for part in _slices(texts)]
        pieces = Pieces(
            tuple(piece for part in cut for piece in part.texts), tuple(count for part in cut for count in part.counts)
        )
        return pieces.group(await self.texts(pieces.texts))

    async def texts(self, texts: Sequence[str]) -> Floats:
        """Float32 [texts, dimension], unit rows; queries come first."""
        slices = [texts[start : start + EMBED_SLICE] for start in range(0, len(texts), EMBED_SLICE)]
        rows = [await self._slice(self.embedder.embed, part) for part in slices]
        whole = np.concatenate(rows) if rows else np.zeros((0, self.embedder.dimension), np.float32)
        return checked(whole, len(texts), self.embedder.dimension)

    async def query(self, owner: Owner, text: str) -> Floats:
        """Float32 [dimension]. Cached per owner: a shared cache would tell one owner what another asked."""
        key = (owner, text)
        while (vector := self._queries.get(key)) is None:
            embedder = self.embedder
            row = checked(await self._run(embedder.embed, [text]), 1, embedder.dimension)[0]
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

    async def _slice(self, function: Callable[..., T], *args: object) -> T:
        async with self._one_slice:
            return await self._run(function, *args)

    async def _run(self, function: Callable[..., T], *args: object) -> T:
        if self._closed:
            raise Unavailable("the server is shutting down")
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)


def _slices(texts: Sequence[str]) -> list[list[str]]:
    """The texts in groups of at most CUT_SLICE_CHARS, or of one longer text."""
    groups: list[list[str]] = []
    room = 0
    for text in texts:
        if not groups or len(text) > room:
            groups.append([])
            room = CUT_SLICE_CHARS
        groups[-1].append(text)
        room -= len(text)
    return groups
