"""The plan: best facts last, encoded ones first, the same tokens in text and in KV mode."""

from __future__ import annotations

import pytest

from inferscale_server.catalog import Catalog, Chunk
from inferscale_server.command import rows_of
from inferscale_server.plan import (
    CACHE_SLACK,
    Frame,
    MemoryLine,
    fit,
    from_cache,
    ordered,
    plan_memory,
    resumed,
    without_injection,
)
from inferscale_server.types import FactOrder

from .builders import store

FRAME = Frame(before=(1, 2, 3), after=(9, 9))


def lines_of(catalog: Catalog, *encoded: bool) -> list[MemoryLine]:
    """Lines best first; line n has tokens (n0, n1)."""
    lines = []
    for number, ready in enumerate(encoded, start=1):
        ids = (10 * number, 10 * number + 1)
        chunk = store(catalog, str(number), ids) if ready else None
        lines.append(MemoryLine(str(number), f"text {number}", 1.0 / number, ids, chunk))
    return lines


def aged(*ages: int) -> list[MemoryLine]:
    """Encoded facts best first, of these ages, behind a caller's two texts, which count as better still."""
    catalog = Catalog(100, "f")
    facts = [
        MemoryLine(f"f{n}", "", 1.0 / n, (n,), store(catalog, f"f{n}", (n,)), age) for n, age in enumerate(ages, 1)
    ]
    texts = [MemoryLine(None, text, None, (ord(text),), None) for text in "ba"]
    return [*texts, *facts]


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("best_last", ["f3", "f2", "f1", "a", "b"]),
        ("best_first", ["a", "b", "f1", "f2", "f3"]),
        ("oldest_first", ["f2", "f3", "f1", "a", "b"]),
    ],
)
def test_facts_stand_in_the_order_that_was_set_and_a_callers_texts_in_the_callers(
    order: FactOrder, names: list[str]
) -> None:
    lines = ordered(aged(30, 10, 20), order)
    assert [line.name or line.text for line in lines] == names


@pytest.mark.parametrize("order", ["best_last", "best_first", "oldest_first"])
def test_in_every_order_what_is_encoded_comes_first(order: FactOrder) -> None:
    catalog = Catalog(100, "f")
    lines = [
        MemoryLine("new", "", 0.9, (1,), None, 1),
        MemoryLine("old", "", 0.5, (2,), store(catalog, "old", (2,)), 5),
    ]
    plan = plan_memory(FRAME, lines, header_of(catalog), "kv", None, 0, order)
    assert [line.name for line in plan.lines] == ["old", "new"] and plan.injected_tokens == len(FRAME.before) + 1


def header_of(catalog: Catalog) -> Chunk:
    return store(catalog, "header", FRAME.before, kind="header")


def test_the_best_fact_stands_last_before_the_question() -> None:
    catalog = Catalog(100, "f")
    plan = plan_memory(FRAME, lines_of(catalog, True, True, True), header_of(catalog), "auto", None)
    assert plan.mode == "kv" and plan.reason == "encoded"
    assert plan.prompt_ids == (1, 2, 3, 30, 31, 20, 21, 10, 11, 9, 9)
    assert plan.injection is not None and plan.injection.token_ids == plan.prompt_ids[:9]


def test_facts_that_are_not_encoded_stand_behind_those_that_are() -> None:
    catalog = Catalog(100, "f")
    plan = plan_memory(FRAME, lines_of(catalog, False, True, False, True), header_of(catalog), "auto", None)
    assert plan.reason == "partly_encoded"
    assert [line.name for line in plan.lines] == ["4", "2", "3", "1"]
    assert plan.injected_tokens == 3 + 4 and plan.memory_tokens == 8


def test_injected_rows_are_those_of_header_and_facts_in_prompt_order() -> None:
    catalog = Catalog(100, "f")
    lines, header = lines_of(catalog, True, True), header_of(catalog)
    plan = plan_memory(FRAME, lines, header, "kv", None)
    assert plan.injection is not None and lines[0].chunk is not None and lines[1].chunk is not None
    wanted = [row for chunk in (header, lines[1].chunk, lines[0].chunk) for row in rows_of(chunk.extents)]
    assert rows_of(plan.injection.extents) == wanted
    assert plan.chunks == (header, lines[1].chunk, lines[0].chunk)


def test_the_tail_is_prefilled_though_it_is_encoded() -> None:
    catalog = Catalog(100, "f")
    plan = plan_memory(FRAME, lines_of(catalog, True, True), header_of(catalog), "auto", None, tail=3)
    assert plan.injection is not None and plan.injection.token_ids == (1, 2, 3, 20)
    assert len(rows_of(plan.injection.extents)) == 4


