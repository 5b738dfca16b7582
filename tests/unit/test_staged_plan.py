"""Plans whose cold facts are brought up first, where that is worth it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inferscale_server.costs import Costs, Line
from inferscale_server.plan import Frame, from_cache
from inferscale_server.recall import Recall, Recollection
from inferscale_server.staged_plan import StagedPlan, staged_plan, tokens_by_source
from inferscale_server.staging import ColdTier
from inferscale_server.types import Hit, Mode

from .builders import ALICE
from .cold_facts import Cold, cold
from .engines import HEADER_IDS

FRAME = Frame(HEADER_IDS, (9, 9))
KV_IS_CHEAPER = Costs(prefill=Line(1.0, 1_000.0), inject=Line(1.0, 1.0), block_tokens=16)
TEXT_IS_CHEAPER = Costs(prefill=Line(1.0, 1.0), inject=Line(50.0, 1.0), block_tokens=16)


@dataclass
class Desk:
    """Cold facts, and who plans with them."""

    cold: Cold
    recall: Recall

    @property
    def found(self) -> Recollection:
        hits = tuple(Hit(fact, 1.0 - 0.01 * place) for place, fact in enumerate(self.cold.facts))
        return Recollection(ALICE, hits, ())

    async def plan(self, mode: Mode = "auto", refusal: str | None = None, room: int = 500) -> StagedPlan:
        return await staged_plan(self.recall, self.cold.stager, self.found, FRAME, mode, room, refusal)


async def desk(folder: Path, costs: Costs | None = None, header: bool = True, **how: Any) -> Desk:
    """Facts that lie in colder tiers, and a header that is encoded."""
    all_ = await cold(folder, **how)
    here = all_.world
    memory = SimpleNamespace(epoch=lambda owner: 0)  # nothing is forgotten here
    recall = Recall(cast(Any, memory), here.catalog, here.encoder, cast(Any, here.tokenize), 20, 0, costs=costs)
    if header:
        recall.plan(Recollection(ALICE, (), ()), FRAME, "kv", 500)
        await here.encoder.drain()
        await all_.evict()
    return Desk(all_, recall)


async def test_cold_facts_are_injected_by_the_chat_that_wants_them(tmp_path: Path) -> None:
    here = await desk(tmp_path, KV_IS_CHEAPER)
    planned = await here.plan()
    assert (planned.plan.mode, planned.plan.reason) == ("kv", "encoded")
    assert set(planned.staged.values()) == {"disk"} and planned.stage_ms > 0 and planned.plan_ms > 0


async def test_warm_facts_are_planned_without_a_step_of_the_event_loop(tmp_path: Path) -> None:
    here = await desk(tmp_path, KV_IS_CHEAPER)
    await here.plan()
    planning = here.plan()
    with pytest.raises(StopIteration) as done:
        planning.send(None)
    planned: StagedPlan = done.value.value
    assert planned.plan.reason == "encoded" and planned.staged == {} and planned.stage_ms == 0.0


async def test_auto_stages_nothing_for_a_chat_that_text_serves_sooner(tmp_path: Path) -> None:
    here = await desk(tmp_path, TEXT_IS_CHEAPER)
    loads, queued = list(here.cold.engine.loads), here.cold.world.encoder.queued()
    planned = await here.plan()
    assert (planned.plan.mode, planned.plan.reason) == ("text", "text_cheaper") and planned.plan.estimate is not None
    assert here.cold.engine.loads == loads and here.cold.warm() == [] and planned.stage_ms == 0.0
    assert here.cold.world.encoder.queued() == queued, "what is not worth a wait evicts nobody later either"


async def test_the_time_that_staging_takes_counts_against_kv(tmp_path: Path) -> None:
    near = Costs(prefill=Line(0.0, 1_000.0), inject=Line(14.0, 1.0), block_tokens=16)
    here = await desk(tmp_path, near)
    untried = await here.plan()
    await here.cold.evict()
    here.cold.stager._s_per_token["disk"] = 1.0
    slow = await here.plan()
    assert untried.plan.mode == "kv" and slow.plan.reason == "text_cheaper" and slow.plan.estimate is not None
    assert slow.plan.estimate.kv_ms >= 1e3 * here.cold.stager._deadline_s


@pytest.mark.parametrize(
    "how", [{"mode": "text"}, {"refusal": "prompt_logprobs"}, {"mode": "kv", "refusal": "adapter"}]
)
async def test_a_chat_that_cannot_be_kv_stages_nothing(tmp_path: Path, how: dict[str, Any]) -> None:
    here = await desk(tmp_path)
    loads = list(here.cold.engine.loads)
    assert (await here.plan(**how)).plan.mode == "text" and here.cold.engine.loads == loads


async def test_a_server_that_refuses_kv_and_a_header_that_is_not_encoded_stage_nothing(tmp_path: Path) -> None:
    refusing, headless = await desk(tmp_path / "a"), await desk(tmp_path / "b", header=False)
    refusing.recall.kv_refusals.append("ALiBi positions cannot be moved")
    for here, reason in ((refusing, "unsupported_model"), (headless, "header_not_encoded")):
        loads = list(here.cold.engine.loads)
        assert (await here.plan("kv")).plan.reason == reason and here.cold.engine.loads == loads


async def test_a_fixed_mode_stages_whatever_text_would_cost(tmp_path: Path) -> None:
    here = await desk(tmp_path, TEXT_IS_CHEAPER)
    planned = await here.plan("kv")
    assert (planned.plan.mode, planned.plan.estimate) == ("kv", None) and len(here.cold.warm()) == 3


async def test_what_does_not_fit_into_the_prompt_is_not_brought_up(tmp_path: Path) -> None:
    here = await desk(tmp_path)
    await here.plan("kv", room=len(here.cold.wanted[0].token_ids))
    assert here.cold.warm() == [here.cold.facts[0].id]


async def test_every_token_has_the_source_of_its_chunk_however_many_were_injected(tmp_path: Path) -> None:
    plan = (await (await desk(tmp_path, KV_IS_CHEAPER, facts=4)).plan()).plan
    staged: dict[int, ColdTier] = {plan.chunks[1].stamp: "host", plan.chunks[3].stamp: "disk"}
    sources = [staged.get(chunk.stamp, "device") for chunk in plan.chunks for _ in chunk.token_ids]
    assert len(sources) == plan.injected_tokens
    for injected in range(plan.injected_tokens + 1):
        found = tokens_by_source(plan, staged, injected)
        computed = plan.memory_tokens - max(injected - plan.header_tokens, 0)
        assert found == {"device": 0, "host": 0, "disk": 0, **Counter(sources[:injected]), "text": computed}


async def test_what_only_the_prefix_cache_holds_was_on_the_device(tmp_path: Path) -> None:
    plan = from_cache((await (await desk(tmp_path, KV_IS_CHEAPER)).plan()).plan)
    injected = plan.header_tokens + 1
    found = tokens_by_source(plan, {}, injected)
    assert found == {"device": injected, "host": 0, "disk": 0, "text": plan.memory_tokens - 1}
