"""Through which adapter a chat reads: by the name of the model that it asks, and by the bytes of that adapter."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from vllm.config.lora import LoRAConfig
from vllm.lora.request import LoRARequest

from inferscale_server.engine.adapters import Adapters, digest_of_files
from inferscale_server.engine.assemble import how_applied
from inferscale_server.engine.door import EngineDoor
from inferscale_server.readers import Readers
from inferscale_server.types import Owner

from .builders import ALICE, BOB
from .test_door import Client, door_to

BASE = "the base model"


@dataclass
class Models:
    """vLLM's list of models."""

    lora_requests: dict[str, LoRARequest] = field(default_factory=dict)

    def is_base_model(self, name: str) -> bool:
        return name == BASE

    def load(self, name: str, folder: Path, number: int = 1) -> None:
        self.lora_requests[name] = LoRARequest(name, number, str(folder))


@dataclass
class Desk:
    """Adapters and what they are told to."""

    models: Models = field(default_factory=Models)
    door: EngineDoor = field(default_factory=lambda: door_to(Client()))
    readers: Readers = field(default_factory=Readers)
    adopted: list[str] = field(default_factory=list)
    stored: dict[str, set[str]] = field(default_factory=dict)  # whose facts, by fingerprint
    loading: list[Owner] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)  # of adapters that were read

    def __post_init__(self) -> None:
        shelf = SimpleNamespace(
            adopt=self.adopted.append, owners_with=lambda fingerprint: self.stored.get(fingerprint, set())
        )
        brain = SimpleNamespace(
            fingerprint_with=self.fingerprint_with,
            readers=self.readers,
            disk=SimpleNamespace(shelf=shelf),
            support=SimpleNamespace(refusals=self.refusals),
            memory=SimpleNamespace(owners=lambda: (ALICE, BOB)),
            encoder=SimpleNamespace(added=lambda owner, facts: self.loading.append(owner)),
        )
        self.adapters = Adapters(self.models, self.door, cast(Any, brain))

    def fingerprint_with(self, digest: str) -> str:
        self.digests.append(digest)
        return f"base with {digest}"

    async def fingerprint(self, model: str) -> str:
        reader = await self.adapters.reader(model, ALICE)
        assert reader is not None and self.adapters.knows(model, reader) and reader.itself == ALICE
        return reader.adapter


def write(folder: Path, weights: bytes = b"w") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


@pytest.mark.parametrize("model", [None, "", BASE])
async def test_the_base_model_reads_the_owners_own(model: str | None) -> None:
    desk = Desk()
    assert await desk.adapters.reader(model, ALICE) == ALICE and desk.adapters.knows(model, ALICE)
    assert desk.readers.of(ALICE) == (ALICE,)


async def test_an_adapter_is_known_by_its_bytes(tmp_path: Path) -> None:
    desk = Desk()
    folders = {name: write(tmp_path / name, name[:1].encode()) for name in ("pirate", "parrot", "lawyer")}
    for number, (name, folder) in enumerate(folders.items(), 1):
        desk.models.load(name, folder, number)
    pirate, parrot, lawyer = [await desk.fingerprint(name) for name in folders]
    assert pirate == parrot != lawyer, "the same weights under two names"
    assert set(desk.adopted) == {pirate, lawyer} and desk.door.adapters is desk.adapters
    assert [desk.adapters.fingerprint_of(one) for one in desk.models.lora_requests.values()] == [pirate, pirate, lawyer]
    del desk.models.lora_requests["pirate"]
    assert desk.adapters.through(pirate) is desk.models.lora_requests["parrot"], "the same weights"
    assert desk.adapters.through(lawyer) is desk.models.lora_requests["lawyer"]
    assert [reader.adapter for reader in desk.readers.of(ALICE)] == ["", pirate, lawyer]


async def test_another_adapter_under_the_same_name_is_another_one(tmp_path: Path) -> None:
    desk = Desk()
    desk.models.load("pirate", write(tmp_path / "a"))
    before = await desk.fingerprint("pirate")
    desk.models.load("pirate", write(tmp_path / "b", b"trained on"))
    old = replace(ALICE, adapter=before)
    assert not desk.adapters.knows("pirate", old) and not desk.adapters.reads(old)
    after = await desk.fingerprint("pirate")
    assert after != before and not desk.adapters.knows("pirate", old), "a plan that was begun before"
    assert desk.adapters.through(before) is None, "nothing is captured for what is not loaded any more"
    assert desk.adapters.reads(replace(ALICE, adapter=after)) and desk.adapters.reads(ALICE)


