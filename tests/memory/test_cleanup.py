"""gc gives back what deleted facts left: bytes in the file and its log, tombstones, old keys, orphaned KV files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from inferscale_server.cleanup import DAY_S, clean, sweep_kv
from inferscale_server.facts import FactStore
from inferscale_server.kv_codec import GroupShape, KvHeader, KvIdentity, KvLayout, Seen, payload_digest
from inferscale_server.kv_files import kv_path, temporary, write_temporary
from inferscale_server.types import FactDraft, IdempotencyKey, Owner
from inferscale_server.verify import verify
from tests.memory.stores import ALICE, EMBEDDER, remember

BOB = Owner("local", "bob")
CANARY = "canary-4f1c-the-safe-opens-with-9-3-1"
LAYOUT = KvLayout("float32", (GroupShape(1, 1, 2),), 0, 1)


class Clock:
    """Unix seconds that a test moves."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "facts.sqlite3"


@pytest.fixture
def store(path: Path, clock: Clock) -> Iterator[FactStore]:
    with closing(FactStore(path, clock=clock)) as store:
        store.claim_embedder(EMBEDDER.name, EMBEDDER.dimension)
        yield store


def bytes_below(folder: Path) -> bytes:
    """Every byte of every file."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def kv_file(folder: Path, name: str, owner: Owner = ALICE, kind: str = "fact", behind: tuple[str, ...] = ()) -> Path:
    """A file that checks out, of one token's KV."""
    payload = bytes(range(LAYOUT.payload_bytes(1)))
    seen = tuple(Seen(fact_id, "0" * 64) for fact_id in behind)
    identity = KvIdentity("f" * 64, owner.digest(), kind, name, "0" * 64, 1, "0" * 64, "0" * 64, seen)
    header = KvHeader(identity, LAYOUT, payload_digest([payload]))
    path = kv_path(folder, hashlib.sha256(f"{kind} {name} {behind}".encode()).hexdigest(), 0)
    write_temporary(path, header, [memoryview(payload)])
    temporary(path).replace(path)
    return path


def test_S9_after_gc_no_byte_of_a_deleted_fact_is_in_any_file(store: FactStore, path: Path, tmp_path: Path) -> None:
    facts = remember(store, *(f"{i} {CANARY}" for i in range(200)))
    kept = remember(store, "Tom is a cat.", owner=BOB)
    for fact_id in facts[:100]:
        store.delete(ALICE, fact_id)
        kv_file(tmp_path / "kv", fact_id)
    store.delete_owner(ALICE)
    cleaned = clean(store, path, tmp_path / "kv")
    assert bytes_below(tmp_path).count(CANARY.encode()) == 0
    assert store.get(BOB, kept[0]) is not None
    assert cleaned.kv_files == 100
    print(f"S9: 0 canary bytes after gc; store {cleaned.bytes_before} -> {cleaned.bytes_after} bytes")


def test_gc_gives_the_space_back_and_leaves_a_clean_store(store: FactStore, path: Path) -> None:
    remember(store, *(f"{i} " + "x" * 2_000 for i in range(200)))
    store.delete_owner(ALICE)
    cleaned = clean(store, path, tombstone_days=0)
    assert cleaned.bytes_after < cleaned.bytes_before / 4
    assert cleaned.bytes_after == path.stat().st_size
    assert verify(path).broken == ()


def test_a_tombstone_goes_when_it_is_old_enough(store: FactStore, path: Path, clock: Clock) -> None:
    early, late = remember(store, "one", "two")
    store.delete(ALICE, early)
    clock.now += 20 * DAY_S
    store.delete(ALICE, late)
    clock.now += 11 * DAY_S
    assert clean(store, path).tombstones == 1
    assert store.history(ALICE, early) == ()
    assert [event.event for event in store.history(ALICE, late)] == ["added", "deleted"]


def test_an_idempotency_key_goes_after_a_day(store: FactStore, path: Path, clock: Clock) -> None:
    drafts, key = [FactDraft("one")], IdempotencyKey("k", "d")
    store.add(ALICE, drafts, EMBEDDER.embed(["one"]), key)
    assert clean(store, path).idempotency_rows == 0
    clock.now += DAY_S + 1
    assert clean(store, path).idempotency_rows == 1


def test_kv_of_living_facts_stays_and_all_other_goes(store: FactStore, path: Path, tmp_path: Path) -> None:
    kv = tmp_path / "kv"
    one, two = remember(store, "one", "two")
    stays = {
        kv_file(kv, one),
        kv_file(kv, two, behind=(one,)),
        kv_file(kv, "d" * 64, kind="context", behind=(one, two)),
        kv_file(kv, "e" * 64, owner=Owner("local", ""), kind="header"),
        kv_file(kv, "e" * 64, kind="context"),
    }
    goes = {
        kv_file(kv, "gone"),
        kv_file(kv, one, owner=BOB, behind=(two,)),
        kv_file(kv, two, behind=("gone",)),
        kv_file(kv, "d" * 64, kind="context", behind=(one, "gone")),
    }
    torn = kv_file(kv, "torn", kind="context")
    torn.write_bytes(torn.read_bytes()[:-1])
    folder = torn.with_name("f" * 64 + ".0.kv")
    folder.mkdir()
    (folder / "what").touch()
    assert [finding.reason for finding in verify(path, kv).broken] == [
        "2 do not check out, 4 are of facts that are no more"
    ]
    assert sweep_kv(path, kv) == 6
    assert {file for file in kv.rglob("*") if file.is_file()} == stays
    assert not stays & goes
    assert verify(path, kv).broken == ()


def test_a_kv_file_that_is_being_written_is_left_alone(store: FactStore, path: Path, tmp_path: Path) -> None:
    (one,) = remember(store, "one")
    file = kv_file(tmp_path / "kv", one)
    file.replace(temporary(file))
    assert sweep_kv(path, tmp_path / "kv") == 0
    assert temporary(file).exists()


def test_a_flipped_bit_is_found(store: FactStore, path: Path, tmp_path: Path) -> None:
    (one,) = remember(store, "one")
    file = kv_file(tmp_path / "kv", one)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    (finding,) = verify(path, tmp_path / "kv").broken
    assert finding == replace(finding, name="kv", found=f"1 files, {len(content)} bytes", reason="1 do not check out")
