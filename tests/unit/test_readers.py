"""The same facts through several LoRA adapters: KV of each apart, on the device, in files and in plans; gone together.

The fake engine refuses to inject a row that other weights computed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from inferscale_server.catalog import Catalog, Chunk, ChunkKey
from inferscale_server.command import rows_of
from inferscale_server.fact_lines import FactLines
from inferscale_server.job import Job
from inferscale_server.kv_codec import KvIdentity
from inferscale_server.kv_shelf import KvShelf, StoredChunk
from inferscale_server.readers import Readers
from inferscale_server.recipe import Recipe
from inferscale_server.salts import Salts
from inferscale_server.session import Session
from inferscale_server.sessions import Sessions
from inferscale_server.types import Fact, Owner
from inferscale_server.wording import Wording

from .builders import ALICE, BOB, SECRET, fact, store
from .cold_facts import cold
from .engines import HEADER, HEADER_IDS, World, world

PIRATE = "the fingerprint of the model with the adapter pirate"
LAWYER = "the fingerprint of the model with the adapter lawyer"


def facts(count: int, owner: Owner = ALICE) -> list[Fact]:
    return [fact(number, owner=owner) for number in range(count)]


def ask(here: World, one: Fact, adapter: str = PIRATE) -> Owner:
    """A chat through the adapter used this fact as text."""
    reader = here.news.readers.through(one.owner, adapter)
    here.encoder.want(reader, [here.encoder.job_of(one, reader)])
    return reader


async def read(here: World, one: Fact, adapter: str = PIRATE) -> Owner:
    """`ask`, and everything is encoded."""
    reader = ask(here, one, adapter)
    await here.encoder.drain()
    return reader


async def encoded(folder: Path | None = None, count: int = 6) -> tuple[World, list[Fact]]:
    here, some = world(folder=folder), facts(count)
    here.add(*some)
    await here.encoder.drain()
    return here, some


def of(here: World, owner: Owner, *some: Fact) -> list[Chunk | None]:
    return [here.catalog.peek(ChunkKey("fact", owner, one.id)) for one in some]


def test_an_owner_is_another_key_through_an_adapter_and_the_same_person() -> None:
    readers = Readers()
    reader = readers.through(ALICE, PIRATE)
    assert reader != ALICE and reader.itself == ALICE and reader.digest() == ALICE.digest()
    assert ChunkKey("fact", reader, "f") != ChunkKey("fact", ALICE, "f")
    readers.through(ALICE, LAWYER)
    readers.through(ALICE, PIRATE)
    assert [one.adapter for one in readers.of(ALICE)] == ["", PIRATE, LAWYER] and readers.of(BOB) == (BOB,)


async def test_facts_are_encoded_once_more_for_whoever_chats_through_an_adapter_and_for_nobody_else() -> None:
    here, some = await encoded()
    here.add(*facts(3, BOB))
    await here.encoder.drain()
    base, requests = of(here, ALICE, *some), len(here.engine.requests)
    reader = await read(here, some[4])
    assert of(here, ALICE, *some) == base and None not in base
    for one, chunk in zip(some, of(here, reader, *some), strict=True):
        assert chunk is not None and chunk.fingerprint == PIRATE
        assert here.engine.tokens_of(chunk) == here.encoder.job_of(one).token_ids
    assert here.catalog.of(replace(BOB, adapter=PIRATE)) == ()
    assert here.encoder.queued() == 0 and here.encoder.queued_of(reader) == 0
    new = here.engine.requests[requests:]
    assert new[0].before == () and new[0].own == HEADER_IDS, "its header is not the base model's"
    assert all(one.injected >= len(HEADER_IDS) for one in new[1:]), "what stands before is injected, as for the base"


async def test_two_adapters_share_nothing() -> None:
    here, some = await encoded()
    pirate, lawyer = ask(here, some[0]), ask(here, some[0], LAWYER)
    await here.encoder.drain()
    stamps = [{chunk.stamp for chunk in here.catalog.of(owner)} for owner in (ALICE, pirate, lawyer)]
    assert len(set.union(*stamps)) == 3 * len(some)


async def test_a_new_fact_comes_to_all_who_read() -> None:
    here, some = await encoded()
    reader = await read(here, some[0])
    new = fact(50)
    here.add(new)
    await here.encoder.drain()
    assert None not in (*of(here, ALICE, new), *of(here, reader, new))


async def test_S9_a_deleted_fact_and_what_saw_it_leave_every_adapter_and_every_file(tmp_path: Path) -> None:
    here, some = await encoded(tmp_path)
    reader = await read(here, some[0])
    primer = of(here, reader, some[5])[0]
    assert here.disk is not None and primer is not None and some[0].id in primer.behind
    files = len(here.disk.shelf)
    assert files == 2 * len(some) + 2  # and two headers
    here.delete(some[0])
    assert all(some[0].id not in (chunk.key.name, *chunk.behind) for chunk in here.catalog.of(reader))
    await here.encoder.settled()
    left = here.disk.shelf.all()
    assert all(some[0].id not in (one.identity.name, *(seen.fact_id for seen in one.identity.behind)) for one in left)
    await here.encoder.drain()
    assert of(here, reader, *some)[0] is None and None not in of(here, reader, *some[1:])
    here.delete_owner(ALICE)
    await here.encoder.drain()
    assert here.catalog.of(reader) == here.catalog.of(ALICE) == ()
    assert {one.identity.kind for one in here.disk.shelf.all()} == {"header"}


async def test_a_fact_that_was_forgotten_in_flight_comes_to_nobody() -> None:
    here, some = await encoded(count=4)
    here.engine.during = lambda chunk: here.delete(some[3]) if some[3] in here.facts[ALICE] else None
    reader = await read(here, some[1])
    assert of(here, reader, some[3]) == [None] and None not in of(here, reader, *some[:3])


async def test_a_restart_loads_each_readers_files_when_they_are_asked_for(tmp_path: Path) -> None:
    before, some = await encoded(tmp_path)
    old = of(before, await read(before, some[2]), *some)
    here = world(folder=tmp_path, facts=before.facts)
    here.tokenize._words = before.tokenize._words
    here.encoder.added(ALICE, ())
    await here.encoder.drain()
    assert here.catalog.of(replace(ALICE, adapter=PIRATE)) == (), "nobody has asked through it"
    reader = await read(here, some[2])
    assert here.engine.requests == []
    for chunk, one in zip(of(here, reader, *some), old, strict=True):
        assert chunk is not None and one is not None and chunk.behind == one.behind
    await read(here, some[2], LAWYER)
    assert len(here.engine.requests) == len(some) + 1, "another adapter's files are not its"


async def test_what_an_adapter_computed_is_staged_for_it_alone(tmp_path: Path) -> None:
    there = await cold(tmp_path, host_rows=500)
    here = there.world
    reader = await read(here, there.facts[0])
    assert there.host is not None
    while await there.host.copy_some():
        pass
    here.catalog.drop_where(reader, lambda chunk: chunk.key.kind == "fact")
    here.catalog.drop_where(ALICE, lambda chunk: chunk.key.kind == "fact")
    await here.encoder.wipe()
    wanted = [replace(one, key=one.key.read_by(reader)) for one in there.wanted]
    came = await there.stager.stage(wanted)
    assert len(came) == len(there.facts) and here.catalog.of(ALICE) == ()
    rows = rows_of([extent for chunk in here.catalog.of(reader) for extent in chunk.extents])
    assert {there.engine.weights[row] for row in rows} == {PIRATE}


async def test_a_header_that_was_evicted_comes_back_with_the_next_chat() -> None:
    here, some = await encoded()
    reader = await read(here, some[0])
    header = HEADER.key.read_by(reader)
    here.catalog.drop(header)
    here.catalog.drop(ChunkKey("fact", reader, some[3].id))
    await read(here, some[3])
    assert header in here.catalog and None not in of(here, reader, *some)


async def test_an_owner_without_facts_who_names_an_adapter_waits_for_nothing() -> None:
    here = world(recipe=Recipe(primer_facts=3))
    reader = here.news.readers.through(ALICE, PIRATE)
    here.encoder.want(reader, [Job(ChunkKey("context", reader, "c"), (71, 72))])
    await here.encoder.drain()
    assert here.encoder.queued() == 0 and ChunkKey("context", reader, "c") in here.catalog


def test_what_of_one_adapter_lies_in_the_slab_is_not_found_for_another() -> None:
    catalog = Catalog(100, "base")
    reader = replace(ALICE, adapter=PIRATE)
    base, pirate = store(catalog, "a"), store(catalog, "a", owner=reader)
    assert (base.fingerprint, pirate.fingerprint) == ("base", PIRATE)
    assert catalog.get(base.key) is base and catalog.get(pirate.key) is pirate
    assert catalog.get(ChunkKey("fact", replace(ALICE, adapter=LAWYER), "a")) is None


def test_salts_tell_adapters_apart() -> None:
    salts = Salts(SECRET, "base")
    readers = (ALICE, replace(ALICE, adapter=PIRATE), replace(ALICE, adapter=LAWYER), BOB)
    assert len({salts.of(owner, 0) for owner in readers}) == 4


def test_a_session_is_one_adapters() -> None:
    news, sessions = Readers(), Sessions(10, 60)
    reader = news.through(ALICE, PIRATE)
    assert isinstance(sessions.of(reader, "s"), Session) and sessions.of(reader, "s") is not sessions.of(ALICE, "s")


def test_lines_keep_the_reader_in_their_keys(tmp_path: Path) -> None:
    here, reader = world(), replace(ALICE, adapter=PIRATE)
    lines = FactLines(here.tokenize, Wording())  # type: ignore[arg-type]
    (base,), (pirate,) = lines.of(ALICE, facts(1)), lines.of(reader, facts(1))
    assert (base.key.owner, pirate.key.owner) == (ALICE, reader) and base.token_ids == pirate.token_ids


def stored(name: str, fingerprint: str, behind: str = "") -> StoredChunk:
    identity = KvIdentity(fingerprint, "o", "fact", name, "", 1, "t", "b", ())
    return StoredChunk(f"{fingerprint}{name}", identity, 10)


async def test_who_is_known_to_have_read_before_is_loaded_without_a_chat(tmp_path: Path) -> None:
    before, some = await encoded(tmp_path)
    await read(before, some[2])
    here = world(folder=tmp_path, facts=before.facts)
    here.tokenize._words = before.tokenize._words
    assert here.disk is not None
    assert here.disk.shelf.owners_with(PIRATE) == {ALICE.digest()} and not here.disk.shelf.owners_with(LAWYER)
    reader = here.news.readers.through(ALICE, PIRATE)
    here.encoder.added(reader, ())
    await here.encoder.drain()
    assert here.engine.requests == [] and None not in of(here, reader, *some)
    assert HEADER.key.read_by(reader) in here.catalog


def test_files_of_an_adapter_that_is_served_are_no_strangers() -> None:
    shelf = KvShelf(30, "base")
    for one in (stored("a", "base"), stored("b", PIRATE), stored("c", LAWYER), stored("d", "base")):
        shelf.put(one)
    assert [one.identity.name for one in shelf.surplus()] == ["b"], "of another model, used longest ago"
    shelf.adopt(PIRATE)
    shelf.adopt(PIRATE)
    assert [one.identity.name for one in shelf.surplus()] == ["c"]
    assert shelf.bytes == 40 and shelf.fact_tokens("o") == {"a": 1, "d": 1} and shelf.bytes_of("o") == 40
    for key in [one.key for one in shelf.all()]:
        shelf.drop(key)
    assert shelf.bytes == 0 and shelf.surplus() == ()


async def test_for_an_adapter_that_is_served_no_more_nothing_is_encoded_and_nobody_waits() -> None:
    here, some = await encoded()
    reader = await read(here, some[0])
    here.encoder.reads = lambda owner: owner.adapter != PIRATE
    requests = len(here.engine.requests)
    here.add(new := fact(50))
    here.encoder.want(reader, [Job(ChunkKey("context", reader, "c"), (71, 72))])
    await here.encoder.drain()
    assert of(here, ALICE, new) != [None] and of(here, reader, new) == [None]
    assert len(here.engine.requests) == requests + 1 and here.encoder.queued() == 0
    here.delete(some[1])
    assert of(here, reader, some[1]) == [None], "what is forgotten leaves it like all others"
    here.encoder.reads = lambda owner: True
    await read(here, new)
    assert None not in of(here, reader, new)
