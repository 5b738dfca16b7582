"""`POST /v1/chat/completions`: plan the memory, hand the request to vLLM's own chat handler, say what was done.

Tools, streaming, structured output, logprobs and the rest are vLLM's. If the injection of a request fails in the
worker, nothing was sent yet, and the same request goes once more as text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest, ChatCompletionResponse
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.utils.sse_keep_alive import with_sse_keep_alive
from vllm.exceptions import GenerationError

from inferscale_server.brain import Brain
from inferscale_server.command import Command
from inferscale_server.costs import Estimate
from inferscale_server.edge.sse import LastChunk, is_error, is_head
from inferscale_server.edge.wire import ChatMemory
from inferscale_server.engine.door import CURRENT_FLIGHT, EngineDoor, Flight
from inferscale_server.engine.framing import Framer, last_user_text, plain_text, with_memory
from inferscale_server.plan import Frame, MemoryLine, MemoryPlan, without_injection
from inferscale_server.recall import Recollection
from inferscale_server.session_notes import Said
from inferscale_server.session_recall import SessionAsk, SessionTold
from inferscale_server.staging import ColdTier
from inferscale_server.types import Owner, ServedMode
from inferscale_server.wording import fact_line

ANSWER_ROOM = 256
"""Tokens kept free for the answer when the client names no maximum."""


@dataclass
class Turn:
    """One chat request on its way: what was asked, what was found, what is sent."""

    ask: ChatMemory
    mode: ServedMode
    reason: str
    request: ChatCompletionRequest
    flight: Flight
    plan: MemoryPlan | None = None
    shown: tuple[MemoryLine, ...] = ()
    session: SessionTold | None = None
    staged: Mapping[int, ColdTier] = field(default_factory=dict)  # where chunks were before this chat, by stamp
    timings_ms: dict[str, float] = field(default_factory=dict)


class ClosingStream(StreamingResponse):
    """A stream whose generator is closed whatever ends it, so that the engine hears of a disconnect at once."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            close: Callable[[], Awaitable[None]] | None = getattr(self.body_iterator, "aclose", None)
            if close is not None:
                await close()


