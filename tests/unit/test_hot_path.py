"""A hot chat, as far as it gets without an engine: what it asks of nobody, and what it says of where its time went."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.lora.request import LoRARequest

from inferscale_server.catalog import Catalog
from inferscale_server.edge.metrics import Metrics
from inferscale_server.edge.wire import ChatMemory
from inferscale_server.encode import Encoder, FactSource
from inferscale_server.engine.adapters import Adapters
from inferscale_server.engine.chat import ChatDesk
from inferscale_server.facts import FactStore
from inferscale_server.index import ExactIndex
from inferscale_server.kv_disk import KvDisk
from inferscale_server.memory import MemoryService
from inferscale_server.plan import Frame, MemoryPlan
from inferscale_server.readers import Readers
from inferscale_server.recall import Recall, header_job_of
from inferscale_server.recipe import Recipe
from inferscale_server.salts import Salts
from inferscale_server.session_recall import SessionRecall
from inferscale_server.sessions import Sessions
from inferscale_server.staged_plan import staged_plan
from inferscale_server.staging import Stager
from inferscale_server.tiers import HostTier
from inferscale_server.types import FactDraft
from tests.memory.fakes import FakeEmbedder

from .builders import ALICE, BOB, SECRET
from .engines import HEADER_IDS, WordTokenizer
from .host_engine import HostEngine

FACTS = 60


class Watched:
    """Hands everything on to the engine, and remembers which of its methods were taken."""

    def __init__(self, engine: HostEngine) -> None:
        self._engine, self.calls = engine, list[str]()

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._engine, name)


@dataclass
class Desk:
    """All that a chat's preparation joins: facts on disk, all tiers, an engine. `statements`: what SQLite was told."""

    memory: MemoryService
    encoder: Encoder
    catalog: Catalog
    host: HostTier
    recall: Recall
    stager: Stager
    engine: Watched
    statements: list[str]

    async def chat(self) -> MemoryPlan:
        """What one chat does before it is submitted."""
        found = await self.recall.find(ALICE, "what do goats eat", None, None, ())
        planned = await staged_plan(self.recall, self.stager, found, Frame(HEADER_IDS, (9, 9)), "auto", 900)
        return planned.plan

    async def settle(self) -> None:
        """The background has nothing to do any more."""
        await self.encoder.drain()
        while await self.host.copy_some():
            pass


@pytest_asyncio.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    catalog, tokenize, engine = Catalog(2_000, "f"), WordTokenizer(), Watched(HostEngine())
    header = header_job_of(ALICE, HEADER_IDS)
    disk = KvDisk(tmp_path / "kv", 1 << 20, 1, 8, catalog, engine)
    memory: MemoryService

    source = FactSource(lambda owner: memory.facts(owner), lambda owner: memory.vectors(owner))
    encoder = Encoder(catalog, Recipe(primer_facts=3), engine, tokenize, header, source, 900, disk=disk)  # type: ignore[arg-type]
    host = HostTier(catalog, 2_000, engine)
    catalog.on_commit = host.note
    store = FactStore(tmp_path / "facts.sqlite3")
    memory = MemoryService(store, ExactIndex(), FakeEmbedder(), encoder)
    await memory.start()
    recall = Recall(memory, catalog, encoder, tokenize, 50, 0)  # type: ignore[arg-type]
    stager = Stager(catalog, encoder.wipe, host, disk, 5.0, recall.text_s)
    disk.open({})
    statements: list[str] = []
    store._database._connection.set_trace_callback(statements.append)
    desk = Desk(memory, encoder, catalog, host, recall, stager, engine, statements)
    await memory.add(ALICE, [FactDraft(f"goats eat grass number {number}") for number in range(FACTS)])
    await desk.settle()
    yield desk
    await memory.aclose()


async def test_a_warm_chat_asks_neither_the_workers_nor_the_store(desk: Desk) -> None:
    await desk.chat()
    desk.engine.calls.clear()
    desk.statements.clear()
    desk.encoder._wake.clear()
    plan = await desk.chat()
    assert (plan.mode, plan.reason, len(plan.lines)) == ("kv", "encoded", 50)
    assert desk.engine.calls == [] and desk.statements == []
    assert not desk.encoder._wake.is_set(), "a chat that lacks nothing need not wake the background"


async def test_what_is_watched_here_would_be_seen(desk: Desk) -> None:
    desk.engine.calls.clear()
    desk.statements.clear()
    desk.catalog.drop_where(ALICE, lambda chunk: chunk.key.kind == "fact")
    assert (await desk.chat()).reason == "encoded" and "copy" in desk.engine.calls
    await desk.memory.add(ALICE, [FactDraft("trains leave at noon")])
    assert any("INSERT" in statement for statement in desk.statements)


