"""What the routes need from the rest of the server, built after the routes are attached.

Knows: the functions and their results. Refuses to know: who implements them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from inferscale_server.extraction.extraction import Extraction
from inferscale_server.memory import MemoryService
from inferscale_server.types import Owner


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one owner's memory takes: facts, `tokens` of those that have KV in any tier, bytes per tier.

    `encoded` facts have KV in any tier, `queued` ones wait for it.
    """

    facts: int
    tokens: int
    device_bytes: int
    host_bytes: int
    disk_bytes: int
    facts_bytes: int
    index_bytes: int
    queued: int = 0
    encoded: int = 0


@dataclass(frozen=True, slots=True)
class Services:
    """The server behind the routes.

    `embed` gives one vector a text; `embedder` is its name, `embedder_options` what else it may be called.
    `not_ready` says why the server cannot take work yet, None when it can; `status` gives JSON values; `extraction`
    is None where messages are not turned into facts. `text_reasons` say why memory is served as text, and are empty
    when it is not.
    """

    memory: MemoryService
    footprint: Callable[[Owner], Awaitable[Footprint]]
    embed: Callable[[Sequence[str]], Awaitable[Sequence[Sequence[float]]]]
    embedder: str
    not_ready: Callable[[], str | None]
    status: Callable[[], Mapping[str, object]]
    default_k: int
    embedder_options: frozenset[str] = frozenset()
    extraction: Extraction | None = None
    text_reasons: Callable[[], Sequence[str]] = tuple
