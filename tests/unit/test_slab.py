"""Capture and injection on fake layers: captured at one offset, injected at another, equal to the model's own write."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from inferscale_server.engine.scheduler_half import Load, StepCapture, StepCommands
from inferscale_server.engine.slab import Slab, SlabCodec
from inferscale_server.engine.tapped import TappedLayer
from inferscale_server.engine.worker_half import WorkerHalf
from inferscale_server.rotary import compiled_gather, gather_rotated, rotate

from .attention import FakeRotary, Text, forward, layer, rotary, text_for, turned

ROWS = 64
NEOX, GPTJ = rotary(8), rotary(8, neox=False)
WIDE, PARTIAL, SCALED = rotary(8, base=1e6), rotary(4), rotary(8, scale=1.2)

MODELS: dict[str, list[tuple[int, int, FakeRotary | None]]] = {
    "neox": [(2, 8, NEOX), (2, 8, NEOX)],
    "gpt-j": [(2, 8, GPTJ), (2, 8, GPTJ)],
    "partial": [(2, 8, PARTIAL)],
    "partial gpt-j": [(2, 8, rotary(4, neox=False))],
    "no positions": [(2, 8, None)],
    "yarn's factor": [(2, 8, SCALED)],
    "two rotations, interleaved": [(2, 8, NEOX), (2, 8, WIDE), (2, 8, NEOX), (2, 8, None)],
    "other heads": [(2, 8, NEOX), (1, 8, NEOX), (4, 8, NEOX), (2, 16, rotary(16))],
}


@pytest.fixture(params=MODELS, ids=[name.replace(" ", "-") for name in MODELS])
def layers(request: pytest.FixtureRequest) -> list[TappedLayer]:
    """The layers of one small model."""
    shapes = MODELS[request.param]
    return [layer(f"layer {number}", heads, dim, turns) for number, (heads, dim, turns) in enumerate(shapes)]


def plain_layers() -> list[TappedLayer]:
    return [layer("one", 2, 8, NEOX), layer("two", 1, 8, NEOX)]


def worker_of(layers: list[TappedLayer], slab_codec: SlabCodec = "none", host_rows: int = 0) -> WorkerHalf:
    worker = WorkerHalf(ROWS, host_rows, slab_codec, slab_codec)
    worker.attach_layers(layers, torch.float32, torch.device("cpu"), compiled=False)
    return worker


def numbers(values: Sequence[int]) -> np.ndarray:
    return np.asarray(list(values), dtype=np.int64)


def capture(rows: Sequence[int], positions: Sequence[int], slots: Sequence[int], stamp: int = 1) -> StepCommands:
    arrays = [numbers(part) for part in (rows, positions, slots)]
    return StepCommands(captures=(StepCapture(*arrays, np.full(len(arrays[0]), stamp)),))


def load(rows: Sequence[int], positions: Sequence[int], slots: Sequence[int], blocks: Sequence[int] = ()) -> Load:
    return Load(numbers(rows), numbers(positions), numbers(slots), frozenset(blocks))


def captured_step(
    worker: WorkerHalf,
    layers: list[TappedLayer],
    commands: StepCommands,
    text: Text,
    positions: Sequence[int],
    slots: Sequence[int],
) -> None:
    worker.begin(commands)
    forward(layers, text, positions, slots)
    worker.end()


def test_what_was_captured_at_one_offset_is_injected_at_another(layers: list[TappedLayer]) -> None:
    worker, text = worker_of(layers), text_for(layers, 6)
    at, rows, slots = range(40, 46), [7, 8, 9, 20, 21, 22], range(100, 106)
    captured_step(worker, layers, capture(rows, at, slots), text, at, slots)
    assert worker.captured([(1, [(7, 3), (20, 3)])]) == [True] and not worker.errors
    for offset in (0, 13, 40, 121):
        there = range(offset, offset + 6)
        worker.load([load(rows, there, range(200, 206))])
        for number, each in enumerate(layers):
            cache = each.attention.kv_cache[200:206]
            twin = turned(text.keys[number], there, each.rotary)  # type: ignore[arg-type]
            assert (cache[:, 0].double() - twin).abs().max() < 1e-4
            assert torch.equal(cache[:, 1], text.values[number])


def test_several_chunks_are_injected_in_one_pass_in_any_order_of_rows_and_slots(layers: list[TappedLayer]) -> None:
    worker = worker_of(layers)
    texts = [text_for(layers, 5, seed) for seed in range(3)]
    for number, text in enumerate(texts):
        rows, at, slots = range(20 * number, 20 * number + 5), range(9 * number, 9 * number + 5), range(30, 35)
        captured_step(worker, layers, capture(rows, at, slots, number + 1), text, at, slots)
    order, slots = [2, 0, 1], [90, 3, 55, 7, 201, 12, 14, 16, 18, 20, 130, 131, 132, 133, 134]
    loads, place = [], 0
    for which in order:
        rows = range(20 * which, 20 * which + 5)
        loads.append(load(rows, range(place, place + 5), slots[place : place + 5]))
        place += 5
    worker.load(loads)
    for number, each in enumerate(layers):
        keys = torch.cat([texts[which].keys[number] for which in order])
        twin = turned(keys, range(15), each.rotary)  # type: ignore[arg-type]
        assert (each.attention.kv_cache[slots, 0].double() - twin).abs().max() < 1e-4
    assert worker.clock.tokens == 15 and worker.clock.steps == 1


def test_only_the_wanted_tokens_of_a_mixed_batch_are_captured(layers: list[TappedLayer]) -> None:
    worker, text = worker_of(layers), text_for(layers, 8)
    at, slots = [3, 4, 50, 51, 52, 9, 10, 11], [31, 30, 99, -1, 97, 5, 4, 6]
    captured_step(worker, layers, capture([11, 10], [52, 50], [97, 99]), text, at, slots)
    assert worker.slab is not None and worker.captured([(1, [(10, 2)])]) == [True]
    worker.load([load([10, 11], [0, 1], [200, 201])])
    for number, each in enumerate(layers):
        twin = turned(text.keys[number][[2, 4]], [0, 1], each.rotary)  # type: ignore[arg-type]
        assert (each.attention.kv_cache[[200, 201], 0].double() - twin).abs().max() < 1e-4
    untouched = [row for row in range(ROWS) if row not in (10, 11)]
    assert all(not group.keys[:, untouched].any() for group in worker.slab.groups)


def test_keys_longer_than_the_slot_mapping_are_padding() -> None:
    layers = plain_layers()
    worker, text = worker_of(layers), text_for(layers, 4)
    worker.begin(capture([3, 4], [0, 1], [8, 9]))
    forward(layers, text, [0, 1, 2, 3], [8, 9])
    worker.end()
    assert worker.captured([(1, [(3, 2)])]) == [True] and not worker.errors


def test_a_chunk_that_comes_in_several_steps_is_complete_after_the_last() -> None:
    layers = plain_layers()
    worker, text = worker_of(layers), text_for(layers, 3)
    for position in range(3):
        assert worker.captured([(5, [(10, 3)])]) == [False]
        captured_step(worker, layers, capture([10 + position], [position], [60], stamp=5), text, [position], [60])
    assert worker.captured([(5, [(10, 3)]), (5, [(10, 4)]), (6, [(10, 3)])]) == [True, False, False]


def test_a_position_that_is_computed_twice_is_not_rotated_back_twice() -> None:
    layers = plain_layers()
    worker, text = worker_of(layers), text_for(layers, 1)
    for slot in (60, 70):
        captured_step(worker, layers, capture([10], [33], [slot]), text, [33], [slot])
    assert worker.slab is not None
    for group in worker.slab.groups:
        number = layers.index(group.layers[0])
        assert (group.keys[0, 10] - text.keys[number][0]).abs().max() < 1e-4


def test_a_token_that_never_came_leaves_the_chunk_incomplete() -> None:
    layers = plain_layers()
    worker, text = worker_of(layers), text_for(layers, 2)
    captured_step(worker, layers, capture([10, 11, 12], [0, 1, 2], [60, 61, 62]), text, [0, 1], [60, 61])
    assert worker.captured([(1, [(10, 3)]), (1, [(10, 2)])]) == [False, True]


def test_a_layer_that_was_not_called_leaves_the_chunk_incomplete() -> None:
    layers = plain_layers()
    worker, text = worker_of(layers), text_for(layers, 2)
    captured_step(worker, layers[:1], capture([10, 11], [0, 1], [60, 61]), text, [0, 1], [60, 61])
    assert worker.captured([(1, [(10, 2)])]) == [False]


def test_rows_of_an_earlier_attempt_do_not_count_for_a_later_one() -> None:
    layers = plain_layers()
    worker, text = worker_of(layers), text_for(layers, 2)
    captured_step(worker, layers, capture([10, 11], [0, 1], [60, 61], stamp=1), text, [0, 1], [60, 61])
    captured_step(worker, layers, capture([10], [0], [60], stamp=2), text, [0, 1], [60, 61])
    assert worker.captured([(2, [(10, 2)]), (1, [(10, 2)])]) == [False, False]


@pytest.mark.parametrize("broken", ["keys", "values"])
def test_numbers_that_are_not_finite_leave_the_chunk_incomplete(broken: str) -> None:
    layers = plain_layers()
    worker, text = worker_of(layers), text_for(layers, 2)
    getattr(text, broken)[1][0, 0, 0] = float("nan")
    captured_step(worker, layers, capture([10, 11], [0, 1], [60, 61]), text, [0, 1], [60, 61])
    assert worker.captured([(1, [(10, 2)])]) == [False]


# Faults


def test_a_fault_in_the_tap_never_stops_the_models_own_write() -> None:
    layers = plain_layers()
    worker, text = worker_of(layers), text_for(layers, 2)
    assert worker.tap is not None
    worker.begin(capture([10, 11], [0, 1], [60, 61]))
    assert worker.tap.armed is not None
    worker.tap.armed.rows = torch.tensor([10, ROWS + 7])  # no such row
    forward(layers, text, [0, 1], [60, 61])
    with pytest.raises(IndexError):
        worker.end()
    assert worker.errors["capture"] == len(layers)
    for number, each in enumerate(layers):
        twin = turned(text.keys[number], [0, 1], each.rotary)  # type: ignore[arg-type]
        assert (each.attention.kv_cache[60:62, 0].double() - twin).abs().max() < 1e-5
    assert worker.captured([(1, [(10, 2)])]) == [False]


def test_keys_that_were_not_rotated_back_do_not_count() -> None:
    layers = plain_layers()
    worker, text = worker_of(layers), text_for(layers, 2)
    worker.begin(capture([10, 11], [5, 6], [60, 61]))
    forward(layers, text, [5, 6], [60, 61])  # and the hook after the forward fails
    assert worker.captured([(1, [(10, 2)])]) == [False]


def test_slots_of_an_earlier_step_capture_nothing() -> None:
    layers = plain_layers()
    worker, text = worker_of(layers), text_for(layers, 2)
    worker.begin(capture([10, 11], [0, 1], [60, 61]))  # the forward, and what ends it, never came
    worker.begin(StepCommands())
    forward(layers, text, [0, 1], [60, 61])
    worker.end()
    assert worker.slab is not None and not any(group.keys.any() for group in worker.slab.groups)


def test_a_layer_that_failed_on_the_second_try_is_not_rotated_back_twice() -> None:
    layers = plain_layers()
    worker, text = worker_of(layers), text_for(layers, 2)
    step = capture([10, 11], [5, 6], [60, 61])
    captured_step(worker, layers, step, text, [5, 6], [60, 61])
    captured_step(worker, layers[:1], step, text, [5, 6], [60, 61])  # the other layer's tap failed
    assert worker.captured([(1, [(10, 2)])]) == [False]


def test_failed_loads_report_their_own_blocks_once() -> None:
    worker = worker_of(plain_layers())
    loads = [load([1], [0], [4], [1]), load([2], [0], [8], [2, 3])]
    worker.load_failed(loads)
    assert worker.take_failed_blocks() == {1, 2, 3} and worker.take_failed_blocks() == set()


def test_blocks_that_the_scheduler_lost_are_reported_even_without_a_slab() -> None:
    worker = WorkerHalf(ROWS)
    worker.begin(StepCommands(lost_blocks=frozenset({4, 5})))
    assert worker.take_failed_blocks() == {4, 5}


def test_a_load_before_the_slab_is_there_is_an_error_and_not_a_silent_hole() -> None:
    with pytest.raises(RuntimeError, match="before the slab"):
        WorkerHalf(ROWS).load([load([1], [0], [4], [1])])


def test_wiped_rows_hold_zeros_and_are_not_complete() -> None:
    layers = plain_layers()
    worker, text = worker_of(layers), text_for(layers, 3)
    captured_step(worker, layers, capture([10, 11, 12], [0, 1, 2], [60, 61, 62]), text, [0, 1, 2], [60, 61, 62])
    worker.wipe([(10, 2)])
    assert worker.slab is not None
    for group in worker.slab.groups:
        assert not group.keys[:, 10:12].any() and not group.values[:, 10:12].any() and group.keys[:, 12].all()
    assert worker.captured([(1, [(10, 3)]), (1, [(12, 1)])]) == [False, True]


def test_an_injection_longer_than_a_pass_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferscale_server.engine.slab.MAX_TOKENS_PER_PASS", 4)
    layers = plain_layers()
    worker, text = worker_of(layers), text_for(layers, 10)
    at, slots = range(10), range(60, 70)
    captured_step(worker, layers, capture(range(10), at, slots), text, at, slots)
    worker.load([load(range(10), at, range(200, 210))])
    for each in layers:
        assert torch.allclose(each.attention.kv_cache[200:210], each.attention.kv_cache[60:70], atol=1e-5)


def test_layers_of_one_shape_and_rotation_share_an_array() -> None:
    shapes = MODELS["two rotations, interleaved"]
    layers = [layer(str(number), heads, dim, turns) for number, (heads, dim, turns) in enumerate(shapes)]
    slab = Slab(layers, ROWS, torch.float32, torch.device("cpu"))
    assert [[each.name for each in group.layers] for group in slab.groups] == [["0", "2"], ["1"], ["3"]]
    assert slab.bytes_per_row == 4 * 2 * 2 * 8 * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("neox", [True, False])
def test_rotating_back_is_the_inverse(dtype: torch.dtype, neox: bool) -> None:
    slab = Slab([layer("one", 2, 8, rotary(8, neox=neox, scale=1.3))], ROWS, dtype, torch.device("cpu"))
    (group,) = slab.groups
    assert group.table is not None
    torch.manual_seed(1)
    keys, at = torch.randn(5, 2, 8).to(dtype), torch.tensor([0, 1, 17, 90, 127])
    there = rotate(keys, *group.table.at(at), neox)
    back = rotate(there, *group.table.back_from(at), neox)
    assert back.dtype == dtype
    assert (back.float() - keys.float()).abs().max() < (1e-5 if dtype == torch.float32 else 0.05)


def twins(gather: Callable[..., None]) -> None:
    """`gather` gives what `rotate` gives on indexed rows."""
    for turns in (NEOX, GPTJ, PARTIAL, rotary(4, neox=False)):
        slab = Slab([layer("one", 2, 8, turns), layer("two", 2, 8, turns)], ROWS, torch.float32, torch.device("cpu"))
        (group,) = slab.groups
        assert group.table is not None
        torch.manual_seed(2)
        group.keys.normal_()
        for count in (1, 5, 33, 64):
            rows, at = torch.randint(0, ROWS, (count,)), torch.randint(0, 128, (count,))
            slow = rotate(group.keys[:, rows], *group.table.at(at), turns.is_neox_style)
            fast, _ = group.scratch(count)
            gather(fast, group.keys, rows, *group.table.at(at), turns.is_neox_style)
            assert fast.shape == (2, count, 2, 8) and torch.allclose(fast, slow, atol=1e-6)


def test_the_gather_gives_the_keys_of_its_twin() -> None:
    twins(gather_rotated)


@pytest.mark.long
def test_the_compiled_gather_gives_the_keys_of_its_twin() -> None:
    twins(compiled_gather())
