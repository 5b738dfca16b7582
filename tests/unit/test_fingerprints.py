"""R5: KV files of another model, template, recipe or format are never loaded; they stay for the start they are of."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from inferscale_server.fingerprint import Ingredients, fingerprint
from inferscale_server.kv_codec import KvIdentity
from inferscale_server.kv_disk import KvDisk
from inferscale_server.kv_files import read_kv, temporary, write_temporary
from inferscale_server.types import Fact

from .builders import ALICE, BOB, fact
from .engines import World, world

ORIGINAL = Ingredients(
    weights="model.safetensors:1:2",
    config={"hidden_size": 576, "rope_theta": 1e5},
    tokenizer="t",
    chat_template="{{ messages }}",
    dtype="float32",
    kv_cache_dtype="auto",
    tensor_parallel=1,
    adapter="",
    recipe="primer-20",
    words="w",
)
CHANGES: dict[str, object] = {
    "weights": "model.safetensors:1:3",
    "config": {"hidden_size": 576, "rope_theta": 1e6},
    "tokenizer": "u",
    "chat_template": "{{ messages }} ",
    "dtype": "bfloat16",
    "kv_cache_dtype": "fp8",
    "tensor_parallel": 2,
    "adapter": "lora",
    "recipe": "primer-21",
    "words": "v",
    "rotary": "a longer table",
    "codec": "int8",
    "codec_version": ORIGINAL.codec_version + 1,
}
FACTS = [fact(number) for number in range(4)]
"""The header and four facts are five chunks."""


async def started(folder: Path, print_: str, facts: list[Fact] = FACTS, budget_bytes: int = 1 << 20) -> World:
    """A start of a server of this fingerprint, as far as its encoder gets."""
    by_owner = {facts[0].owner: list(facts)} if facts else {}
    here = world(folder=folder, facts=by_owner, fingerprint=print_, budget_bytes=budget_bytes)
    here.encoder.added(ALICE, ())
    await here.encoder.drain()
    return here


def disk_of(here: World) -> KvDisk:
    assert here.disk is not None
    return here.disk


def identities_in(folder: Path) -> list[KvIdentity]:
    """What the files say that they are of."""
    return [read_kv(path).header.identity for path in folder.rglob("*.kv")]


def prints_in(folder: Path) -> dict[str, int]:
    """How many files there are of each fingerprint."""
    prints = [identity.fingerprint for identity in identities_in(folder)]
    return {print_: prints.count(print_) for print_ in sorted(set(prints))}


def test_every_ingredient_is_changed_here() -> None:
    assert CHANGES.keys() == set(Ingredients.__slots__)


@pytest.mark.parametrize("ingredient", CHANGES)
async def test_R5_after_a_change_of_one_ingredient_nothing_is_loaded_and_the_reason_is_counted(
    tmp_path: Path, ingredient: str
) -> None:
    other = dataclasses.replace(ORIGINAL, **{ingredient: CHANGES[ingredient]})  # type: ignore[arg-type]
    before = await started(tmp_path, fingerprint(ORIGINAL))
    after = await started(tmp_path, fingerprint(other))
    assert after.engine.loads == [] and after.encoder.results == {"stored": 5}
    assert disk_of(after).events["keep", "fingerprint"] == 5 == disk_of(before).events["save", "ok"]
    for each in FACTS:
        chunk, old = after.chunk(each), before.chunk(each)
        assert chunk is not None and old is not None
        assert after.engine.tokens_of(chunk) == before.engine.tokens_of(old)
    print(f"R5, {ingredient}: 0 loads, 5 chunks counted as of another fingerprint")


async def test_two_models_on_one_data_folder_both_keep_their_kv(tmp_path: Path) -> None:
    for print_ in ("f", "g"):
        await started(tmp_path, print_)
    assert prints_in(tmp_path) == {"f": 5, "g": 5}
    for print_ in ("f", "g"):
        again = await started(tmp_path, print_)
        assert again.engine.requests == [] and again.encoder.results["loaded"] == 5


async def test_kv_of_another_model_is_the_first_to_go_for_the_budget(tmp_path: Path) -> None:
    size = disk_of(await started(tmp_path, "f")).shelf.bytes
    here = await started(tmp_path, "g", budget_bytes=size + size // 2)
    assert disk_of(here).shelf.bytes <= size + size // 2
    left = prints_in(tmp_path)
    assert left["g"] == 5 and 0 < left["f"] < 5


async def test_S9_a_delete_reaches_the_files_of_all_models(tmp_path: Path) -> None:
    await started(tmp_path, "f")
    here = await started(tmp_path, "g")
    here.delete(FACTS[3])
    await here.encoder.settled()
    left = identities_in(tmp_path)
    assert FACTS[3].id not in {identity.name for identity in left}
    assert {identity.fingerprint for identity in left} == {"f", "g"}
    here.delete(FACTS[0])  # all others were encoded behind it
    await here.encoder.settled()
    assert {identity.kind for identity in identities_in(tmp_path)} == {"header"}


async def test_S9_an_owners_files_of_all_models_are_gone_when_the_delete_returns(tmp_path: Path) -> None:
    await started(tmp_path, "f")
    here = await started(tmp_path, "g")
    here.add(fact(1, owner=BOB))
    await here.encoder.drain()
    here.delete_owner(ALICE)
    await here.encoder.settled()
    owners = {identity.owner for identity in identities_in(tmp_path)}
    assert ALICE.digest() not in owners and BOB.digest() in owners


async def test_S10_what_was_deleted_under_another_model_does_not_come_back(tmp_path: Path) -> None:
    await started(tmp_path, "f")
    here = await started(tmp_path, "g", FACTS[:3])  # the fourth was deleted, and then the power went
    assert disk_of(here).events["drop", "orphan"] == 1
    again = await started(tmp_path, "f", FACTS[:3])
    assert FACTS[3].id not in {stored.identity.name for stored in disk_of(again).shelf.all()}


def as_two_ranks(folder: Path) -> None:
    """Every file twice, as two workers would have written it."""
    for path in list(folder.rglob("*.0.kv")):
        file = read_kv(path)
        for rank in (0, 1):
            header = dataclasses.replace(
                file.header, layout=dataclasses.replace(file.header.layout, rank=rank, world=2)
            )
            place = path.with_name(path.name.replace(".0.kv", f".{rank}.kv"))
            write_temporary(place, header, [memoryview(file.payload)])
            temporary(place).rename(place)


async def test_files_of_two_ranks_of_another_model_stay_and_are_removed_together(tmp_path: Path) -> None:
    await started(tmp_path, "f")
    as_two_ranks(tmp_path)
    here = await started(tmp_path, "g")
    assert prints_in(tmp_path) == {"f": 10, "g": 5}
    here.delete_owner(ALICE)
    await here.encoder.settled()
    assert prints_in(tmp_path) == {"f": 2, "g": 1}  # the headers