def test_a_tail_longer_than_the_memory_leaves_the_header() -> None:
    catalog = Catalog(100, "f")
    plan = plan_memory(FRAME, lines_of(catalog, True), header_of(catalog), "auto", None, tail=50)
    assert plan.injection is not None and plan.injection.token_ids == FRAME.before


def test_text_and_kv_send_the_same_tokens() -> None:
    catalog = Catalog(100, "f")
    lines, header = lines_of(catalog, True, True, True), header_of(catalog)
    text, kv = (plan_memory(FRAME, lines, header, mode, None) for mode in ("text", "kv"))  # type: ignore[arg-type]
    assert text.prompt_ids == kv.prompt_ids and text.injection is None and kv.injection is not None
    assert text.digest == "text" != kv.digest


@pytest.mark.parametrize(
    ("mode", "refusal", "with_header", "encoded", "reason"),
    [
        ("text", None, True, True, "requested"),
        ("auto", "prompt_logprobs", True, True, "prompt_logprobs"),
        ("kv", "unsupported_model", True, True, "unsupported_model"),
        ("kv", None, False, True, "header_not_encoded"),
        ("auto", None, True, False, "nothing_encoded"),
    ],
)
def test_every_text_answer_says_why(
    mode: str, refusal: str | None, with_header: bool, encoded: bool, reason: str
) -> None:
    catalog = Catalog(100, "f")
    header = header_of(catalog) if with_header else None
    plan = plan_memory(FRAME, lines_of(catalog, encoded), header, mode, refusal)
    assert (plan.mode, plan.reason, plan.injection, plan.chunks) == ("text", reason, None, ())


def test_a_new_encoding_of_the_same_text_is_another_plan() -> None:
    catalog = Catalog(100, "f")
    header = header_of(catalog)
    first = plan_memory(FRAME, lines_of(catalog, True), header, "kv", None)
    again = plan_memory(FRAME, lines_of(catalog, True), header, "kv", None)
    assert first.prompt_ids == again.prompt_ids and first.digest != again.digest


def test_another_tail_is_another_plan() -> None:
    catalog = Catalog(100, "f")
    lines, header = lines_of(catalog, True), header_of(catalog)
    assert (
        plan_memory(FRAME, lines, header, "kv", None).digest != plan_memory(FRAME, lines, header, "kv", None, 1).digest
    )


def test_the_best_lines_are_kept_when_room_is_short() -> None:
    lines = lines_of(Catalog(100, "f"), True, True, True)
    assert [line.name for line in fit(lines, 5)] == ["1", "2"]


def test_a_short_line_may_follow_one_that_does_not_fit() -> None:
    long = MemoryLine("long", "", 0.9, (1,) * 10, None)
    short = MemoryLine("short", "", 0.1, (2,), None)
    assert fit([long, short], 5) == (short,)


@pytest.mark.parametrize("room", [0, -3])
def test_nothing_fits_into_no_room(room: int) -> None:
    assert fit(lines_of(Catalog(100, "f"), True), room) == ()


def test_a_plan_resumed_in_a_longer_prompt_injects_the_same_under_the_same_digest() -> None:
    catalog = Catalog(100, "f")
    plan = plan_memory(FRAME, lines_of(catalog, True, False), header_of(catalog), "auto", None)
    later = resumed(plan, Frame(FRAME.before, (9, 9, 8, 8)))
    assert later.prompt_ids == (*plan.prompt_ids, 8, 8)
    assert (later.injection, later.digest, later.chunks) == (plan.injection, plan.digest, plan.chunks)


def test_a_plan_without_its_rows_expects_what_whole_blocks_hold() -> None:
    catalog = Catalog(1_000, "f")
    line = MemoryLine("1", "", 1.0, tuple(range(300)), store(catalog, "1", 300))
    plan = plan_memory(FRAME, [line], header_of(catalog), "auto", None)
    cached = from_cache(plan)
    assert cached.injection is None and cached.chunks == () and cached.digest == plan.digest
    assert cached.injected_tokens == plan.injected_tokens - CACHE_SLACK == 303 - CACHE_SLACK


def test_a_plan_sent_as_text_injects_nothing_and_bears_the_texts_digest() -> None:
    catalog = Catalog(100, "f")
    plan = plan_memory(FRAME, lines_of(catalog, True), header_of(catalog), "auto", None)
    for kept in (plan, from_cache(plan)):
        text = without_injection(kept, "load_failed")
        assert (text.mode, text.reason, text.digest, text.injected_tokens) == ("text", "load_failed", "text", 0)
        assert text.prompt_ids == plan.prompt_ids
