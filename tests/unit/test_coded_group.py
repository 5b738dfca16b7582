"""A slab of int8 codes: what was captured is injected as near as its codes, and half as large."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from inferscale_server.codes import Codes, dequantise
from inferscale_server.engine.coded_group import CodedGroup, compiled_decode, decode_rows
from inferscale_server.engine.slab import Slab
from inferscale_server.engine.tapped import TappedLayer
from inferscale_server.engine.worker_half import WorkerHalf
from inferscale_server.rotary import rotate
from inferscale_server.row_copy import RowCopy

from .attention import layer, rotary, text_for, turned
from .builders import extents
from .test_rank_files import FROM, TO, order, placed
from .test_slab import GPTJ, MODELS, NEOX, PARTIAL, ROWS, capture, captured_step, load, plain_layers, worker_of

APART = 0.04
"""Half a step of numbers below 5, and the float32 rotation of it."""


@pytest.fixture(params=MODELS, ids=[name.replace(" ", "-") for name in MODELS])
def layers(request: pytest.FixtureRequest) -> list[TappedLayer]:
    """The layers of one small model."""
    return [layer(f"layer {number}", *shape) for number, shape in enumerate(MODELS[request.param])]


def captured(layers: list[TappedLayer], host_rows: int = 0) -> WorkerHalf:
    """A worker with codes in its slab: a text of five tokens, at positions 40 …, in rows 7, 8, 9, 20, 21."""
    worker = worker_of(layers, "int8", host_rows)
    at, slots = range(40, 45), range(100, 105)
    captured_step(worker, layers, capture([7, 8, 9, 20, 21], at, slots), text_for(layers, 5), at, slots)
    return worker


def test_what_was_captured_is_injected_elsewhere_as_near_as_its_codes(layers: list[TappedLayer]) -> None:
    worker, text = captured(layers), text_for(layers, 5)
    assert worker.captured([(1, [(7, 3), (20, 2)])]) == [True] and not worker.errors
    for offset in (0, 13, 40, 121):
        there, far = range(offset, offset + 5), 0.0
        worker.load([load([7, 8, 9, 20, 21], there, range(200, 205))])
        for number, each in enumerate(layers):
            cache = each.attention.kv_cache[200:205].double()
            twin = turned(text.keys[number], there, each.rotary)  # type: ignore[arg-type]
            far = max(far, float((cache[:, 1] - text.values[number]).abs().max()))
            assert (cache[:, 0] - twin).abs().max() < APART
        assert 0 < far < APART


def test_a_token_alone_is_injected_as_among_others(layers: list[TappedLayer]) -> None:
    worker = captured(layers)
    worker.load([load([7, 8, 9], [3, 4, 5], [200, 201, 202])])
    worker.load([load([8], [4], [210])])
    for each in layers:
        assert torch.allclose(each.attention.kv_cache[210], each.attention.kv_cache[201], atol=1e-6)


def test_a_row_that_is_not_finite_is_not_complete_and_harms_no_other(layers: list[TappedLayer]) -> None:
    """Also when it is among the first tokens that come, which give the keys' channels."""
    worker, text = worker_of(layers, "int8"), text_for(layers, 5)
    text.keys[0][1, 0, 3] = float("nan")
    captured_step(worker, layers, capture(range(5), range(5), range(5)), text, range(5), range(5))
    assert [worker.captured([(1, [(row, 1)])]) == [True] for row in range(5)] == [True, False, True, True, True]
    worker.load([load([2, 3], [2, 3], [200, 201])])
    for each in layers:
        assert (each.attention.kv_cache[200:202] - each.attention.kv_cache[2:4]).abs().max() < APART
    assert not worker.errors


def test_codes_go_to_host_memory_and_back_as_they_are(layers: list[TappedLayer]) -> None:
    worker = captured(layers, host_rows=32)
    assert worker.slab is not None
    before = [tensor[:, [7, 8, 9, 20, 21]].clone() for tensor in worker.slab.tensors]
    assert worker.copy("to_host", RowCopy(extents((7, 3), (20, 2)), 1, extents((4, 5)), 11))
    worker.wipe([(7, 3), (20, 2)])
    assert not any(tensor.any() for tensor in worker.slab.tensors)
    assert worker.copy("to_device", RowCopy(extents((4, 5)), 11, extents((30, 5)), 2))
    assert all(map(torch.equal, before, [tensor[:, 30:35] for tensor in worker.slab.tensors]))
    assert worker.captured([(2, [(30, 5)])]) == [True]


