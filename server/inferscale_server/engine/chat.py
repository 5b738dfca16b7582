"""`POST /v1/chat/completions`: plan the memory, hand the request to vLLM's own chat handler, say what was done.

Tools, streaming, structured output, logprobs and the rest are vLLM's. If the injection of a request fails in the
worker, nothing was sent yet, and the same request goes once more as text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeAlias

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest, ChatCompletionResponse
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.utils.sse_keep_alive import with_sse_keep_alive
from vllm.exceptions import GenerationError, VLLMValidationError

from inferscale_server.brain import Brain
from inferscale_server.command import Command
from inferscale_server.edge.sse import LastChunk, is_error, is_head
from inferscale_server.edge.wire import ChatMemory
from inferscale_server.engine.adapters import Adapters
from inferscale_server.engine.door import CURRENT_FLIGHT, EngineDoor, Flight
from inferscale_server.engine.framing import Framer, last_user_text
from inferscale_server.engine.heard import Heard, heard
from inferscale_server.engine.turn import Turn, provenance
from inferscale_server.errors import Unavailable
from inferscale_server.plan import Frame, MemoryPlan, without_injection
from inferscale_server.recall import Recollection
from inferscale_server.seat import plain_text
from inferscale_server.session_notes import Said
from inferscale_server.session_recall import SessionAsk
from inferscale_server.staged_plan import staged_plan

logger = logging.getLogger(__name__)

Asked: TypeAlias = ChatCompletionRequest | ResponsesRequest

ANSWER_ROOM = 256
"""Tokens kept free for the answer when the client names no maximum."""
TEMPLATE_TOKENS = 128
"""Room for a chat template's own words and the intro, where they are not counted."""

LETTERS_A_TOKEN = 4


class ClosingStream(StreamingResponse):
    """A stream whose generator is closed whatever ends it, so that the engine hears of a disconnect at once; then
    `at_end` is called."""

    def __init__(self, content: AsyncIterator[str], at_end: Callable[[], None]) -> None:
        super().__init__(content, media_type="text/event-stream")
        self._at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            close: Callable[[], Awaitable[None]] | None = getattr(self.body_iterator, "aclose", None)
            try:
                if close is not None:
                    await close()
            finally:
                self._at_end()


