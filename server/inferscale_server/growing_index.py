"""Exact search for most owners; for one who has outgrown it, a graph over most facts and exact search over the rest.

A graph is built from a snapshot in a thread of its own, while exact search goes on answering, and serves only if it
finds what exact search finds (`graph_check`). It does not grow: facts that come or change are searched exactly beside
it, facts that go are masked, and when both are a tenth of it, it is built and checked anew. Filtered searches and those
for which the graph finds too little are exact: a graph under a filter loses recall.
One owner, one graph: a graph that many owners share finds almost nothing of one of them (rapidsai/cuvs issue 252).
"Graph" stands for whatever AnnIndex a search is quicker with; one on a GPU may look at every vector.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from inferscale_server.ann import AnnIndex, Neighbours
from inferscale_server.equal_rows import EqualRows, equal_rows
from inferscale_server.graph_check import LEAST_RECALL, widened_recall
from inferscale_server.index import Accept, ExactIndex, Floats, OwnerRows, unit_rows
from inferscale_server.types import Owner, Scored

logger = logging.getLogger(__name__)

CHANGED_SHARE = 0.1
BUILDER_NICENESS = 10
"""Of the building threads, where threads have one (Linux): chats go first."""
WIDEN = 4
"""A search that met too many masked rows asks the graph for so many times more."""
WIDEST_SHARE, WIDEST_FEW = 1 / 8, 64
"""Of the graph's rows: whoever wants more of them, and more than a few, has them faster by exact search."""
MakeGraph = Callable[[int], AnnIndex]
"""From a dimension to an empty collection."""


@dataclass(frozen=True)
class _Graph:
    """A built graph over distinct vectors. `stale` only grows, and `fresh` holds what came or changed."""

    ann: AnnIndex  # its ids count distinct vectors
    rows: EqualRows
    facts: tuple[str, ...]  # the fact of each row
    dimension: int
    bytes: int
    recall: float  # of the sample
    stale: set[str] = field(default_factory=set)
    fresh: ExactIndex = field(default_factory=ExactIndex)

    def worn(self, owner: Owner) -> bool:
        return len(self.stale) + self.fresh.count(owner) > CHANGED_SHARE * len(self.facts)

    def live(self, near: Neighbours, k: int) -> dict[str, tuple[float, int]]:
        """The facts of these vectors that are not masked, of equal vectors the `k` oldest: each with the score of its
        best one and a row."""
        found: dict[str, tuple[float, int]] = {}
        for vector, score in zip(near.ids.tolist(), near.scores.tolist(), strict=True):
            equal: dict[str, int] = {}
            for row in self.rows.of(vector):
                if (fact := self.facts[row]) not in self.stale:
                    equal.setdefault(fact, row)
                    if len(equal) == k:
                        break
            for fact, row in equal.items():
                found.setdefault(fact, (score, row))
        return found


@dataclass(frozen=True)
class _Build:
    """A graph that is being built. `changed` is what it will not know: facts that went, or have other vectors."""

    thread: threading.Thread
    changed: set[str] = field(default_factory=set)