def test_codes_are_saved_and_loaded_as_near_as_two_codes(layers: list[TappedLayer], tmp_path: Path) -> None:
    worker = captured(layers)
    assert worker.slab is not None and placed(worker, tmp_path).is_file()
    assert worker.restore(order(tmp_path, TO, stamp=9), 0, 1).result == "ok"
    assert worker.captured([(9, [(40, 5)])]) == [True]
    rows = torch.tensor([7, 8, 9, 20, 21])
    for one, other in zip(worker.slab.read(rows), worker.slab.read(torch.arange(40, 45)), strict=True):
        assert (one - other).abs().max() < APART
    assert worker.difference([(40, 5)], [(7, 3), (20, 2)]).worst < 0.02 and extents((7, 3), (20, 2)) == FROM


def test_codes_of_a_token_take_half_of_its_numbers_and_two_bytes_a_head() -> None:
    heads = plain_layers()
    coded, plain = (Slab(heads, ROWS, torch.bfloat16, torch.device("cpu"), codec) for codec in ("int8", "none"))
    assert coded.bytes_per_row == plain.bytes_per_row // 2 + 2 * 2 * 3 == coded.layout(0, 1, "int8").row_bytes
    assert coded.layout(0, 1).dtype == "bfloat16"


def test_the_paged_kernel_is_refused_with_the_reason() -> None:
    slab = Slab(plain_layers(), ROWS, torch.float32, torch.device("cpu"), "int8")
    slab.prove_kernel()
    assert slab.injector.startswith("portable:") and "int8" in slab.injector


def twins(decode: Callable[..., None]) -> None:
    """`decode` gives what `dequantise` and `rotate` give on indexed rows."""
    for turns in (NEOX, GPTJ, PARTIAL, rotary(4, neox=False), None):
        slab = Slab([layer(name, 2, 8, turns) for name in "ab"], ROWS, torch.float32, torch.device("cpu"), "int8")
        (group,) = slab.groups
        assert isinstance(group, CodedGroup)
        torch.manual_seed(2)
        group.write(torch.arange(ROWS), *(torch.randn((2, ROWS, 2, 8)) for _ in range(2)))
        for count in (5, 33, 64):
            rows, at = torch.randint(0, ROWS, (count,)), torch.randint(0, 128, (count,))
            codes = Codes(group.keys[:, rows], group.key_scales[:, rows])
            slow = dequantise(codes, "int8", 8, torch.float32, group.channels)
            turn = None if group.table is None else group.table.at(at)
            is_neox = turns is None or turns.is_neox_style
            if turn is not None:
                slow = rotate(slow, *turn, is_neox)
            keys, values = group.scratch(count)
            decode(keys, group.keys, group.key_scales, rows, group.channels, turn, is_neox)
            decode(values, group.values, group.value_scales, rows, None, None, True)
            assert torch.allclose(keys, slow, atol=1e-6) and torch.allclose(values, slab.read(rows)[1], atol=1e-6)


def test_the_decoder_gives_the_numbers_of_its_twin() -> None:
    twins(decode_rows)


@pytest.mark.long
def test_the_compiled_decoder_gives_the_numbers_of_its_twin() -> None:
    twins(compiled_decode())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rotated", ["not", "all", "half"])
@pytest.mark.parametrize("is_neox", [True, False])
def test_the_largest_numbers_of_a_dtype_are_injected_finite(dtype: torch.dtype, rotated: str, is_neox: bool) -> None:
    most, out = torch.finfo(dtype).max, torch.zeros((1, 2, 1, 8), dtype=dtype)
    whole, rows = torch.tensor([127, -127]).to(torch.int8).view(1, 2, 1, 1).expand(1, 2, 1, 8), torch.arange(2)
    scales = torch.full((1, 2, 1), most / 127 * 1.003, dtype=torch.bfloat16)
    assert float(scales.max()) * 127 > most
    half = {"not": 0, "all": 4, "half": 2}[rotated]
    turn = (torch.ones((2, half)), torch.zeros((2, half))) if half else None
    decode_rows(out, whole, scales, rows, None, turn, is_neox)
    assert torch.equal(out.double(), torch.tensor([most, -most]).double().view(1, 2, 1, 1).expand(1, 2, 1, 8))
