"""cuVS on a GPU: exact search (brute_force), and its CAGRA graph for large collections.

Written to cuVS 26.10's signatures and tested against a stand-in that checks arguments, dtypes and sentinels.
**It has not run on a GPU yet.** cuVS cannot delete (rows are tombstoned by a bitset), CAGRA answers in uint32 and pads
filtered results with sentinels, and loses recall under selective filters, so those are searched exactly.
Source: docs.rapids.ai, cuvs.neighbors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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
    check_query,
    check_vectors,
    nearest_rows,
    read_saved,
    write_saved,
)
from inferscale_server.errors import ConfigError

GRAPH_FROM = 100_000
"""Vectors from which on the graph is built; exact search on a GPU is quick below."""
EXACT_SHARE = 0.1
TAIL_SHARE = 0.1
"""Of the built rows; when more than so many were added since, `build` builds all anew. Until then the tail is exact."""
GRAPH_DEGREE = 64
"""Links of each vector; CAGRA's default."""
RANDOM_SAMPLINGS = 8
"""CAGRA's default of 1 found 60 % of the neighbours in clustered data (rapidsai/cuvs issue 2102)."""


@dataclass(frozen=True)
class Cuvs:
    """The parts of cuVS that are used, and how arrays get to its device and back."""

    brute_force: Any
    cagra: Any
    filters: Any
    to_device: Callable[[npt.NDArray[Any]], Any]
    to_host: Callable[[Any], npt.NDArray[Any]]


def find_cuvs() -> Cuvs:
    """Raises ConfigError when the package or a CUDA device is missing."""
    try:
        import torch
        from cuvs.neighbors import brute_force, cagra, filters
    except ImportError as error:
        raise ConfigError(
            f"option 'index': value 'cuvs' needs the package cuvs-cu12 or cuvs-cu13 26.10 ({error})"
        ) from error
    if not torch.cuda.is_available():
        raise ConfigError("option 'index': value 'cuvs' needs a CUDA device, and there is none")

    def to_device(array: npt.NDArray[Any]) -> Any:
        return torch.from_numpy(array).cuda()  # uint32 stays: from_bitset refuses int32

    def to_host(array: Any) -> npt.NDArray[Any]:
        return np.asarray(array.copy_to_host() if hasattr(array, "copy_to_host") else array.cpu().numpy())

    return Cuvs(brute_force, cagra, filters, to_device, to_host)


@dataclass(frozen=True)
class _Built:
    """What the device holds of the first `rows` rows. cuVS' indexes only look at `vectors`: they must live as long."""

    vectors: Any = None
    exact: Any = None
    graph: Any = None
    rows: int = 0


