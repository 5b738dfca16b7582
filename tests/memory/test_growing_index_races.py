"""Facts that come, change and go while a graph is being built, or while it is searched."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from inferscale_server.ann import ExactAnn, Floats, Ids, Neighbours
from inferscale_server.growing_index import GrowingIndex
from inferscale_server.index import ExactIndex

from .test_ann import units
from .test_growing_index import ALICE, same, vectors_of


class Held(ExactAnn):
    """A graph whose building waits until it is let go."""

    go = threading.Event()
    began = threading.Event()

    def add(self, ids: Ids, vectors: Floats) -> None:
        Held.began.set()
        assert Held.go.wait(20)
        super().add(ids, vectors)


def building() -> tuple[GrowingIndex, ExactIndex]:
    """An index whose graph is being built until `Held.go`, and its exact twin, with the same sixty facts."""
    Held.go.clear()
    Held.began.clear()
    index, twin = GrowingIndex(Held, 50), ExactIndex()
    for each in (index, twin):
        each.add(ALICE, [f"f{i}" for i in range(60)], vectors_of(60, 1))
    assert Held.began.wait(20)
    return index, twin


def test_what_happens_while_a_graph_is_built_is_not_lost() -> None:
    index, twin = building()
    for each in (index, twin):
        each.remove(ALICE, ["f3", "f4"])
        each.replace(ALICE, "f10", vectors_of(1, 5))
        each.add(ALICE, ["late"], vectors_of(1, 6))
        each.add(ALICE, ["gone"], vectors_of(1, 7))
        each.remove(ALICE, ["gone"])
    assert same(index, twin) and not index.graphed(ALICE)
    Held.go.set()
    index.settle()
    assert index.graphed(ALICE) and same(index, twin, 60)


def test_a_fact_put_back_with_other_vectors_while_a_graph_is_built_is_found_by_those() -> None:
    index, twin = building()
    for each in (index, twin):
        each.remove(ALICE, ["f7"])
        each.add(ALICE, ["f7"], vectors_of(1, 5))
    Held.go.set()
    index.settle()
    assert index.graphed(ALICE) and same(index, twin, 20)
    assert index.search(ALICE, vectors_of(1, 5)[0], 1)[0].fact_id == "f7"


def test_an_owner_dropped_and_filled_again_while_its_graph_is_built_has_the_new_vectors() -> None:
    Held.go.clear()
    Held.began.clear()
    index, twin = GrowingIndex(Held, 50), ExactIndex()
    index.add(ALICE, [f"f{i}" for i in range(60)], vectors_of(60, 1))
    assert Held.began.wait(20)
    index.remove_owner(ALICE)
    for each in (index, twin):
        each.add(ALICE, [f"f{i}" for i in range(70)], vectors_of(70, 2))
    Held.go.set()
    index.settle()
    assert index.graphed(ALICE) and same(index, twin, 20)


def test_what_came_while_a_graph_was_built_needs_no_further_write_to_get_into_one() -> None:
    Held.go.clear()
    Held.began.clear()
    built: list[int] = []

    class Counted(Held):
        def build(self) -> None:
            built.append(len(self))

    index = GrowingIndex(Counted, 50)
    index.add(ALICE, [f"f{i}" for i in range(60)], vectors_of(60, 1))
    assert Held.began.wait(20)
    index.add(ALICE, [f"g{i}" for i in range(60)], vectors_of(60, 2))
    Held.go.set()
    index.settle()
    assert built == [60, 120]


def test_an_owner_dropped_while_its_graph_is_built_stays_gone() -> None:
    Held.go.clear()
    Held.began.clear()
    index = GrowingIndex(Held, 50)
    index.add(ALICE, [f"f{i}" for i in range(60)], vectors_of(60, 1))
    assert Held.began.wait(20)
    index.remove_owner(ALICE)
    Held.go.set()
    index.settle()
    assert not index.graphed(ALICE) and index.search(ALICE, units(1)[0], 5) == ()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("again", ["replaced", "removed and added"])
def test_a_fact_that_changes_while_the_graph_is_searched_is_found(when: str, again: str) -> None:
    class Disturbed(ExactAnn):
        meanwhile: Callable[[], None] = staticmethod(lambda: None)

        def search(self, query: Floats, k: int, allow: Ids | None = None) -> Neighbours:
            if when == "before":
                Disturbed.meanwhile()
            found = super().search(query, k, allow)
            if when == "after":
                Disturbed.meanwhile()
            return found

    index = GrowingIndex(Disturbed, 50)
    vectors = vectors_of(60, 1)
    index.add(ALICE, [f"f{i}" for i in range(60)], vectors)
    index.settle()

    def change() -> None:
        if again == "replaced":
            index.replace(ALICE, "f9", vectors[9:10])
        else:
            index.remove(ALICE, ["f9"])
            index.add(ALICE, ["f9"], vectors[9:10])

    Disturbed.meanwhile = staticmethod(change)
    assert [scored.fact_id for scored in index.search(ALICE, vectors[9], 1)] == ["f9"]
    assert index.graphed(ALICE)


def test_what_stays_is_found_by_every_search_while_other_facts_come_change_and_go() -> None:
    index, vectors = GrowingIndex(ExactAnn, 50), vectors_of(100, 1)
    index.add(ALICE, [f"f{i}" for i in range(100)], vectors)
    done, missed = threading.Event(), list[str]()

    def search() -> None:
        for turn in range(1_000_000):
            fact = turn % 50
            found = [scored.fact_id for scored in index.search(ALICE, vectors[fact], 3)]
            if f"f{fact}" not in found:
                missed.append(f"f{fact}")
            if done.is_set():
                return

    reader = threading.Thread(target=search)
    reader.start()
    try:
        for turn in range(150):
            fact = f"f{50 + turn % 50}"
            index.replace(ALICE, fact, vectors_of(1 + turn % 2, turn))
            index.add(ALICE, [f"new{turn}"], vectors_of(1, 1_000 + turn))
            index.remove(ALICE, [fact, f"new{turn - 5}"])
            index.add(ALICE, [fact], vectors_of(1, turn))
    finally:
        done.set()
        reader.join()
    index.settle()
    assert missed == [] and index.count(ALICE) == 105 and index.graphed(ALICE)
