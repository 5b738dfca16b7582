"""Through which LoRA adapters an owner's facts are read: the KV of each is kept apart, and forgotten together.

Knows: who has asked so far. Refuses to know: what an adapter is, and what is kept of a fact.
"""

from __future__ import annotations

from dataclasses import replace

from inferscale_server.types import Owner


class Readers:
    """Each owner as the model reads the owner's facts: without an adapter, and through those that chats have named.

    Grows with the owners who chat with adapters, and forgets none: a chat that is under way must not bring back what a
    delete could not find.
    """

    def __init__(self) -> None:
        self._of: dict[Owner, dict[str, Owner]] = {}

    def through(self, owner: Owner, adapter: str) -> Owner:
        """The owner read through the adapter with this fingerprint, from now on among `of`."""
        known = self._of.setdefault(owner, {})
        return known.setdefault(adapter, replace(owner, adapter=adapter))

    def of(self, owner: Owner) -> tuple[Owner, ...]:
        """The owner without an adapter, then through each that was named."""
        return (owner, *self._of.get(owner, {}).values())
