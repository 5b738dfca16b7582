"""Errors as HTTP answers, in OpenAI's shape.

Knows: `{"error": {"message", "type", "code", "param"}}` and how much of a client's words may be repeated in it.
Refuses to know: which request went wrong.
"""

from __future__ import annotations

import logging
import traceback

from starlette.responses import JSONResponse

from inferscale_server.errors import RequestError

logger = logging.getLogger(__name__)

MAX_ECHO_CHARS = 100
"""How much of what a client wrote an error repeats."""

MAX_MESSAGE_CHARS = 300
"""A net below messages of other layers that repeat a client's words in full."""


class InternalError(RequestError):
    """A fault of the server. Never says more than that: the cause may hold somebody's words."""


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
    return JSONResponse(content, status_code=error.status)


def unexpected_response(error: Exception, method: str, template: str, request_id: str) -> JSONResponse:
    """500 for a fault of ours, logged with where it happened but not with its message, which may quote the request."""
    where = "".join(traceback.format_tb(error.__traceback__))
    logger.error("%s in %s %s, request %s\n%s", type(error).__name__, method, template, request_id, where)
    return error_response(InternalError("the server failed; its log names this request id"))
