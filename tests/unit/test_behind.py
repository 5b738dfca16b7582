"""What a fact is encoded behind: header and primer, without the fact's own line, in tokens and in rows alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferscale_server.behind import EncodedPrimer, cut, primer_text
from inferscale_server.catalog import Catalog
from inferscale_server.command import Extent, rows_of

from .builders import extents, store

HEADER = (1, 2)
LINES = {"a": (10, 11), "b": (20,), "c": (30, 31, 32)}


def test_lines_stand_behind_the_header_in_their_order() -> None:
    assert primer_text(HEADER, LINES, 100).token_ids == (1, 2, 10, 11, 20, 30, 31, 32)


def test_a_line_that_does_not_fit_is_left_out() -> None:
    text = primer_text(HEADER, {"long": tuple(range(50)), **LINES}, 5)
    assert text.token_ids == (1, 2, 10, 11, 20) and set(text.spans) == {"a", "b"}


def test_a_primer_fact_is_encoded_behind_the_others_alone() -> None:
    text = primer_text(HEADER, LINES, 100)
    primer = EncodedPrimer(store(Catalog(50, "f"), "primer", text.token_ids, kind="primer"), text)
    rows = rows_of(primer.chunk.extents)
    for name, span in text.spans.items():
        injection = primer.injection_for(name)
        assert injection.token_ids == HEADER + sum((line for other, line in LINES.items() if other != name), ())
        assert rows_of(injection.extents) == rows[: span.start] + rows[span.stop :]


def test_a_fact_outside_the_primer_is_encoded_behind_all_of_it() -> None:
    text = primer_text(HEADER, LINES, 100)
    primer = EncodedPrimer(store(Catalog(50, "f"), "primer", text.token_ids, kind="primer"), text)
    assert primer.injection_for("z").token_ids == text.token_ids


pieces = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@given(pieces, st.integers(0, 25), st.integers(0, 25))
def test_a_cut_agrees_with_a_slice_of_rows(lengths: list[int], start: int, stop: int) -> None:
    whole = tuple(Extent(100 * number, length) for number, length in enumerate(lengths))
    assert rows_of(cut(whole, start, stop)) == rows_of(whole)[start:stop]
    assert all(extent.length > 0 for extent in cut(whole, start, stop))


def test_an_empty_cut_holds_nothing() -> None:
    assert cut(extents((0, 4)), 2, 2) == ()
