"""The gate is green on a sound engine, and red, with a reason, on every way to be wrong that it was built for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from inferscale_server.catalog import Catalog, Chunk, ChunkKey
from inferscale_server.command import Capture, Command
from inferscale_server.engine.gate import STORY, Gate
from inferscale_server.engine.layer_group import LayerGroup
from inferscale_server.engine.probe import EngineTraits, ProbeText, distances, probe_distances
from inferscale_server.engine.probe_quality import EncodedBehind, FactWords, choose_tail, quality_of
from inferscale_server.engine.probe_rows import ProbeRows
from inferscale_server.engine.verdict import Verdict, VerdictFolder
from inferscale_server.plan import Frame
from inferscale_server.rotary import RotaryTable
from inferscale_server.types import Owner
from tests.unit.attention import rotary

from .small_engine import BLOCK, DIM, POSITIONS, VOCABULARY, SmallEngine

HEADER_IDS = tuple(range(3, 3 + 20))
TRAITS = EngineTraits("float32", BLOCK, POSITIONS, prefix_caching=True)


def tokenize(text: str) -> tuple[int, ...]:
    """A token for each pair of letters."""
    return tuple(sum(map(ord, text[at : at + 2])) % VOCABULARY for at in range(0, len(text), 2))


async def frame_of(question: str) -> Frame:
    return Frame(HEADER_IDS, tokenize(question)[-10:])


class World:
    """A gate around a small engine, and the header that is encoded before it."""

    def __init__(self, folder: Path, engine: SmallEngine, traits: EngineTraits = TRAITS, rows: int = 1024) -> None:
        self.engine, self.catalog = engine, Catalog(rows, "print")
        verdicts = VerdictFolder(folder / "gate", {"traits": repr(traits)})
        words = FactWords("- {}\n".format, tokenize)
        self.gate = Gate(engine, self.catalog, words, frame_of, traits, verdicts, behind="facts")  # type: ignore[arg-type]

    async def header(self) -> Chunk:
        chunk = self.catalog.reserve(ChunkKey("header", Owner("local", ""), "h"), HEADER_IDS, frozenset())
        assert chunk is not None
        await self.engine.encode((*HEADER_IDS, 1, 1), Command(None, (Capture(chunk.stamp, 0, chunk.extents),)))
        self.catalog.commit(chunk)
        return chunk

    async def judge(self) -> Verdict:
        """Encode the header and pass the gate."""
        return await self.gate.judge(await self.header())


async def test_a_sound_engine_is_green_at_every_distance_and_leaves_no_row_behind(tmp_path: Path) -> None:
    world = World(tmp_path, SmallEngine())
    verdict = await world.judge()
    assert verdict.reasons == [] and not verdict.recalled
    farthest = distances(POSITIONS)[-1]
    assert farthest > 400
    names = {probe.name for probe in verdict.probes}
    assert {"answer", "rotation at 0", f"rotation at {farthest}", f"injection at {farthest}", "prefix cache"} <= names
    assert all(probe.measured < probe.allowed / 10 for probe in verdict.probes), verdict.probes
    assert verdict.quality is not None and verdict.shown()["passed"] is True
    world.catalog.wiped(world.catalog.unwiped)
    assert world.catalog.rows_used == len(HEADER_IDS)


@pytest.mark.parametrize("behind", ["nothing", "header", "facts"])
async def test_facts_are_probed_as_the_recipe_encodes_them(tmp_path: Path, behind: EncodedBehind) -> None:
    world = World(tmp_path, SmallEngine())
    world.gate = replace(world.gate, behind=behind)
    verdict = await world.judge()
    assert verdict.quality is not None
    injected = [verdict.quality.kv, verdict.quality.kv_with_tail]
    assert verdict.quality.text not in injected, "facts that were encoded apart cannot answer exactly like text"


Fault = Callable[[list[LayerGroup]], None]


def shifted_positions(groups: list[LayerGroup]) -> None:
    """Keys are put one position too far."""
    for group in groups:
        table = group.table
        assert table is not None
        table.at = lambda at, table=table: (table.cos[at + 1], table.sin[at + 1])  # type: ignore[method-assign, misc]


def swapped_values(groups: list[LayerGroup]) -> None:
    """A layer's values are written where another head's belong."""
    write = groups[0].writes[0]
    groups[0].writes[0] = lambda layer, key, value, cache, slots: write(layer, key, value.flip(1), cache, slots)


def a_zeroed_layer(groups: list[LayerGroup]) -> None:
    """One layer's values never reach the cache."""
    write = groups[-1].writes[0]
    groups[-1].writes[0] = lambda layer, key, value, cache, slots: write(layer, key, value * 0, cache, slots)


def a_wrong_base(groups: list[LayerGroup]) -> None:
    """One group's table is another model's, both ways: nothing shows where keys go back to where they came from."""
    groups[-1].table = RotaryTable(rotary(DIM, base=500_000.0, positions=POSITIONS).cos_sin_cache, is_neox=True)


