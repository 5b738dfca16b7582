"""Exact search for most owners; for one who has outgrown it, a graph over most facts and exact search over the rest.

A graph is built from a snapshot in a thread of its own, while exact search goes on answering. Afterwards facts that
come or change are searched exactly beside it, facts that go are masked, and when both are a tenth of it, it is built
anew. Filtered searches and those for which the graph finds too little are exact: a graph under a filter loses recall.
One owner, one graph: a graph that many owners share finds almost nothing of one of them (rapidsai/cuvs issue 252).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from inferscale_server.ann import AnnIndex
from inferscale_server.index import Accept, ExactIndex, Floats, OwnerRows, unit_rows
from inferscale_server.types import Owner, Scored

logger = logging.getLogger(__name__)

CHANGED_SHARE = 0.1
MakeGraph = Callable[[int], AnnIndex]
"""From a dimension to an empty collection."""


@dataclass(frozen=True)
class _Graph:
    """A built graph; its ids are places in `facts`. `stale` only grows, and `fresh` holds what came or changed."""

    ann: AnnIndex
    facts: tuple[str, ...]  # the fact of each row
    several: bool  # do some facts have several rows?
    stale: set[str] = field(default_factory=set)
    fresh: ExactIndex = field(default_factory=ExactIndex)

    def worn(self, owner: Owner) -> bool:
        return len(self.stale) + self.fresh.count(owner) > CHANGED_SHARE * len(self.facts)


class GrowingIndex(ExactIndex):
    """See VectorIndex. Owners with `graph_from` vectors or more get a graph."""

    def __init__(self, make_graph: MakeGraph, graph_from: int) -> None:
        super().__init__()
        self._make_graph, self._graph_from = make_graph, graph_from
        self._graphs: dict[Owner, _Graph] = {}
        self._changed: dict[Owner, set[str]] = {}  # while a graph is being built: what it will not know
        self._builders: dict[Owner, threading.Thread] = {}
        self._lock = threading.RLock()  # between the writer and the builder; readers take none
        self._one_at_a_time = threading.Lock()

    def add(self, owner: Owner, ids: Sequence[str], vectors: Floats) -> None:
        """See VectorIndex."""
        with self._lock:
            super().add(owner, ids, vectors)
            if ids and (graph := self._graphs.get(owner)) is not None:
                graph.fresh.add(owner, ids, vectors)
        self._build_if_due(owner)

    def remove(self, owner: Owner, ids: Collection[str]) -> None:
        """See VectorIndex."""
        with self._lock:
            if (graph := self._graphs.get(owner)) is not None:
                graph.stale.update(ids)
                graph.fresh.remove(owner, ids)
            super().remove(owner, ids)
        self._build_if_due(owner)

    def remove_owner(self, owner: Owner) -> None:
        """See VectorIndex."""
        with self._lock:
            self._graphs.pop(owner, None)
            super().remove_owner(owner)

    def replace(self, owner: Owner, fact_id: str, vectors: Floats) -> None:
        """See VectorIndex."""
        with self._lock:
            super().replace(owner, fact_id, vectors)
            self._changed.get(owner, set()).add(fact_id)
            if (graph := self._graphs.get(owner)) is not None:
                _refresh(graph, owner, fact_id, vectors)
        self._build_if_due(owner)

    def search(
        self, owner: Owner, query: Floats, k: int, min_score: float | None = None, accept: Accept | None = None
    ) -> tuple[Scored, ...]:
        """See VectorIndex. Nearly all of the nearest where a graph answers: docs/index-backends.md says how many."""
        graph = self._graphs.get(owner)
        if graph is None or accept is not None or k < 1:
            return super().search(owner, query, k, min_score, accept)
        found = self._by_graph(graph, owner, query, k)
        if found is None:
            return super().search(owner, query, k, min_score)
        return tuple(takewhile(lambda scored: min_score is None or scored.score >= min_score, found))

    def empty(self) -> GrowingIndex:
        """See VectorIndex."""
        return GrowingIndex(self._make_graph, self._graph_from)

    def graphed(self, owner: Owner) -> bool:
        """Does a graph answer for this owner now?"""
        return owner in self._graphs

    def settle(self) -> None:
        """Wait until no graph is being built. For tests and benchmarks."""
        for builder in list(self._builders.values()):
            builder.join()

    def _by_graph(self, graph: _Graph, owner: Owner, query: Floats, k: int) -> list[Scored] | None:
        """None when the graph found too little to be sure of the best k."""
        unit = unit_rows(np.asarray(query)[None, :])[0]
        stale, fresh = len(graph.stale), graph.fresh.search(owner, query, k)
        wanted = min((2 * k if graph.several else k) + stale, len(graph.facts))
        near = graph.ann.search(unit, wanted)
        scores = {scored.fact_id: scored.score for scored in fresh}
        for row, score in zip(near.ids.tolist(), near.scores.tolist(), strict=True):
            fact = graph.facts[row]
            if fact not in graph.stale and score > scores.get(fact, -2.0):
                scores[fact] = score
        if len(scores) < min(k, self.count(owner)):
            return None
        best = sorted(scores.items(), key=lambda of: -of[1])[:k]
        return [Scored(fact, score) for fact, score in best]

    def _build_if_due(self, owner: Owner) -> None:
        graph = self._graphs.get(owner)
        due = self.row_count(owner) >= self._graph_from if graph is None else graph.worn(owner)
        if due and owner not in self._changed:
            self._changed[owner] = set()
            # A daemon: a pool's threads are waited for at exit, and a large graph takes minutes.
            builder = threading.Thread(target=self._build, args=(owner,), name="inferscale-graph", daemon=True)
            self._builders[owner] = builder
            builder.start()

    def _build(self, owner: Owner) -> None:
        """In the builder's thread."""
        with self._one_at_a_time:
            self._build_now(owner)

    def _build_now(self, owner: Owner) -> None:
        try:
            with self._lock:
                self._changed[owner].clear()
                seen = self.rows(owner)
            if len(seen.vectors) < self._graph_from:
                self._graphs.pop(owner, None)
                return
            ann = self._make_graph(seen.vectors.shape[1])
            ann.add(np.arange(len(seen.vectors), dtype=np.int64), seen.vectors)
            graph = _Graph(ann, seen.facts, len(set(seen.facts)) < len(seen.facts))
            with self._lock:
                self._catch_up(graph, owner, seen)
        except Exception as error:  # exact search stays
            logger.warning("a search graph could not be built: %s", type(error).__name__, exc_info=error)
        finally:
            self._builders.pop(owner, None)
            self._changed.pop(owner, None)  # last: from here on another one may begin

    def _catch_up(self, graph: _Graph, owner: Owner, seen: OwnerRows) -> None:
        """What happened while the graph was being built; under the lock."""
        now, known = self.rows(owner), set(seen.facts)
        there = set(now.facts)
        graph.stale.update(known - there)
        new = [row for row, fact in enumerate(now.facts) if fact not in known]
        if new:
            graph.fresh.add(owner, [now.facts[row] for row in new], now.vectors[new])
        for fact in self._changed[owner] & known & there:
            _refresh(graph, owner, fact, now.vectors[[row for row, of in enumerate(now.facts) if of == fact]])
        if there:
            self._graphs[owner] = graph


def _refresh(graph: _Graph, owner: Owner, fact_id: str, vectors: Floats) -> None:
    """The fact has other vectors than the graph knows. Findable at every moment: fresh first, then stale."""
    if graph.fresh.has(owner, fact_id):
        graph.fresh.replace(owner, fact_id, vectors)
    else:
        graph.fresh.add(owner, [fact_id] * len(vectors), vectors)
    graph.stale.add(fact_id)
