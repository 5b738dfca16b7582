"""Do the copies of an owner's facts agree: the store, the index that is searched, and what the hot path reads?

Knows: three sets of ids. Refuses to know: how they came to differ. A restart makes index and read cache anew.
"""

from __future__ import annotations

from inferscale_server.facts import FactStore
from inferscale_server.index import VectorIndex
from inferscale_server.known import KnownFacts
from inferscale_server.limits import MAX_FACTS_PER_OWNER
from inferscale_server.types import Owner


def agree(store: FactStore, index: VectorIndex, known: KnownFacts, owner: Owner) -> bool:
    """Are the owner's facts the very same in all three? In the writer thread."""
    stored = {fact.id for fact in store.oldest(owner, MAX_FACTS_PER_OWNER)}
    return stored == {fact.id for fact in known.of(owner)} == set(index.vectors(owner).ids)
