"""Long texts in pieces, and their vectors back together.

A vector holds the gist of what it was made from: the mean over a long text loses a detail at its end. So a long fact is
indexed by the vectors of its pieces. Knows: where to cut. Refuses to know: models; a `fits` says what is short enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

BREAKS = ("\n", ". ", "! ", "? ", "。", " ")
"""Where a text is cut rather than elsewhere, best first; behind the break."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of several texts in one row; `counts` says how many belong to each text, at least 1."""

    texts: tuple[str, ...]
    counts: tuple[int, ...]

    def group(self, vectors: Floats) -> tuple[Floats, ...]:
        """Float32 [pieces, dimension] as one [pieces of the text, dimension] a text."""
        assert len(vectors) == len(self.texts) == sum(self.counts), (len(vectors), len(self.texts), self.counts)
        return tuple(np.split(vectors, np.cumsum(self.counts)[:-1])) if self.counts else ()


def cut_all(texts: Iterable[str], pieces_of: Callable[[str], Sequence[str]]) -> Pieces:
    """The pieces of each text."""
    cut = [tuple(pieces_of(text)) for text in texts]
    return Pieces(tuple(piece for pieces in cut for piece in pieces), tuple(map(len, cut)))


def cut_text(text: str, fits: Callable[[str], bool]) -> tuple[str, ...]:
    """The text in halves of halves until each fits: needs no offsets, so it works with every tokenizer."""
    if len(text) < 2 or fits(text):
        return (text,)
    middle = _break_near_middle(text)
    return (*cut_text(text[:middle], fits), *cut_text(text[middle:], fits))


def _break_near_middle(text: str) -> int:
    """Behind the last break of the middle half, or in the exact middle of one long word."""
    middle = len(text) // 2
    for mark in BREAKS:
        found = text.rfind(mark, middle // 2, min(middle + middle // 2, len(text) - len(mark)))
        if found >= 0:
            return found + len(mark)
    return middle