async def test_files_that_change_under_an_adapter_end_its_kv(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.models.load("pirate", write(tmp_path / "a"))
    before = await desk.fingerprint("pirate")
    write(tmp_path / "a", b"trained on")  # vLLM reads them when it next makes room for the adapter, or has done so
    old = replace(ALICE, adapter=before)
    assert desk.adapters.through(before) is None and not desk.adapters.reads(old)
    assert not desk.adapters.knows("pirate", old) and await desk.adapters.reader("pirate", ALICE) is None
    assert sum("changed" in record.message for record in caplog.records) == 1, "told once"
    desk.models.load("pirate", tmp_path / "a")
    assert await desk.fingerprint("pirate") != before


async def test_an_adapter_that_comes_while_facts_are_searched_does_not_get_the_base_models_kv(tmp_path: Path) -> None:
    desk = Desk()
    assert await desk.adapters.reader("pirate", ALICE) is None
    desk.models.load("pirate", write(tmp_path / "a"))
    reader = await desk.adapters.reader("pirate", BOB)  # another chat
    assert reader is not None and desk.adapters.knows("pirate", reader)
    assert not desk.adapters.knows("pirate", ALICE)


async def test_where_vllm_takes_any_name_for_the_base_model_so_do_we(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk()
    monkeypatch.setenv("VLLM_SKIP_MODEL_NAME_VALIDATION", "1")
    desk.models.load("pirate", write(tmp_path / "a"))
    assert await desk.adapters.reader("any name", ALICE) == ALICE and desk.adapters.knows("any name", ALICE)
    assert await desk.fingerprint("pirate")


async def test_chats_that_come_together_read_the_files_once(tmp_path: Path) -> None:
    desk = Desk()
    desk.models.load("pirate", write(tmp_path / "a"))
    readers = await asyncio.gather(*[desk.adapters.reader("pirate", ALICE) for _ in range(5)])
    assert len(desk.digests) == 1 and len(set(readers)) == 1


async def test_what_nobody_can_name_by_its_weights_gets_no_kv(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    (tmp_path / "empty").mkdir()
    desk.models.load("empty", tmp_path / "empty")
    desk.models.load("gone", tmp_path / "gone")
    for model in ("empty", "empty", "gone", "never loaded"):
        assert await desk.adapters.reader(model, ALICE) is None and not desk.adapters.knows(model, ALICE)
    assert desk.readers.of(ALICE) == (ALICE,) and desk.adopted == []
    assert [desk.adapters.fingerprint_of(one) for one in desk.models.lora_requests.values()] == [None, None]
    assert sum("adapter" in record.message for record in caplog.records) == 2, "told once each"


async def test_at_a_start_whoever_was_read_through_an_adapter_is_loaded_for_it(tmp_path: Path) -> None:
    desk = Desk()
    desk.models.load("pirate", write(tmp_path / "a"))
    desk.models.load("lawyer", write(tmp_path / "b", b"other"), 2)
    desk.models.load("gone", tmp_path / "gone", 3)
    pirate = f"base with {digest_of_files(tmp_path / 'a')}"
    desk.stored[pirate] = {ALICE.digest()}
    await desk.adapters.load()
    assert desk.loading == [replace(ALICE, adapter=pirate)] == list(desk.readers.of(ALICE)[1:])
    assert desk.readers.of(BOB) == (BOB,) and len(desk.adopted) == 2


async def test_without_kv_no_adapter_is_read(tmp_path: Path) -> None:
    desk = Desk(refusals=["the gate is red"])
    desk.models.load("pirate", write(tmp_path / "a"))
    await desk.adapters.load()
    assert await desk.adapters.reader("pirate", ALICE) == ALICE and desk.adapters.knows("pirate", ALICE)
    assert desk.digests == [] and desk.loading == []


def test_a_digest_is_of_names_and_bytes(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a"), write(tmp_path / "b")
    (second / "README.md").write_text("says nothing")
    assert digest_of_files(first) == digest_of_files(second)
    (second / "adapter_config.json").write_text('{"r": 8}')
    assert digest_of_files(first) != digest_of_files(second)


def test_what_of_an_adapter_is_used_is_part_of_its_fingerprint() -> None:
    ways = [None, LoRAConfig(), LoRAConfig(target_modules=["q_proj"]), LoRAConfig(lora_dtype="float16")]
    assert len({how_applied(one) for one in ways}) == len(ways)
    assert how_applied(LoRAConfig(max_loras=4, max_lora_rank=64)) == how_applied(LoRAConfig()), "says nothing of KV"
