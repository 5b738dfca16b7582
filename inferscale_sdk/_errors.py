"""Every error this SDK raises for the world's faults; programmer errors are ValueError and TypeError.

InferScaleError
└── APIError                            the call did not give a usable answer
    ├── APIConnectionError              no answer: refused, reset, cut off
    │   └── APITimeoutError             no answer in time
    ├── APIResponseValidationError      an answer with status 2xx that is not what the contract says
    └── APIStatusError                  an answer with another status
        ├── BadRequestError             400
        ├── AuthenticationError         401
        ├── PermissionDeniedError       403
        ├── NotFoundError               404
        ├── ConflictError               409
        ├── UnprocessableEntityError    422
        ├── RateLimitError              429
        └── InternalServerError         500 and above (507: the server's storage is full)

Knows: OpenAI's error shape. Refuses to know: httpx, retries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from inferscale_sdk._reply import Reply


class InferScaleError(Exception):
    """Root of the tree."""


class APIError(InferScaleError):
    """A call without a usable answer. `code`, `param` and `type` are the server's, None where it named none."""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        type: str | None = None,
        request_id: str | None = None,
        body: object = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        self.type = type
        self.request_id = request_id
        self.body = body


class APIConnectionError(APIError):
    """The server could not be reached, or the connection broke."""


class APITimeoutError(APIConnectionError):
    """The server did not answer within the timeout of one try."""


class APIResponseValidationError(APIError):
    """The server answered with success, but not in the shape of the contract."""


class APIStatusError(APIError):
    """The server answered with an error. `headers` has lower-case names."""

    status_code = 0

    def __init__(
        self,
        message: str,
        *,
        status_code: int = 0,
        headers: Mapping[str, str] | None = None,
        code: str | None = None,
        param: str | None = None,
        type: str | None = None,
        request_id: str | None = None,
        body: object = None,
    ) -> None:
        super().__init__(message, code=code, param=param, type=type, request_id=request_id, body=body)
        self.status_code = status_code
        self.headers = dict(headers or {})


class BadRequestError(APIStatusError):
    """400: the request cannot be accepted as written."""


class AuthenticationError(APIStatusError):
    """401: the API key is missing or wrong."""


class PermissionDeniedError(APIStatusError):
    """403: the API key may not do this."""


class NotFoundError(APIStatusError):
    """404: no such route, or no such fact for this owner."""


class ConflictError(APIStatusError):
    """409: the request clashes with another one."""


class UnprocessableEntityError(APIStatusError):
    """422: a proxy or another server in front refused the body."""


class RateLimitError(APIStatusError):
    """429: a queue or quota is full."""


class InternalServerError(APIStatusError):
    """500 and above: the server's fault, or it cannot do it now."""


_BY_STATUS: dict[int, type[APIStatusError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    422: UnprocessableEntityError,
    429: RateLimitError,
}

_STATUS_BY_TYPE = {
    "invalid_request_error": 400,
    "badrequesterror": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "notfounderror": 404,
    "rate_limit_error": 429,
    "server_error": 500,
    "internal_server_error": 500,
    "internalservererror": 500,
}
"""Error types in stream events, which carry no HTTP status; OpenAI's names and vLLM's, in lower case."""


def error_from_reply(reply: Reply) -> APIStatusError:
    """The typed error for a reply whose status is not 2xx."""
    body = _decode(reply.body)
    return _status_error(reply.status_code, _error_object(body), reply.headers, reply.request_id, body)


def error_from_event(event: Mapping[str, object], request_id: str | None) -> APIError:
    """The typed error for a stream event `{"error": {...}}`; a plain APIError where no status can be told."""
    described = _error_object(event)
    status = _status_of_event(described)
    if status is None:
        return APIError(_message(described, "the server broke off the stream"), request_id=request_id, body=event)
    return _status_error(status, described, {}, request_id, event)


def _status_error(
    status: int, described: Mapping[str, object], headers: Mapping[str, str], request_id: str | None, body: object
) -> APIStatusError:
    fallback = InternalServerError if status >= 500 else APIStatusError
    return _BY_STATUS.get(status, fallback)(
        _message(described, f"the server answered with status {status}"),
        status_code=status,
        headers=headers,
        code=_text(described.get("code")),
        param=_text(described.get("param")),
        type=_text(described.get("type")),
        request_id=request_id,
        body=body,
    )


def _status_of_event(described: Mapping[str, object]) -> int | None:
    code = described.get("code")
    if isinstance(code, int) and 400 <= code <= 599:
        return code
    return _STATUS_BY_TYPE.get(str(described.get("type")).lower())


def _decode(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:
        # Proxies answer in HTML; the start of it is the only hint a user gets.
        return body[:500].decode("utf-8", "replace")


def _error_object(body: object) -> Mapping[str, object]:
    if not isinstance(body, Mapping):
        return {}
    inner = body.get("error", body)
    if isinstance(inner, Mapping):
        return inner
    return {"message": inner}


def _message(described: Mapping[str, object], fallback: str) -> str:
    message = described.get("message")
    return message if isinstance(message, str) and message else fallback


def _text(value: object) -> str | None:
    return None if value is None else str(value)
