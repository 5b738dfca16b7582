"""The shelf: what is stored is found and counted, and what must go for the budget is what was used longest ago."""

from __future__ import annotations

from inferscale_server.kv_codec import KvIdentity, Seen
from inferscale_server.kv_shelf import KvShelf, StoredChunk


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
