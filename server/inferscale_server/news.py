"""Passes what became of facts on to everybody who keeps something of them, for each way in which an owner's are read.

Knows: whom to tell. Refuses to know: what they keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inferscale_server.readers import Readers
from inferscale_server.sink import EncodeSink
from inferscale_server.types import Fact, Owner


class Forgetful(Protocol):
    """Who keeps something of facts besides the encoder."""

    def forget_facts(self, owner: Owner, fact_ids: Sequence[str]) -> None:
        """These were deleted or rewritten."""

    def forget_owner(self, owner: Owner) -> None:
        """All of the owner's were deleted."""


class News:
    """An EncodeSink for the memory service, whose listeners and encoder can only be built after it."""

    encoder: EncodeSink | None = None
    listeners: tuple[Forgetful, ...] = ()

    def __init__(self) -> None:
        self.readers = Readers()

    def added(self, owner: Owner, facts: Sequence[Fact]) -> None:
        """See EncodeSink."""
        if self.encoder is not None:
            for reader in self.readers.of(owner):
                self.encoder.added(reader, facts)

    def forgotten(self, owner: Owner, fact_ids: Sequence[str]) -> None:
        """See EncodeSink."""
        for reader in self.readers.of(owner):
            for listener in self.listeners:
                listener.forget_facts(reader, fact_ids)
            if self.encoder is not None:
                self.encoder.forgotten(reader, fact_ids)

    def owner_forgotten(self, owner: Owner) -> None:
        """See EncodeSink."""
        for reader in self.readers.of(owner):
            for listener in self.listeners:
                listener.forget_owner(reader)
            if self.encoder is not None:
                self.encoder.owner_forgotten(reader)

    async def settled(self) -> None:
        """See EncodeSink."""
        if self.encoder is not None:
            await self.encoder.settled()
