"""Facts by the letters that they share with a question, for texts that the embedder does not know.

Knows: runs of up to three characters of folded text, and how rare each is among an owner's facts. Refuses to know:
vectors and disk; it is rebuilt from the facts at every start.

One writer thread changes it; readers take no lock. A row's number is never given to another fact, so a reader cannot
mistake one for another; unused numbers go with a rebuild, which is published with one assignment.
"""

from __future__ import annotations

import math
import unicodedata
from array import array
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from inferscale_server.types import Fact, Owner

MAX_QUERY_CHARS = 1_000
"""Letters of a longer question that count: the last ones."""
ALONE = (("\u3400", "\u9fff"), ("\uf900", "\ufaff"), ("\U00020000", "\U0003ffff"))
"""Ranges of ideographs: one of them is a word."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """How much of a question's letters a fact has, by rarity, 0 … 1, and how much of the fact its vector stands for."""

    fact_id: str
    score: float
    represented: float


def fold(text: str) -> str:
    """The text as it is compared: NFKC, without case, joiners and variation selectors; runs of blanks are one."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join("".join(char for char in folded if not _is_invisible(char)).split())


def grams(text: str) -> frozenset[str]:
    """Runs of two and three characters of the folded text, and single ones where one is a word."""
    folded = fold(text)
    runs = {folded[start : start + length] for length in (2, 3) for start in range(len(folded) - length + 1)}
    alone = {char for char in folded if _stands_alone(char)}
    return frozenset({run for run in runs if run.strip() == run} | alone) or frozenset({folded} - {""})


class TrigramIndex:
    """Facts of every owner that hold something which the embedder does not know."""

    def __init__(self, represents: Callable[[str], float]) -> None:
        """`represents` says which share of a text its vector stands for, 0 … 1; facts with 1 are not kept here."""
        self.represents = represents
        self._books: dict[Owner, _Book] = {}

    def add(self, facts: Iterable[Fact]) -> None:
        """Make facts findable; one that is known already is replaced."""
        for fact in facts:
            self.remove(fact.owner, (fact.id,))
            represented = self.represents(fact.text)
            if represented < 1:
                self._books.setdefault(fact.owner, _Book()).append(fact.id, fact.text, represented)

    def remove(self, owner: Owner, fact_ids: Collection[str]) -> None:
        """Make facts unfindable; unknown ids are passed over."""
        book = self._books.get(owner)
        if book is None:
            return
        for fact_id in fact_ids:
            book.remove(fact_id)
        if not book.rows:
            self.remove_owner(owner)
        elif book.mostly_removed():
            self._books[owner] = book.rebuilt()

    def remove_owner(self, owner: Owner) -> None:
        """Drop all facts of one owner."""
        self._books.pop(owner, None)

    def count(self, owner: Owner) -> int:
        """How many of the owner's facts are kept here."""
        book = self._books.get(owner)
        return 0 if book is None else len(book.rows)

    def search(self, owner: Owner, query: str) -> tuple[Overlap, ...]:
        """The owner's facts that share letters with `query`, in no order."""
        book = self._books.get(owner)
        return () if book is None else book.search(query)

    def represented(self, owner: Owner, fact_id: str) -> float:
        """Which share of the fact its vector stands for, 1 for a fact that is not kept here."""
        book = self._books.get(owner)
        row = None if book is None else book.rows.get(fact_id)
        return 1.0 if book is None or row is None else book.represented[row]


@dataclass(slots=True)
class _Book:
    """One owner's facts, a row each, and the rows of each gram: those of facts that are gone too, until a rebuild."""

    ids: list[str | None] = field(default_factory=list)
    alive: bytearray = field(default_factory=bytearray)
    texts: list[str] = field(default_factory=list)
    represented: list[float] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    rows_of: dict[str, array[int]] = field(default_factory=dict)

    def append(self, fact_id: str, text: str, represented: float) -> None:
        row = len(self.ids)
        self.texts.append(text)
        self.represented.append(represented)
        self.alive.append(1)
        self.ids.append(fact_id)
        for gram in grams(text):
            self.rows_of.setdefault(gram, array("I")).append(row)
        self.rows[fact_id] = row

    def remove(self, fact_id: str) -> None:
        row = self.rows.pop(fact_id, None)
        if row is None:
            return
        self.ids[row], self.texts[row], self.alive[row] = None, "", 0

    def mostly_removed(self) -> bool:
        return 2 * len(self.rows) < len(self.ids)

    def rebuilt(self) -> _Book:
        book = _Book()
        for fact_id, row in self.rows.items():
            book.append(fact_id, self.texts[row], self.represented[row])
        return book

    def search(self, query: str) -> tuple[Overlap, ...]:
        ids = self.ids.copy()
        alive = np.frombuffer(bytes(self.alive), np.uint8)[: len(ids)].astype(bool)
        asked = grams(query[-MAX_QUERY_CHARS:])
        shared, whole = np.zeros(len(ids)), 0.0
        for gram in asked:
            rows = self._rows(gram, alive)
            weight = math.log(1 + len(ids) / max(len(rows), 1)) * len(gram)
            shared[rows] += weight
            whole += weight
        return tuple(
            Overlap(fact_id, float(shared[row] / whole), self.represented[row])
            for row in np.flatnonzero(shared).tolist()
            if (fact_id := ids[row]) is not None
        )

    def _rows(self, gram: str, alive: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
        kept = self.rows_of.get(gram)
        rows = np.frombuffer(b"" if kept is None else kept.tobytes(), np.uint32)
        rows = rows[rows < len(alive)]  # a writer may have appended since
        return rows[alive[rows]]


def _is_invisible(char: str) -> bool:
    return (unicodedata.category(char) in ("Cf", "Cs", "Cc") and not char.isspace()) or "\ufe00" <= char <= "\ufe0f"


def _stands_alone(char: str) -> bool:
    return unicodedata.category(char) == "So" or any(low <= char <= high for low, high in ALONE)