def no_positions(groups: list[LayerGroup]) -> None:
    """A group is taken for one without rotation."""
    groups[0].table = None


def a_token_too_few(groups: list[LayerGroup]) -> None:
    """One layer's last injected token never reaches the cache."""
    write = groups[0].writes[-1]
    groups[0].writes[-1] = lambda layer, key, value, cache, slots: write(layer, key[:-1], value[:-1], cache, slots[:-1])


def unscaled_keys(groups: list[LayerGroup]) -> None:
    """A scaled rotation's factor is divided out and not put back."""
    for group in groups:
        table = group.table
        assert table is not None
        table.at = lambda at, table=table: (table.cos[at] * 0.9, table.sin[at] * 0.9)  # type: ignore[method-assign, misc]


def swapped_layers(groups: list[LayerGroup]) -> None:
    """Each layer of a group gets what another one computed."""
    groups[0].writes.reverse()
    groups[0].layers.reverse()


def only_far_positions(groups: list[LayerGroup]) -> None:
    """Right near the start, one position off past the original context of a scaled rotation."""
    for group in groups:
        table = group.table
        assert table is not None
        table.at = lambda at, table=table: (  # type: ignore[method-assign, misc]
            table.cos[at - (at > 300).long()],
            table.sin[at - (at > 300).long()],
        )


FAULTS = [
    (shifted_positions, "injection at 0"),
    (swapped_values, "injection at 0"),
    (a_zeroed_layer, "injection at 0"),
    (a_wrong_base, "rotation at 0"),
    (no_positions, "rotation at 0"),
]


@pytest.mark.parametrize(("fault", "probe"), FAULTS)
async def test_the_distances_are_red_on(tmp_path: Path, fault: Fault, probe: str) -> None:
    engine = SmallEngine()
    assert engine.worker.slab is not None
    fault(engine.worker.slab.groups)
    story = tokenize(STORY)
    probes = await probe_distances(ProbeRows(engine, Catalog(1024, "print")), ProbeText(5, story, story), TRAITS)
    red = [found.name for found in probes if found.reason is not None]
    assert probe in red and probe.replace(" 0", f" {distances(POSITIONS)[-1]}") in red, probes


CODED = replace(TRAITS, quantised=True)


async def test_a_slab_of_codes_is_green_at_every_distance(tmp_path: Path) -> None:
    verdict = await World(tmp_path, SmallEngine(slab_codec="int8"), CODED).judge()
    assert verdict.reasons == [] and verdict.quality is not None
    injected = {probe.name: probe for probe in verdict.probes if probe.name.startswith("injection")}
    assert all(0 < probe.measured < probe.allowed / 5 for probe in injected.values()), injected


@pytest.mark.parametrize("fault", [shifted_positions, a_wrong_base, no_positions])
async def test_a_slab_of_codes_is_red_on_a_wrong_rotation(tmp_path: Path, fault: Fault) -> None:
    engine = SmallEngine(slab_codec="int8")
    assert engine.worker.slab is not None
    fault(engine.worker.slab.groups)
    assert (await World(tmp_path, engine, CODED).judge()).reasons


MORE_FAULTS = (a_token_too_few, unscaled_keys, swapped_layers, only_far_positions)


@pytest.mark.parametrize("fault", [*(fault for fault, _ in FAULTS), *MORE_FAULTS])
async def test_the_gate_is_red_and_keeps_no_verdict_on(tmp_path: Path, fault: Fault) -> None:
    engine = SmallEngine()
    world = World(tmp_path, engine)
    header = await world.header()
    assert engine.worker.slab is not None
    fault(engine.worker.slab.groups)
    verdict = await world.gate.judge(header)
    assert verdict.reasons and all(reason.startswith("the start-up gate is red: ") for reason in verdict.reasons)
    assert verdict.quality is None and verdict.shown()["passed"] is False
    assert not (tmp_path / "gate").exists()


async def test_a_fault_that_shows_in_the_answer_ends_the_gate_at_its_first_probe(tmp_path: Path) -> None:
    engine = SmallEngine()
    world = World(tmp_path, engine)
    header = await world.header()
    assert engine.worker.slab is not None
    a_zeroed_layer(engine.worker.slab.groups)
    verdict = await world.gate.judge(header)
    assert [probe.name for probe in verdict.probes] == ["answer"]
    assert "an answer behind injected KV differs from prefill's" in verdict.reasons[0]


async def test_the_gate_is_red_when_salts_do_not_keep_requests_apart(tmp_path: Path) -> None:
    engine = SmallEngine()
    engine.shared_cache = True
    verdict = await World(tmp_path, engine).judge()
    assert len(verdict.reasons) == 1 and "of another salt in the prefix cache" in verdict.reasons[0]


