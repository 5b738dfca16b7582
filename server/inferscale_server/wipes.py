"""Deletions of many facts at once, remembered so that what was said before them is not stored after.

Knows: how many there were of each owner, and which facts the last of them were about. Refuses to know: where facts lie.
In memory only: what could still be stored after a deletion waits in memory as well. Belongs to one event loop.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from inferscale_server.filters import Filter
from inferscale_server.types import Fact, FactDraft, Owner

KEPT = 64
"""Of an owner, whose facts the wipe was about is known for so many; an older one counts as one of all facts."""


class Wipes:
    """See the module."""

    def __init__(self) -> None:
        self._number: Counter[Owner] = Counter()
        self._last: dict[Owner, deque[Filter | None]] = {}

    def note(self, owner: Owner, where: Filter | None = None) -> None:
        """The owner's facts that match are being deleted; all of them without a filter."""
        self._number[owner] += 1
        self._last.setdefault(owner, deque(maxlen=KEPT)).append(where)

    def number(self, owner: Owner) -> int:
        """How many there have been."""
        return self._number[owner]

    def concern(self, owner: Owner, since: int, drafts: Sequence[FactDraft], now: float) -> bool:
        """Would one that came after number `since` have deleted one of these, had they been stored? `now` in Unix
        seconds: when they would be created."""
        later = self.number(owner) - since
        if later <= 0:
            return False
        last = self._last[owner]
        if later > len(last):
            return True
        wheres = list(last)[-later:]
        facts = [_as_fact(owner, draft, now) for draft in drafts]
        return any(where is None or any(where.matches(fact) for fact in facts) for where in wheres)


def _as_fact(owner: Owner, draft: FactDraft, now: float) -> Fact:
    return Fact(
        id="",
        owner=owner,
        seq=0,
        text=draft.text,
        speaker=draft.speaker,
        occurred_at=draft.occurred_at,
        session_id=draft.session_id,
        metadata=draft.metadata,
        created_at=now,
        updated_at=now,
        expires_at=draft.expires_at,
        agent_id=draft.agent_id,
        run_id=draft.run_id,
    )
