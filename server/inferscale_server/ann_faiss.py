"""Faiss' HNSW graph on a CPU, for collections too large to look at every vector.

Faiss' HNSW cannot delete: rows are tombstoned by a selector, and the graph is built anew when a quarter is dead. Under
a selective filter a graph loses recall, so few admitted rows are looked at one by one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from inferscale_server.ann import (
    Floats,
    Ids,
    Neighbours,
    Rows,
    check_query,
    check_vectors,
    nearest_rows,
    read_arrays,
    write_arrays,
)

LINKS = 32
"""Neighbours of each vector in the graph (HNSW's M)."""
EF_BUILD, EF_SEARCH = 200, 128
"""Candidates kept while building and while searching: recall against time. Figures: docs/index-backends.md."""
EXACT_SHARE = 0.1
"""When fewer of the rows are admitted, they are looked at one by one."""


class FaissAnn:
    """An HNSW graph over inner products. Needs the package faiss-cpu; raises ImportError without it."""

    def __init__(self, dimension: int) -> None:
        self._graph, self._rows, self._dimension = _empty(dimension), Rows(), dimension

    def add(self, ids: Ids, vectors: Floats) -> None:
        """See AnnIndex. The graph grows with it, so this takes long: a millisecond a vector in a large one."""
        check_vectors(vectors, len(ids), self._dimension)
        self._rows.append(ids)
        _grow(self._graph, vectors)

    def build(self) -> None:
        """See AnnIndex. There is nothing left to do."""

    def remove(self, ids: Ids) -> None:
        """See AnnIndex."""
        self._rows.kill(ids)
        if self._rows.rotten():
            self._rebuild()

    def search(self, query: Floats, k: int, allow: Ids | None = None) -> Neighbours:
        """See AnnIndex."""
        check_query(query, k, self._dimension)
        admitted = self._rows.admitted(allow)
        count = int(admitted.sum())
        if count == 0:
            return Neighbours(np.empty(0, np.int64), np.empty(0, np.float32))
        if count < max(EXACT_SHARE * len(admitted), k):
            return self._exact(query, k, admitted)
        return self._search(query, k, admitted, count)

    def save(self, path: Path) -> None:
        """See AnnIndex. One file with a checksum: faiss would take a damaged graph's links as they are."""
        import faiss

        if not self._rows.alive.all():
            self._rebuild()
        write_arrays(path, ids=self._rows.ids, graph=faiss.serialize_index(self._graph))

    def load(self, path: Path) -> None:
        """See AnnIndex."""
        import faiss

        arrays = read_arrays(path, "ids", "graph")
        try:
            graph = faiss.deserialize_index(arrays["graph"])
        except RuntimeError as error:  # faiss has no other
            raise ValueError(f"{path} is no graph: {str(error).splitlines()[-1]}") from error
        ids = arrays["ids"]
        if graph.ntotal != len(ids) or graph.d != self._dimension:
            raise ValueError(f"{path} holds {graph.ntotal} vectors of {graph.d} dimensions for {len(ids)} ids")
        self._graph, self._rows = graph, Rows(np.asarray(ids, np.int64))

    def bytes(self) -> int:
        """See AnnIndex. Vectors and links; faiss' vectors of sizes are not counted."""
        return int(self._graph.ntotal * self._dimension * 4 + self._graph.hnsw.neighbors.size() * 4)

    def __len__(self) -> int:
        return len(self._rows)

    def _search(self, query: Floats, k: int, admitted: npt.NDArray[np.bool_], count: int) -> Neighbours:
        import faiss

        parameters = faiss.SearchParametersHNSW()  # type: ignore[attr-defined]
        parameters.efSearch = max(EF_SEARCH, 2 * k)
        if count < len(admitted):
            bits = np.packbits(admitted, bitorder="little")
            selector = faiss.IDSelectorBitmap(len(admitted), faiss.swig_ptr(bits))
            parameters.sel = selector
        scores, rows = self._graph.search(query[None, :], min(k, count), params=parameters)
        there = rows[0] >= 0  # faiss pads with -1
        if there.sum() < min(k, count):  # the graph has lost some: never fewer than there are
            return self._exact(query, k, admitted)
        return Neighbours(self._rows.ids[rows[0][there]], scores[0][there])

    def _exact(self, query: Floats, k: int, admitted: npt.NDArray[np.bool_]) -> Neighbours:
        rows = np.flatnonzero(admitted)
        vectors = self._graph.reconstruct_batch(rows)
        return nearest_rows(vectors, self._rows.ids[rows], np.ones(len(rows), np.bool_), query, k)

    def _rebuild(self) -> None:
        rows = np.flatnonzero(self._rows.alive)
        vectors = self._graph.reconstruct_batch(rows) if len(rows) else np.empty((0, self._dimension), np.float32)
        self._rows, self._graph = Rows(self._rows.ids[rows]), _empty(self._dimension)
        if len(rows):
            _grow(self._graph, vectors)


def _grow(graph: Any, vectors: Floats) -> None:
    """With one thread (faiss takes all cores otherwise): chats need the others. OpenMP counts for each caller."""
    import faiss

    faiss.omp_set_num_threads(1)
    graph.add(np.ascontiguousarray(vectors))


def _empty(dimension: int) -> Any:
    import faiss

    graph = faiss.IndexHNSWFlat(dimension, LINKS, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = EF_BUILD
    return graph
