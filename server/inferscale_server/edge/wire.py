"""What clients write, as typed values.

Knows: the JSON of requests, its limits, and dotted paths for errors. Refuses to know: what is done with it. Strict: no
unknown field, no `"5"` for 5, no `true` for 1; a failure is 400, or 413 for what is too long, never 422.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from inferscale_server.edge.answers import clip
from inferscale_server.edge.identity import LOCAL, Identity
from inferscale_server.errors import InvalidRequest, TooLarge
from inferscale_server.filters import Filter, parse_filter, within
from inferscale_server.limits import MAX_CONTEXT_TEXTS, MAX_FACT_CHARS, MAX_K, MAX_QUERY_CHARS, MAX_VECTOR_NUMBERS
from inferscale_server.remember import parse_id, parse_scope, parse_user_id
from inferscale_server.types import Mode, Owner, Scope

K = Annotated[int, Field(ge=1, le=MAX_K)]
Score = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]
Query = Annotated[str, Field(min_length=1, max_length=MAX_QUERY_CHARS)]
Vector = Annotated[
    list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1, max_length=MAX_VECTOR_NUMBERS)
]
ContextText = Annotated[str, Field(min_length=1, max_length=MAX_FACT_CHARS)]


TOO_LARGE = frozenset({"string_too_long", "too_long"})


def _in_a_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class Wire(BaseModel):
    """Base of all request bodies."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class AddMemories(Wire):
    """Body of `POST /v1/memories`. What stands inside messages and facts is checked where drafts are made of them."""

    user_id: str
    facts: list[object] | None = None
    messages: list[object] | None = None
    session_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    timestamp: object = None
    metadata: dict[str, object] | None = None
    expires_at: object = None
    infer: bool = True


class SearchMemories(Wire):
    """Body of `POST /v1/memories/search`. `min_score` is a cosine similarity, -1 to 1.

    Exactly one of `query` (a text) and `vector` (of the server's own embedder) says what to look for.
    """

    user_id: str
    query: Query | None = None
    vector: Vector | None = None
    k: K | None = None
    min_score: Score | None = None
    filter: object = None
    agent_id: str | None = None
    run_id: str | None = None

    def where(self) -> Filter | None:
        """The filter, parsed, and the scope. Raises InvalidRequest."""
        where = None if self.filter is None else parse_filter(self.filter)
        return within(where, parse_scope(self.agent_id, self.run_id))


class EmbedTexts(Wire):
    """Body of `POST /v1/embeddings`, the part of OpenAI's that a text embedder can honour."""

    input: Annotated[list[Query], BeforeValidator(_in_a_list), Field(min_length=1, max_length=MAX_CONTEXT_TEXTS)]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    user: str | None = None


class _MemoryOptions(Wire):
    mode: Mode = "auto"
    k: K | None = None
    min_score: Score | None = None
    filter: object = None
    context: Annotated[list[ContextText], Field(max_length=MAX_CONTEXT_TEXTS)] = []
    include_text: bool = True
    remember: bool = False


class _ChatExtension(Wire):
    user_id: str
    session_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    memory: _MemoryOptions = _MemoryOptions()


MISPLACED = (_ChatExtension.model_fields.keys() | _MemoryOptions.model_fields.keys()) - {"session_id"}
"""Names of ours that mean nothing at the top of a chat; vLLM has a `session_id` of its own there."""
ALIKE = 0.83
"""`inferscal`, `infer_scale` and `inferenceScale` are as like `inferscale` as this, no word of vLLM's is."""


@dataclass(frozen=True, slots=True)
class ChatMemory:
    """What a chat asks of its user's memory; without an owner it has none. None means the server's default."""

    owner: Owner | None
    session_id: str | None = None
    mode: Mode = "auto"
    k: int | None = None
    min_score: float | None = None
    context: tuple[str, ...] = ()
    include_text: bool = True
    anonymous: Owner = LOCAL.anonymous
    where: Filter | None = None
    scope: Scope = field(default_factory=Scope)
    remember: bool = False

    @property
    def cache_owner(self) -> Owner:
        """Whose prefix cache the chat uses: its user's, else one that the tenant's nameless chats share."""
        return self.owner or self.anonymous


Body = TypeVar("Body", bound=Wire)


