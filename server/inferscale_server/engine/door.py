"""The door to the engine: every request of the API process passes here.

Wraps `engine_client.generate`, the only place that sees cached tokens, the connector's report and the first token's
time for streams, and the only one where pins can be released safely: after the abort was sent. Also the encoder's way
in.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from inferscale_server.catalog import Pin
from inferscale_server.command import FAULTS_KEY, PARAMS_KEY, Command, Extent, to_params
from inferscale_server.engine.difference import Difference, worst_of
from inferscale_server.engine.first_token import FirstToken
from inferscale_server.engine.pace import STEP_TOKENS, Pace
from inferscale_server.kv_order import FileOrder, FileReport, joined
from inferscale_server.quiet import Quiet
from inferscale_server.row_copy import Direction, RowCopy

ENCODE_PRIORITY = 100
"""vLLM serves lower numbers first; chats are 0."""
STARVED_PRIORITY = -1
"""Of encode requests to which chats leave no time."""


@dataclass
class Flight:
    """One chat's way through the engine: what it holds, and what became of it."""

    salt: str
    pin: Pin | None = None
    adapter: str | None = None
    """Whose KV it injects: the fingerprint of an adapter, "" of the base model, None when it injects none."""
    started: float = field(default_factory=perf_counter)
    first_token_ms: float | None = None
    cached_tokens: int = 0
    prompt_tokens: int = 0
    covered_tokens: int | None = None
    load_failed: bool = False
    scheduler_faults: dict[str, int] = field(default_factory=dict)
    streams: list[AsyncGenerator[Any, None]] = field(default_factory=list)

    def covered(self, planned: int) -> int:
        """How many of the planned tokens were in place before the first computed one.

        The connector's report says it. vLLM drops the report when it ends a request itself (a stop string, a client
        that hung up); then its count of cached tokens does, which come first in the prompt as the plan does.
        """
        found = self.cached_tokens if self.covered_tokens is None else self.covered_tokens
        return min(found, planned)

    @property
    def prefilled_tokens(self) -> int:
        """Tokens of the prompt that were computed."""
        return max(self.prompt_tokens - self.cached_tokens, 0)

    async def land(self) -> None:
        """Abort what still runs, then let go of the rows. Safe to call twice."""
        for stream in self.streams:
            await stream.aclose()
        if self.pin is not None:
            self.pin.release()

    def note(self, output: Any) -> None:
        """Read one RequestOutput. With n > 1 each child reports; the least covered counts."""
        self._note_first_token(output)
        self.cached_tokens = max(self.cached_tokens, output.num_cached_tokens or 0)
        self.prompt_tokens = len(output.prompt_token_ids or ())
        self.load_failed |= any(part.finish_reason == "error" for part in output.outputs)
        params = output.kv_transfer_params or {}
        self.scheduler_faults |= params.get(FAULTS_KEY, {})
        report = params.get(PARAMS_KEY)
        if report is not None:
            covered = report["covered"]
            self.covered_tokens = covered if self.covered_tokens is None else min(self.covered_tokens, covered)

    def _note_first_token(self, output: Any) -> None:
        """Streams show it by arriving; a whole answer carries the engine's own measurement."""
        if self.first_token_ms is not None or not any(part.token_ids for part in output.outputs):
            return
        latency = getattr(output.metrics, "first_token_latency", 0.0)
        now_ms = 1e3 * (perf_counter() - self.started)
        self.first_token_ms = 1e3 * latency if output.finished and latency else now_ms


CURRENT_FLIGHT: ContextVar[Flight | None] = ContextVar("inferscale_flight", default=None)
"""The flight of the chat handler that is calling `generate`; read when the call is made, not while it streams."""


class ServedAdapters(Protocol):
    """LoRA adapters as the door sees them."""

    def through(self, fingerprint: str) -> LoRARequest | None:
        """The adapter with this fingerprint; None when it is not served, or not any more."""

    def fingerprint_of(self, request: LoRARequest) -> str | None:
        """That of an adapter which vLLM is asked to read through; None when nobody can say."""


