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
    by_score,
    check_ids,
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
EF_WIDEST = 2048
"""Candidates up to which a search is widened."""
LOOKED_AT = 2 * LINKS
"""Vectors that are looked at for one candidate, at most: in a graph's lowest layer each has twice the links."""
EXACT_SHARE = 0.1
"""When fewer of the rows are admitted, they are looked at one by one."""


class FaissAnn:
    """An HNSW graph over inner products. Needs the package faiss-cpu; raises ImportError without it."""

    def __init__(self, dimension: int) -> None:
        self._graph, self._rows, self._dimension = _empty(dimension), Rows(), dimension
        self._ef = EF_SEARCH

    def add(self, ids: Ids, vectors: Floats) -> None:
        """See AnnIndex. The graph grows with it, so this takes long: a millisecond a vector in a large one."""
        check_vectors(vectors, len(ids), self._dimension)
        self._rows.append(ids)
        _grow(self._graph, vectors)

    def build(self) -> None:
        """See AnnIndex. There is nothing left to do."""

    def widen(self) -> bool:
        """See AnnIndex. Twice the candidates, unless as many vectors as there are may be looked at for them: exact
        search reads those in order. What was widened stays so until `load`."""
        wider = 2 * self._ef
        if wider > EF_WIDEST or wider * LOOKED_AT > len(self._rows):
            return False
        self._ef = wider
        return True

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
        arrays = read_arrays(path, "ids", "graph")
        try:
            ids, graph = arrays["ids"], _read_graph(arrays["graph"])
            check_ids(ids)
            check_vectors(_vectors_of(graph), len(ids), self._dimension)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        self._graph, self._rows, self._ef = graph, Rows(ids), EF_SEARCH

    def bytes(self) -> int:
        """See AnnIndex. Vectors and links; faiss' vectors of sizes are not counted."""
        return int(self._graph.ntotal * self._dimension * 4 + self._graph.hnsw.neighbors.size() * 4)

    def __len__(self) -> int:
        return len(self._rows)

    def _search(self, query: Floats, k: int, admitted: npt.NDArray[np.bool_], count: int) -> Neighbours:
        import faiss

        parameters = faiss.SearchParametersHNSW()  # type: ignore[attr-defined]
        parameters.efSearch = max(self._ef, 2 * k)
        if count < len(admitted):
            bits = np.packbits(admitted, bitorder="little")
            selector = faiss.IDSelectorBitmap(len(admitted), faiss.swig_ptr(bits))
            parameters.sel = selector
        found = self._graph.search(query[None, :], min(k, count), params=parameters)
        scores, rows = found[0][0], found[1][0]
        if (rows < 0).any():  # faiss pads with -1 when the graph has lost some: never fewer than there are
            return self._exact(query, k, admitted)
        best = by_score(scores, rows)
        return Neighbours(self._rows.ids[rows[best]], scores[best])

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


def _read_graph(serialized: npt.NDArray[Any]) -> Any:
    """Raises ValueError unless it is a graph of the kind that `_empty` makes."""
    import faiss

    if serialized.dtype != np.uint8 or serialized.ndim != 1:
        raise ValueError(f"a graph of {serialized.dtype} {serialized.shape} instead of bytes")
    try:
        graph = faiss.deserialize_index(serialized)
    except RuntimeError as error:  # faiss has no other
        raise ValueError(f"no graph: {str(error).splitlines()[-1]}") from error
    if not isinstance(graph, faiss.IndexHNSWFlat) or graph.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise ValueError(f"{type(graph).__name__} instead of a graph over inner products")
    return graph


def _vectors_of(graph: Any) -> Floats:
    """(vectors, dimension), in the graph's own memory: only while it lives. Raises ValueError when it has none."""
    import faiss

    stored = faiss.downcast_index(graph.storage)
    if not isinstance(stored, faiss.IndexFlatIP) or stored.ntotal != graph.ntotal or stored.d != graph.d:
        raise ValueError("a graph without the vectors that it links")
    return faiss.rev_swig_ptr(stored.get_xb(), stored.ntotal * stored.d).reshape(stored.ntotal, stored.d)
