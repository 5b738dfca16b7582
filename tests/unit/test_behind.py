"""What a chunk is encoded behind, in tokens; and how few requests encode chunks that stand behind each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferscale_server.behind import Behind, Line, fitting
from inferscale_server.catalog import Catalog, Chunk, ChunkKey
from inferscale_server.command import SPARE_TOKENS, Extent, rows_of
from inferscale_server.extents import first_rows, rows_between
from inferscale_server.job import Errand, Job, runs_of

from .builders import ALICE, extents, store

HEADER = (1, 2)
LINES = (Line("a", (10, 11), "ma"), Line("b", (20,), "mb"), Line("c", (30, 31, 32), "mc"))


def errand(line: Line, *before: Line) -> Errand:
    return Errand(Job(ChunkKey("fact", ALICE, line.fact_id), line.token_ids, line.mark), Behind(HEADER, before))


def placed(*errands: Errand) -> list[tuple[Errand, Chunk]]:
    catalog = Catalog(100, "f")
    return [(each, store(catalog, each.job.key.name, each.job.token_ids)) for each in errands]


def test_lines_stand_behind_the_header_in_their_order() -> None:
    behind = fitting(HEADER, LINES, 100)
    assert behind.token_ids == (1, 2, 10, 11, 20, 30, 31, 32) and behind.fact_ids == ("a", "b", "c")


def test_a_line_that_does_not_fit_is_left_out() -> None:
    behind = fitting(HEADER, (Line("long", tuple(range(50)), "m"), *LINES), 5)
    assert behind.token_ids == (1, 2, 10, 11, 20) and behind.fact_ids == ("a", "b")


def test_where_room_is_short_the_last_of_a_window_stay_behind_the_first_of_a_primer() -> None:
    a, b, c = LINES
    assert fitting(HEADER, LINES, 7, ahead=1).lines == (a, c)  # b, farther away than c, has no room
    assert fitting(HEADER, LINES, 5, ahead=0).lines == (c,)
    assert fitting(HEADER, LINES, 100, ahead=1).lines == (a, b, c)


def test_what_a_chunk_is_tells_texts_and_wordings_before_it_apart() -> None:
    key = ChunkKey("fact", ALICE, "z")
    befores = [Behind(), Behind(HEADER), Behind(HEADER, LINES), Behind(HEADER, LINES[::-1]), Behind((3,), LINES)]
    befores.append(Behind(HEADER, (Line("a", (10, 11), "another mark"), *LINES[1:])))
    assert len({behind.identity("f", key, "m", (7,)) for behind in befores}) == len(befores)


def test_facts_that_stand_behind_each_other_go_in_one_request() -> None:
    a, b, c = LINES
    (run,) = runs_of(placed(errand(a), errand(b, a), errand(c, a, b)))
    (asked,) = run.requests(())
    assert asked.prompt_ids == (*HEADER, 10, 11, 20, 30, 31, 32, *(32,) * SPARE_TOKENS)
    assert asked.command.injection is None
    assert [(capture.start, capture.length) for capture in asked.command.captures] == [(2, 2), (4, 1), (5, 3)]


def test_facts_behind_the_same_go_in_requests_of_their_own() -> None:
    a, b, c = LINES
    runs = runs_of(placed(errand(b, a), errand(c, a), errand(a)))
    assert [len(run.chunks) for run in runs] == [1, 1, 1]


def test_only_one_of_two_followers_goes_along() -> None:
    a, b, c = LINES
    runs = runs_of(placed(errand(a), errand(b, a), errand(c, a)))
    assert [[chunk.key.name for chunk in run.chunks] for run in runs] == [["a", "b"], ["c"]]


def test_the_lead_is_injected_and_the_rest_of_the_prefix_is_computed() -> None:
    a, b, c = LINES
    catalog = Catalog(100, "f")
    header, first = store(catalog, "h", HEADER, kind="header"), store(catalog, "a", a.token_ids)
    (run,) = runs_of(placed(errand(c, a, b)))
    (asked,) = run.requests((header, first))
    command = asked.command
    assert asked.prompt_ids[:5] == (1, 2, 10, 11, 20) and command.captures[0].start == 5
    assert command.injection is not None and command.injection.token_ids == (1, 2, 10, 11)
    assert rows_of(command.injection.extents) == rows_of((*header.extents, *first.extents))


def test_a_chunk_behind_nothing_is_followed_by_nobody() -> None:
    a, b, _ = LINES
    alone = [Errand(Job(ChunkKey("fact", ALICE, line.fact_id), line.token_ids), Behind()) for line in (a, b)]
    assert [len(run.chunks) for run in runs_of(placed(*alone))] == [1, 1]


pieces = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@given(pieces, st.integers(0, 30))
def test_the_first_rows_agree_with_a_slice(lengths: list[int], length: int) -> None:
    whole = tuple(Extent(100 * number, part) for number, part in enumerate(lengths))
    assert rows_of(first_rows(whole, length)) == rows_of(whole)[:length]
    assert all(extent.length > 0 for extent in first_rows(whole, length))


@given(pieces, st.integers(-5, 30), st.integers(-5, 30))
def test_rows_between_agree_with_a_slice(lengths: list[int], start: int, stop: int) -> None:
    whole = tuple(Extent(100 * number, part) for number, part in enumerate(lengths))
    found = rows_between(whole, start, stop)
    assert rows_of(found) == rows_of(whole)[max(start, 0) : max(stop, 0)]
    assert all(extent.length > 0 for extent in found)


def test_the_first_none_are_none() -> None:
    assert first_rows(extents((0, 4)), 0) == ()