class EngineDoor:
    """vLLM's engine client as the rest of the server sees it."""

    def __init__(self, engine_client: Any, secret: bytes, default_salt: Callable[[], str]) -> None:
        self._client = engine_client
        self._secret = secret
        self._default_salt = default_salt
        self._generate = engine_client.generate
        cache = engine_client.vllm_config.cache_config
        self.block_tokens: int = cache.block_size if cache.enable_prefix_caching else 0  # kept whole by its cache
        self.adapters: ServedAdapters | None = None  # None until they are known
        self._quiet = Quiet()
        self.pace = Pace()

    def install(self) -> None:
        """Put the wrapper into the client's place: vLLM's own handlers pass through it from now on."""
        self._client.generate = self.generate

    def generate(self, prompt: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        """`AsyncLLM.generate` under the flight's salt; a request without a flight gets nobody's."""
        flight = CURRENT_FLIGHT.get()
        salt = flight.salt if flight is not None else self._default_salt()
        if isinstance(prompt, dict) and not prompt.get("cache_salt"):
            prompt = {**prompt, "cache_salt": salt}
        if flight is not None and not self._reads_as_planned(flight, kwargs.get("lora_request")):
            args, kwargs = tuple(map(_uninjected, args)), {name: _uninjected(one) for name, one in kwargs.items()}
            prompt = {**prompt, "cache_salt": secrets.token_hex(32)} if isinstance(prompt, dict) else prompt
        inner: AsyncGenerator[Any, None] = self._generate(prompt, *args, **kwargs)
        if flight is None:
            return inner
        stream = self._observed(inner, flight)
        flight.streams.append(stream)
        return stream

    def _reads_as_planned(self, flight: Flight, adapter: LoRARequest | None) -> bool:
        """vLLM looks for the adapter itself, by rules of its own and later than the plan: KV of other weights must not
        go in."""
        if flight.adapter is None:
            return True
        if adapter is None or self.adapters is None:
            return adapter is None and not flight.adapter
        return self.adapters.fingerprint_of(adapter) == flight.adapter

    def _through(self, adapter: str) -> LoRARequest | None:
        found = self.adapters.through(adapter) if adapter and self.adapters is not None else None
        if adapter and found is None:
            raise LookupError("the adapter is not served any more")
        return found

    def params(self, command: Command) -> dict[str, Any]:
        """Signed `kv_transfer_params`."""
        return to_params(command, self._secret)

    def most_tokens(self) -> int | None:
        """How many tokens one encode request may compute now; None: as many as it has."""
        return self.pace.most_tokens

    def starved(self) -> bool:
        """Do chats leave encoding no time?"""
        return self.pace.starved

    async def encode(self, prompt_ids: Sequence[int], command: Command, adapter: str = "") -> None:
        """One prefill with injection and capture, under a salt of its own; behind all chats, unless they leave it no
        time. `adapter`: a fingerprint, or none. Raises LookupError when it is not served: other weights must not be
        captured for it."""
        injected = 0 if command.injection is None else len(command.injection.token_ids)
        params = {"kv_transfer_params": self.params(command)}
        await self._prefill(prompt_ids, secrets.token_hex(32), params, len(prompt_ids) - injected, adapter)

    async def write(
        self, prompt_ids: Sequence[int], schema: Mapping[str, Any], max_tokens: int, temperature: float
    ) -> str:
        """Text in the JSON of `schema`, unless `max_tokens` cut it short; under a salt of its own, behind all chats."""
        sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=temperature,
            structured_outputs=StructuredOutputsParams(json=dict(schema), disable_any_whitespace=True),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        salt, text = secrets.token_hex(32), ""
        async with self.pace.writing():
            await self._compute_in_parts(prompt_ids, salt)
            prompt = {"prompt_token_ids": list(prompt_ids), "cache_salt": salt}
            stream = self._generate(prompt, sampling, f"write-{secrets.token_hex(8)}", priority=ENCODE_PRIORITY)
            try:
                async for output in stream:
                    text = output.outputs[0].text
            finally:
                await stream.aclose()
        return text

    async def _compute_in_parts(self, prompt_ids: Sequence[int], salt: str) -> None:
        """Beside chats: all but the last part of a prompt into the prefix cache, in blocks, so that no step is long."""
        size = -(-STEP_TOKENS // self.block_tokens) * self.block_tokens if self.block_tokens else len(prompt_ids)
        for stop in range(size, len(prompt_ids), size):
            if self.pace.most_tokens is not None:
                try:
                    await self._prefill(prompt_ids[:stop], salt, None, size)
                except TimeoutError:
                    return  # chats fill every step, which gets no longer by the rest at once

    async def _prefill(
        self,
        prompt_ids: Sequence[int],
        salt: str,
        extra: dict[str, Any] | None,
        computed: int,
        adapter: str = "",
    ) -> None:
        """One token behind a prompt, for what is left in caches and slab; takes a turn of the encode requests.

        Raises TimeoutError when chats leave no time for a prompt that captures nothing; one that does goes first then,
        since what is captured spares chats more than it takes.
        """
        sampling = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False, extra_args=extra)
        prompt = {"prompt_token_ids": list(prompt_ids), "cache_salt": salt}
        async with self.pace.encoding(computed):
            if extra is None or not self.pace.starved:
                try:
                    async with self.pace.patience():
                        return await self._pass(prompt, sampling, adapter, ENCODE_PRIORITY)
                except TimeoutError:
                    if extra is None:
                        raise
                    self.pace.starve()
            with self.pace.ahead():
                await self._pass(prompt, sampling, adapter, STARVED_PRIORITY)

    async def _pass(self, prompt: Any, sampling: SamplingParams, adapter: str, priority: int) -> None:
        """One request whose output nobody reads."""
        name, through = f"encode-{secrets.token_hex(8)}", self._through(adapter)
        stream = self._generate(prompt, sampling, name, lora_request=through, priority=priority)
        try:
            async for _ in stream:
                pass
        finally:
            await stream.aclose()

    async def first_logprobs(
        self, prompt_ids: Sequence[int], command: Command | None, salt: str | None = None
    ) -> FirstToken:
        """The distribution of the first token behind a prompt, under a salt of its own unless one is given."""
        output = await self._asked(prompt_ids, command, salt, logprobs=20)
        report = (output.kv_transfer_params or {}).get(PARAMS_KEY, {})
        logprobs = {token: value.logprob for token, value in output.outputs[0].logprobs[0].items()}
        return FirstToken(logprobs, report.get("covered", 0), output.num_cached_tokens or 0)

    async def answer_logprobs(
        self, prompt_ids: Sequence[int], answer_ids: Sequence[int], command: Command | None
    ) -> list[float]:
        """Log probability of each token of a given answer behind a prompt.

        Raises ValueError when a position of the answer was not computed, or the command was not carried out whole.
        """
        ids = [*prompt_ids, *answer_ids]
        # Without the last word vLLM would ignore the injection of a request that wants its prompt's probabilities.
        output = await self._asked(ids, command, None, prompt_logprobs=0, skip_reading_prefix_cache=False)
        planned = 0 if command is None or command.injection is None else len(command.injection.token_ids)
        if output.num_cached_tokens != planned:
            raise ValueError(f"{output.num_cached_tokens} tokens were injected where {planned} were planned")
        return [output.prompt_logprobs[at][ids[at]].logprob for at in range(len(prompt_ids), len(ids))]

    async def forced(self, prompt_ids: Sequence[int], command: Command | None, salt: str, top: int | None) -> Any:
        """A prompt, with the `top` likeliest tokens at each position that is computed (None: without); an Output."""
        # By default vLLM would ignore the injection of a request that wants its prompt's probabilities.
        reading: dict[str, Any] = {"flat_logprobs": True, "skip_reading_prefix_cache": False}
        return await self._asked(prompt_ids, command, salt, prompt_logprobs=top, **reading)

    async def greedy(self, prompt_ids: Sequence[int], command: Command | None, salt: str, max_tokens: int) -> Any:
        """The likeliest answer behind a prompt, until it ends by itself or has so many tokens; an Output."""
        return await self._asked(prompt_ids, command, salt, max_tokens=max_tokens, detokenize=True)

    async def _asked(self, prompt_ids: Sequence[int], command: Command | None, salt: str | None, **wanted: Any) -> Any:
        """One token behind a prompt, unless more are wanted: vLLM's last RequestOutput."""
        extra = None if command is None else {"kv_transfer_params": self.params(command)}
        sampling = SamplingParams(temperature=0.0, extra_args=extra, **{"max_tokens": 1, "detokenize": False, **wanted})
        prompt = {"prompt_token_ids": list(prompt_ids), "cache_salt": salt or secrets.token_hex(32)}
        outputs = [one async for one in self._generate(prompt, sampling, f"gate-{secrets.token_hex(8)}")]
        return outputs[-1]

    async def difference(self, extents: Sequence[Extent], others: Sequence[Extent]) -> Difference:
        """How far two encodings of as many tokens are apart, on the rank where they are farthest."""
        pair = tuple([[one.row, one.length] for one in side] for side in (extents, others))
        return worst_of(await self._client.collective_rpc("inferscale_difference", args=pair))

    async def captured(self, attempts: Sequence[tuple[int, tuple[Extent, ...]]]) -> list[bool]:
        """Complete on every rank?"""
        asked = [(stamp, [[e.row, e.length] for e in extents]) for stamp, extents in attempts]
        ranks = await self._client.collective_rpc("inferscale_captured", args=(asked,))
        return [all(answers) for answers in zip(*ranks, strict=True)]

    async def wipe(self, extents: Sequence[Extent]) -> None:
        """Zero rows on every rank."""
        await self._client.collective_rpc("inferscale_wipe", args=([[e.row, e.length] for e in extents],))

    async def calm(self, limit_s: float) -> bool:
        """Return True once no chat waits for its first token (a whole answer: for its last), False after `limit_s`."""
        return await self._quiet.wait(limit_s)

    async def save(self, orders: Sequence[FileOrder]) -> list[FileReport]:
        """Write chunks beside their files' places on every rank. Blocks the engine for some ms: few chunks a call."""
        return await self._files("inferscale_save", orders)

    async def load(self, orders: Sequence[FileOrder]) -> list[FileReport]:
        """Fill rows from files on every rank. Blocks the engine for some ms: few chunks a call."""
        return await self._files("inferscale_load", orders)

    async def copy(self, direction: Direction, copies: Sequence[RowCopy]) -> list[bool]:
        """Copy chunks between slab and host memory; copied on every rank? Blocks the engine: few chunks a call."""
        wire = [copy.to_wire() for copy in copies]
        ranks = await self._client.collective_rpc("inferscale_copy", args=(direction, wire))
        return [all(answers) for answers in zip(*ranks, strict=True)]

    async def wipe_host(self, extents: Sequence[Extent]) -> None:
        """Zero host rows on every rank."""
        await self._client.collective_rpc("inferscale_wipe_host", args=([[e.row, e.length] for e in extents],))

    async def _files(self, method: str, orders: Sequence[FileOrder]) -> list[FileReport]:
        ranks = await self._client.collective_rpc(method, args=([order.to_wire() for order in orders],))
        return [joined([FileReport.from_wire(one) for one in reports]) for reports in zip(*ranks, strict=True)]

    async def attach(self, compiled: bool) -> list[dict[str, Any]]:
        """Tap the model in every worker; one report a rank."""
        reports: list[dict[str, Any]] = await self._client.collective_rpc("inferscale_attach", args=(compiled,))
        return reports

    async def stats(self) -> list[dict[str, Any]]:
        """Injection times and fault counts, one a rank."""
        stats: list[dict[str, Any]] = await self._client.collective_rpc("inferscale_stats")
        return stats

    async def _observed(self, inner: AsyncGenerator[Any, None], flight: Flight) -> AsyncGenerator[Any, None]:
        self._quiet.begins(inner)
        try:
            with self.pace.chatting():
                async for output in inner:
                    flight.note(output)
                    self._quiet.ends(inner)
                    yield output
        finally:
            self._quiet.ends(inner)
            # Sends the abort if the request still runs; a cancelled caller must not stop that.
            await asyncio.shield(inner.aclose())


def _uninjected(said: Any) -> Any:
    """SamplingParams without our command; whatever else as it is."""
    params = ((said.extra_args or {}) if isinstance(said, SamplingParams) else {}).get("kv_transfer_params") or {}
    if PARAMS_KEY not in params:
        return said
    bare = said.clone()
    kept = {key: value for key, value in params.items() if key != PARAMS_KEY}
    bare.extra_args = {**said.extra_args, "kv_transfer_params": kept}
    return bare
