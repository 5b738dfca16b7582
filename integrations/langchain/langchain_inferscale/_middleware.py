"""Memory for LangChain's agents: names the user to the model, and remembers the turn once the agent is done."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from typing import Annotated, Any, NotRequired

from langchain.agents.middleware import AgentMiddleware, ExtendedModelResponse, ModelRequest, ModelResponse
from langchain.agents.middleware.types import AgentState, PrivateStateAttr
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableBinding
from langchain_core.runnables.config import ensure_config
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.runtime import Runtime
from langgraph.types import Command

from inferscale_sdk import InferScaleError
from langchain_inferscale._chat_model import InferScaleChatModel
from langchain_inferscale._identity import SESSION, USER, named_in_run, pick_user, user_of
from langchain_inferscale._server import Clients

MAX_WAITING = 1000
"""Turns that wait to be remembered; more are dropped, and said so."""

RECALLED = "inferscale_user_id"
"""Where a run's state holds whose memory its model calls used."""

logger = logging.getLogger("langchain_inferscale")


class RecallState(AgentState[Any]):
    """What the middleware notes in a run's state; no checkpoint and no output has it."""

    inferscale_user_id: NotRequired[Annotated[str, UntrackedValue, PrivateStateAttr]]


class InferScaleMemoryMiddleware(AgentMiddleware[Any, Any]):
    """Give to `create_agent(..., middleware=[...])`. The user is named as for the chat model.

    Before each model call it passes the user to an InferScaleChatModel; other models are left alone. After the agent it
    sends the turn (the last human message and the answer, never system text, tool output or tool calls), with the time,
    to be remembered for the user whose memory the model used, in the background: a server that is away costs the agent
    nothing and is logged. `infer` is the memory API's; `remember=False` only names the user. `options` are the SDK
    client's: base_url, api_key, timeout, …. A model call raises ValueError when this middleware and the model were made
    for two users, or when one run uses the memories of two.
    """

    state_schema = RecallState

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
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        named = self._named(request)
        return _noted(named, handler(named))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        named = self._named(request)
        return _noted(named, await handler(named))

    def after_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        if self._remember:
            recalled = state.get(RECALLED)
            self._note(self._user(runtime) if recalled is None else recalled, state["messages"])

    async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        self.after_agent(state, runtime)  # Only hands the turn to a thread.

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all turns so far are remembered or have failed, at most `timeout` seconds."""
        wait(set(self._waiting), timeout)

    def _named(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        model = _bare(request.model)
        if not isinstance(model, InferScaleChatModel):
            return request
        default = _one_of("user_id of the middleware and of its model", self._user_id, model.user_id)
        user = pick_user(_given(request), None, default)
        _one_of("one run uses the memories of two users", request.state.get(RECALLED), user)
        return request.override(model_settings={**request.model_settings, USER: user})

    def _note(self, user: Any, messages: Sequence[BaseMessage]) -> None:
        turn = turn_of(messages)
        if user is None:
            logger.warning("a turn is not remembered: nobody says whose it is")
        elif turn and len(self._waiting) >= MAX_WAITING:
            logger.warning("a turn is not remembered: %d others wait already", MAX_WAITING)
        elif turn:
            job = self._worker.submit(self._send, user, turn, _session(), datetime.now(UTC))
            self._waiting.add(job)
            job.add_done_callback(self._waiting.discard)

    def _user(self, runtime: Runtime[Any]) -> Any:
        """Whose turn it is where no model call used a memory."""
        named = named_in_run(USER, None)
        if named is None:
            named = user_of(runtime.context)
        return self._user_id if named is None else named

    def _send(self, user: Any, turn: list[dict[str, str]], session: Any, said_at: datetime) -> None:
        try:
            self._client.memories.add(user, messages=turn, session_id=session, timestamp=said_at, infer=self._infer)
        except (InferScaleError, TypeError, ValueError) as error:
            logger.warning("a turn could not be remembered: %s: %s", type(error).__name__, error)


def _bare(model: object) -> object:
    """The model without what `bind` put around it."""
    return _bare(model.bound) if isinstance(model, RunnableBinding) else model


def _given(request: ModelRequest[Any]) -> Any:
    """The user among the call's arguments, which the model takes before any other."""
    bound = request.model.kwargs if isinstance(request.model, RunnableBinding) else {}
    return {**bound, **request.model_settings}.get(USER)


def _one_of(told: str, first: Any, second: Any) -> Any:
    """The one that is not None. Raises ValueError where both name a user and differ."""
    if first is not None and second is not None and first != second:
        raise ValueError(f"{told}: {first!r} and {second!r}")
    return second if first is None else first


def _noted(request: ModelRequest[Any], response: ModelResponse[Any]) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
    """The response, and in the run's state whose memory it came from."""
    user = request.model_settings.get(USER)
    return response if user is None else ExtendedModelResponse(response, Command(update={RECALLED: user}))


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
