"""Who turns facts into KV, as the memory service sees it.

Knows: what has to be told, and when. Refuses to know: how anything is encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inferscale_server.types import Fact, Owner


class EncodeSink(Protocol):
    """Who turns facts into KV. Called on the event loop, after the commit; must be quick and must never raise."""

    def added(self, owner: Owner, facts: Sequence[Fact]) -> None:
        """These facts can be found now and may be encoded."""

    def forgotten(self, owner: Owner, fact_ids: Sequence[str]) -> None:
        """Drop these facts' KV at once, and whatever was encoded behind them."""

    def owner_forgotten(self, owner: Owner) -> None:
        """Drop all KV of this owner at once."""

    async def settled(self) -> None:
        """Return when nothing of what was forgotten before is left on the disk; a delete waits for it."""