class ChatDesk:
    """Serves chats. One a server."""

    def __init__(
        self,
        brain: Brain,
        door: EngineDoor,
        framer: Framer,
        serving: OpenAIServingChat,
        adapters: Adapters,
        max_model_len: int,
    ) -> None:
        self._brain = brain
        self._door = door
        self._framer = framer
        self._serving = serving
        self._adapters = adapters
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
            return self._refused(answer)
        assert answer is not None, "a text answer cannot fail to load"
        body = answer.model_dump()
        body.pop("kv_transfer_params", None)
        turn.heard.answer(answer.choices[0].message.content)
        return JSONResponse(body | {"inferscale": self._provenance(turn)})

    # What tells a chat from other requests that carry a conversation

    def _messages(self, request: Any) -> list[Any]:
        return list(request.messages)

    def _noted(self, request: Any, notes: Mapping[int, str]) -> Any:
        """The request with notes before the words of the messages at these places."""
        return request.model_copy(update={"messages": noted(request.messages, notes)})

    async def _frame(self, request: Any) -> Frame | None:
        return await self._framer.frame(request)

    def _told(self, request: Any, memory: str) -> Any:
        return request.model_copy(update={"messages": self._framer.with_memory(request.messages, memory)})

    def _wanted_tokens(self, request: Any) -> int | None:
        return request.max_completion_tokens or request.max_tokens

    async def _create(self, request: Any, raw_request: Request) -> Any:
        return await self._serving.create_chat_completion(request, raw_request)

    @staticmethod
    def _refused(answer: ErrorResponse) -> JSONResponse:
        return JSONResponse(answer.model_dump(), status_code=answer.error.code)

    # Preparing

    async def _prepare(self, request: Asked, ask: ChatMemory) -> Turn:
        messages = self._messages(request)
        spoken = heard(self._brain, ask, messages)
        if ask.owner is None:
            return self._without_memory(request, ask, spoken, "no_user")
        if ask.mode == "off":
            return self._without_memory(request, ask, spoken, "requested")
        owner = await self._adapters.reader(request.model, ask.owner) or ask.owner
        ask = replace(ask, owner=owner)
        if ask.session_id is not None:
            return await self._in_session(request, ask, spoken)
        query = last_user_text(messages)
        try:
            found, frame = await asyncio.gather(  # the query is embedded in a thread of its own
                self._brain.recall.find(owner, query, ask.k, ask.min_score, ask.context, ask.where),
                self._frame(request),
            )
        except VLLMValidationError:  # too long with the words around a memory; vLLM judges the request by itself
            return self._without_memory(request, ask, spoken, "no_room")
        if found.empty:
            return self._without_memory(request, ask, spoken, "nothing_remembered", found)
        if frame is None:
            return self._in_messages(request, ask, spoken, found)
        return await self._with_memory(request, ask, spoken, found, frame)

    def _without_memory(
        self, request: Asked, ask: ChatMemory, spoken: Heard, reason: str, found: Recollection | None = None
    ) -> Turn:
        turn = Turn(ask, "off", reason, request.model_copy(), Flight(self._salt(ask)), spoken)
        turn.timings_ms = _timings(found)
        return turn

    async def _with_memory(
        self, request: Asked, ask: ChatMemory, spoken: Heard, found: Recollection, frame: Frame
    ) -> Turn:
        brain = self._brain
        asked = (found, frame, ask.mode, self._room(request, frame), self._refusal(request, ask))
        planned = await staged_plan(brain.recall, brain.stager, *asked)
        if not planned.plan.lines:
            return self._without_memory(request, ask, spoken, "no_room", found)
        timings_ms = _timings(found, planned.plan_ms, planned.stage_ms)
        turn = self._turn(request, ask, spoken, planned.plan, timings_ms)
        turn.staged = planned.staged
        return turn

    async def _in_session(self, request: Any, ask: ChatMemory, spoken: Heard) -> Turn:
        """A turn of a conversation that keeps its memory block (docs/sessions.md)."""
        assert ask.owner is not None and ask.session_id is not None, "checked by the caller"
        messages = self._messages(request)
        said = tuple(Said(str(message.get("role")), plain_text(message.get("content"))) for message in messages)
        options = (ask.mode, ask.k, ask.min_score, ask.context, ask.where, self._refusal(request, ask))
        asked = SessionAsk(ask.owner, ask.session_id, said, *options)

        async def frame_of(notes: Mapping[int, str]) -> Frame | None:
            try:
                return await self._frame(self._noted(request, notes))
            except VLLMValidationError:
                if not notes:
                    raise
                return None  # too long with what was noted

        try:
            served = await self._brain.session_recall.turn(asked, frame_of, lambda frame: self._room(request, frame))
        except VLLMValidationError:
            return self._without_memory(request, ask, spoken, "no_room")
        if served.found.empty and served.plan is None:
            return self._without_memory(request, ask, spoken, "nothing_remembered", served.found)
        if served.plan is None:
            return self._in_messages(request, ask, spoken, served.found)
        if served.told is None:
            return self._without_memory(request, ask, spoken, "no_room", served.found)
        timings_ms = _timings(served.found, served.plan_ms, served.stage_ms)
        turn = self._turn(request, ask, spoken, served.plan, timings_ms)
        turn.shown, turn.session, turn.staged = served.shown, served.told, served.staged
        self._brain.metrics.session_turn(served.told.state, served.told.reason)
        return turn

    def _turn(
        self, request: Asked, ask: ChatMemory, spoken: Heard, plan: MemoryPlan, timings_ms: dict[str, float]
    ) -> Turn:
        """The plan on its way; its rows are held from now on."""
        adapter = None if plan.injection is None else ask.cache_owner.adapter
        flight = Flight(self._salt(ask, plan.digest), adapter=adapter)
        turn = Turn(ask, plan.mode, plan.reason, self._planned(request, plan), flight, spoken)
        turn.plan, turn.shown, turn.timings_ms = plan, plan.lines, timings_ms
        turn.flight.pin = self._brain.catalog.pin(plan.chunks)
        return turn

    def _room(self, request: Asked, frame: Frame) -> int:
        """Tokens of memory that fit into this frame."""
        return self._max_model_len - len(frame.before) - len(frame.after) - self._answer_room(request)

    def _planned(self, request: Asked, plan: MemoryPlan) -> Any:
        """The request with our token ids as its prompt, and the command to inject them."""
        params: dict[str, Any] = {} if plan.injection is None else self._door.params(Command(plan.injection))
        return request.model_copy(update={"kv_transfer_params": params | {"prompt_token_ids": list(plan.prompt_ids)}})

    def _in_messages(self, request: Asked, ask: ChatMemory, spoken: Heard, found: Recollection) -> Turn:
        """Memory as message text, for requests that cannot be framed in tokens; as much as fits, like in a frame."""
        lines = self._brain.recall.lines(found, self._room_beside(request))
        if not lines:
            return self._without_memory(request, ask, spoken, "no_room", found)
        harmless, line_of = self._brain.tokenize.harmless, self._brain.recall.wording.line
        by_id = {hit.fact.id: hit.fact for hit in found.hits}
        text = ""
        for line in reversed(lines):  # best last
            fact = None if line.name is None else by_id[line.name]
            text += harmless(line_of(line.text) if fact is None else line_of(fact.text, fact.speaker, fact.occurred_at))
        turn = Turn(ask, "text", "not_plain_text", self._told(request, text), Flight(self._salt(ask)), spoken)
        turn.shown, turn.timings_ms = tuple(reversed(lines)), _timings(found)
        return turn

    def _room_beside(self, request: Asked) -> int:
        """Tokens of memory that fit beside the messages' text and the template; what media take, vLLM alone knows."""
        said = "\n".join(plain_text(one.get("content")) for one in self._messages(request))
        # What comes after so much fills the model anyway: a rough number will do, and counting would take long here.
        most = LETTERS_A_TOKEN * self._max_model_len
        said_tokens = len(self._brain.tokenize(said[:most])) + max(len(said) - most, 0) // LETTERS_A_TOKEN
        whole = getattr(request, "truncate_prompt_tokens", None) or self._max_model_len
        return min(whole, self._max_model_len - self._answer_room(request)) - said_tokens - TEMPLATE_TOKENS

    def _as_text(self, turn: Turn, request: Asked) -> Turn:
        """The same prompt without injection, after the injection failed."""
        assert turn.plan is not None
        plan = without_injection(turn.plan, "load_failed")
        flight = Flight(self._salt(turn.ask))
        again = Turn(turn.ask, "text", plan.reason, self._planned(request, plan), flight, turn.heard)
        again.plan, again.shown, again.timings_ms, again.session = plan, turn.shown, turn.timings_ms, turn.session
        return again

    def _refusal(self, request: Asked, ask: ChatMemory) -> str | None:
        if getattr(request, "prompt_logprobs", None) is not None:
            return "prompt_logprobs"
        return None if self._adapters.knows(request.model, ask.cache_owner) else "adapter"

    def _answer_room(self, request: Asked) -> int:
        return min(self._wanted_tokens(request) or ANSWER_ROOM, self._max_model_len // 2)

    def _salt(self, ask: ChatMemory, digest: str = "text") -> str:
        owner = ask.cache_owner
        return self._brain.salts.of(owner, self._brain.memory.epoch(owner.itself), digest)

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

    async def _stream(self, turn: Turn, request: Any, raw_request: Request, keep_alive_s: float) -> Response:
        try:
            events = await self._submit(turn, raw_request)
        except BaseException:
            await self._land(turn)
            raise
        if isinstance(events, ErrorResponse):
            await self._land(turn)
            return self._refused(events)
        content = with_sse_keep_alive(self._events(turn, events, request, raw_request), keep_alive_s)
        return ClosingStream(content, lambda: turn.heard.keep_unanswered(self._brain, turn.recalled))

    async def _events(
        self, turn: Turn, events: AsyncGenerator[Any, None], request: Any, raw_request: Request
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
        async with aclosing(self._flown(again, await self._submit_again(again, raw_request))) as flown:
            async for event in flown:
                yield event

    async def _submit_again(self, again: Turn, raw_request: Request) -> AsyncGenerator[Any, None]:
        """The stream of a request that goes as text. Raises Unavailable when there is none: the answer has begun, and
        an error can only be told within it."""
        try:
            events = await self._submit(again, raw_request)
        except Exception as error:
            await self._land(again)
            logger.error("inferscale: a second try as text failed: %s", type(error).__name__)
            raise Unavailable("the answer could not be made", code="engine_failed") from error
        if isinstance(events, ErrorResponse):
            await self._land(again)
            raise Unavailable(events.error.message, code="engine_failed")
        return events  # type: ignore[no-any-return]

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
            if turn.session is not None and turn.ask.owner is not None and turn.ask.session_id is not None:
                self._brain.sessions.forget_block(turn.ask.owner, turn.ask.session_id, plan.digest)

    # Saying what was done

    def _provenance(self, turn: Turn) -> Mapping[str, Any]:
        return provenance(turn, self._brain)


def noted(messages: Sequence[Any], notes: Mapping[int, str]) -> list[Any]:
    """The messages with notes before the words of those at these places."""
    return [
        {**message, "content": notes[place] + plain_text(message.get("content"))} if place in notes else message
        for place, message in enumerate(messages)
    ]


def _timings(found: Recollection | None, plan_ms: float = 0.0, stage_ms: float = 0.0) -> dict[str, float]:
    """Every stage before the engine, 0.0 for one that was not needed."""
    embed_ms, search_ms = (0.0, 0.0) if found is None else (found.embed_ms, found.search_ms)
    return {"embed": embed_ms, "search": search_ms, "plan": plan_ms, "stage": stage_ms}
