"""The verb forget: the fact store, the index and the read cache, in the order that survives a crash.

The commit comes first: a crash after it leaves nothing to resurrect, because all else is rebuilt from the fact store.
All of it runs in the one writer thread, before the delete returns. Dropping the KV is the caller's next step.
"""

from __future__ import annotations

from inferscale_server.errors import NotFound
from inferscale_server.facts import FactStore
from inferscale_server.index import VectorIndex
from inferscale_server.known import KnownFacts
from inferscale_server.types import Owner


def forget_fact(store: FactStore, index: VectorIndex, known: KnownFacts, owner: Owner, fact_id: str) -> None:
    """Delete one fact. Raises NotFound, also for another owner's fact, or what the fact store raises."""
    deleted = store.delete(owner, fact_id)
    # Known but not stored: an earlier delete was reported as failed after it had been committed.
    if not deleted and known.get(owner, fact_id) is None:
        raise NotFound(f"no fact {fact_id!r}", param="id")
    known.bump_epoch(owner)
    index.remove(owner, (fact_id,))
    known.drop(owner, fact_id)


def forget_owner(store: FactStore, index: VectorIndex, known: KnownFacts, owner: Owner) -> int:
    """Delete all facts of one owner and return how many there were. Raises what the fact store raises."""
    fact_ids = store.delete_owner(owner)
    known.bump_epoch(owner)
    index.remove_owner(owner)
    known.drop_owner(owner)
    return len(fact_ids)
