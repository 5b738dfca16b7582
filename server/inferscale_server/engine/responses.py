"""`POST /v1/responses`: the same memory, plan and KV as a chat's, in front of vLLM's own handler of responses.

What differs is where the conversation stands in a request, and that a stream consists of typed events. Responses are
not stored: vLLM's store knows no owners, so another user could read them by their id.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest, ResponsesResponse
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
from vllm.entrypoints.openai.responses.utils import construct_input_messages
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.renderers.online_renderer import OnlineRenderer, ResponsesRenderResult

from inferscale_server.brain import Brain
from inferscale_server.edge.wire import ChatMemory
from inferscale_server.engine.adapters import Adapters
from inferscale_server.engine.chat import ChatDesk, noted
from inferscale_server.engine.door import CURRENT_FLIGHT, EngineDoor
from inferscale_server.engine.framing import Framer
from inferscale_server.engine.turn import Turn
from inferscale_server.errors import InvalidRequest
from inferscale_server.plan import Frame
from inferscale_server.seat import SYSTEM_ROLES, plain_text

HEAD = frozenset({"response.created", "response.in_progress"})
"""Events before the first of the answer: held back while the request may still have to go once more as text."""


class ResponsesDesk(ChatDesk):
    """Serves responses. One a server."""

    def __init__(
        self,
        brain: Brain,
        door: EngineDoor,
        framer: Framer,
        serving: OpenAIServingResponses,
        renderer: OnlineRenderer,
        adapters: Adapters,
        max_model_len: int,
    ) -> None:
        super().__init__(brain, door, framer, serving, adapters, max_model_len)
        self._renderer = renderer

    async def serve(
        self, request: ResponsesRequest, raw_request: Request, ask: ChatMemory, keep_alive_s: float = 0.0
    ) -> Response:
        """Answer one request. Raises RequestError for what the client wrote, and vLLM's own errors."""
        refuse_stored(request)
        self._door.pace.chat_arrived()
        request = request.model_copy(update={"store": False})
        turn = await self._prepare(request, ask)
        if request.stream:
            return await self._stream(turn, request, raw_request, keep_alive_s)
        answer = await self._once(turn, raw_request)
        if answer is None:
            turn = self._as_text(turn, request)
            answer = await self._once(turn, raw_request)
        if isinstance(answer, ErrorResponse):
            return self._refused(answer)
        assert isinstance(answer, ResponsesResponse), type(answer)
        return JSONResponse(self._shown_response(turn, answer.model_dump(mode="json", by_alias=True)))

    # What tells it from a chat

    def _messages(self, request: ResponsesRequest) -> list[Any]:
        return messages_of(request)

    def _noted(self, request: ResponsesRequest, notes: Mapping[int, str]) -> ResponsesRequest:
        return with_notes(request, notes)

    async def _frame(self, request: ResponsesRequest) -> Frame | None:
        """As Framer.frame: rendered by vLLM around a slot, tools and all."""
        if request.truncation not in (None, "disabled") or not _is_plain(self._messages(request)):
            return None
        rendered = await self._renderer.render_responses(self._told(request, self._framer.slot))
        if not isinstance(rendered, ResponsesRenderResult):
            return None
        return self._framer.around(rendered.engine_input.get("prompt"))

    def _told(self, request: ResponsesRequest, memory: str) -> ResponsesRequest:
        """The memory at the end of the instructions, or of the system message that the input begins with."""
        told = self._framer.wording.around
        said = request.input
        first = said[0] if isinstance(said, list) and said else None
        if request.instructions or not (isinstance(first, Mapping) and first.get("role") in SYSTEM_ROLES):
            given = [request.instructions] if request.instructions else []
            return request.model_copy(update={"instructions": told(given, memory)})
        system = plain_text(first.get("content"))
        return request.model_copy(update={"instructions": told([system], memory), "input": said[1:]})

    def _wanted_tokens(self, request: ResponsesRequest) -> int | None:
        return request.max_output_tokens

    async def _create(self, request: ResponsesRequest, raw_request: Request) -> Any:
        return await self._serving.create_responses(request, raw_request)

    @staticmethod
    def _refused(answer: ErrorResponse) -> JSONResponse:
        return JSONResponse(answer.model_dump(mode="json", by_alias=True), status_code=answer.error.code)

    # Streaming

    async def _events(
        self, turn: Turn, events: AsyncGenerator[Any, None], request: Any, raw_request: Request
    ) -> AsyncIterator[str]:
        """See ChatDesk._events; each event in the words of this route."""
        async with aclosing(self._answered(turn, events, request, raw_request)) as answered:
            async for event in answered:
                yield f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n"

    async def _answered(
        self, turn: Turn, first: AsyncGenerator[Any, None], request: ResponsesRequest, raw_request: Request
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The events of the answer, the last with provenance. Nothing is sent before the answer has begun, so that a
        request whose injection failed can still go once more as text."""
        head: list[dict[str, Any]] = []
        started = False
        try:
            async with aclosing(self._flying(turn, first)) as events:
                async for event in events:
                    head.append(event)
                    if event["type"] in HEAD:
                        continue
                    started = True
                    for held in head:
                        yield held
                    head.clear()
            for held in head:
                yield held
            return
        except Exception:  # vLLM cannot put its own error into an event and raises what its parser says of it
            if started or not self._may_go_again(turn):
                raise
        again = self._as_text(turn, request)
        async with aclosing(self._flying(again, await self._submit_again(again, raw_request))) as events:
            async for event in events:
                yield event

    async def _flying(self, turn: Turn, events: AsyncGenerator[Any, None]) -> AsyncGenerator[dict[str, Any], None]:
        """vLLM's events. It calls `generate` only when the first is asked for, hence the flight around each step."""
        try:
            async with aclosing(events):
                while True:
                    token = CURRENT_FLIGHT.set(turn.flight)
                    try:
                        event = await anext(events)
                    except StopAsyncIteration:
                        return
                    finally:
                        CURRENT_FLIGHT.reset(token)
                    yield self._told_of(turn, event)
        finally:
            await self._land(turn)

    def _told_of(self, turn: Turn, event: Any) -> dict[str, Any]:
        shown: dict[str, Any] = event.model_dump(mode="json", by_alias=True)
        if shown["type"] == "response.output_text.delta":
            turn.heard.answer(shown.get("delta"))
        if shown["type"] in ("response.completed", "response.incomplete"):
            return shown | {"response": self._with_provenance(turn, shown["response"])}
        return shown

    def _shown_response(self, turn: Turn, response: dict[str, Any]) -> dict[str, Any]:
        turn.heard.answer("".join(_texts(response)))
        return self._with_provenance(turn, response)

    def _with_provenance(self, turn: Turn, response: dict[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in response.items() if key != "kv_transfer_params"}
        return kept | {"inferscale": self._provenance(turn)}


def messages_of(request: ResponsesRequest) -> list[Any]:
    """The conversation as vLLM renders it: instructions first, inputs that belong together as one."""
    return construct_input_messages(request_instructions=request.instructions, request_input=request.input)


def with_notes(request: ResponsesRequest, notes: Mapping[int, str]) -> ResponsesRequest:
    """The request with notes before the words of the user's messages at these places of `messages_of`."""
    places = [place for place, message in enumerate(messages_of(request)) if message.get("role") == "user"]
    if isinstance(request.input, str):
        return request.model_copy(update={"input": notes.get(places[-1], "") + request.input})
    # Several inputs may become one message, but each of the user's is one of its own.
    asked = [at for at, said in enumerate(request.input) if isinstance(said, Mapping) and said.get("role") == "user"]
    by_input = {at: notes[place] for at, place in zip(asked, places, strict=True) if place in notes}
    return request.model_copy(update={"input": noted(request.input, by_input)})


def refuse_stored(request: ResponsesRequest) -> None:
    """Raises InvalidRequest for what needs responses to be stored."""
    for name in ("previous_response_id", "background", "previous_input_messages"):
        if getattr(request, name):
            raise InvalidRequest(
                f"{name} does not work here: responses are not stored; send the conversation as input",
                code="unsupported",
                param=name,
            )


def _is_plain(messages: Sequence[Any]) -> bool:
    """Text alone: what else there is must be rendered by vLLM together with it."""
    contents = [message.get("content") or "" for message in messages]
    parts = [part for content in contents if not isinstance(content, str) for part in content]
    return all(part.get("type", "text").endswith("text") for part in parts)


def _texts(response: Mapping[str, Any]) -> list[str]:
    parts = (part for output in response.get("output") or () for part in output.get("content") or ())
    return [part["text"] for part in parts if part.get("type") == "output_text"]