def parse_body(model: type[Body], body: Mapping[str, object], prefix: tuple[str, ...] = ()) -> Body:
    """`body` as a `model`.

    Raises InvalidRequest, or TooLarge for a text or list over its limit; `param` is the dotted path below `prefix`.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise _fault(first["type"], first["msg"], _dotted((*prefix, *first["loc"]))) from None


@lru_cache(maxsize=1_024)  # the same dozen names come with every chat
def _is_slip(name: str) -> bool:
    """Is this nearly `inferscale`?"""
    return SequenceMatcher(None, name.lower().replace("_", "").replace("-", ""), "inferscale").ratio() >= ALIKE


def _refuse_misplaced(body: Mapping[str, object]) -> None:
    """vLLM ignores names that it does not know: an answer without memory would be all that a slip of the pen shows."""
    for name in body:
        if name in MISPLACED:
            place = "inferscale" if name in _ChatExtension.model_fields else "inferscale.memory"
            raise InvalidRequest(f"{name}: unknown field; it belongs into {place}", code="unknown_field", param=name)
        if name != "inferscale" and _is_slip(name[:20]):
            text = f"{clip(name)}: unknown field; is 'inferscale' meant?"
            raise InvalidRequest(text, code="unknown_field", param=clip(name))


def parse_chat_memory(body: Mapping[str, object], caller: Identity = LOCAL) -> ChatMemory:
    """What a chat request's `inferscale` field asks for; without it, OpenAI's `user` names the user.

    Raises InvalidRequest with the dotted path (code `conflicting_user` when the two name different users), Forbidden
    for a user or for `remember` beyond the caller's key.
    """
    _refuse_misplaced(body)
    extension = body.get("inferscale")
    user = body.get("user")
    if extension is None:
        return ChatMemory(None if user is None else _owner(caller, user, "user"), anonymous=caller.anonymous)
    if not isinstance(extension, Mapping):
        raise InvalidRequest("inferscale: Input should be an object", param="inferscale")
    parsed = parse_body(_ChatExtension, extension, ("inferscale",))
    if user is not None and user != parsed.user_id:
        raise InvalidRequest("user and inferscale.user_id name different users", code="conflicting_user", param="user")
    return _chat_memory(parsed, caller)


def parse_completion_owner(body: Mapping[str, object], caller: Identity = LOCAL) -> Owner:
    """Whose prefix cache a text completion uses: the named user's, else one that the tenant's nameless share.

    Raises InvalidRequest when it asks for memory, and Forbidden for a user beyond the caller's key.
    """
    if "inferscale" in body:
        raise InvalidRequest(
            "memory works on /v1/chat/completions and /v1/responses: /v1/completions takes no inferscale object",
            code="unknown_field",
            param="inferscale",
        )
    user = body.get("user")
    return caller.anonymous if user is None else _owner(caller, user, "user")


def _chat_memory(parsed: _ChatExtension, caller: Identity) -> ChatMemory:
    options = parsed.memory
    if options.remember:
        caller.require("write")
    scope = parse_scope(parsed.agent_id, parsed.run_id, "inferscale.")
    session = parsed.session_id
    return ChatMemory(
        owner=_owner(caller, parsed.user_id, "inferscale.user_id"),
        anonymous=caller.anonymous,
        session_id=None if session is None else parse_id(session, "inferscale.session_id"),
        mode=options.mode,
        k=options.k,
        min_score=options.min_score,
        context=tuple(options.context),
        include_text=options.include_text,
        where=within(None if options.filter is None else _filter(options.filter), scope),
        scope=scope,
        remember=options.remember,
    )


def _filter(written: object) -> Filter:
    try:
        return parse_filter(written)
    except InvalidRequest as error:
        error.param = "inferscale.memory.filter"
        raise


def _owner(caller: Identity, user: object, param: str) -> Owner:
    return caller.owner(parse_user_id(user, param), param)


def _fault(kind: str, message: str, path: str) -> InvalidRequest | TooLarge:
    if kind == "extra_forbidden":
        return InvalidRequest(f"unknown field {path!r}", code="unknown_field", param=path)
    if kind == "missing":
        return InvalidRequest(f"{path} is required", code="missing_field", param=path)
    if kind in TOO_LARGE:
        return TooLarge(f"{path}: {message}", param=path)
    return InvalidRequest(f"{path}: {message}", param=path)


def _dotted(loc: Iterable[int | str]) -> str:
    """`("memory", "context", 3)` as `memory.context[3]`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return clip("".join(parts).removeprefix("."))
