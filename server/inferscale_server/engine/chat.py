"""`POST /v1/chat/completions`: plan the memory, hand the request to vLLM's own chat handler, say what was done.

Tools, streaming, structured output, logprobs and the rest are vLLM's. If the injection of a request fails in the
worker, nothing was sent yet, and the same request goes once more as text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, TypeAlias

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest, ChatCompletionResponse
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.utils.sse_keep_alive import with_sse_keep_alive
from vllm.exceptions import GenerationError

from inferscale_server.brain import Brain
from inferscale_server.command import Command
from inferscale_server.edge.sse import LastChunk, is_error, is_head
from inferscale_server.edge.wire import ChatMemory
from inferscale_server.engine.door import CURRENT_FLIGHT, EngineDoor, Flight
from inferscale_server.engine.framing import Framer, last_user_text
from inferscale_server.engine.heard import Heard, heard
from inferscale_server.plan import Frame, MemoryLine, MemoryPlan
from inferscale_server.recall import Recollection
from inferscale_server.types import ServedMode

Asked: TypeAlias = ChatCompletionRequest | ResponsesRequest

ANSWER_ROOM = 256
"""Tokens kept free for the answer when the client names no maximum."""


@dataclass
class Turn:
    """One chat request on its way: what was asked, what was found, what is sent."""

    ask: ChatMemory
    mode: ServedMode
    reason: str
    request: Any
    flight: Flight
    heard: Heard
    plan: MemoryPlan | None = None
    shown: tuple[MemoryLine, ...] = ()
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
        turn.heard.answer(answer.choices[0].message.content)
        return JSONResponse(body | {"inferscale": self._provenance(turn)})

    # What tells a chat from other requests that carry a conversation

    def _messages(self, request: Any) -> list[Any]:
        return list(request.messages)

    async def _frame(self, request: Any) -> Frame | None:
        return await self._framer.frame(request)

    def _told(self, request: Any, memory: str) -> Any:
        return request.model_copy(update={"messages": self._framer.with_memory(request.messages, memory)})

    def _wanted_tokens(self, request: Any) -> int | None:
        return request.max_completion_tokens or request.max_tokens

    async def _create(self, request: Any, raw_request: Request) -> Any:
        return await self._serving.create_chat_completion(request, raw_request)

    # Preparing

    async def _prepare(self, request: Asked, ask: ChatMemory) -> Turn:
        messages = self._messages(request)
        spoken = heard(self._brain, ask, messages)
        if ask.owner is None:
            return self._without_memory(request, ask, spoken, "no_user")
        if ask.mode == "off":
            return self._without_memory(request, ask, spoken, "requested")
        query = last_user_text(messages)
        found, frame = await asyncio.gather(  # the query is embedded in a thread of its own
            self._brain.recall.find(ask.owner, query, ask.k, ask.min_score, ask.context, ask.where),
            self._frame(request),
        )
        if found.empty:
            return self._without_memory(request, ask, spoken, "nothing_remembered")
        return self._with_memory(request, ask, spoken, found, frame)

    def _without_memory(self, request: Asked, ask: ChatMemory, spoken: Heard, reason: str) -> Turn:
        return Turn(ask, "off", reason, request.model_copy(), Flight(self._salt(ask)), spoken)

    def _with_memory(
        self, request: Asked, ask: ChatMemory, spoken: Heard, found: Recollection, frame: Frame | None
    ) -> Turn:
        started = perf_counter()
        timings = {"embed": found.embed_ms, "search": found.search_ms, "stage": 0.0}
        if frame is None:
            return self._in_messages(request, ask, spoken, found, timings)
        room = self._max_model_len - len(frame.before) - len(frame.after) - self._answer_room(request)
        plan = self._brain.recall.plan(found, frame, ask.mode, room, self._refusal(request))
        timings["plan"] = 1e3 * (perf_counter() - started)
        flight = Flight(self._salt(ask, plan.digest))
        turn = Turn(ask, plan.mode, plan.reason, self._planned(request, plan), flight, spoken)
        turn.plan, turn.shown, turn.timings_ms = plan, plan.lines, timings
        turn.flight.pin = self._brain.catalog.pin(plan.chunks)
        return turn

    def _planned(self, request: Asked, plan: MemoryPlan) -> Any:
        """The request with our token ids as its prompt, and the command to inject them."""
        params: dict[str, Any] = {} if plan.injection is None else self._door.params(Command(plan.injection))
        return request.model_copy(update={"kv_transfer_params": params | {"prompt_token_ids": list(plan.prompt_ids)}})

    def _in_messages(
        self, request: Asked, ask: ChatMemory, spoken: Heard, found: Recollection, timings: dict[str, float]
    ) -> Turn:
        """Memory as message text, for requests that cannot be framed in tokens."""
        harmless, line_of = self._brain.tokenize.harmless, self._brain.recall.wording.line
        lines = [MemoryLine(None, text, None, (), None) for text in found.context]
        lines = [MemoryLine(h.fact.id, h.fact.text, h.score, (), None) for h in reversed(found.hits)] + lines
        by_id = {hit.fact.id: hit.fact for hit in found.hits}
        facts = [by_id.get(line.name) if line.name else None for line in lines]
        text = "".join(
            harmless(line_of(line.text) if fact is None else line_of(fact.text, fact.speaker, fact.occurred_at))
            for line, fact in zip(lines, facts, strict=True)
        )
        turn = Turn(ask, "text", "not_plain_text", self._told(request, text), Flight(self._salt(ask)), spoken)
        turn.shown, turn.timings_ms = tuple(lines), timings
        return turn

    def _as_text(self, turn: Turn, request: Asked) -> Turn:
        """The same prompt without injection, after the injection failed."""
        assert turn.plan is not None
        plan = replace(turn.plan, mode="text", reason="load_failed", injection=None, chunks=(), digest="text")
        flight = Flight(self._salt(turn.ask))
        again = Turn(turn.ask, "text", plan.reason, self._planned(request, plan), flight, turn.heard)
        again.plan, again.shown, again.timings_ms = plan, turn.shown, turn.timings_ms
        return again

    def _refusal(self, request: Asked) -> str | None:
        if getattr(request, "prompt_logprobs", None) is not None:
            return "prompt_logprobs"
        if request.model and self._serving.models.lora_requests.get(request.model) is not None:
            return "adapter"
        return None

    def _answer_room(self, request: Asked) -> int:
        return min(self._wanted_tokens(request) or ANSWER_ROOM, self._max_model_len // 2)

    def _salt(self, ask: ChatMemory, digest: str = "text") -> str:
        owner = ask.cache_owner
        return self._brain.salts.of(owner, self._brain.memory.epoch(owner), digest)

    # Running

    async def _submit(self, turn: Turn, raw_request: Request) -> Any:
        """vLLM's handler, with the turn's flight around each `generate` that it calls."""
        turn.request.cache_salt = turn.flight.salt
        token = CURRENT_FLIGHT.set(turn.flight)
        try:
            return await self._create(turn.request, raw_request)
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
                    turn.heard.event(event)
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
        memory_injected = 0 if plan is None or not plan.chunks else max(injected - len(plan.chunks[0].token_ids), 0)
        shown = {
            "mode": turn.mode,
            "reason": turn.reason,
            "facts": [self._shown(line, turn.ask.include_text) for line in _best_first(turn.shown)],
            "injected_tokens": injected,
            "prefilled_tokens": prefilled,
            "memory_tokens": 0 if plan is None else plan.memory_tokens,
            "frame_tokens": header,
            "kv_source": {
                "device": injected,
                "host": 0,
                "disk": 0,
                "text": 0 if plan is None else plan.memory_tokens - memory_injected,
            },
            "timings_ms": {**turn.timings_ms, "ttft": flight.first_token_ms},
        }
        if not turn.ask.remember:
            return shown
        return shown | {"remember": turn.heard.keep(self._brain, [line.text for line in turn.shown])}

    @staticmethod
    def _shown(line: MemoryLine, include_text: bool) -> dict[str, Any]:
        shown: dict[str, Any] = {"id": line.name, "score": line.score}
        return shown | {"text": line.text} if include_text else shown


def _best_first(lines: Sequence[MemoryLine]) -> list[MemoryLine]:
    """The facts among them; of equal ones, the one nearer to the end."""
    return sorted((line for line in reversed(lines) if line.name), key=lambda line: -(line.score or 0.0))
