"""Memory for LangChain's agents: names the user to the model, and remembers the turn once the agent is done."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain.agents.middleware.types import AgentState
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables.config import ensure_config
from langgraph.runtime import Runtime

from inferscale_sdk import InferScaleError
from langchain_inferscale._chat_model import InferScaleChatModel
from langchain_inferscale._identity import SESSION, USER, named_in_run, pick_user, user_of
from langchain_inferscale._server import Clients

MAX_WAITING = 1000
"""Turns that wait to be remembered; more are dropped, and said so."""

logger = logging.getLogger("langchain_inferscale")


class InferScaleMemoryMiddleware(AgentMiddleware[Any, Any]):
    """Give to `create_agent(..., middleware=[...])`. The user is named as for the chat model.

    Before each model call it passes the user to an InferScaleChatModel; other models are left alone. After the agent it
    sends the turn (the last human message and the answer, never system text, tool output or tool calls) to be
    remembered, in the background: a server that is away costs the agent nothing and is logged. `infer` is the memory
    API's; `remember=False` only names the user. `options` are the SDK client's: base_url, api_key, timeout, ….
    """

    def __init__(
        self,
        *,
        user_id: str | None = None,
        remember: bool = True,
        infer: bool | None = None,
        http_client: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._user_id = user_id
        self._remember = remember
        self._infer = infer
        self._client = Clients(options, http_client, None).sync
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="inferscale-remember")
        self._waiting: set[Future[None]] = set()

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        return handler(self._named(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        return await handler(self._named(request))

    def after_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        if self._remember:
            self._note(state["messages"], runtime)

    async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        self.after_agent(state, runtime)  # Only hands the turn to a thread.

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all turns so far are remembered or have failed, at most `timeout` seconds."""
        wait(set(self._waiting), timeout)

    def _named(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        model = request.model
        if not isinstance(model, InferScaleChatModel) or request.model_settings.get(USER) is not None:
            return request
        default = model.user_id if self._user_id is None else self._user_id
        user = pick_user(None, None, default)
        return request.override(model_settings={**request.model_settings, USER: user})

    def _note(self, messages: Sequence[BaseMessage], runtime: Runtime[Any]) -> None:
        user, turn = self._user(runtime), turn_of(messages)
        if user is None:
            logger.warning("a turn is not remembered: nobody says whose it is")
        elif turn and len(self._waiting) >= MAX_WAITING:
            logger.warning("a turn is not remembered: %d others wait already", MAX_WAITING)
        elif turn:
            job = self._worker.submit(self._send, user, turn, _session())
            self._waiting.add(job)
            job.add_done_callback(self._waiting.discard)

    def _user(self, runtime: Runtime[Any]) -> Any:
        named = named_in_run(USER, None)
        if named is None:
            named = user_of(runtime.context)
        return self._user_id if named is None else named

    def _send(self, user: Any, turn: list[dict[str, str]], session: Any) -> None:
        try:
            self._client.memories.add(user, messages=turn, session_id=session, infer=self._infer)
        except (InferScaleError, TypeError, ValueError) as error:
            logger.warning("a turn could not be remembered: %s: %s", type(error).__name__, error)


def turn_of(messages: Sequence[BaseMessage]) -> list[dict[str, str]]:
    """The last question and its answer, as the memory API takes them; empty if nobody asked in words."""
    asked = next((i for i in reversed(range(len(messages))) if isinstance(messages[i], HumanMessage)), None)
    if asked is None or not messages[asked].text.strip():
        return []
    turn = [{"role": "user", "content": str(messages[asked].text)}]
    answers = [said for said in messages[asked + 1 :] if isinstance(said, AIMessage) and not said.tool_calls]
    if answers and answers[-1].text.strip():
        turn.append({"role": "assistant", "content": str(answers[-1].text)})
    return turn


def _session() -> Any:
    """The run's session, else LangGraph's thread."""
    session = named_in_run(SESSION, None)
    return ensure_config(None).get("configurable", {}).get("thread_id") if session is None else session
