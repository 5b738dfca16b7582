"""In which order chunks make room: headers last, what chats use after the rest, and of each what was used longest ago.

Pure bookkeeping of stamps and their rows; refuses to know keys, owners and what may not go. Nothing here looks at every
chunk: a full catalog evicts with each write, on the event loop, while chats wait.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain, count

HOT_SHARE = 2
"""What chats have used may keep one of so many rows while others make room: encoding a thousand new facts must not push
out the facts that are in use."""


class EvictionOrder:
    """All chunks of one catalog of `rows` rows, headers and others, by last use."""

    def __init__(self, rows: int) -> None:
        self._hot_room = rows // HOT_SHARE
        self._clock = count()
        self._rows: dict[int, int] = {}
        self._others, self._headers = _ByUse(), _ByUse()
        self._kind: dict[int, _ByUse] = {}
        self._hot: OrderedDict[int, int] = OrderedDict()  # rows of what chats have used, least recently used first
        self.hot_rows = 0
        self.header_rows = 0
        self.total_rows = 0

    def add(self, stamp: int, rows: int, *, header: bool) -> None:
        """A chunk that is new here, now the most recently used; no chat has used it."""
        kind = self._headers if header else self._others
        self._rows[stamp], self._kind[stamp] = rows, kind
        kind.add(stamp, next(self._clock))
        self.total_rows += rows
        self.header_rows += rows if header else 0

    def remove(self, stamp: int) -> None:
        """The chunk is there no more."""
        kind, rows = self._kind.pop(stamp), self._rows.pop(stamp)
        kind.remove(stamp)
        self.total_rows -= rows
        self.header_rows -= rows if kind is self._headers else 0
        self.hot_rows -= self._hot.pop(stamp, 0)

    def rows_of(self, stamp: int) -> int:
        """Rows of this chunk; 0: it is not here."""
        return self._rows.get(stamp, 0)

    def touch(self, stamp: int) -> None:
        """Now the most recently used of its kind, hot or not as before."""
        self._kind[stamp].renew(stamp, next(self._clock))

    def use(self, stamp: int) -> None:
        """A chat uses this: the most recently used, and in the hot set, which what was used longest ago leaves."""
        self.touch(stamp)
        if stamp in self._hot:
            self._hot.move_to_end(stamp)
            return
        self._kind[stamp].warm(stamp)
        self._hot[stamp] = self._rows[stamp]
        self.hot_rows += self._rows[stamp]
        while self.hot_rows > self._hot_room:
            cooled, rows = self._hot.popitem(last=False)
            self._kind[cooled].cool(cooled)
            self.hot_rows -= rows

    def first_to_go(self) -> Iterator[int]:
        """All stamps as they make room; nothing may change meanwhile."""
        return chain(self._others.first_to_go(), self._headers.first_to_go())

    def oldest_headers(self) -> Iterator[int]:
        """Stamps of the headers by last use, hot or not; nothing may change meanwhile."""
        return self._headers.by_use()


class _ByUse:
    """Stamps of one kind. What left the hot set stands between the cold ones, by when it was used: in a list of its
    own, because an ordered dict takes new entries only at its ends."""

    def __init__(self) -> None:
        self._when: dict[int, int] = {}
        self._cold: OrderedDict[int, None] = OrderedDict()  # this and `_hot`: least recently used first
        self._hot: OrderedDict[int, None] = OrderedDict()
        self._cooled: list[tuple[int, int]] = []  # when, stamp; sorted

    def add(self, stamp: int, when: int) -> None:
        self._when[stamp] = when
        self._cold[stamp] = None

    def remove(self, stamp: int) -> None:
        if stamp in self._hot:
            del self._hot[stamp]
        else:
            self._leave_cold(stamp)
        del self._when[stamp]

    def renew(self, stamp: int, when: int) -> None:
        """`when` is later than all others."""
        if stamp in self._hot:
            self._hot.move_to_end(stamp)
        else:
            self._leave_cold(stamp)
            self._cold[stamp] = None
        self._when[stamp] = when

    def warm(self, stamp: int) -> None:
        """Into the hot set; it was just renewed."""
        self._leave_cold(stamp)
        self._hot[stamp] = None

    def cool(self, stamp: int) -> None:
        """Out of the hot set, where its last use was."""
        del self._hot[stamp]
        insort(self._cooled, (self._when[stamp], stamp))

    def first_to_go(self) -> Iterator[int]:
        """Cold ones by last use, then the hot ones."""
        return chain(_stamps(merge(self._timed(self._cold), self._cooled)), self._hot)

    def by_use(self) -> Iterator[int]:
        return _stamps(merge(self._timed(self._cold), self._cooled, self._timed(self._hot)))

    def _leave_cold(self, stamp: int) -> None:
        if stamp in self._cold:
            del self._cold[stamp]
        else:
            del self._cooled[bisect_left(self._cooled, (self._when[stamp], stamp))]

    def _timed(self, stamps: Iterable[int]) -> Iterator[tuple[int, int]]:
        return ((self._when[stamp], stamp) for stamp in stamps)


def _stamps(timed: Iterable[tuple[int, int]]) -> Iterator[int]:
    return (stamp for _, stamp in timed)
