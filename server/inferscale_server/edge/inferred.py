"""`POST /v1/memories` with messages that a model makes facts of.

Knows: what such a request must look like, and what a repeat of it is told. Refuses to know: how facts are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inferscale_server.edge.idempotency import OncePerKey
from inferscale_server.edge.services import Services
from inferscale_server.errors import ExtractionUnavailable, TooLarge
from inferscale_server.extraction.extraction import Extraction
from inferscale_server.extraction.turn import Turn, turns_of
from inferscale_server.limits import MAX_TURNS_PER_REQUEST
from inferscale_server.memory import MemoryService
from inferscale_server.remember import DraftDefaults
from inferscale_server.types import AddOutcome, IdempotencyKey, Owner

Adds = OncePerKey[tuple[AddOutcome, ...]]


async def add_inferred(
    services: Services, adds: Adds, owner: Owner, messages: object, defaults: DraftDefaults, name: IdempotencyKey | None
) -> Sequence[AddOutcome]:
    """What became of the facts of these messages. Raises ExtractionUnavailable, InvalidRequest, TooLarge, and what
    Extraction.remember raises."""
    extraction = extraction_of(services)
    turns = _turns(messages, defaults, extraction)
    fresh: list[AddOutcome] = []

    async def write() -> tuple[AddOutcome, ...]:
        fresh.extend(await extraction.remember(owner, turns, name))
        return tuple(replace(outcome, text="") for outcome in fresh)  # no deleted fact shall be read from here

    outcomes = await adds.run(owner, name, write, services.memory.wipes(owner))
    return _with_texts(services.memory, owner, fresh or outcomes)


def extraction_of(services: Services) -> Extraction:
    """Raises ExtractionUnavailable where it is switched off."""
    if services.extraction is None:
        raise ExtractionUnavailable(
            "this server does not turn messages into facts: send facts, or infer=false to keep them as they are",
            param="infer",
        )
    return services.extraction


def _turns(messages: object, defaults: DraftDefaults, extraction: Extraction) -> Sequence[Turn]:
    turns = turns_of(messages, defaults, extraction.sources)
    if len(turns) > MAX_TURNS_PER_REQUEST:
        message = f"messages has {len(turns)} turns, at most {MAX_TURNS_PER_REQUEST} are read in one request"
        raise TooLarge(message, param="messages")
    return turns


def _with_texts(memory: MemoryService, owner: Owner, outcomes: Sequence[AddOutcome]) -> Sequence[AddOutcome]:
    """A repeat finds the texts of those that are still there."""
    if all(outcome.text for outcome in outcomes):
        return outcomes
    known = {fact.id: fact.text for fact in memory.facts(owner)}
    return [replace(one, text=one.text or known.get(one.id or "", "")) for one in outcomes]