class Framed:
    """Renders every conversation alike."""

    async def frame(self, request: object) -> Frame:
        return Frame(HEADER_IDS, (9, 9))


def chat_desk(desk: Desk, models: Any = None) -> ChatDesk:
    """Who prepares chats, without an engine to send them to. `models`: vLLM's list of them; without, one takes all."""
    brain = SimpleNamespace(
        recall=desk.recall,
        stager=desk.stager,
        memory=desk.memory,
        catalog=desk.catalog,
        salts=Salts(SECRET, "f"),
        metrics=Metrics(CollectorRegistry()),
        session_recall=SessionRecall(desk.recall, Sessions(10, 60), desk.stager),
        note_faults=lambda where, counts: None,
        extraction=None,
        readers=Readers(),
        fingerprint_with=lambda digest: digest,
        disk=None,
        support=SimpleNamespace(refusals=[]),
        kv_bytes=lambda owner: {"device": 0 if owner is None else 7, "host": 0, "disk": 0},
    )
    door = SimpleNamespace(params=lambda command: {})
    models = models or SimpleNamespace(is_base_model=lambda name: True)
    adapters = Adapters(models, cast(Any, door), cast(Any, brain))
    return ChatDesk(cast(Any, brain), cast(Any, door), cast(Any, Framed()), cast(Any, None), adapters, 2_000)


SEARCHED = {"embed", "search"}


@pytest.mark.parametrize(
    ("ask", "reason", "spent"),
    [
        (ChatMemory(ALICE), "encoded", {*SEARCHED, "plan"}),
        (ChatMemory(ALICE, session_id="s"), "encoded", {*SEARCHED, "plan"}),
        (ChatMemory(ALICE, min_score=0.999), "nothing_remembered", SEARCHED),
        (ChatMemory(ALICE, session_id="s", min_score=0.999), "nothing_remembered", SEARCHED),
        (ChatMemory(ALICE, mode="off"), "requested", set()),
        (ChatMemory(None), "no_user", set()),
    ],
)
async def test_every_answer_names_all_stages_and_what_was_spent(
    desk: Desk, ask: ChatMemory, reason: str, spent: set[str]
) -> None:
    await desk.chat()
    chats = chat_desk(desk)
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "what do the goats eat"}])
    told = chats._provenance(await chats._prepare(request, ask))
    assert told["reason"] == reason and set(told["timings_ms"]) == {"embed", "search", "plan", "stage", "ttft"}
    assert {stage for stage, ms in told["timings_ms"].items() if ms} == spent


@pytest.mark.parametrize(
    ("ask", "held"), [(ChatMemory(ALICE), 7), (ChatMemory(ALICE, mode="off"), 7), (ChatMemory(None), 0)]
)
async def test_every_answer_says_what_the_users_kv_takes(desk: Desk, ask: ChatMemory, held: int) -> None:
    chats = chat_desk(desk)
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "what do the goats eat"}])
    told = chats._provenance(await chats._prepare(request, ask))
    assert told["footprint"] == {"device": held, "host": 0, "disk": 0}


@pytest.mark.parametrize("session", [None, "s"])
async def test_a_chat_that_waited_for_cold_facts_says_so(desk: Desk, session: str | None) -> None:
    await desk.chat()
    desk.catalog.drop_where(ALICE, lambda chunk: chunk.key.kind == "fact")
    chats = chat_desk(desk)
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "what do the goats eat"}])
    turn = await chats._prepare(request, ChatMemory(ALICE, session_id=session))
    assert turn.timings_ms["stage"] > 0 and turn.timings_ms["plan"] > 0 and set(turn.staged.values()) == {"host"}


async def test_an_adapter_that_is_loaded_while_facts_are_searched_does_not_get_the_base_models_kv(
    desk: Desk, tmp_path: Path
) -> None:
    models = SimpleNamespace(is_base_model=lambda name: name == "base", lora_requests={})
    chats = chat_desk(desk, models)
    find = desk.recall.find

    async def find_slowly(*asked: Any) -> Any:
        """Meanwhile vLLM resolves the adapter for another chat, which is served."""
        (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
        models.lora_requests["pirate"] = LoRARequest("pirate", 1, str(tmp_path))
        assert await chats._adapters.reader("pirate", BOB) is not None
        return await find(*asked)

    asked = {"messages": [{"role": "user", "content": "what do the goats eat"}]}
    turn = await chats._prepare(ChatCompletionRequest(model="base", **asked), ChatMemory(ALICE))
    assert turn.mode == "kv"
    desk.recall.find = find_slowly  # type: ignore[method-assign]
    turn = await chats._prepare(ChatCompletionRequest(model="pirate", **asked), ChatMemory(ALICE))
    assert (turn.mode, turn.reason) == ("text", "adapter")
    assert turn.plan is not None and turn.plan.injection is None