class CuvsAnn:
    """See AnnIndex. Vectors are kept on the host too: cuVS's own files are not stable across versions."""

    def __init__(self, dimension: int, cuvs: Cuvs, graph_from: int = GRAPH_FROM) -> None:
        self._cuvs, self._graph_from = cuvs, graph_from
        self._rows, self._vectors = Rows(), np.empty((0, dimension), np.float32)
        self._built = _Built()

    def add(self, ids: Ids, vectors: Floats) -> None:
        """See AnnIndex."""
        check_vectors(vectors, len(ids), self._vectors.shape[1])
        self._rows.append(ids)
        self._vectors = np.concatenate((self._vectors, vectors))

    def build(self) -> None:
        """See AnnIndex. Copies the vectors to the device and builds its indexes there, unless few are new."""
        if len(self._rows.ids) - self._built.rows <= TAIL_SHARE * self._built.rows:
            return
        vectors, graph = self._cuvs.to_device(np.ascontiguousarray(self._vectors)), None
        exact = self._cuvs.brute_force.build(vectors, metric="inner_product")
        if len(self._vectors) >= self._graph_from:
            parameters = self._cuvs.cagra.IndexParams(metric="inner_product", graph_degree=GRAPH_DEGREE)
            graph = self._cuvs.cagra.build(parameters, vectors)
        self._built = _Built(vectors, exact, graph, len(self._vectors))

    def widen(self) -> bool:
        """See AnnIndex. Without the graph: every vector is looked at, on the device too."""
        if self._built.graph is None:
            return False
        self._built = replace(self._built, graph=None)
        return True

    def remove(self, ids: Ids) -> None:
        """See AnnIndex. When all that is dead has gone, what is left is searched on the host until `build`."""
        self._rows.kill(ids)
        if self._rows.rotten():
            alive = self._rows.alive
            self._rows, self._vectors = Rows(self._rows.ids[alive]), np.ascontiguousarray(self._vectors[alive])
            self._built = _Built()

    def search(self, query: Floats, k: int, allow: Ids | None = None) -> Neighbours:
        """See AnnIndex."""
        check_query(query, k, self._vectors.shape[1])
        admitted = self._rows.admitted(allow)
        tail = admitted.copy()
        tail[: self._built.rows] = False
        found = [nearest_rows(self._vectors, self._rows.ids, tail, query, k)]
        if admitted[: self._built.rows].any():
            found.insert(0, self._search_device(query, k, admitted[: self._built.rows]))
        ids, scores = np.concatenate([n.ids for n in found]), np.concatenate([n.scores for n in found])
        best = np.argsort(-scores, kind="stable")[:k]
        return Neighbours(ids[best], scores[best])

    def save(self, path: Path) -> None:
        """See AnnIndex."""
        write_saved(path, self._rows.ids[self._rows.alive], self._vectors[self._rows.alive])

    def load(self, path: Path) -> None:
        """See AnnIndex. Searched on the host until `build`."""
        ids, self._vectors = read_saved(path, self._vectors.shape[1])
        self._rows = Rows(ids)
        self._built = _Built()

    def bytes(self) -> int:
        """See AnnIndex. The vectors on the host, on the device, and the graph's links."""
        row_bytes = 4 * self._vectors.shape[1]
        links = 0 if self._built.graph is None else 4 * GRAPH_DEGREE
        return self._vectors.nbytes + self._built.rows * (row_bytes + links)

    def __len__(self) -> int:
        return len(self._rows)

    def _search_device(self, query: Floats, k: int, admitted: npt.NDArray[np.bool_]) -> Neighbours:
        """Of the built rows. What is admitted goes along as a bitset, kept alive until the answer is on the host."""
        count = int(admitted.sum())
        wanted = min(k, count)
        queries = self._cuvs.to_device(np.ascontiguousarray(query[None, :]))
        bits = self._cuvs.to_device(bitset(admitted))
        allowed = self._cuvs.filters.from_bitset(bits) if count < len(admitted) else self._cuvs.filters.no_filter()
        if self._built.graph is not None and count >= EXACT_SHARE * len(admitted):
            parameters = self._cuvs.cagra.SearchParams(
                itopk_size=max(64, -(-2 * wanted // 32) * 32), num_random_samplings=RANDOM_SAMPLINGS
            )
            answer = self._cuvs.cagra.search(parameters, self._built.graph, queries, wanted, filter=allowed)
            found = self._masked(answer, admitted)
            if len(found.ids) == wanted:
                return found
        answer = self._cuvs.brute_force.search(self._built.exact, queries, wanted, prefilter=allowed)
        return self._masked(answer, admitted)

    def _masked(self, answer: tuple[Any, Any], admitted: npt.NDArray[np.bool_]) -> Neighbours:
        """Without sentinels: rows past the end, rows that were not admitted, scores that are not finite."""
        scores = self._cuvs.to_host(answer[0])[0].astype(np.float32)
        rows = self._cuvs.to_host(answer[1])[0].astype(np.int64)
        inside = (rows >= 0) & (rows < len(admitted)) & np.isfinite(scores)
        inside[inside] = admitted[rows[inside]]
        scores, rows = scores[inside], rows[inside]
        best = by_score(scores, rows)
        return Neighbours(self._rows.ids[rows[best]], scores[best])


def bitset(admitted: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """(ceil(n / 32),) uint32, bit i of word w for row 32 w + i; 1 = may be found."""
    padded = np.zeros(-(-len(admitted) // 32) * 32, np.bool_)
    padded[: len(admitted)] = admitted
    return np.packbits(padded, bitorder="little").view(np.uint32)
