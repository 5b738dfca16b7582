"""The chat request, from Python arguments to JSON. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, cast

from inferscale_sdk import _request
from inferscale_sdk._chat_models import ChatResponse
from inferscale_sdk._config import check_timeout
from inferscale_sdk._owner import check_id
from inferscale_sdk._reply import Reply
from inferscale_sdk._request import Call, Request, check_count
from inferscale_sdk._wire import parse_reply

if TYPE_CHECKING:
    from inferscale_sdk._transport import Timeout

ROUTE = "/v1/chat/completions"
NO_QUESTION = (
    "chat() got no question: give exactly one of query and messages; the first argument of client.chat is the user, "
    'as in client.chat("alice", "What is my dog called?")'
)
"""`client.chat("hi")` reads like a question and names a user."""
_SET_BY_CHAT = frozenset({"inferscale", "messages", "stream", "user"})
MODES = ("auto", "kv", "text", "off")


class MemoryOptions(TypedDict, total=False):
    """How memory serves one chat. What is left out is the server's choice."""

    mode: str
    """auto, kv, text or off."""
    k: int
    """How many facts to recall at most."""
    min_score: float
    """Leave out facts whose cosine similarity to the question is lower."""
    filter: Mapping[str, object]
    """Leave out facts that it does not match; the same language as in `memories.search`."""
    context: Sequence[str]
    """Texts retrieved elsewhere, injected the same way."""
    remember: bool
    """Also remember this turn."""
    include_text: bool
    """Send the texts of the injected facts back, not only ids and scores."""


class ChatOptions(TypedDict, total=False):
    """OpenAI's chat fields, and how to send the request. None means not sent."""

    max_tokens: int | None
    max_completion_tokens: int | None
    temperature: float | None
    top_p: float | None
    n: int | None
    stop: str | Sequence[str] | None
    seed: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[str, float] | None
    logprobs: bool | None
    top_logprobs: int | None
    tools: Sequence[Mapping[str, object]] | None
    tool_choice: str | Mapping[str, object] | None
    parallel_tool_calls: bool | None
    response_format: Mapping[str, object] | None
    reasoning_effort: str | None
    stream_options: Mapping[str, object] | None
    metadata: Mapping[str, str] | None
    agent_id: str | None
    """Recall only facts of this agent, and remember for it."""
    run_id: str | None
    """The same for one run."""
    extra_body: Mapping[str, object] | None
    """Any other field of the body, such as vLLM's `top_k`; wins over the fields above."""
    extra_headers: Mapping[str, str] | None
    """More headers of this request; win over the client's."""
    timeout: float | Timeout | None
    """Seconds for one try of this request; wins over the client's."""


class BoundChatOptions(ChatOptions, total=False):
    """All that a chat takes besides user, query and stream."""

    messages: Sequence[Mapping[str, object]] | None
    session_id: str | None
    memory: MemoryOptions | None
    model: str | None


_KNOWN = frozenset(BoundChatOptions.__annotations__)
_IN_MEMORY = tuple(MemoryOptions.__annotations__)
_NAMED = ("session_id", "agent_id", "run_id")
_NOT_IN_BODY = frozenset({"messages", *_NAMED, "memory", "extra_body", "extra_headers", "timeout"})


def build(user: str, query: str | None, *, stream: bool, options: BoundChatOptions) -> Call[ChatResponse]:
    """The request of one chat and how to read its answer. Raises TypeError, ValueError on what cannot be sent."""
    unknown = sorted(set(options) - _KNOWN)
    if unknown:
        raise TypeError(f"chat() got an unknown argument {unknown[0]!r}; pass other body fields in extra_body")
    check_timeout(options.get("timeout"))
    return Call(_build_request(check_id(user), query, stream, options), parse)


def parse(reply: Reply) -> ChatResponse:
    """A chat completion. Raises APIResponseValidationError."""
    return parse_reply(ChatResponse, reply)


def _build_request(user: str, query: str | None, stream: bool, options: BoundChatOptions) -> Request:
    headers = dict(options.get("extra_headers") or {})
    if stream:
        headers = {"accept": "text/event-stream", **headers}
    return _request.post(
        ROUTE,
        _body(user, query, stream, options),
        user=user,
        headers=headers,
        timeout=options.get("timeout"),
        default_timeout_s=_request.LONG_TIMEOUT_S,
    )


def _body(user: str, query: str | None, stream: bool, options: BoundChatOptions) -> dict[str, object]:
    body: dict[str, object] = {key: value for key, value in options.items() if key not in _NOT_IN_BODY}
    body["messages"] = _messages(query, options.get("messages"))
    body["inferscale"] = _inferscale(user, options, options.get("memory"))
    if stream:
        body["stream"] = True
        if body.get("stream_options") is None:
            body["stream_options"] = {"include_usage": True}
    return body | _extra(options.get("extra_body"))


def _messages(query: str | None, messages: Sequence[Mapping[str, object]] | None) -> list[Any]:
    if query is None and messages is None:
        raise ValueError(NO_QUESTION)
    if messages is not None:
        if query is not None:
            raise ValueError("chat() takes either query or messages, exactly one of them, not both")
        return as_list(messages, "messages")
    if not isinstance(query, str):
        raise TypeError(f"query must be a str, not {type(query).__name__}; pass a list as messages")
    return [{"role": "user", "content": query}]


def as_list(values: Sequence[Any], name: str) -> list[Any]:
    """A list of what is not itself one string or mapping, the usual slip. Raises TypeError, ValueError if empty."""
    if isinstance(values, str | bytes | Mapping):
        raise TypeError(f"{name} must be a list, not {type(values).__name__}")
    if not values:
        raise ValueError(f"{name} must not be empty")
    return list(values)


def _inferscale(user: str, options: Mapping[str, object], memory: MemoryOptions | None) -> dict[str, object]:
    named: dict[str, object] = {"user_id": user}
    given = {name: cast("str", options[name]) for name in _NAMED if options.get(name) is not None}
    named |= {name: check_id(value, name) for name, value in given.items()}
    if memory is not None:
        if not isinstance(memory, Mapping):
            raise TypeError(f"memory must be a dict such as {{'mode': 'text'}}, not {type(memory).__name__}")
        named["memory"] = _memory(cast("Mapping[str, object]", memory))
    return named


def _memory(memory: Mapping[str, object]) -> dict[str, object]:
    """A copy. Raises ValueError for a key or a mode that there is none of, and as `check_count` for `k`."""
    unknown = [key for key in memory if key not in _IN_MEMORY]
    if unknown:
        raise ValueError(f"memory[{unknown[0]!r}]: no such option; there are {', '.join(_IN_MEMORY)}")
    if "mode" in memory and memory["mode"] not in MODES:
        raise ValueError(f"memory['mode']={memory['mode']!r}: must be one of {', '.join(MODES)}")
    check_count(memory.get("k"), "memory['k']")
    return dict(memory)


def _extra(extra_body: Mapping[str, object] | None) -> dict[str, object]:
    extra = dict(extra_body or {})
    clash = sorted(_SET_BY_CHAT & extra.keys())
    if clash:
        raise ValueError(f"extra_body[{clash[0]!r}]: set by chat() itself")
    return extra
