"""How quick and how right the index backends are, over numbers of vectors, as they are served. Starts no server.

The vectors are drawn in clusters, as facts are about few things; a graph over random
ones would hardly be let serve (`graph_check`).
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from time import perf_counter, process_time

import numpy as np

from inferscale_server.ann import Floats
from inferscale_server.errors import ConfigError
from inferscale_server.growing_index import GrowingIndex
from inferscale_server.index import ExactIndex
from inferscale_server.index_choice import AUTO_GRAPH_FROM, NAMED_GRAPH_FROM, IndexName, make_index
from inferscale_server.types import Owner

DIMENSION = 384
CLUSTERS_OF = 50
"""Vectors of one cluster, on average."""
SPREAD = 0.06
"""Standard deviation of each component around its cluster's centre, whose components' is 1 / sqrt(DIMENSION)."""
QUERIES = 200
K = 20
OWNER = Owner("bench", "index")
ADDED_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Backend:
    """A kind of index, empty. `least`: vectors of one owner from which on it is more than exact search on the CPU."""

    name: str
    make: Callable[[], ExactIndex]
    least: int = 0


@dataclass(frozen=True, slots=True)
class IndexFigures:
    """One backend with so many vectors. `recall` of the exact K nearest; times in seconds and ms; `bytes` of memory.

    `sampled` is the recall that the index itself saw before its graph served; None where it has none.
    What is called cpu is this process's time on the cores: it is the same beside other work, a GPU's is not in it.
    """

    backend: str
    vectors: int
    recall: float
    median_ms: float
    p99_ms: float
    cpu_ms: float
    build_s: float
    build_cpu_s: float
    bytes: int
    sampled: float | None


@dataclass(frozen=True, slots=True)
class _Passed:
    """Seconds by the clock, and of this process on the cores."""

    wall_s: float
    cpu_s: float


class _Clock:
    """Runs from now."""

    def __init__(self) -> None:
        self._wall, self._cpu = perf_counter(), process_time()

    def passed(self) -> _Passed:
        return _Passed(perf_counter() - self._wall, process_time() - self._cpu)


def here() -> list[Backend]:
    """Exact search, and whatever else has its package and its device here."""
    found = [Backend("exact", ExactIndex)]
    if isinstance(make_index("exact"), GrowingIndex):
        found.append(Backend("exact on the GPU", partial(make_index, "exact"), AUTO_GRAPH_FROM))
    graphs: tuple[IndexName, ...] = ("faiss", "cuvs")
    for name in graphs:
        try:
            make_index(name)
        except ConfigError:
            continue
        found.append(Backend(name, partial(make_index, name), NAMED_GRAPH_FROM))
    return found


def measure(
    sizes: Sequence[int], backends: Sequence[Backend], tell: Callable[[str], None], seed: int = 0
) -> Iterator[IndexFigures]:
    """Size by size, each backend over the same vectors and queries; the first one is exact.

    Raises RuntimeError when a backend has built nothing, so that no other one's figures stand for it.
    """
    for size in sizes:
        drawn = clustered(size + QUERIES, seed)
        vectors, queries = drawn[:size], drawn[size:]
        wanted: list[set[str]] = []
        for backend in (one for one in backends if size >= one.least):
            tell(f"{backend.name}, {size:,} vectors")
            index = backend.make()
            started = _Clock()
            _fill(index, vectors)
            built = started.passed()
            started = _Clock()
            found, times = _asked(index, queries)
            asked = started.passed()
            wanted = wanted or found  # the first is exact
            hits = sum(len(one & other) for one, other in zip(found, wanted, strict=True))
            yield IndexFigures(
                backend.name,
                size,
                hits / sum(map(len, wanted)),
                median(times),
                quantiles(times, n=100)[98],
                1e3 * asked.cpu_s / QUERIES,
                built.wall_s,
                built.cpu_s,
                index.bytes(OWNER),
                index.graph_recall(OWNER) if isinstance(index, GrowingIndex) else None,
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


def _fill(index: ExactIndex, vectors: Floats) -> None:
    """As a start of the server does: all of it first, then the graph."""
    for at in range(0, len(vectors), ADDED_AT_ONCE):
        some = vectors[at : at + ADDED_AT_ONCE]
        index.add(OWNER, [str(at + row) for row in range(len(some))], some)
    index.start_building()
    if isinstance(index, GrowingIndex):
        index.settle()
        if not index.graphed(OWNER):
            raise RuntimeError(f"nothing was built over {len(vectors):,} vectors; the log says why")


def _asked(index: ExactIndex, queries: Floats) -> tuple[list[set[str]], list[float]]:
    index.search(OWNER, queries[0], K)  # warm
    found, times = [], []
    for query in queries:
        started = perf_counter()
        nearest = index.search(OWNER, query, K)
        times.append(1e3 * (perf_counter() - started))
        found.append({scored.fact_id for scored in nearest})
    return found, times
