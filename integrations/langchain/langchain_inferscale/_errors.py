"""Errors that are both the SDK's and langchain-core's, so that code which catches either keeps working.

SDK                        core                          here
BadRequest 400, other 4xx  ModelInvalidRequestError      InferScaleInvalidRequestError
BadRequest, too long       ContextOverflowError          InferScaleContextOverflowError
Authentication 401         ModelAuthenticationError      InferScaleAuthenticationError
PermissionDenied 403       ModelPermissionDeniedError    InferScalePermissionDeniedError
NotFound 404               ModelNotFoundError            InferScaleNotFoundError
RateLimit 429              ModelRateLimitError           InferScaleRateLimitError
InternalServer >= 500      ModelAPIError                 InferScaleAPIError
APIConnection              ModelConnectionError          InferScaleConnectionError
APITimeout                 ModelTimeoutError             InferScaleTimeoutError

An answer that is not in the contract's shape stays the SDK's APIResponseValidationError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langchain_core import exceptions as core

import inferscale_sdk as sdk


class InferScaleInvalidRequestError(sdk.BadRequestError, core.ModelInvalidRequestError):
    """The request cannot be accepted as written: 400, and statuses in the 400s without a type of their own."""


class InferScaleContextOverflowError(sdk.BadRequestError, core.ContextOverflowError):
    """400: the messages do not fit the model's context."""


class InferScaleAuthenticationError(sdk.AuthenticationError, core.ModelAuthenticationError):
    """401: the API key is missing or wrong."""


class InferScalePermissionDeniedError(sdk.PermissionDeniedError, core.ModelPermissionDeniedError):
    """403: the API key may not do this, or not for this user."""


class InferScaleNotFoundError(sdk.NotFoundError, core.ModelNotFoundError):
    """404: no such model."""


class InferScaleRateLimitError(sdk.RateLimitError, core.ModelRateLimitError):
    """429: a queue or quota is full."""


class InferScaleAPIError(sdk.InternalServerError, core.ModelAPIError):
    """500 and above: the server's fault, or it cannot do it now."""


class InferScaleConnectionError(sdk.APIConnectionError, core.ModelConnectionError):
    """The server could not be reached, or the connection broke."""


class InferScaleTimeoutError(sdk.APITimeoutError, core.ModelTimeoutError):
    """The server did not answer within the timeout of one try."""


_TWINS: tuple[tuple[type[sdk.APIError], type[sdk.APIError]], ...] = (
    (sdk.AuthenticationError, InferScaleAuthenticationError),
    (sdk.PermissionDeniedError, InferScalePermissionDeniedError),
    (sdk.NotFoundError, InferScaleNotFoundError),
    (sdk.RateLimitError, InferScaleRateLimitError),
    (sdk.InternalServerError, InferScaleAPIError),
    (sdk.APIStatusError, InferScaleInvalidRequestError),
    (sdk.APITimeoutError, InferScaleTimeoutError),
    (sdk.APIConnectionError, InferScaleConnectionError),
)
"""Narrow before wide."""


@contextmanager
def translated() -> Iterator[None]:
    """Turn the SDK's errors into those above, chained to what they came from."""
    try:
        yield
    except sdk.APIError as error:
        twin = _twin_of(error)
        if twin is None:
            raise
        raise _remade(error, twin) from error


def _twin_of(error: sdk.APIError) -> type[sdk.APIError] | None:
    if isinstance(error, core.ModelError):
        return None
    if isinstance(error, sdk.BadRequestError) and _too_long(error):
        return InferScaleContextOverflowError
    return next((twin for kind, twin in _TWINS if isinstance(error, kind)), None)


def _too_long(error: sdk.BadRequestError) -> bool:
    # vLLM gives it no code of its own, only these words.
    return error.code == "context_length_exceeded" or "maximum context length" in error.message


def _remade(error: sdk.APIError, kind: type[sdk.APIError]) -> sdk.APIError:
    made = kind(error.message)
    made.__dict__.update(error.__dict__)
    return made
