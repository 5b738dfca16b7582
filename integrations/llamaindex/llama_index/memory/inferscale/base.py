"""The memory class: a thin shell, sync and async; turns, history and background writes live in files of their own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.memory.types import BaseMemory
from llama_index.core.utils import get_tokenizer
from llama_index.llms.inferscale.clients import Clients
from llama_index.llms.inferscale.identity import Id, Identity, marked, unmarked
from llama_index.memory.inferscale.history import Budget, facts_text, fitting, last_user_text, with_notes, without_notes
from llama_index.memory.inferscale.turns import Turn, answer_of, ends, opens
from llama_index.memory.inferscale.writer import WriteCounts, Writer
from pydantic import ConfigDict, Field, PrivateAttr

from inferscale_sdk import AddResult, AsyncInferScaleClient, Hit, InferScaleClient, InferScaleError

DEFAULT_TOKEN_LIMIT = 3000
"""Of LlamaIndex's own buffer: fits its default context window of 3900 tokens."""

logger = logging.getLogger("llama_index.memory.inferscale")


@dataclass(frozen=True, slots=True)
class _Query:
    """A search; asked once a turn, however often the agent asks for its history."""

    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class _Recall:
    """What a search found."""

    query: _Query
    facts: tuple[Hit, ...]


class InferScaleMemory(BaseMemory):
    """The history of one conversation, and the user's long-term memory on an InferScale server behind it.

        memory = InferScaleMemory.from_defaults(user_id="alice")
        await agent.run(user_msg="My dog is called Bruno.", memory=memory)
        await memory.aflush()

    `mode`: "server" for an InferScaleLLM, whose server puts the facts in front of the model itself: `get` returns the
    history alone. "text" for every other LLM: `get` searches once a turn and hands the facts over in the last user
    message. Each turn is written to the long-term memory once, in the background, when the assistant has answered (or,
    without an answer, at the next turn); an error there, and in a search, is logged and counted, never raised.
    `reset` and `set` change the history alone: what is remembered is deleted with `client.memories` only.
    The key is never a field, so it is never serialised; an object that was restored takes it from the environment.
    """

    model_config = ConfigDict(extra="forbid")

    user_id: Id = Field(description="Whose memory this is.")
    session_id: Id | None = Field(default=None, description="The conversation, kept with what is remembered of it.")
    mode: Literal["server", "text"] = Field(default="server", description="Who puts the facts in front of the model.")
    token_limit: int = Field(default=DEFAULT_TOKEN_LIMIT, description="Tokens of history and facts to show.", gt=0)
    k: int | None = Field(
        default=None, description="How many facts to find at most; the server's where not given.", gt=0
    )
    min_score: float | None = Field(default=None, description="Leave out facts of a lower cosine similarity.")
    remember: bool = Field(default=True, description="Whether to write the turns to the long-term memory.")
    infer: bool | None = Field(
        default=None,
        description="Whether the server makes facts of a turn or keeps it word by word; its own choice: None.",
    )
    base_url: str | None = Field(default=None, description="Default INFERSCALE_BASE_URL, else http://127.0.0.1:8000.")
    timeout: float | None = Field(default=None, description="Seconds for one try of a request.")
    max_retries: int = Field(default=2, description="Further tries of a request that failed.", ge=0)
    messages: list[ChatMessage] = Field(default_factory=list, description="The history, oldest first.")
    open_turn: Turn | None = Field(default=None, description="What the user said and nobody has answered yet.")
    tokenizer_fn: Callable[[str], Sequence[object]] = Field(default_factory=get_tokenizer, exclude=True)

    _clients: Clients = PrivateAttr()
    _writer: Writer = PrivateAttr()
    _recall: _Recall | None = PrivateAttr(default=None)
    _turn: int = PrivateAttr(default=0)
    _failed_searches: int = PrivateAttr(default=0)

    def __init__(
        self,
        user_id: str,
        *,
        api_key: str | None = None,
        client: InferScaleClient | None = None,
        async_client: AsyncInferScaleClient | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(**{"user_id": user_id, **fields})
        self._clients = Clients(
            base_url=self.base_url,
            api_key=api_key,
            timeout=self.timeout,
            max_retries=self.max_retries,
            client=client,
            async_client=async_client,
        )
        self._writer = Writer(self._send)

    @classmethod
    def class_name(cls) -> str:
        """The name in serialised form."""
        return "InferScaleMemory"

    @classmethod
    def from_defaults(  # type: ignore[override]
        cls,
        user_id: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        session_id: str | None = None,
        mode: Literal["server", "text"] = "server",
        token_limit: int = DEFAULT_TOKEN_LIMIT,
        chat_history: Sequence[ChatMessage] | None = None,
        **options: Any,
    ) -> InferScaleMemory:
        """A memory that makes its own client. `options` are the other fields of the class.

        `base_url` and `api_key` default to INFERSCALE_BASE_URL and INFERSCALE_API_KEY. Raises ValueError.
        """
        return cls(
            user_id,
            base_url=base_url,
            api_key=api_key,
            session_id=session_id,
            mode=mode,
            token_limit=token_limit,
            messages=_own(chat_history or ()),
            **options,
        )

    @classmethod
    def from_client(
        cls,
        client: InferScaleClient,
        *,
        user_id: str,
        async_client: AsyncInferScaleClient | None = None,
        session_id: str | None = None,
        mode: Literal["server", "text"] = "server",
        token_limit: int = DEFAULT_TOKEN_LIMIT,
        chat_history: Sequence[ChatMessage] | None = None,
        **options: Any,
    ) -> InferScaleMemory:
        """A memory over a client that many may share: a memory for each user costs no connection.

        Without `async_client`, async searches run `client` in a thread. Raises ValueError.
        """
        return cls(
            user_id,
            client=client,
            async_client=async_client,
            session_id=session_id,
            mode=mode,
            token_limit=token_limit,
            messages=_own(chat_history or ()),
            **options,
        )

    @property
    def writes(self) -> WriteCounts:
        """What became of the turns that this object wrote to the long-term memory."""
        return self._writer.counts

    @property
    def failed_searches(self) -> int:
        """How many searches failed; those turns went on without facts."""
        return self._failed_searches

    def get(self, input: str | None = None, initial_token_count: int = 0, **kwargs: Any) -> list[ChatMessage]:
        """The newest messages that fit, as copies. In mode "text" with the facts found for `input`, or else for what
        the user said last. Raises ValueError if `initial_token_count` is more than the limit."""
        budget = self._budget(initial_token_count)
        query = self._query(input)
        if query is not None and self._is_new(query):
            try:
                self._keep(query, self._search(query))
            except InferScaleError as error:
                self._go_without(query, error)
        return self._shown(query, budget)

    async def aget(self, input: str | None = None, initial_token_count: int = 0, **kwargs: Any) -> list[ChatMessage]:
        """Like `get`."""
        budget = self._budget(initial_token_count)
        query = self._query(input)
        if query is not None and self._is_new(query):
            try:
                self._keep(query, await self._search_async(query))
            except InferScaleError as error:
                self._go_without(query, error)
        return self._shown(query, budget)

    def get_all(self) -> list[ChatMessage]:
        """The whole history, oldest first."""
        return list(self.messages)

    async def aget_all(self) -> list[ChatMessage]:
        """The whole history, oldest first."""
        return self.get_all()

    def put(self, message: ChatMessage) -> None:
        """Add one message; the one that ends a turn sends the turn to the long-term memory."""
        (message,) = _own([message])
        self.messages.append(message)
        if message.role == MessageRole.USER:
            self._begin(message)
        elif ends(message):
            self._end(answer_of(message))

    async def aput(self, message: ChatMessage) -> None:
        """Add one message; the one that ends a turn sends the turn to the long-term memory."""
        self.put(message)

    async def aput_messages(self, messages: list[ChatMessage]) -> None:
        """Add messages in order."""
        self.put_messages(messages)

    def set(self, messages: list[ChatMessage]) -> None:
        """Replace the history. What it says is not written to the long-term memory: it is no turn of now."""
        self._end(None)
        self._turn += 1
        self.messages = _own(messages)
        if self.messages and self.messages[-1].role == MessageRole.USER:
            self._begin(self.messages[-1])

    async def aset(self, messages: list[ChatMessage]) -> None:
        """Replace the history."""
        self.set(messages)

    def reset(self) -> None:
        """Forget the history of this conversation. The long-term memory stays."""
        self.set([])

    async def areset(self) -> None:
        """Forget the history of this conversation. The long-term memory stays."""
        self.set([])

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all turns, one without an answer too, are written or failed, at most `timeout_s` seconds.

        Returns whether that is so; see `writes`.
        """
        self._end(None)
        return self._writer.flush(timeout_s)

    async def aflush(self, timeout_s: float | None = None) -> bool:
        """Like `flush`, without blocking the event loop."""
        self._end(None)
        return await self._writer.aflush(timeout_s)

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """All but key, clients and tokenizer, as JSON holds it; `from_dict(state, client=client)` takes it back."""
        return super().to_dict(**{"mode": "json", **kwargs})

    def _begin(self, message: ChatMessage) -> None:
        self._end(None)
        self._turn += 1
        if opens(message):
            self.open_turn = Turn(user_text=message.content or "", at_s=time.time())

    def _end(self, answer: str | None) -> None:
        turn, self.open_turn = self.open_turn, None
        if turn is not None and self.remember:
            self._writer.put(turn.model_copy(update={"answer": answer}))

    def _send(self, turn: Turn) -> AddResult:
        add = partial(self._clients.sync.memories.add, self.user_id, messages=turn.messages(), timestamp=turn.at_s)
        return add(session_id=self.session_id, infer=self.infer)

    def _budget(self, initial_token_count: int) -> Budget:
        if initial_token_count > self.token_limit:
            raise ValueError(f"initial_token_count={initial_token_count} exceeds token_limit={self.token_limit}")
        return Budget(self.token_limit - initial_token_count, self.tokenizer_fn)

    def _query(self, input: str | None) -> _Query | None:
        """What to search for: nothing where the server does it, or where the user has said nothing."""
        text = input or last_user_text(self.messages)
        return _Query(self._turn, text) if self.mode == "text" and text and text.strip() else None

    def _is_new(self, query: _Query) -> bool:
        return self._recall is None or self._recall.query != query

    def _search(self, query: _Query) -> tuple[Hit, ...]:
        found = self._clients.sync.memories.search(self.user_id, query.text, k=self.k, min_score=self.min_score)
        return found.hits

    async def _search_async(self, query: _Query) -> tuple[Hit, ...]:
        if not self._clients.native:
            return await asyncio.to_thread(self._search, query)
        memories = self._clients.in_loop().memories
        return (await memories.search(self.user_id, query.text, k=self.k, min_score=self.min_score)).hits

    def _keep(self, query: _Query, facts: tuple[Hit, ...]) -> None:
        self._recall = _Recall(query, facts)

    def _go_without(self, query: _Query, error: InferScaleError) -> None:
        # Kept like an answer: an agent that asks on must not wait for a dead server at every step.
        self._keep(query, ())
        logger.warning("a search failed, the chat goes on without facts: %s: %s", type(error).__name__, error)
        self._failed_searches += 1

    def _shown(self, query: _Query | None, budget: Budget) -> list[ChatMessage]:
        if self.mode == "server":
            mine = Identity(self.user_id, self.session_id)
            # Agents pass no user to their LLM: the messages themselves name it.
            return [
                marked(message, mine) if message.role == MessageRole.USER else message
                for message in fitting(self.messages, budget)
            ]
        found = self._recall.facts if self._recall is not None and self._recall.query == query else ()
        notes = facts_text(found)
        return with_notes(fitting(self.messages, budget.less(len(self.tokenizer_fn(notes)))), notes)


def _own(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Copies to keep, without what `get` added for an LLM: histories come back from agents and other memories."""
    return [without_notes(unmarked(message)) for message in messages]
