"""How quick and how right the index backends are, over numbers of vectors. Starts nothing.

The vectors are drawn in clusters, as facts are about few things; random ones would flatter no backend and tell nothing.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import numpy as np

from inferscale_server.ann import AnnIndex, ExactAnn, Floats

DIMENSION = 384
CLUSTERS_OF = 50
"""Vectors of one cluster, on average."""
SPREAD = 0.06
"""Standard deviation of each component around its cluster's centre, whose components' is 1 / sqrt(DIMENSION)."""
QUERIES = 200
K = 20


@dataclass(frozen=True, slots=True)
class Backend:
    """A kind of index. `make` takes the dimension."""

    name: str
    make: Callable[[int], AnnIndex]


@dataclass(frozen=True, slots=True)
class IndexFigures:
    """One backend with so many vectors. `recall` of the exact K nearest; times in seconds and ms; `bytes` saved."""

    backend: str
    vectors: int
    recall: float
    median_ms: float
    p99_ms: float
    build_s: float
    bytes: int


def here() -> list[Backend]:
    """Exact search, and the graphs whose packages and devices are there."""
    found = [Backend("exact", ExactAnn)]
    try:
        from inferscale_server.ann_faiss import FaissAnn

        FaissAnn(2)
        found.append(Backend("faiss", FaissAnn))
    except ImportError:
        pass
    return found


def measure(
    sizes: Sequence[int], backends: Sequence[Backend], tell: Callable[[str], None], seed: int = 0
) -> Iterator[IndexFigures]:
    """Size by size, each backend over the same vectors and queries."""
    for size in sizes:
        drawn = clustered(size + QUERIES, seed)
        vectors, queries = drawn[:size], drawn[size:]
        wanted: list[set[int]] = []
        for backend in backends:
            tell(f"{backend.name}, {size:,} vectors")
            index = backend.make(DIMENSION)
            started = perf_counter()
            index.add(np.arange(size, dtype=np.int64), vectors)
            built = perf_counter() - started
            found, times = _asked(index, queries)
            wanted = wanted or found  # the first is exact
            hits = sum(len(one & other) for one, other in zip(found, wanted, strict=True))
            yield IndexFigures(
                backend.name,
                size,
                hits / sum(map(len, wanted)),
                median(times),
                quantiles(times, n=100)[98],
                built,
                _saved_bytes(index),
            )


def clustered(count: int, seed: int) -> Floats:
    """(count, DIMENSION) float32 of length 1."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(max(count // CLUSTERS_OF, 1), DIMENSION)).astype(np.float32) / np.sqrt(DIMENSION)
    vectors = centres[random.integers(0, len(centres), count)]
    vectors += SPREAD * random.standard_normal(size=vectors.shape, dtype=np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def peak_gib() -> float:
    """The most memory that this process has taken, GiB."""
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 2**30


def _asked(index: AnnIndex, queries: Floats) -> tuple[list[set[int]], list[float]]:
    index.search(queries[0], K)  # warm
    found, times = [], []
    for query in queries:
        started = perf_counter()
        neighbours = index.search(query, K)
        times.append(1e3 * (perf_counter() - started))
        found.append(set(neighbours.ids.tolist()))
    return found, times


def _saved_bytes(index: AnnIndex) -> int:
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder) / "index")
        return sum(file.stat().st_size for file in Path(folder).iterdir())
