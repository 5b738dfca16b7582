"""Errors as HTTP answers, in OpenAI's shape.

Knows: `{"error": {"message", "type", "code", "param"}}`, how much of a client's words may be repeated in it, and how
errors of other layers are brought into it. Refuses to know: which request went wrong.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.responses import JSONResponse

from inferscale_server.errors import RequestError

logger = logging.getLogger(__name__)

MAX_ECHO_CHARS = 100
"""How much of what a client wrote an error repeats."""

MAX_MESSAGE_CHARS = 300
"""A net below messages of other layers that repeat a client's words in full."""

MAX_FOREIGN_CHARS = 1_000
"""How much of an error of vLLM is passed on: it lists what would have been right."""

CODES: Mapping[int, str] = {
    400: "invalid_request",
    401: "invalid_api_key",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    409: "conflict",
    413: "too_large",
    429: "rate_limited",
    500: "internal_error",
    501: "not_implemented",
    503: "unavailable",
    507: "storage_full",
}
"""A word for each status, for errors that come without one."""


class InternalError(RequestError):
    """A fault of the server. Never says more than that: the cause may hold somebody's words."""


@dataclass(frozen=True, slots=True)
class Reshaped:
    """Another layer's error in our shape: what is sent instead."""

    status: int
    body: bytes


def clip(text: object, limit: int = MAX_ECHO_CHARS) -> str:
    """At most `limit` characters of `text`, without control characters and without lone surrogates."""
    shown = str(text)[: limit + 1]
    printable = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in shown)
    return printable if len(printable) <= limit else printable[: limit - 1] + "…"


def error_response(error: RequestError) -> JSONResponse:
    """The answer to a request that failed with `error`."""
    content = {
        "error": {
            "message": clip(error.message, MAX_MESSAGE_CHARS),
            "type": error.type,
            "code": error.code,
            "param": None if error.param is None else clip(error.param),
        }
    }
    return JSONResponse(content, status_code=error.status, headers=_headers(error))


def _headers(error: RequestError) -> dict[str, str]:
    headers = {}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    return headers


def unexpected_response(error: Exception, method: str, template: str, request_id: str) -> JSONResponse:
    """500 for a fault of ours, logged with where it happened but not with its message, which may quote the request."""
    where = "".join(traceback.format_tb(error.__traceback__))
    logger.error("%s in %s %s, request %s\n%s", type(error).__name__, method, template, request_id, where)
    return error_response(InternalError("the server failed; its log names this request id"))


def reshape_error(status: int, body: bytes) -> Reshaped | None:
    """An error answer of vLLM, FastAPI or Starlette in our shape; None when it has that shape.

    422 becomes 400: both say that the client wrote something wrong, and clients expect OpenAI's status.
    """
    status = 400 if status == 422 else status
    foreign = _fields_of(body)
    if _is_ours(foreign):
        return None
    param = foreign.get("param")
    error = {
        "message": clip(" ".join(str(foreign["message"]).split()), MAX_FOREIGN_CHARS),
        "type": "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error",
        "code": _word_for(status, foreign.get("code")),
        "param": clip(param.removeprefix("body.")) if isinstance(param, str) else None,
    }
    return Reshaped(status, json.dumps({"error": error}, ensure_ascii=False, separators=(",", ":")).encode())


def _fields_of(body: bytes) -> Mapping[str, object]:
    """What an error answer says: vLLM's `{"error": {...}}`, FastAPI's `{"detail": ...}`, or plain text."""
    text = body.decode("utf-8", "replace")
    try:
        parsed = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return {"message": text}
    error = parsed.get("error", parsed) if isinstance(parsed, dict) else text
    if not isinstance(error, dict):
        return {"message": error}
    return {"message": _said(error.get("detail", text)), **error}


def _said(detail: object) -> object:
    """FastAPI's list of faults as the first one's sentence; anything else as it is."""
    first = detail[0] if isinstance(detail, list) and detail else detail
    return first.get("msg", detail) if isinstance(first, dict) else detail


def _is_ours(error: Mapping[str, object]) -> bool:
    return error.keys() == {"message", "type", "code", "param"} and isinstance(error["code"], str)


def _word_for(status: int, code: object) -> str:
    if isinstance(code, str) and not code.isdigit():
        return clip(code)
    return CODES.get(status, "error")
