"""What clients write, as typed values.

Knows: the JSON of requests, its limits, and dotted paths for errors. Refuses to know: what is done with it. Strict: no
unknown field, no `"5"` for 5, no `true` for 1; a failure is 400, or 413 for what is too long, never 422.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from inferscale_server.edge.answers import clip
from inferscale_server.errors import ExtractionUnavailable, InvalidRequest, TooLarge
from inferscale_server.limits import MAX_CONTEXT_TEXTS, MAX_FACT_CHARS, MAX_K, MAX_QUERY_CHARS
from inferscale_server.remember import parse_id, parse_user_id
from inferscale_server.types import LOCAL_TENANT, Mode, Owner

K = Annotated[int, Field(ge=1, le=MAX_K)]
Score = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]
Query = Annotated[str, Field(min_length=1, max_length=MAX_QUERY_CHARS)]
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
    timestamp: object = None
    metadata: dict[str, object] | None = None
    infer: bool = True


class SearchMemories(Wire):
    """Body of `POST /v1/memories/search`. `min_score` is a cosine similarity, -1 to 1."""

    user_id: str
    query: Query
    k: K | None = None
    min_score: Score | None = None


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
    context: Annotated[list[ContextText], Field(max_length=MAX_CONTEXT_TEXTS)] = []
    include_text: bool = True
    remember: bool = False


class _ChatExtension(Wire):
    user_id: str
    session_id: str | None = None
    memory: _MemoryOptions = _MemoryOptions()


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


def parse_chat_memory(body: Mapping[str, object], tenant: str = LOCAL_TENANT) -> ChatMemory:
    """What a chat request's `inferscale` field asks for; without it, OpenAI's `user` names the user.

    Raises InvalidRequest with the dotted path, and ExtractionUnavailable for `remember`.
    """
    extension = body.get("inferscale")
    if extension is None:
        user = body.get("user")
        return ChatMemory(None if user is None else _owner(tenant, user, "user"))
    if not isinstance(extension, Mapping):
        raise InvalidRequest("inferscale: Input should be an object", param="inferscale")
    return _chat_memory(parse_body(_ChatExtension, extension, ("inferscale",)), tenant)


def _chat_memory(parsed: _ChatExtension, tenant: str) -> ChatMemory:
    options = parsed.memory
    if options.remember:
        raise ExtractionUnavailable(
            "this server does not turn conversations into facts: add facts instead", param="inferscale.memory.remember"
        )
    session = parsed.session_id
    return ChatMemory(
        owner=_owner(tenant, parsed.user_id, "inferscale.user_id"),
        session_id=None if session is None else parse_id(session, "inferscale.session_id"),
        mode=options.mode,
        k=options.k,
        min_score=options.min_score,
        context=tuple(options.context),
        include_text=options.include_text,
    )


def _owner(tenant: str, user: object, param: str) -> Owner:
    return Owner(tenant, parse_user_id(user, param))


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