class GrowingIndex(ExactIndex):
    """See VectorIndex. Owners with `graph_from` vectors or more get a graph."""

    def __init__(self, make_graph: MakeGraph, graph_from: int, at_once: bool = True) -> None:
        """Unless `at_once`, nothing is built before `start_building`."""
        super().__init__()
        self._make_graph, self._graph_from = make_graph, graph_from
        self._may_build = at_once
        self._graphs: dict[Owner, _Graph] = {}
        self._builds: dict[Owner, _Build] = {}
        self._due_at: dict[Owner, int] = {}  # vectors, of owners whose graph failed
        self._lock = threading.RLock()  # between the writer and the builders; readers take none
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
            self._note_changed(owner, ids)
            if (graph := self._graphs.get(owner)) is not None:
                # What is fresh is no row of the graph, or is masked already.
                graph.stale.update(id_ for id_ in ids if self.has(owner, id_) and not graph.fresh.has(owner, id_))
                graph.fresh.remove(owner, ids)
            super().remove(owner, ids)
            self._build_if_due(owner)

    def remove_owner(self, owner: Owner) -> None:
        """See VectorIndex."""
        with self._lock:
            self._note_changed(owner, self._known.get(owner, ()))
            self._graphs.pop(owner, None)
            self._due_at.pop(owner, None)
            super().remove_owner(owner)

    def replace(self, owner: Owner, fact_id: str, vectors: Floats) -> None:
        """See VectorIndex."""
        with self._lock:
            super().replace(owner, fact_id, vectors)
            self._note_changed(owner, (fact_id,))
            if (graph := self._graphs.get(owner)) is not None:
                _refresh(graph, owner, fact_id, vectors)
            self._build_if_due(owner)

    def search(
        self, owner: Owner, query: Floats, k: int, min_score: float | None = None, accept: Accept | None = None
    ) -> tuple[Scored, ...]:
        """See VectorIndex. Nearly all of the nearest where a graph answers: docs/index-backends.md says how many. Of
        equal scores, what came or changed after the graph was built is last."""
        graph = self._graphs.get(owner)
        if graph is None or accept is not None or k < 1:
            return super().search(owner, query, k, min_score, accept)
        found = self._by_graph(graph, owner, query, k)
        if found is None:
            return super().search(owner, query, k, min_score)
        return tuple(takewhile(lambda scored: min_score is None or scored.score >= min_score, found))

    def empty(self) -> GrowingIndex:
        """See VectorIndex."""
        return GrowingIndex(self._make_graph, self._graph_from, self._may_build)

    def start_building(self) -> None:
        """See VectorIndex."""
        with self._lock:
            self._may_build = True
            for owner in self._snapshots:
                self._build_if_due(owner)

    def bytes(self, owner: Owner) -> int:
        """See VectorIndex. A graph has a copy of the vectors, on its device."""
        graph = self._graphs.get(owner)
        return super().bytes(owner) + (0 if graph is None else graph.bytes)

    def graphed(self, owner: Owner) -> bool:
        """Does a graph answer for this owner now?"""
        return owner in self._graphs

    def graph_recall(self, owner: Owner) -> float | None:
        """The share of the nearest that the owner's graph found in its check; None where no graph answers."""
        graph = self._graphs.get(owner)
        return None if graph is None else graph.recall

    def settle(self) -> None:
        """Wait until no graph is being built. For tests and benchmarks."""
        while builds := list(self._builds.values()):
            for build in builds:
                build.thread.join()

    def _by_graph(self, graph: _Graph, owner: Owner, query: Floats, k: int) -> list[Scored] | None:
        """None when the graph cannot be sure of the best k, or fails."""
        unit = unit_rows(np.asarray(query)[None, :])[0]
        if len(unit) != graph.dimension:
            return None
        vectors = len(graph.rows)
        asked, widest = 2 * k, max(WIDEST_SHARE * vectors, WIDEST_FEW)
        try:
            while asked <= widest:
                near = graph.ann.search(unit, min(asked, vectors))
                if len(near.ids) < min(asked, vectors):
                    return None
                # The graph first: a fact that changes in between is found by its new vectors, or by both.
                found = graph.live(near, k)
                found |= {one.fact_id: (one.score, len(graph.facts)) for one in graph.fresh.search(owner, query, k)}
                best = sorted(found.items(), key=lambda of: (-of[1][0], of[1][1]))[:k]
                if len(near.ids) == vectors or (len(best) == k and best[-1][1][0] >= near.scores[-1]):
                    return [Scored(fact, score) for fact, (score, _) in best]
                asked *= WIDEN
        except Exception as error:  # a device's, of any kind: exact search needs none
            self._give_up(owner, graph, error)
        return None

    def _note_changed(self, owner: Owner, ids: Iterable[str]) -> None:
        if (build := self._builds.get(owner)) is not None:
            build.changed.update(ids)

    def _due(self, owner: Owner) -> bool:
        graph = self._graphs.get(owner)
        if graph is None:
            return self.row_count(owner) >= self._due_at.get(owner, self._graph_from)
        return graph.worn(owner)

    def _build_if_due(self, owner: Owner) -> None:
        """Under the lock."""
        if not self._may_build or owner in self._builds or not self._due(owner):
            return
        # A daemon: a pool's threads are waited for at exit, and a large graph takes minutes.
        thread = threading.Thread(target=self._build, args=(owner,), name="inferscale-graph", daemon=True)
        self._builds[owner] = _Build(thread)
        thread.start()

    def _build(self, owner: Owner) -> None:
        """In the builder's thread: again as long as so much has changed meanwhile that it is due again."""
        _let_others_go_first()
        with self._one_at_a_time:
            while True:
                try:
                    self._build_now(owner)
                except Exception as error:  # exact search stays
                    self._give_up(owner, self._graphs.get(owner), error)
                with self._lock:
                    if not self._due(owner):
                        del self._builds[owner]
                        return

    def _build_now(self, owner: Owner) -> None:
        with self._lock:
            self._builds[owner].changed.clear()
            seen = self.rows(owner)
            if len(seen.vectors) < self._graph_from:
                self._graphs.pop(owner, None)
                return
        rows, dimension = equal_rows(seen.vectors), seen.vectors.shape[1]
        vectors, ann = rows.distinct(seen.vectors), self._make_graph(dimension)
        ann.add(np.arange(len(vectors), dtype=np.int64), vectors)
        ann.build()
        recall = widened_recall(ann, vectors)
        if recall < LEAST_RECALL:
            self._refuse(owner, len(seen.vectors), recall)
            return
        logger.info("a search graph over %d vectors serves: recall %.3f in a sample", len(seen.vectors), recall)
        graph = _Graph(ann, rows, seen.facts, dimension, ann.bytes(), recall)
        with self._lock:
            self._catch_up(graph, owner, seen)

    def _catch_up(self, graph: _Graph, owner: Owner, seen: OwnerRows) -> None:
        """What happened while the graph was being built; under the lock."""
        now, known = self.rows(owner), set(seen.facts)
        there = set(now.facts)
        graph.stale.update(known - there)
        new = [row for row, fact in enumerate(now.facts) if fact not in known]
        if new:
            graph.fresh.add(owner, [now.facts[row] for row in new], now.vectors[new])
        changed = self._builds[owner].changed & known & there
        rows_of: dict[str, list[int]] = {fact: [] for fact in changed}
        for row, fact in enumerate(now.facts):
            if fact in changed:
                rows_of[fact].append(row)
        for fact, rows in rows_of.items():
            _refresh(graph, owner, fact, now.vectors[rows])
        if there:
            self._graphs[owner] = graph

    def _refuse(self, owner: Owner, vectors: int, recall: float) -> None:
        """A few vectors more would not make it better."""
        with self._lock:
            self._without_graph(owner)
            logger.warning(
                "a search graph over %d vectors found %.3f of the nearest in a sample, less than %.3f, and a wider "
                "search would be no quicker than exact search, which answers until there are %d vectors",
                vectors,
                recall,
                LEAST_RECALL,
                self._due_at[owner],
            )

    def _give_up(self, owner: Owner, graph: _Graph | None, error: Exception) -> None:
        """Most causes, such as a full device, would be met again at once."""
        with self._lock:
            if graph is not None and self._graphs.get(owner) is not graph:
                return
            logger.warning("a search graph failed: %s", type(error).__name__, exc_info=error)
            self._without_graph(owner)

    def _without_graph(self, owner: Owner) -> None:
        """None before there are twice as many vectors; under the lock."""
        self._graphs.pop(owner, None)
        self._due_at[owner] = max(2 * self.row_count(owner), self._graph_from)


def _refresh(graph: _Graph, owner: Owner, fact_id: str, vectors: Floats) -> None:
    """The fact has other vectors than the graph knows. Findable at every moment: fresh first, then stale."""
    if graph.fresh.has(owner, fact_id):
        graph.fresh.replace(owner, fact_id, vectors)
    else:
        graph.fresh.add(owner, [fact_id] * len(vectors), vectors)
    graph.stale.add(fact_id)


def _let_others_go_first() -> None:
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):  # a sandbox may forbid it; then the threads are equals
            os.setpriority(os.PRIO_PROCESS, thread, max(BUILDER_NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
