"""The verb revise: a fact that says something else from now on, under the same id and in the same place.

Knows: what a change leaves alone, and in which order it becomes visible. Refuses to know: HTTP, models, KV.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from inferscale_server.errors import NotFound
from inferscale_server.facts import FactStore
from inferscale_server.index import VectorIndex
from inferscale_server.known import KnownFacts
from inferscale_server.remember import parse_metadata
from inferscale_server.types import Fact, FactChange, Owner, Unset

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Revised:
    """The fact as it is now. `stale`: it reads differently in a prompt, so what was made from it must go."""

    fact: Fact
    stale: bool


def revise(
    store: FactStore,
    index: VectorIndex,
    known: KnownFacts,
    owner: Owner,
    fact_id: str,
    change: FactChange,
    vectors: npt.NDArray[np.float32] | None,
) -> Revised:
    """Commit a change, with the new text's vectors (float32 [pieces, dimension], else None), then show it.

    Runs in the one writer thread. Raises NotFound, also for another owner's fact, TooLarge for too much metadata,
    Conflict for a text that another fact has, StorageFull over the quota; nothing is changed then.
    """
    now = store.now()
    old = store.get(owner, fact_id)
    if old is None or old.expired(now):
        raise NotFound(f"no fact {fact_id!r}", param="id")
    new = replace(revised(old, change), updated_at=now)
    # Known and stored differ when an earlier change was reported as failed after it had been committed.
    shown = known.get(owner, fact_id) or old
    stale = any(_reads(new) != _reads(before) for before in (old, shown))
    if not store.update(old, new, vectors, stale=stale):
        raise NotFound(f"no fact {fact_id!r}", param="id")
    if stale:
        known.bump_epoch(owner)
    if vectors is not None:
        index.replace(owner, fact_id, vectors)
    known.add((new,))
    return Revised(new, stale)


def revised(fact: Fact, change: FactChange) -> Fact:
    """The fact with the change; metadata is merged. Raises TooLarge when the sum is."""
    metadata = {**fact.metadata, **(change.metadata or {})}
    kept = {key: value for key, value in metadata.items() if value is not None or key not in (change.metadata or {})}
    return replace(
        fact,
        text=fact.text if change.text is None else change.text,
        metadata=parse_metadata(kept, "metadata"),
        expires_at=_named(change.expires_at, fact.expires_at),
        occurred_at=_named(change.occurred_at, fact.occurred_at),
        speaker=_named(change.speaker, fact.speaker),
        session_id=_named(change.session_id, fact.session_id),
    )


def _reads(fact: Fact) -> tuple[object, ...]:
    """What stands in a prompt of it."""
    return fact.text, fact.speaker, fact.occurred_at


def _named(value: T | Unset | None, before: T | None) -> T | None:
    return before if isinstance(value, Unset) else value
