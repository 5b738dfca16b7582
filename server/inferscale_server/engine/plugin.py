"""The endpoint plugin: attaches our routes to vLLM's app, and builds the brain when the engine is up.

Contract: vllm/plugins/endpoint_plugins/interface.py. The configuration comes on vLLM's own argument namespace
(`args.inferscale`), put there by launch.py.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import secrets
import signal
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from starlette.datastructures import State
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.api_router import create_completion
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.utils.api_utils import load_aware_call, validate_json_request, with_cancellation

from inferscale_server.brain import Brain
from inferscale_server.config import ServerConfig
from inferscale_server.data_folder import DataFolder
from inferscale_server.edge.access_log import open_log
from inferscale_server.edge.admin import build_admin_router
from inferscale_server.edge.answers import error_response
from inferscale_server.edge.auth import Access, Closed
from inferscale_server.edge.identity import identity_of
from inferscale_server.edge.routes import build_router
from inferscale_server.edge.services import Services
from inferscale_server.edge.wire import parse_chat_memory, parse_completion_owner
from inferscale_server.engine.adapters import Adapters
from inferscale_server.engine.assemble import assemble
from inferscale_server.engine.chat import ChatDesk
from inferscale_server.engine.door import EngineDoor
from inferscale_server.engine.in_flight import InFlight
from inferscale_server.engine.launch import tell_ready
from inferscale_server.engine.lifeline import end_after, told_to_stop
from inferscale_server.engine.log_file import keep_heard
from inferscale_server.engine.responses import ResponsesDesk
from inferscale_server.engine.score import EngineScorer
from inferscale_server.engine.support import pass_gate
from inferscale_server.errors import RequestError, Unavailable
from inferscale_server.types import Owner

logger = logging.getLogger(__name__)

FINISH_S = 1.0
"""What a chat under way has left when the server is told to stop."""
STOP_S = 4.5
"""Whatever hangs by then is ended with the process."""


class InferScalePlugin:
    """Adds the memory routes and replaces vLLM's chat and completions routes."""

    name = "inferscale"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._brain: Brain | None = None
        self._desk: ChatDesk | None = None
        self._scorer: EngineScorer | None = None
        self._responses: ResponsesDesk | None = None
        self._in_flight = InFlight()

    def attach_router(self, app: FastAPI) -> None:
        """Register routes; they answer 503 until `init_state` has run."""
        app.state.access = Closed()
        app.include_router(build_router(self._services))
        app.include_router(build_admin_router(lambda: self._ready().upkeep, lambda: self._scorer))
        app.include_router(self._chat_router())
        inner = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
            async with inner(app) as state:
                self._stop_in_order(getattr(app.state, "server", None))
                try:
                    yield state
                finally:
                    await self.aclose()

        app.router.lifespan_context = lifespan

    async def init_state(self, engine_client: Any, state: State, args: Namespace) -> None:
        """Tap the model, open the stores, encode the default header, run the gate. Raises StartupError."""
        config: ServerConfig = args.inferscale
        access = Access(
            config.keys_path, config.max_requests_per_user, by_local_name=not (config.public or config.insecure)
        )
        secret = bytes.fromhex(engine_client.vllm_config.kv_transfer_config.kv_connector_extra_config["secret"])
        door = EngineDoor(engine_client, secret, lambda: self._salt_of(None))
        args.engine_processes = multiprocessing.active_children()  # their exit codes say how an engine died
        folder = getattr(args, "data_folder", None) or DataFolder.hold(config.data_path, facts=config.facts_path)
        slot = f"slot-{secrets.token_hex(16)}"
        brain, framer = await assemble(config, engine_client, state, door, slot, folder)
        self._brain = brain
        state.access = access
        if config.access_log:
            open_log()
        report = getattr(args, "start_report", None)
        if access.needs_keys:
            tell = (lambda said: None) if report is None else report.say
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, lambda: loop.run_in_executor(None, lambda: tell(access.reload())))
        door.install()
        model = engine_client.vllm_config.model_config
        adapters = Adapters(state.openai_serving_models, door, brain)
        brain.encoder.reads = adapters.reads
        self._desk = ChatDesk(brain, door, framer, state.openai_serving_chat, adapters, model.max_model_len)
        self._responses = ResponsesDesk(
            brain, door, framer, state.openai_serving_responses, state.online_renderer, adapters, model.max_model_len
        )
        self._scorer = EngineScorer(
            brain.model_name, brain.recall, door, framer, brain.stager, model.max_model_len, model.max_logprobs
        )
        if report is not None:
            report.stage("encoding the default header and passing the gate")
        await pass_gate(brain, door, framer, engine_client.vllm_config)
        if brain.extraction is not None:
            await brain.extraction.warm_up()
        brain.start_encoding()
        await adapters.load()
        state.refresh_metrics = brain.refresh_metrics
        keep_heard()
        if report is not None:
            tell_ready(report, f"http://{config.host}:{config.port}", brain.model_name, brain.support.refusals)

    async def aclose(self) -> None:
        """End background work and close the stores."""
        if self._brain is not None:
            await self._brain.aclose()
            self._brain = None

    def _stop_in_order(self, server: Any) -> None:
        """Instead of vLLM's handlers, which kill the engine under the chats. Nothing without uvicorn's server."""
        if server is None:
            return
        loop = asyncio.get_running_loop()

        def stop(number: int) -> None:
            if server.should_exit:
                return
            server.should_exit = True
            told_to_stop.set()
            loop.call_later(FINISH_S, self._in_flight.stop)
            end_after(STOP_S, 128 + number)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)

    def _salt_of(self, owner: Owner | None) -> str:
        brain = self._ready()
        return brain.salts.of(owner, 0 if owner is None else brain.memory.epoch(owner))

    def _ready(self) -> Brain:
        if self._brain is None:
            raise Unavailable("the server is starting or shutting down")
        return self._brain

    def _services(self) -> Services:
        return self._ready().services()

    async def _served(self, desk: ChatDesk | None, request: Any, raw_request: Request) -> Response:
        """The desk's answer, or the error of a request that it cannot take, or that a stop of the server ends."""
        try:
            ask = parse_chat_memory(await raw_request.json(), identity_of(raw_request))
            self._ready()
            assert desk is not None, "ready before there are desks"
            keep_alive_s = float(getattr(raw_request.app.state.args, "sse_keep_alive_interval", 0) or 0)
            answer = await self._in_flight.finish(desk.serve(request, raw_request, ask, keep_alive_s))
            if isinstance(answer, StreamingResponse):
                answer.body_iterator = self._in_flight.relay(answer.body_iterator)
            return answer
        except RequestError as error:
            return error_response(error)

    def _chat_router(self) -> APIRouter:
        router = APIRouter()

        @router.post("/v1/chat/completions", dependencies=[Depends(validate_json_request)])
        @with_cancellation
        @load_aware_call
        async def chat(request: ChatCompletionRequest, raw_request: Request) -> Response:
            return await self._served(self._desk, request, raw_request)

        @router.post("/v1/responses", dependencies=[Depends(validate_json_request)])
        @with_cancellation
        @load_aware_call
        async def responses(request: ResponsesRequest, raw_request: Request) -> Response:
            return await self._served(self._responses, request, raw_request)

        @router.post("/v1/completions", dependencies=[Depends(validate_json_request)])
        async def completions(request: CompletionRequest, raw_request: Request) -> Any:
            """vLLM's own, under the salt of the user that the request names, else of the tenant's nameless requests."""
            try:
                owner = parse_completion_owner(await raw_request.json(), identity_of(raw_request))
                request.cache_salt = self._salt_of(owner)
            except RequestError as error:
                return error_response(error)
            return await create_completion(request, raw_request=raw_request)

        return router
