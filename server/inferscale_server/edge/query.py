"""Query parameters: which there are, whose memory they name, how much of it.

Knows: strings after the question mark, and the caller's identity. Refuses to know: what is done with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from starlette.requests import Request

from inferscale_server.edge.answers import clip
from inferscale_server.edge.identity import identity_of
from inferscale_server.edge.json_body import parse_object
from inferscale_server.errors import Forbidden, InvalidRequest, NotFound
from inferscale_server.filters import Filter, parse_filter, within
from inferscale_server.limits import DEFAULT_PAGE, MAX_PAGE
from inferscale_server.remember import parse_scope, parse_user_id
from inferscale_server.types import Owner, Scope


def query_of(request: Request, known: Set[str]) -> Mapping[str, str]:
    """The query parameters. Raises InvalidRequest for an unknown or repeated one."""
    given = request.query_params.multi_items()
    for i, (name, _) in enumerate(given):
        if name not in known:
            raise InvalidRequest(f"unknown query parameter {clip(name)!r}", code="unknown_field", param=name)
        if name in dict(given[:i]):
            raise InvalidRequest(f"query parameter {name!r} stands twice", param=name)
    return dict(given)


def owner_of(request: Request, user_id: str) -> Owner:
    """The owner of that name in the caller's tenant. Raises InvalidRequest for a bad id, Forbidden for another's."""
    return identity_of(request).owner(parse_user_id(user_id))


def owner_in(request: Request, query: Mapping[str, str]) -> Owner:
    """The owner that the query names. Raises as `owner_of`, and InvalidRequest when it names none."""
    return owner_of(request, _user_in(query))


def owner_of_fact(request: Request, query: Mapping[str, str], fact_id: str) -> Owner:
    """Like `owner_in`, for one fact: of a user whom the caller may not name there is none, as far as he can tell."""
    user = parse_user_id(_user_in(query))
    if not identity_of(request).may(user):
        raise NotFound(f"no fact {fact_id!r}", param="id")
    return identity_of(request).owner(user)


def tenant_of(request: Request) -> str:
    """The tenant whose users the caller may list. Raises Forbidden unless all of them are his to see."""
    identity = identity_of(request)
    identity.require("admin")
    if identity.users is not None:
        raise Forbidden("the key is for some users only", code="user_not_allowed")
    return identity.tenant


def scope_in(query: Mapping[str, str]) -> Scope:
    """The agent and the run that the query names. Raises InvalidRequest."""
    return parse_scope(query.get("agent_id"), query.get("run_id"))


def limit_in(query: Mapping[str, str]) -> int:
    """Facts or users in a page. Raises InvalidRequest."""
    written = query.get("limit", str(DEFAULT_PAGE))
    number = int(written) if written.isascii() and written.isdigit() and len(written) <= 9 else 0
    if not 1 <= number <= MAX_PAGE:
        raise InvalidRequest(f"limit must be 1 to {MAX_PAGE}, not {clip(written)!r}", param="limit")
    return number


def filter_in(query: Mapping[str, str]) -> Filter | None:
    """The filter that the query holds as JSON, and its scope. Raises InvalidRequest (code `invalid_filter`)."""
    if "filter" not in query:
        return within(None, scope_in(query))
    try:
        written = parse_object(query["filter"].encode("utf-8"))
    except InvalidRequest as error:
        message = error.message.replace("the body", "the filter", 1)
        raise InvalidRequest(message, code="invalid_filter", param="filter") from error
    return within(parse_filter(written), scope_in(query))


def _user_in(query: Mapping[str, str]) -> str:
    if "user_id" not in query:
        raise InvalidRequest("user_id is required", code="missing_field", param="user_id")
    return query["user_id"]
