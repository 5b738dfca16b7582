"""The shelf: what is stored is found and counted, and what must go for the budget is what was used longest ago."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from inferscale_server.kv_codec import KvIdentity, Seen
from inferscale_server.kv_shelf import HEADER_SHARE, KvShelf, StoredChunk


def stored(name: str, size_bytes: int = 10, kind: str = "fact", owner: str = "o", behind: str = "") -> StoredChunk:
    seen = tuple(Seen(fact_id, "m") for fact_id in behind)
    return StoredChunk(f"{owner}{kind}{name}", KvIdentity("f", owner, kind, name, "", 1, "t", "b", seen), size_bytes)


def filled(budget_bytes: int, *chunks: StoredChunk) -> KvShelf:
    shelf = KvShelf(budget_bytes, "f")
    for chunk in chunks:
        shelf.put(chunk)
    return shelf


def names(chunks: tuple[StoredChunk, ...]) -> str:
    return "".join(chunk.identity.name for chunk in chunks)


def test_a_new_file_replaces_the_old_one_of_its_key() -> None:
    old, new = stored("a", 10), stored("a", 30)
    shelf = filled(100, old)
    assert shelf.put(new) is old and shelf.get(new.key) is new and shelf.bytes == 30 and len(shelf) == 1


def test_what_goes_for_the_budget_was_used_longest_ago() -> None:
    a, b, c = (stored(name) for name in "abc")
    shelf = filled(20, a, b, c)
    assert names(shelf.surplus()) == "a"
    shelf.use(a.key)
    assert names(shelf.surplus()) == "b" and names(shelf.surplus(spare_bytes=10)) == "bc"


def test_headers_keep_to_their_share() -> None:
    headers = [stored(name, 10, kind="header") for name in "hij"]
    shelf = filled(160, *headers, stored("a"))
    assert names(shelf.surplus()) == "h"


def test_the_primer_of_an_owner_is_what_most_chunks_were_encoded_behind() -> None:
    shelf = filled(100, *(stored(name, behind="yx") for name in "ab"), stored("c", behind="z"))
    assert shelf.primer_of("o", 20, "f") == ("y", "x") and shelf.primer_of("p", 20, "f") == ()


def test_the_window_behind_the_primer_is_no_part_of_it() -> None:
    shelf = filled(100, *(stored(name, behind="yx" + name) for name in "ab"))
    assert shelf.primer_of("o", 2, "f") == ("y", "x")


def test_a_primers_own_facts_saw_a_part_of_it() -> None:
    shelf = filled(100, stored("a"), stored("b", behind="a"), stored("c", behind="ab"))
    assert shelf.primer_of("o", 20, "f") == ("a", "b")


def test_owners_are_counted_apart_and_leave_nothing() -> None:
    a, b = stored("a", 5, owner="o"), stored("a", 7, owner="p")
    shelf = filled(100, a, b)
    assert (shelf.bytes_of("o"), shelf.bytes_of("p")) == (5, 7)
    assert shelf.drop(a.key) is a and shelf.of("o") == () and shelf.bytes == 7 and shelf.drop(a.key) is None


# What must go, against a slow twin that looks at everything


def slow_surplus(shelf: KvShelf, adopted: set[str], spare_bytes: int) -> list[StoredChunk]:
    """Headers over their share, then those of other fingerprints, then others; of each, the oldest."""

    def oldest(chunks: list[StoredChunk], room_bytes: int) -> list[StoredChunk]:
        going = 0
        while sum(chunk.size_bytes for chunk in chunks[going:]) > room_bytes and going < len(chunks):
            going += 1
        return chunks[:going]

    ours = [chunk for chunk in shelf.all() if chunk.identity.fingerprint in {"f", *adopted}]
    headers = [chunk for chunk in ours if chunk.identity.kind == "header"]
    going = oldest(headers, shelf.budget_bytes // HEADER_SHARE)
    others = [chunk for chunk in shelf.all() if chunk not in ours]
    rest = [chunk for chunk in ours if chunk not in going]
    return [*going, *oldest([*others, *rest], shelf.budget_bytes - spare_bytes)]


def of_print(fingerprint: str, kind: str, number: int, size_bytes: int) -> StoredChunk:
    identity = KvIdentity(fingerprint, "o", kind, str(number), "", 1, "t", "b", ())
    return StoredChunk(f"{fingerprint}{kind}{number}", identity, size_bytes)


steps = st.lists(
    st.tuples(
        st.sampled_from(["put"] * 4 + ["use", "use", "drop", "evict", "adopt"]),
        st.sampled_from("ffgh"),
        st.sampled_from(["header", "fact"]),
        st.integers(0, 5),
        st.integers(1, 30),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(steps)
def test_what_must_go_is_what_a_look_at_everything_finds(history: list[tuple[str, str, str, int, int]]) -> None:
    shelf, adopted = KvShelf(100, "f"), set[str]()
    for action, fingerprint, kind, number, size_bytes in history:
        chunk = of_print(fingerprint, kind, number, size_bytes)
        if action == "put":
            shelf.put(chunk)
        elif action == "use":
            shelf.use(chunk.key)
        elif action == "drop":
            shelf.drop(chunk.key)
        elif action == "adopt":
            shelf.adopt(fingerprint)
            adopted.add(fingerprint)
        else:
            for going in shelf.surplus():
                shelf.drop(going.key)
        for spare_bytes in (0, size_bytes, 200):
            if shelf.bytes > 100 - spare_bytes or spare_bytes == 0:
                assert list(shelf.surplus(spare_bytes)) == slow_surplus(shelf, adopted, spare_bytes)
