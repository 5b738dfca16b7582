"""The `inferscale_*` series of `/metrics`.

Knows: names, labels and units. Refuses to know: users, facts and texts: no label may tell one owner from another.
vLLM's own histograms count encode requests as well; these series tell the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from inferscale_server.types import ServedMode

EncodeTokens = Literal["own", "prefix", "spare"]
Tier = Literal["device", "host", "disk"]
EncodeResult = Literal["stored", "loaded", "incomplete", "failed", "dropped"]

MULTIPROCESS_GAUGES: Literal["mostrecent"] = "mostrecent"
"""With several processes one registry merges their files; a gauge is then whatever was set last."""


class Metrics:
    """Counters and gauges in one registry; make one a registry, since names must be unique in it."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._requests = Counter(
            "inferscale_requests", "Chats served, by mode and why that mode.", ("mode", "reason"), registry=registry
        )
        self._injected = Counter(
            "inferscale_injected_tokens", "Prompt tokens whose KV was injected, not computed.", registry=registry
        )
        self._prefilled = Counter(
            "inferscale_prefilled_tokens", "Prompt tokens of chats that were computed.", registry=registry
        )
        self._claims_short = Counter(
            "inferscale_claims_short", "Chats for which fewer tokens were claimed than planned.", registry=registry
        )
        self._hook_errors = Counter(
            "inferscale_hook_errors", "Exceptions caught in a connector hook.", ("hook",), registry=registry
        )
        self._encodes = Counter(
            "inferscale_encodes", "Chunks encoded, or loaded instead, by result.", ("result",), registry=registry
        )
        self._name_remembering(registry)
        self._name_tiers(registry)
        self._encode_queue = _gauge("inferscale_encode_queue", "Facts that wait for their KV.", registry)
        self._session_turns = Counter(
            "inferscale_session_turns",
            "Chats inside a session, by what became of its memory block.",
            ("state", "reason"),
            registry=registry,
        )
        self._sessions = _gauge("inferscale_sessions", "Sessions that are remembered.", registry)

    def _name_remembering(self, registry: CollectorRegistry) -> None:
        self._extracted = Counter(
            "inferscale_extracted_facts",
            "Facts made of conversations, by what became of them; nothing: turns without any.",
            ("status",),
            registry=registry,
        )
        self._remembered = Counter(
            "inferscale_remember_turns",
            "Turns of chats that asked to be remembered, by what became of them.",
            ("result",),
            registry=registry,
        )
        self._remember_queue = _gauge("inferscale_remember_queue", "Turns that wait to be remembered.", registry)

    def _name_tiers(self, registry: CollectorRegistry) -> None:
        self._encode_tokens = Counter(
            "inferscale_encode_tokens",
            "Tokens computed by encode requests: chunks' own, text before them, throw-away.",
            ("kind",),
            registry=registry,
        )
        self._tier_tokens = Counter(
            "inferscale_tier_tokens",
            "Prompt tokens of chats, by where their KV was when the chat came; text: memory that was computed.",
            ("tier",),
            registry=registry,
        )
        self._stages = Counter(
            "inferscale_stages",
            "Chunks that chats wanted from a colder tier, by what became of it.",
            ("tier", "result"),
            registry=registry,
        )
        self._tier_bytes = _tier_gauge("inferscale_tier_bytes", "Bytes of KV that lie in a tier.", registry)
        self._tier_budget_bytes = _tier_gauge("inferscale_tier_budget_bytes", "Bytes that a tier may hold.", registry)
        self._host_rows_used = _gauge("inferscale_host_rows_used", "Rows of host memory that hold chunk KV.", registry)
        self._host_rows_total = _gauge("inferscale_host_rows_total", "Rows of host memory there are.", registry)
        self._rows_used = _gauge("inferscale_slab_rows_used", "Slab rows that hold chunk KV.", registry)
        self._rows_total = _gauge("inferscale_slab_rows_total", "Slab rows there are.", registry)
        self._disk_events = Counter(
            "inferscale_kv_disk_events",
            "KV files saved, loaded and dropped, by what became of it.",
            ("event", "result"),
            registry=registry,
        )
        self._disk_bytes = _gauge("inferscale_kv_disk_bytes", "Bytes of KV files.", registry)
        self._disk_chunks = _gauge("inferscale_kv_disk_chunks", "Chunks that have KV files.", registry)

    def served(self, mode: ServedMode, reason: str, injected_tokens: int, prefilled_tokens: int) -> None:
        """Count one chat. `reason` is one of a fixed set of words, never something that a client wrote."""
        self._requests.labels(mode, reason).inc()
        self._injected.inc(injected_tokens)
        self._prefilled.inc(prefilled_tokens)

    def claimed_short(self) -> None:
        """Count one chat for which the scheduler claimed fewer tokens than were planned."""
        self._claims_short.inc()

    def served_from(self, tokens_by_tier: Mapping[str, int]) -> None:
        """Count a chat's tokens by tier: device, host, disk, text."""
        for tier, tokens in tokens_by_tier.items():
            self._tier_tokens.labels(tier).inc(tokens)

    def staged(self, tier: str, result: str) -> None:
        """Count one chunk; both are of fixed sets of words."""
        self._stages.labels(tier, result).inc()

    def tier(self, tier: Tier, size_bytes: int, budget_bytes: int) -> None:
        """Set what KV takes in a tier, on all ranks together."""
        self._tier_bytes.labels(tier).set(size_bytes)
        self._tier_budget_bytes.labels(tier).set(budget_bytes)

    def host(self, used_rows: int, total_rows: int) -> None:
        """Set how full the host tier is, in rows (tokens)."""
        self._host_rows_used.set(used_rows)
        self._host_rows_total.set(total_rows)

    def session_turn(self, state: str, reason: str) -> None:
        """Count one turn of a session; both are of fixed sets of words."""
        self._session_turns.labels(state, reason).inc()

    def sessions(self, count: int) -> None:
        """Set how many sessions are remembered."""
        self._sessions.set(count)

    def hook_failed(self, hook: str, times: int = 1) -> None:
        """Count exceptions in the connector's method `hook`."""
        self._hook_errors.labels(hook).inc(times)

    def encoded(self, result: EncodeResult) -> None:
        """Count one encode request that ended."""
        self._encodes.labels(result).inc()

    def extracted(self, status: str) -> None:
        """Count one fact that was made of a conversation; of a fixed set of words."""
        self._extracted.labels(status).inc()

    def turn_remembered(self, result: str) -> None:
        """Count one turn of a chat; of a fixed set of words."""
        self._remembered.labels(result).inc()

    def remember_queue(self, turns: int) -> None:
        """Set how many turns wait to be remembered."""
        self._remember_queue.set(turns)

    def encode_tokens(self, kind: EncodeTokens, tokens: int) -> None:
        """Count tokens that an encode request computed."""
        self._encode_tokens.labels(kind).inc(tokens)

    def encode_queue(self, facts: int) -> None:
        """Set how many facts wait for their KV."""
        self._encode_queue.set(facts)

    def slab(self, used_rows: int, total_rows: int) -> None:
        """Set how full the slabs are, in rows (tokens)."""
        self._rows_used.set(used_rows)
        self._rows_total.set(total_rows)

    def kv_disk_event(self, event: str, result: str) -> None:
        """Count one KV file; both are of fixed sets of words."""
        self._disk_events.labels(event, result).inc()

    def kv_disk(self, size_bytes: int, chunks: int) -> None:
        """Set how much lies on the disk."""
        self._disk_bytes.set(size_bytes)
        self._disk_chunks.set(chunks)


def _tier_gauge(name: str, meaning: str, registry: CollectorRegistry) -> Gauge:
    return Gauge(name, meaning, ("tier",), registry=registry, multiprocess_mode=MULTIPROCESS_GAUGES)


def _gauge(name: str, meaning: str, registry: CollectorRegistry) -> Gauge:
    return Gauge(name, meaning, registry=registry, multiprocess_mode=MULTIPROCESS_GAUGES)
