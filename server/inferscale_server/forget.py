"""The verb forget: the fact store, the index and the read cache, in the order that survives a crash.

The commit comes first: a crash after it leaves nothing to resurrect, because all else is rebuilt from the fact store.
All of it runs in the one writer thread, before the delete returns. Dropping the KV is the caller's next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferscale_server.facts import Expired, FactStore
from inferscale_server.index import VectorIndex
from inferscale_server.known import KnownFacts
from inferscale_server.types import Owner


@dataclass(frozen=True, slots=True)
class Doomed:
    """A fact to delete, if it is this owner's."""

    owner: Owner
    fact_id: str


def forget_facts(store: FactStore, index: VectorIndex, known: KnownFacts, doomed: Sequence[Doomed]) -> tuple[bool, ...]:
    """Delete facts, all or none, and say for each whether it was there; another owner's was not.

    Raises what the fact store raises.
    """
    by_owner: dict[Owner, list[str]] = {}
    for one in doomed:
        by_owner.setdefault(one.owner, []).append(one.fact_id)
    stored = store.delete_many(by_owner)
    # Known but not stored: an earlier delete was reported as failed after it had been committed.
    gone = {one for one in doomed if one.fact_id in stored[one.owner] or known.get(one.owner, one.fact_id) is not None}
    for owner, ids in by_owner.items():
        there = [fact_id for fact_id in ids if Doomed(owner, fact_id) in gone]
        if there:
            known.bump_epoch(owner)
        index.remove(owner, there)
        for fact_id in there:
            known.drop(owner, fact_id)
    first = {one: i for i, one in reversed(list(enumerate(doomed)))}
    return tuple(one in gone and first[one] == i for i, one in enumerate(doomed))


def forget_owner(store: FactStore, index: VectorIndex, known: KnownFacts, owner: Owner) -> int:
    """Delete all facts of one owner and return how many there were. Raises what the fact store raises."""
    fact_ids = store.delete_owner(owner)
    known.bump_epoch(owner)
    index.remove_owner(owner)
    known.drop_owner(owner)
    return len(fact_ids)


def forget_expired(
    store: FactStore, index: VectorIndex, known: KnownFacts, now: float, owner: Owner | None = None
) -> tuple[Expired, ...]:
    """Delete all facts whose time has come, of all owners or of one. Raises what the fact store raises."""
    swept: list[Expired] = []
    while batch := store.expire(now, owner):
        for expired in batch:
            known.bump_epoch(expired.owner)
            index.remove(expired.owner, expired.fact_ids)
            for fact_id in expired.fact_ids:
                known.drop(expired.owner, fact_id)
        swept += batch
    return tuple(swept)
