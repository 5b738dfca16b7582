"""The exact index against a slow twin that sorts everything in Python."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferscale_server.index import ExactIndex, Floats
from inferscale_server.types import Owner, Scored

ALICE = Owner("local", "alice")
BOB = Owner("local", "bob")


@dataclass
class SlowIndex:
    """The same contract in the plainest way: a list of rows for each owner, searched one by one."""

    rows: dict[Owner, list[tuple[str, list[float]]]] = field(default_factory=dict)

    def add(self, owner: Owner, ids: list[str], vectors: Floats) -> None:
        self.rows.setdefault(owner, []).extend(zip(ids, vectors.tolist(), strict=True))

    def remove(self, owner: Owner, ids: list[str]) -> None:
        self.rows[owner] = [row for row in self.rows.get(owner, []) if row[0] not in ids]

    def search(self, owner: Owner, query: Floats, k: int, min_score: float | None) -> tuple[Scored, ...]:
        scored = [
            Scored(fact_id, sum(a * b for a, b in zip(vector, query.tolist(), strict=True)))
            for fact_id, vector in self.rows.get(owner, [])
        ]
        scored.sort(key=lambda one: -one.score)  # Python's sort is stable: ties stay in order of insertion
        return tuple(one for one in scored[:k] if min_score is None or one.score >= min_score)


@st.composite
def exact_vector(draw: st.DrawFn) -> list[float]:
    """Four of eight components are ±1/2: length 1, and all inner products are exact in float32, so ties are real."""
    where = draw(st.lists(st.integers(0, 7), min_size=4, max_size=4, unique=True))
    signs = draw(st.lists(st.sampled_from([-0.5, 0.5]), min_size=4, max_size=4))
    vector = [0.0] * 8
    for place, sign in zip(where, signs, strict=True):
        vector[place] = sign
    return vector


OWNERS = st.sampled_from([ALICE, BOB])
STEPS = st.one_of(
    st.tuples(st.just("add"), OWNERS, st.lists(exact_vector(), max_size=20)),
    st.tuples(st.just("remove"), OWNERS, st.lists(st.integers(0, 60), max_size=8)),
    st.tuples(st.just("remove_owner"), OWNERS, st.none()),
)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(STEPS, max_size=8),
    query=exact_vector(),
    k=st.integers(1, 50),
    min_score=st.one_of(st.none(), st.sampled_from([-0.5, 0.0, 0.25])),
)
def test_the_index_agrees_with_its_slow_twin(
    steps: list[tuple[str, Owner, list[object]]], query: list[float], k: int, min_score: float | None
) -> None:
    fast, slow, made = ExactIndex(), SlowIndex(), 0
    for action, owner, values in steps:
        if action == "add" and values:
            ids = [f"f{made + i}" for i in range(len(values))]
            made += len(values)
            fast.add(owner, ids, np.array(values, np.float32))
            slow.add(owner, ids, np.array(values, np.float32))
        elif action == "remove":
            fast.remove(owner, [f"f{i}" for i in values])
            slow.remove(owner, [f"f{i}" for i in values])
        elif action == "remove_owner":
            fast.remove_owner(owner)
            slow.rows.pop(owner, None)
    for owner in (ALICE, BOB):
        asked = np.array(query, np.float32)
        assert fast.search(owner, asked, k, min_score) == slow.search(owner, asked, k, min_score)
        assert fast.count(owner) == len(slow.rows.get(owner, []))


def random_unit(n: int, dimension: int, seed: int = 0) -> Floats:
    rows = np.random.default_rng(seed).normal(size=(n, dimension))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def test_scores_of_real_vectors_agree_with_the_slow_twin_to_rounding() -> None:
    vectors, query = random_unit(500, 32), random_unit(1, 32, seed=1)[0]
    ids = [str(i) for i in range(500)]
    fast, slow = ExactIndex(), SlowIndex()
    fast.add(ALICE, ids, vectors)
    slow.add(ALICE, ids, vectors)
    found, expected = fast.search(ALICE, query, 20), slow.search(ALICE, query, 20, None)
    assert [one.fact_id for one in found] == [one.fact_id for one in expected]
    assert np.allclose([one.score for one in found], [one.score for one in expected], atol=1e-6)


def test_a_vector_of_any_length_counts_by_its_direction() -> None:
    index = ExactIndex()
    index.add(ALICE, ["long", "short"], np.array([[1e30, 0], [0, 1e-30]], np.float32))
    assert index.search(ALICE, np.array([0, 3], np.float32), 1) == (Scored("short", 1.0),)


def test_equal_scores_come_oldest_first_also_where_k_cuts_through_them() -> None:
    index = ExactIndex()
    index.add(ALICE, ["worse", "a", "b", "c"], np.array([[0, 1], [1, 0], [1, 0], [1, 0]], np.float32))
    query = np.array([1, 0], np.float32)
    assert [one.fact_id for one in index.search(ALICE, query, 2)] == ["a", "b"]


def test_an_unknown_owner_finds_nothing_and_takes_nothing() -> None:
    index = ExactIndex()
    assert index.search(ALICE, np.ones(4, np.float32), 5) == ()
    assert index.count(ALICE) == index.bytes(ALICE) == 0
    index.remove(ALICE, ["x"])
    index.remove_owner(ALICE)


def test_fewer_than_k_come_back_without_padding() -> None:
    index = ExactIndex()
    index.add(ALICE, ["a"], np.ones((1, 4), np.float32))
    assert len(index.search(ALICE, np.ones(4, np.float32), 1_000)) == 1


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf, -np.inf])
def test_vectors_without_a_direction_are_refused_and_nothing_is_added(bad: float) -> None:
    index = ExactIndex()
    vectors = np.array([[1, 0], [bad, 0]], np.float32)
    with pytest.raises(ValueError, match="zero or not finite"):
        index.add(ALICE, ["a", "b"], vectors)
    assert index.count(ALICE) == 0
    with pytest.raises(ValueError, match="zero or not finite"):
        index.search(ALICE, vectors[1], 1)


def test_another_dimension_a_repeated_id_and_no_k_are_refused() -> None:
    index = ExactIndex()
    index.add(ALICE, ["a"], np.ones((1, 4), np.float32))
    for ids, vectors in ((["b"], np.ones((1, 5))), (["a"], np.ones((1, 4))), (["b", "c", "b"], np.ones((3, 4)))):
        with pytest.raises(ValueError):
            index.add(ALICE, ids, vectors.astype(np.float32))
    with pytest.raises(ValueError):
        index.search(ALICE, np.ones(5, np.float32), 1)
    with pytest.raises(ValueError):
        index.search(ALICE, np.ones(4, np.float32), 0)
    assert index.count(ALICE) == 1


def test_appending_one_by_one_copies_a_logarithmic_number_of_times() -> None:
    index, capacities = ExactIndex(), set()
    for i, row in enumerate(random_unit(1_000, 8)):
        index.add(ALICE, [str(i)], row[None, :])
        capacities.add(index.bytes(ALICE))
    assert len(capacities) <= 8
    assert index.count(ALICE) == 1_000


def test_a_fact_of_several_pieces_scores_by_its_best_one_and_counts_once() -> None:
    index = ExactIndex()
    index.add(ALICE, ["short", "long", "long"], np.array([[0.6, 0.8], [0, 1], [1, 0]], np.float32))
    index.add(ALICE, ["other"], np.array([[0.8, 0.6]], np.float32))
    for removed, ids in (("none", ["long", "other", "short"]), ("short", ["long", "other"]), ("long", ["other"])):
        index.remove(ALICE, [removed])
        found = index.search(ALICE, np.array([1, 0], np.float32), 5)
        assert [one.fact_id for one in found] == ids and index.count(ALICE) == len(ids)
    assert found[0].score == pytest.approx(0.8)


@settings(max_examples=60, deadline=None)
@given(
    facts=st.lists(st.lists(exact_vector(), min_size=1, max_size=4), min_size=1, max_size=12),
    gone=st.sets(st.integers(0, 11)),
    query=exact_vector(),
    k=st.integers(1, 12),
)
def test_pieces_agree_with_a_slow_twin(
    facts: list[list[list[float]]], gone: set[int], query: list[float], k: int
) -> None:
    index, asked = ExactIndex(), np.array(query, np.float32)
    index.add(ALICE, [f"f{i}" for i, rows in enumerate(facts) for _ in rows], np.concatenate(facts).astype(np.float32))
    index.remove(ALICE, [f"f{i}" for i in gone])
    kept = [Scored(f"f{i}", float((np.array(rows) @ asked).max())) for i, rows in enumerate(facts) if i not in gone]
    assert index.search(ALICE, asked, k) == tuple(sorted(kept, key=lambda one: -one.score)[:k])


def test_the_caller_may_change_its_array_afterwards() -> None:
    index, vectors = ExactIndex(), np.array([[1, 0]], np.float32)
    index.add(ALICE, ["a"], vectors)
    vectors[:] = np.nan
    assert index.search(ALICE, np.array([1, 0], np.float32), 1) == (Scored("a", 1.0),)


def test_a_reader_beside_a_writer_always_sees_a_whole_state() -> None:
    """The writer adds and removes ids in pairs (same direction): a reader that finds one must find both."""
    index, done, torn = ExactIndex(), threading.Event(), []
    index.add(ALICE, ["keep"], np.array([[0, 1]], np.float32))

    def read() -> None:
        while not done.is_set():
            ids = [one.fact_id for one in index.search(ALICE, np.array([1, 0], np.float32), 10_000, 0.5)]
            if len(ids) % 2 or {one.rstrip("LR") for one in ids[::2]} != {one.rstrip("LR") for one in ids[1::2]}:
                torn.append(ids)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for i in range(300):
        index.add(ALICE, [f"{i}L", f"{i}R"], np.array([[1, 0], [1, 0]], np.float32))
        if i % 3 == 2:
            index.remove(ALICE, [f"{i - 1}L", f"{i - 1}R"])
    done.set()
    for reader in readers:
        reader.join()
    assert torn == []
    assert index.count(ALICE) == 1 + 2 * 200


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(exact_vector(), min_size=1, max_size=20),
    accepted=st.sets(st.integers(0, 19)),
    query=exact_vector(),
    k=st.integers(1, 20),
    least=st.sampled_from([None, 0.0, 0.5]),
)
def test_a_search_among_accepted_facts_agrees_with_a_slow_twin(
    rows: list[list[float]], accepted: set[int], query: list[float], k: int, least: float | None
) -> None:
    index, asked = ExactIndex(), np.array(query, np.float32)
    index.add(ALICE, [f"f{i}" for i in range(len(rows))], np.array(rows, np.float32))
    everything = index.search(ALICE, asked, len(rows))
    expected = [one for one in everything if int(one.fact_id[1:]) in accepted and (least is None or one.score >= least)]
    assert index.search(ALICE, asked, k, least, lambda name: int(name[1:]) in accepted) == tuple(expected[:k])


@settings(max_examples=60, deadline=None)
@given(
    facts=st.lists(st.lists(exact_vector(), min_size=1, max_size=3), min_size=1, max_size=8),
    at=st.integers(0, 7),
    other=st.lists(exact_vector(), min_size=1, max_size=4),
    query=exact_vector(),
)
def test_a_replaced_fact_is_found_as_if_it_had_been_so_from_the_start(
    facts: list[list[list[float]]], at: int, other: list[list[float]], query: list[float]
) -> None:
    at %= len(facts)
    changed, fresh = ExactIndex(), ExactIndex()
    for index, content in ((changed, facts), (fresh, [*facts[:at], other, *facts[at + 1 :]])):
        for i, rows in enumerate(content):
            index.add(ALICE, [f"f{i}"] * len(rows), np.array(rows, np.float32))
    changed.replace(ALICE, f"f{at}", np.array(other, np.float32))
    for index in (changed, fresh):
        index.add(ALICE, ["last"], np.array([query], np.float32))
    asked = np.array(query, np.float32)
    assert changed.search(ALICE, asked, 20) == fresh.search(ALICE, asked, 20)
    for index in (changed, fresh):
        index.remove(ALICE, ["f0"])
    assert changed.search(ALICE, asked, 20) == fresh.search(ALICE, asked, 20)


def test_an_unknown_fact_or_another_dimension_cannot_be_replaced() -> None:
    index = ExactIndex()
    index.add(ALICE, ["a"], np.ones((1, 2), np.float32))
    for name, rows in (("b", [[1, 0]]), ("a", [[1, 0, 0]]), ("a", [[0, 0]])):
        with pytest.raises(ValueError):
            index.replace(ALICE, name, np.array(rows, np.float32))
    with pytest.raises(ValueError):
        index.replace(Owner("local", "bob"), "a", np.array([[1, 0]], np.float32))


def test_one_user_among_a_thousand_gets_exactly_its_own_best() -> None:
    index = ExactIndex()
    of_user = {}
    for user in range(1_000):
        owner, vectors = Owner("local", f"user {user}"), random_unit(50, 8, seed=user)
        index.add(owner, [f"{user}-{number}" for number in range(50)], vectors)
        of_user[owner] = vectors
    query = random_unit(1, 8, seed=7_000)[0]
    for owner in list(of_user)[::97]:
        best = np.argsort(-(of_user[owner] @ query), kind="stable")[:10]
        found = [scored.fact_id.split("-") for scored in index.search(owner, query, 10)]
        assert [(f"user {user}", int(number)) for user, number in found] == [(owner.user, n) for n in best]


def test_each_fact_has_one_vector_and_a_long_one_the_mean_of_its_pieces() -> None:
    index = ExactIndex()
    vectors = np.eye(4, dtype=np.float32)
    index.add(ALICE, ["a", "b", "b", "c"], vectors)
    known = index.vectors(ALICE)
    assert known.ids == ("a", "b", "c") and index.vectors(BOB).ids == ()
    middle = (vectors[1] + vectors[2]) / np.sqrt(2)
    assert np.allclose(known.matrix, np.stack([vectors[0], middle, vectors[3]]))
    index.remove(ALICE, ["b"])
    assert index.vectors(ALICE).ids == ("a", "c") and np.array_equal(index.vectors(ALICE).matrix, vectors[[0, 3]])
