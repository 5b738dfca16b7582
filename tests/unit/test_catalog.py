"""The catalog: what is held stays, what is forgotten goes, and the oldest makes room."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferscale_server.catalog import Catalog, Chunk, ChunkKey
from inferscale_server.command import rows_of
from inferscale_server.eviction import HOT_SHARE
from inferscale_server.fingerprint import Ingredients, fingerprint

from .builders import ALICE, BOB, store


def test_a_reserved_chunk_is_not_found_until_it_is_committed() -> None:
    catalog = Catalog(10, "f")
    chunk = catalog.reserve(ChunkKey("fact", ALICE, "a"), (1, 2), ())
    assert chunk is not None and catalog.get(chunk.key) is None and catalog.rows_used == 2
    catalog.commit(chunk)
    assert catalog.get(chunk.key) == chunk


def test_a_new_encoding_replaces_the_old_one() -> None:
    catalog = Catalog(10, "f")
    old, new = store(catalog, "a"), store(catalog, "a")
    assert catalog.get(new.key) == new and new.stamp != old.stamp
    assert catalog.holds(new) and not catalog.holds(old)
    assert catalog.unwiped == old.extents


def test_rows_of_a_replaced_chunk_stay_as_long_as_a_request_reads_them() -> None:
    catalog = Catalog(10, "f")
    old = store(catalog, "a")
    pin = catalog.pin([old])
    new = store(catalog, "a")
    assert catalog.rows_used == 6 and set(rows_of(old.extents)).isdisjoint(rows_of(new.extents))
    assert catalog.unwiped == ()
    pin.release()
    assert catalog.unwiped == old.extents and catalog.pins == 0


def test_a_pin_released_twice_releases_once() -> None:
    catalog = Catalog(10, "f")
    chunk = store(catalog, "a")
    first, second = catalog.pin([chunk]), catalog.pin([chunk])
    first.release()
    first.release()
    assert catalog.pins == 1
    second.release()
    assert catalog.pins == 0


@pytest.mark.parametrize("how", ["dropped", "evicted", "given up"])
def test_rows_are_not_used_again_before_they_are_wiped(how: str) -> None:
    catalog = Catalog(3, "f")
    if how == "given up":
        chunk = catalog.reserve(ChunkKey("fact", ALICE, "a"), (1, 2, 3), ())
        assert chunk is not None
        catalog.release(chunk)
    else:
        chunk = store(catalog, "a")
        assert catalog.make_room(3) if how == "evicted" else catalog.drop(chunk.key) is None
    assert catalog.reserve(ChunkKey("fact", ALICE, "b"), (1,), ()) is None
    assert catalog.unwiped == chunk.extents
    catalog.wiped(catalog.unwiped)
    assert catalog.unwiped == () and catalog.rows_used == 0


def test_rows_that_a_request_reads_are_wiped_after_it() -> None:
    catalog = Catalog(10, "f")
    heard: list[int] = []
    catalog.on_unwiped = lambda: heard.append(1)
    chunk = store(catalog, "a")
    pin = catalog.pin([chunk])
    catalog.drop_where(ALICE, lambda chunk: True)
    assert catalog.get(chunk.key) is None and catalog.unwiped == () and not heard
    pin.release()
    assert catalog.unwiped == chunk.extents and heard


def test_an_older_encoding_in_use_is_wiped_too_when_its_fact_is_forgotten() -> None:
    catalog = Catalog(10, "f")
    old = store(catalog, "a")
    pin = catalog.pin([old])
    new = store(catalog, "a")
    catalog.drop_where(ALICE, lambda chunk: chunk.key.name == "a")
    pin.release()
    assert sorted(rows_of(catalog.unwiped)) == sorted(rows_of((*old.extents, *new.extents)))


def test_what_was_used_longest_ago_makes_room() -> None:
    catalog = Catalog(9, "f")
    a, b, c = (store(catalog, name) for name in "abc")
    assert catalog.get(a.key) == a
    store(catalog, "d")
    assert catalog.get(b.key) is None and catalog.get(a.key) == a and catalog.get(c.key) == c


def test_facts_make_room_before_headers() -> None:
    catalog = Catalog(6, "f")
    header = store(catalog, "h", kind="header")
    store(catalog, "a")
    store(catalog, "b")
    assert header.key in catalog and ChunkKey("fact", ALICE, "a") not in catalog
    store(catalog, "c", tokens=6)
    assert header.key not in catalog


def test_pinned_chunks_make_no_room() -> None:
    catalog = Catalog(6, "f")
    a, b = store(catalog, "a"), store(catalog, "b")
    with catalog.pinned([a]):
        store(catalog, "c")
        assert a.key in catalog and b.key not in catalog


@pytest.mark.parametrize("tokens", [7, 4])
def test_nothing_is_evicted_for_what_cannot_fit(tokens: int) -> None:
    catalog = Catalog(6, "f")
    a, b = store(catalog, "a"), store(catalog, "b")
    with catalog.pinned([a]):
        assert not catalog.make_room(tokens)
    assert a.key in catalog and b.key in catalog


def test_room_is_made_for_as_many_of_the_first_as_there_can_be() -> None:
    catalog = Catalog(10, "f")
    held = store(catalog, "held", tokens=4)
    store(catalog, "loose", tokens=5)
    with catalog.pinned([held]):
        catalog.make_room_for([3, 3, 1])
    assert catalog.rows_coming == 6 and held.key in catalog and ChunkKey("fact", ALICE, "loose") not in catalog
    catalog.make_room_for([11])
    assert held.key in catalog, "nothing is evicted for what cannot fit"


def test_a_reservation_evicts_nothing() -> None:
    catalog = Catalog(3, "f")
    a = store(catalog, "a")
    assert catalog.reserve(ChunkKey("fact", ALICE, "b"), (1,), ()) is None
    assert a.key in catalog


def test_what_is_to_be_kept_is_never_evicted() -> None:
    catalog = Catalog(6, "f")
    header, a = store(catalog, "h", kind="header"), store(catalog, "a")
    catalog.keep = frozenset({header.key})
    assert not catalog.make_room(4) and catalog.make_room(3)
    assert header.key in catalog and a.key not in catalog


def test_ever_changing_headers_evict_each_other_and_no_facts() -> None:
    catalog = Catalog(80, "f")
    facts = [store(catalog, str(number), tokens=6) for number in range(10)]
    default = store(catalog, "default", kind="header", tokens=2)
    catalog.keep = frozenset({default.key})
    for number in range(20):
        catalog.make_room_among_headers(4)
        store(catalog, f"h{number}", kind="header", tokens=4)
    headers = [key for key in (ChunkKey("header", ALICE, f"h{n}") for n in range(20)) if key in catalog]
    assert [key.name for key in headers] == ["h18", "h19"]
    assert default.key in catalog and all(fact.key in catalog for fact in facts)


def test_a_header_larger_than_the_share_pushes_out_all_other_headers() -> None:
    catalog = Catalog(80, "f")
    old = store(catalog, "h", kind="header", tokens=5)
    catalog.make_room_among_headers(30)
    assert old.key not in catalog


def test_an_owner_without_chunks_takes_no_memory() -> None:
    catalog = Catalog(10, "f")
    store(catalog, "a")
    catalog.drop_where(ALICE, lambda chunk: True)
    assert catalog.of(ALICE) == () and not catalog._of_owner


def test_what_was_used_is_told_once() -> None:
    catalog = Catalog(10, "f")
    a, b = store(catalog, "a"), store(catalog, "b")
    catalog.get(a.key)
    assert catalog.take_used() == {a.key} and catalog.take_used() == frozenset()
    catalog.get(b.key)
    catalog.drop(b.key)
    assert catalog.take_used() == frozenset()


def test_owners_do_not_see_each_other() -> None:
    catalog = Catalog(10, "f")
    mine, others = store(catalog, "same"), store(catalog, "same", owner=BOB)
    assert catalog.get(mine.key) == mine and catalog.of(BOB) == (others,)
    catalog.drop_where(ALICE, lambda chunk: True)
    assert catalog.of(ALICE) == () and catalog.get(others.key) == others


def test_an_owners_rows_are_those_of_all_chunks_that_can_be_found() -> None:
    catalog = Catalog(30, "f")
    store(catalog, "a", 3)
    store(catalog, "b", 4, kind="context")
    store(catalog, "a", 7, owner=BOB)
    staged = [catalog.reserve(ChunkKey("fact", ALICE, "a"), tuple(range(rows)), ()) for rows in (5, 6)]
    for chunk in staged:
        assert chunk is not None
        catalog.stage(chunk)
    assert (catalog.row_count(ALICE), catalog.row_count(BOB)) == (7, 7)
    catalog.swap(ALICE)
    assert catalog.row_count(ALICE) == 6
    catalog.drop_where(ALICE, lambda chunk: True)
    assert (catalog.row_count(ALICE), catalog.row_count(BOB)) == (0, 7)


ORIGINAL = Ingredients(
    weights="model.safetensors:1:2",
    config={"rope_theta": 1e5, "hidden_size": 576},
    tokenizer="t",
    chat_template="{{ messages }}",
    dtype="float32",
    kv_cache_dtype="auto",
    tensor_parallel=1,
    adapter="",
    recipe="primer-20",
    words="w",
)


def changed(**fields: object) -> Ingredients:
    values = {name: getattr(ORIGINAL, name) for name in Ingredients.__slots__}
    return Ingredients(**{**values, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        changed(weights="model.safetensors:1:3"),
        changed(config={"rope_theta": 1e6, "hidden_size": 576}),
        changed(config={"rope_theta": 1e5, "hidden_size": 576, "rope_scaling": {"rope_type": "llama3", "factor": 8}}),
        changed(tokenizer="u"),
        changed(chat_template="{{ messages }} "),
        changed(dtype="bfloat16"),
        changed(kv_cache_dtype="fp8"),
        changed(tensor_parallel=2),
        changed(adapter="lora"),
        changed(recipe="primer-21"),
        changed(words="v"),
        changed(rotary="long"),
        changed(codec_version=2),
    ],
    ids=lambda other: next(n for n in Ingredients.__slots__ if getattr(other, n) != getattr(ORIGINAL, n)),
)
def test_kv_of_another_model_is_not_served_and_the_reason_is_counted(other: Ingredients) -> None:
    catalog = Catalog(10, fingerprint(other))
    chunk = store(catalog, "a")
    catalog.fingerprint = fingerprint(ORIGINAL)
    assert catalog.get(chunk.key) is None
    assert catalog.misses == {"fingerprint": 1} and catalog.unwiped == chunk.extents


def test_the_same_model_has_the_same_fingerprint_whatever_the_order_of_its_config() -> None:
    assert fingerprint(changed(config={"hidden_size": 576, "rope_theta": 1e5})) == fingerprint(ORIGINAL)


actions = st.lists(
    st.tuples(st.sampled_from(["store", "pin", "unpin", "drop", "evict", "wipe", "get"]), st.integers(0, 7)),
    max_size=50,
)


@settings(max_examples=200)
@given(actions)
def test_no_two_holders_ever_share_a_row(history: list[tuple[str, int]]) -> None:
    catalog = Catalog(20, "f")
    pins: list[tuple[Chunk, object]] = []
    for action, number in history:
        key = ChunkKey("fact", ALICE, str(number))
        do: dict[str, Callable[[], object]] = {
            "store": lambda key=key, number=number: _store_if_it_fits(catalog, key, number + 1),
            "pin": lambda key=key: _pin(catalog, key, pins),
            "unpin": lambda number=number: pins and pins.pop(number % len(pins))[1].release(),  # type: ignore[attr-defined]
            "drop": lambda key=key: catalog.drop(key),
            "evict": lambda number=number: catalog.make_room(number),
            "wipe": lambda: catalog.wiped(catalog.unwiped),
            "get": lambda key=key: catalog.get(key),
        }
        do[action]()
        held = {chunk.stamp: chunk for chunk in (*catalog.of(ALICE), *(chunk for chunk, _ in pins))}
        rows = [row for chunk in held.values() for row in rows_of(chunk.extents)] + rows_of(catalog.unwiped)
        assert len(rows) == len(set(rows)) == catalog.rows_used
        assert catalog.row_count(ALICE) == sum(len(chunk.token_ids) for chunk in catalog.of(ALICE))


def _store_if_it_fits(catalog: Catalog, key: ChunkKey, tokens: int) -> None:
    chunk = catalog.reserve(key, tuple(range(tokens)), ())
    if chunk is not None:
        catalog.commit(chunk)


def _pin(catalog: Catalog, key: ChunkKey, pins: list[tuple[Chunk, object]]) -> None:
    chunk = catalog.get(key)
    if chunk is not None:
        pins.append((chunk, catalog.pin([chunk])))


def test_what_chats_have_used_stays_while_new_facts_make_room_for_each_other() -> None:
    catalog = Catalog(12, "f")
    hot = store(catalog, "hot")
    catalog.get(hot.key)
    for number in range(20):
        store(catalog, str(number))
    assert hot.key in catalog and ChunkKey("fact", ALICE, "18") in catalog
    assert ChunkKey("fact", ALICE, "0") not in catalog


def test_the_hot_set_is_bounded_so_that_old_use_does_not_hold_rows_for_ever() -> None:
    catalog = Catalog(12, "f")
    chunks = [store(catalog, name) for name in "abcd"]
    for chunk in chunks:
        catalog.get(chunk.key)
    store(catalog, "e")
    assert chunks[0].key not in catalog and chunks[2].key in catalog and chunks[3].key in catalog
    assert catalog._order.hot_rows <= catalog.rows // HOT_SHARE


def test_everything_is_evicted_when_all_of_it_is_hot() -> None:
    catalog = Catalog(6, "f")
    for name in "ab":
        catalog.get(store(catalog, name).key)
    assert catalog.make_room(6) and catalog._order.hot_rows == 0


def test_a_commit_is_told_of_when_the_chunk_can_be_found() -> None:
    catalog = Catalog(10, "f")
    heard: list[Chunk | None] = []
    catalog.on_commit = lambda chunk: heard.append(catalog.peek(chunk.key))
    assert heard == [] and store(catalog, "a") == heard[0]


def test_ten_thousand_adds_and_deletes_leave_the_rows_where_they_were() -> None:
    catalog = Catalog(400, "f")
    kept = [store(catalog, f"kept {number}", tokens=7) for number in range(20)]
    before, pins = catalog.rows_used, []
    for number in range(10_000):
        chunk = store(catalog, str(number % 37), tokens=1 + number % 13, owner=(ALICE, BOB)[number % 2])
        catalog.get(chunk.key)
        if number % 5 == 0:
            pins.append(catalog.pin([chunk]))
        catalog.drop(chunk.key)
        if number % 7 == 0 and pins:
            pins.pop(0).release()
        while len(pins) > 9:
            pins.pop(0).release()
        catalog.wiped(catalog.unwiped)
    for pin in pins:
        pin.release()
    catalog.wiped(catalog.unwiped)
    assert catalog.rows_used == before and all(chunk.key in catalog for chunk in kept)
    assert catalog.pins == 0 and not catalog._doomed and catalog.of(BOB) == ()
    for chunk in kept:
        catalog.drop(chunk.key)
    catalog.wiped(catalog.unwiped)
    assert catalog.rows_used == 0 and not catalog._order._hot and not catalog._used
    assert catalog.reserve(ChunkKey("fact", ALICE, "all"), tuple(range(400)), frozenset()) is not None
