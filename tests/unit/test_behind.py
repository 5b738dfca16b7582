"""What a fact is encoded behind: header and primer, never the fact's own line, in tokens and in rows alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferscale_server.behind import EncodedPrimer, primer_text
from inferscale_server.catalog import Catalog
from inferscale_server.command import Extent, rows_of
from inferscale_server.extents import first_rows

from .builders import extents, store

HEADER = (1, 2)
LINES = {"a": (10, 11), "b": (20,), "c": (30, 31, 32)}


def test_lines_stand_behind_the_header_in_their_order() -> None:
    assert primer_text(HEADER, LINES, 100).token_ids == (1, 2, 10, 11, 20, 30, 31, 32)


def test_a_line_that_does_not_fit_is_left_out() -> None:
    text = primer_text(HEADER, {"long": tuple(range(50)), **LINES}, 5)
    assert text.token_ids == (1, 2, 10, 11, 20) and set(text.spans) == {"a", "b"}


def test_a_primer_fact_is_encoded_behind_those_before_it() -> None:
    text = primer_text(HEADER, LINES, 100)
    primer = EncodedPrimer(store(Catalog(50, "f"), "primer", text.token_ids, kind="primer"), text)
    for name, before in (("a", ()), ("b", LINES["a"]), ("c", LINES["a"] + LINES["b"])):
        injection = primer.injection_for(name)
        assert injection.token_ids == HEADER + before
        assert rows_of(injection.extents) == rows_of(primer.chunk.extents)[: len(HEADER + before)]


def test_a_fact_outside_the_primer_is_encoded_behind_all_of_it() -> None:
    text = primer_text(HEADER, LINES, 100)
    primer = EncodedPrimer(store(Catalog(50, "f"), "primer", text.token_ids, kind="primer"), text)
    assert primer.injection_for("z").token_ids == text.token_ids


pieces = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@given(pieces, st.integers(0, 30))
def test_the_first_rows_agree_with_a_slice(lengths: list[int], length: int) -> None:
    whole = tuple(Extent(100 * number, part) for number, part in enumerate(lengths))
    assert rows_of(first_rows(whole, length)) == rows_of(whole)[:length]
    assert all(extent.length > 0 for extent in first_rows(whole, length))


def test_the_first_none_are_none() -> None:
    assert first_rows(extents((0, 4)), 0) == ()