async def test_the_gate_is_red_when_captures_do_not_arrive(tmp_path: Path) -> None:
    engine = SmallEngine()
    world = World(tmp_path, engine)
    header = await world.header()
    del engine.layers[1].attention.impl.do_kv_cache_update  # the tap's wrap
    verdict = await world.gate.judge(header)
    assert any("keys and values of 8 tokens behind 0 injected ones arrived" in reason for reason in verdict.reasons)
    json.dumps(verdict.shown(), allow_nan=False)


async def test_a_slab_without_room_is_red_and_says_what_to_give(tmp_path: Path) -> None:
    verdict = await World(tmp_path, SmallEngine(), rows=len(HEADER_IDS) + 20).judge()
    assert any("--kv-device-gib" in reason for reason in verdict.reasons)


async def test_a_restart_repeats_only_the_first_probe(tmp_path: Path) -> None:
    first = await World(tmp_path, SmallEngine()).judge()
    world = World(tmp_path, SmallEngine())
    header, used = await world.header(), world.catalog.rows_used
    again = await world.gate.judge(header)
    assert again.recalled and again.quality == first.quality and world.catalog.rows_used == used
    assert [probe.name for probe in again.probes] == [probe.name for probe in first.probes]


async def test_a_restart_with_another_trait_measures_again(tmp_path: Path) -> None:
    await World(tmp_path, SmallEngine()).judge()
    other = EngineTraits("float32", BLOCK, POSITIONS // 2, prefix_caching=True)
    assert not (await World(tmp_path, SmallEngine(), other).judge()).recalled


async def test_a_restart_that_answers_otherwise_is_red_whatever_was_kept(tmp_path: Path) -> None:
    await World(tmp_path, SmallEngine()).judge()
    engine = SmallEngine()
    world = World(tmp_path, engine)
    header = await world.header()
    assert engine.worker.slab is not None
    a_zeroed_layer(engine.worker.slab.groups)
    assert (await world.gate.judge(header)).reasons


async def test_a_quality_that_could_not_be_measured_is_measured_at_the_next_start(tmp_path: Path) -> None:
    whole = await World(tmp_path, SmallEngine()).judge()
    (kept,) = (tmp_path / "gate").iterdir()
    kept.write_text(whole.model_copy(update={"quality": None}).model_dump_json())
    again = await World(tmp_path, SmallEngine()).judge()
    assert again.recalled and again.quality == whole.quality is not None
    assert (await World(tmp_path, SmallEngine()).judge()).quality == whole.quality


async def test_an_engine_that_would_die_of_scoring_is_not_asked_to(tmp_path: Path) -> None:
    world = World(tmp_path, SmallEngine())
    gate = replace(world.gate, traits=replace(TRAITS, scores=False))
    verdict = await gate.judge(await world.header())
    assert verdict.reasons == [] and verdict.quality is None


def test_facts_that_answer_worse_injected_than_not_at_all_turn_the_gate_red() -> None:
    off, text, worse = [[-2.0]] * 8, [[-1.0]] * 8, [[-3.0]] * 8
    (reason,) = Verdict(probes=(), quality=quality_of(off, text, worse, worse)).reasons
    assert "loss 3.00 with them, 2.00 without, 1.00 when they are prefilled" in reason
    for kv, tailed in (
        (text, text),  # as good as text
        ([[-1.9]] * 8, [[-1.9]] * 8),  # of little use, but no harm
        (worse, text),  # mended by a tail
        ([*worse[:5], *text[5:]], worse),  # worse for five of eight: by chance one in three
    ):
        assert Verdict(probes=(), quality=quality_of(off, text, kv, tailed)).reasons == []
    assert Verdict(probes=(), quality=quality_of(off, off, worse, worse)).reasons == []  # facts gain nothing anyway


@pytest.mark.parametrize("damage", [b"", b"{", b'{"probes": 3}'])
async def test_a_damaged_verdict_is_measured_again(tmp_path: Path, damage: bytes) -> None:
    await World(tmp_path, SmallEngine()).judge()
    (kept,) = (tmp_path / "gate").iterdir()
    kept.write_bytes(damage)
    assert not (await World(tmp_path, SmallEngine()).judge()).recalled


@pytest.mark.parametrize(
    ("off", "text", "kv", "with_tail", "tail"),
    [
        (4.0, 1.0, 1.2, 1.0, 0),  # little is lost
        (4.0, 1.0, 2.0, 1.2, 64),
        (4.0, 1.0, 2.0, 1.95, 0),  # a tail does not help
        (4.0, 3.95, 4.5, 3.95, 0),  # nothing is gained from facts at all
    ],
)
def test_a_tail_is_chosen_when_it_brings_back_what_is_lost(
    off: float, text: float, kv: float, with_tail: float, tail: int
) -> None:
    assert choose_tail(off, text, kv, with_tail) == tail


def test_distances_reach_the_end_of_the_context_and_fit_short_ones() -> None:
    assert distances(131_072)[-1] > 130_000
    assert distances(110) == (0, 17, 2, 6)
    assert distances(64) == (0, 17) or all(far >= 0 for far in distances(64))