class ChatDesk:
    """Serves chats. One a server."""

    def __init__(
        self, brain: Brain, door: EngineDoor, framer: Framer, serving: OpenAIServingChat, max_model_len: int
    ) -> None:
        self._brain = brain
        self._door = door
        self._framer = framer
        self._serving = serving
        self._max_model_len = max_model_len

    async def serve(
        self, request: ChatCompletionRequest, raw_request: Request, ask: ChatMemory, keep_alive_s: float = 0.0
    ) -> Response:
        """Answer one chat. Raises RequestError for what the client wrote, and vLLM's own errors."""
        self._door.pace.chat_arrived()
        turn = await self._prepare(request, ask)
        if request.stream:
            return await self._stream(turn, request, raw_request, keep_alive_s)
        answer = await self._once(turn, raw_request)
        if answer is None:
            turn = self._as_text(turn, request)
            answer = await self._once(turn, raw_request)
        if isinstance(answer, ErrorResponse):
            return JSONResponse(answer.model_dump(), status_code=answer.error.code)
        assert answer is not None, "a text answer cannot fail to load"
        body = answer.model_dump()
        body.pop("kv_transfer_params", None)
        return JSONResponse(body | {"inferscale": self._provenance(turn)})

    # Preparing

    async def _prepare(self, request: ChatCompletionRequest, ask: ChatMemory) -> Turn:
        if ask.owner is None:
            return self._without_memory(request, ask, "no_user")
        if ask.mode == "off":
            return self._without_memory(request, ask, "requested")
        if ask.session_id is not None:
            return await self._in_session(request, ask, ask.owner, ask.session_id)
        query = last_user_text(request.messages)
        found, frame = await asyncio.gather(  # the query is embedded in a thread of its own
            self._brain.recall.find(ask.owner, query, ask.k, ask.min_score, ask.context, ask.where),
            self._framer.frame(request),
        )
        if found.empty:
            return self._without_memory(request, ask, "nothing_remembered")
        if frame is None:
            return self._in_messages(request, ask, found)
        return await self._with_memory(request, ask, found, frame)

    def _without_memory(self, request: ChatCompletionRequest, ask: ChatMemory, reason: str) -> Turn:
        return Turn(ask, "off", reason, request.model_copy(), Flight(self._salt(ask)))

    async def _with_memory(
        self, request: ChatCompletionRequest, ask: ChatMemory, found: Recollection, frame: Frame
    ) -> Turn:
        started = perf_counter()
        staged: Mapping[int, ColdTier] = {}
        if ask.mode in ("auto", "kv") and self._refusal(request) is None:
            staged = await self._brain.stager.stage(self._brain.recall.wanted(found))
        ready = perf_counter()
        plan = self._brain.recall.plan(found, frame, ask.mode, self._room(request, frame), self._refusal(request))
        timings_ms = {"stage": 1e3 * (ready - started), "plan": 1e3 * (perf_counter() - ready)}
        turn = self._turn(request, ask, plan, _timings(found) | timings_ms)
        turn.staged = staged
        return turn

    async def _in_session(self, request: ChatCompletionRequest, ask: ChatMemory, owner: Owner, session_id: str) -> Turn:
        """A turn of a conversation that keeps its memory block (docs/sessions.md)."""
        said = tuple(Said(str(message.get("role")), plain_text(message.get("content"))) for message in request.messages)
        asked = SessionAsk(
            owner, session_id, said, ask.mode, ask.k, ask.min_score, ask.context, ask.where, self._refusal(request)
        )

        async def frame_of(notes: Mapping[int, str]) -> Frame | None:
            return await self._framer.frame(request.model_copy(update={"messages": noted(request.messages, notes)}))

        served = await self._brain.session_recall.turn(asked, frame_of, lambda frame: self._room(request, frame))
        if served.found.empty and served.plan is None:
            return self._without_memory(request, ask, "nothing_remembered")
        if served.plan is None or served.told is None:
            return self._in_messages(request, ask, served.found)
        turn = self._turn(request, ask, served.plan, _timings(served.found) | {"plan": served.plan_ms})
        turn.shown, turn.session, turn.staged = served.shown, served.told, served.staged
        self._brain.metrics.session_turn(served.told.state, served.told.reason)
        return turn

    def _turn(
        self, request: ChatCompletionRequest, ask: ChatMemory, plan: MemoryPlan, timings_ms: dict[str, float]
    ) -> Turn:
        """The plan on its way; its rows are held from now on."""
        turn = Turn(ask, plan.mode, plan.reason, self._planned(request, plan), Flight(self._salt(ask, plan.digest)))
        turn.plan, turn.shown, turn.timings_ms = plan, plan.lines, timings_ms
        turn.flight.pin = self._brain.catalog.pin(plan.chunks)
        return turn

    def _room(self, request: ChatCompletionRequest, frame: Frame) -> int:
        """Tokens of memory that fit into this frame."""
        return self._max_model_len - len(frame.before) - len(frame.after) - self._answer_room(request)

    def _planned(self, request: ChatCompletionRequest, plan: MemoryPlan) -> ChatCompletionRequest:
        """The request with our token ids as its prompt, and the command to inject them."""
        params: dict[str, Any] = {} if plan.injection is None else self._door.params(Command(plan.injection))
        return request.model_copy(update={"kv_transfer_params": params | {"prompt_token_ids": list(plan.prompt_ids)}})

    def _in_messages(self, request: ChatCompletionRequest, ask: ChatMemory, found: Recollection) -> Turn:
        """Memory as message text, for requests that cannot be framed in tokens."""
        harmless = self._brain.tokenize.harmless
        lines = [MemoryLine(None, text, None, (), None) for text in found.context]
        lines = [MemoryLine(h.fact.id, h.fact.text, h.score, (), None) for h in reversed(found.hits)] + lines
        by_id = {hit.fact.id: hit.fact for hit in found.hits}
        facts = [by_id.get(line.name) if line.name else None for line in lines]
        text = "".join(
            harmless(fact_line(line.text) if fact is None else fact_line(fact.text, fact.speaker, fact.occurred_at))
            for line, fact in zip(lines, facts, strict=True)
        )
        changed = request.model_copy(update={"messages": with_memory(request.messages, text)})
        turn = Turn(ask, "text", "not_plain_text", changed, Flight(self._salt(ask)))
        turn.shown, turn.timings_ms = tuple(lines), _timings(found)
        return turn

    def _as_text(self, turn: Turn, request: ChatCompletionRequest) -> Turn:
        """The same prompt without injection, after the injection failed."""
        assert turn.plan is not None
        plan = without_injection(turn.plan, "load_failed")
        again = Turn(turn.ask, "text", plan.reason, self._planned(request, plan), Flight(self._salt(turn.ask)))
        again.plan, again.shown, again.timings_ms, again.session = plan, turn.shown, turn.timings_ms, turn.session
        return again

    def _refusal(self, request: ChatCompletionRequest) -> str | None:
        if request.prompt_logprobs is not None:
            return "prompt_logprobs"
        if request.model and self._serving.models.lora_requests.get(request.model) is not None:
            return "adapter"
        return None

    def _answer_room(self, request: ChatCompletionRequest) -> int:
        wanted = request.max_completion_tokens or request.max_tokens or ANSWER_ROOM
        return min(wanted, self._max_model_len // 2)

    def _salt(self, ask: ChatMemory, digest: str = "text") -> str:
        owner = ask.cache_owner
        return self._brain.salts.of(owner, self._brain.memory.epoch(owner), digest)

    # Running

    async def _submit(self, turn: Turn, raw_request: Request) -> Any:
        """vLLM's handler, with the turn's flight around each `generate` that it calls."""
        turn.request.cache_salt = turn.flight.salt
        token = CURRENT_FLIGHT.set(turn.flight)
        try:
            return await self._serving.create_chat_completion(turn.request, raw_request)
        finally:
            CURRENT_FLIGHT.reset(token)

    async def _once(self, turn: Turn, raw_request: Request) -> ChatCompletionResponse | ErrorResponse | None:
        """A whole answer; None when the injection failed."""
        try:
            return await self._submit(turn, raw_request)  # type: ignore[no-any-return]
        except GenerationError:
            if self._may_go_again(turn):
                return None
            raise
        finally:
            await self._land(turn)

    @staticmethod
    def _may_go_again(turn: Turn) -> bool:
        """Did the injection fail, so that the same prompt without it can still be answered?"""
        return turn.flight.load_failed and turn.plan is not None and turn.plan.injection is not None

    async def _stream(
        self, turn: Turn, request: ChatCompletionRequest, raw_request: Request, keep_alive_s: float
    ) -> Response:
        try:
            events = await self._submit(turn, raw_request)
        except BaseException:
            await self._land(turn)
            raise
        if isinstance(events, ErrorResponse):
            await self._land(turn)
            return JSONResponse(events.model_dump(), status_code=events.error.code)
        content = self._events(turn, events, request, raw_request)
        return ClosingStream(with_sse_keep_alive(content, keep_alive_s), media_type="text/event-stream")

    async def _events(
        self, turn: Turn, events: AsyncGenerator[str, None], request: ChatCompletionRequest, raw_request: Request
    ) -> AsyncIterator[str]:
        """The stream with provenance in its last chunk. The head is held until content comes: until then the request
        can still go once more as text, and nothing is delayed, since both come from one engine output."""
        head: list[str] = []
        started = False
        async with aclosing(self._flown(turn, events)) as flown:
            async for event in flown:
                if not started and is_error(event) and self._may_go_again(turn):
                    break
                head.append(event)
                if started or not is_head(event):
                    started = True
                    for held in head:
                        yield held
                    head.clear()
            else:
                return
        again = self._as_text(turn, request)
        retried = await self._submit(again, raw_request)
        async with aclosing(self._flown(again, retried)) as flown:
            async for event in flown:
                yield event

    async def _flown(self, turn: Turn, events: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        options = turn.request.stream_options
        last = LastChunk(turn.request.n or 1, bool(options and options.include_usage), lambda: self._provenance(turn))
        try:
            async with aclosing(events):
                async for event in events:
                    yield last.amend(event)
        finally:
            await self._land(turn)

    async def _land(self, turn: Turn) -> None:
        """End the flight. A plan that was not covered whole, or whose report never came (the client hung up), may have
        left text-computed blocks under its salt: the salt is used no more."""
        await turn.flight.land()
        plan = turn.plan
        if plan is not None and turn.flight.covered(plan.injected_tokens) < plan.injected_tokens:
            self._brain.salts.retire(plan.digest)
            if turn.session is not None and turn.ask.owner is not None and turn.ask.session_id is not None:
                self._brain.sessions.of(turn.ask.owner, turn.ask.session_id).drop("kv_gone")

    # Saying what was done

    def _provenance(self, turn: Turn) -> Mapping[str, Any]:
        flight, plan = turn.flight, turn.plan
        planned = 0 if plan is None else plan.injected_tokens
        injected = flight.covered(planned)
        if injected < planned:
            self._brain.metrics.claimed_short()
        self._brain.note_faults("scheduler", flight.scheduler_faults)
        prefilled = max(flight.prompt_tokens - flight.cached_tokens, 0)
        self._brain.metrics.served(turn.mode, turn.reason, injected, prefilled)
        header = 0 if plan is None else len(plan.prompt_ids) - plan.memory_tokens  # frame tokens
        source = _source(turn, injected)
        self._brain.metrics.served_from(source)
        return {
            "mode": turn.mode,
            "reason": turn.reason,
            "facts": [self._shown(line, turn.ask.include_text) for line in reversed(turn.shown) if line.name],
            "injected_tokens": injected,
            "prefilled_tokens": prefilled,
            "memory_tokens": 0 if plan is None else plan.memory_tokens,
            "frame_tokens": header,
            "kv_source": source,
            "timings_ms": {**turn.timings_ms, "ttft": flight.first_token_ms},
            **({} if plan is None or plan.estimate is None else {"estimated_ms": _estimated(plan.estimate)}),
            **({} if turn.session is None else {"session": _told(turn.session)}),
        }

    @staticmethod
    def _shown(line: MemoryLine, include_text: bool) -> dict[str, Any]:
        shown: dict[str, Any] = {"id": line.name, "score": line.score}
        return shown | {"text": line.text} if include_text else shown


def noted(messages: Sequence[Any], notes: Mapping[int, str]) -> list[Any]:
    """The messages with notes before the words of those at these places."""
    return [
        {**message, "content": notes[place] + plain_text(message.get("content"))} if place in notes else message
        for place, message in enumerate(messages)
    ]


def _timings(found: Recollection) -> dict[str, float]:
    return {"embed": found.embed_ms, "search": found.search_ms, "stage": 0.0}


def _estimated(estimate: Estimate) -> dict[str, float]:
    """What `auto` weighed."""
    return {"kv": round(estimate.kv_ms, 1), "text": round(estimate.text_ms, 1)}


def _told(session: SessionTold) -> dict[str, Any]:
    """Which facts stood in the block, and which were noted as text."""
    return {
        "state": session.state,
        "reason": session.reason,
        "turn": session.turn,
        "block": sorted(session.block),
        "noted": [one.name for one in session.noted if one.name is not None],
    }


def _source(turn: Turn, injected: int) -> dict[str, int]:
    """Tokens by where their KV was when the chat came; text: memory that was computed."""
    if turn.plan is None:
        return {"device": 0, "host": 0, "disk": 0, "text": 0}
    tiers = [(turn.staged.get(chunk.stamp), len(chunk.token_ids)) for chunk in turn.plan.chunks]
    host, disk = (sum(tokens for tier, tokens in tiers if tier == name) for name in ("host", "disk"))
    memory_injected = max(injected - turn.plan.header_tokens, 0)
    host, disk = min(host, memory_injected), min(disk, memory_injected)
    text = turn.plan.memory_tokens - memory_injected
    return {"device": max(injected - host - disk, 0), "host": host, "disk": disk, "text": text}
