"""Every error this server raises on purpose.

InferScaleError
├── RequestError                what the client wrote, or what the server cannot do for it now; has an HTTP status
│   ├── InvalidRequest          400
│   │   └── ExtractionUnavailable
│   ├── Unauthorized            401
│   ├── Forbidden               403
│   ├── NotFound                404
│   ├── Conflict                409
│   ├── TooLarge                413
│   ├── TooManyRequests         429
│   ├── Unavailable             503
│   └── StorageFull             507
├── KvFileError                 a file with chunk KV does not check out; never reaches a client
└── StartupError                the server cannot start; one line for the terminal, exit code 2
    ├── ConfigError             an option, environment variable or config file is wrong
    ├── UnsupportedOption       a vLLM option that breaks the design
    ├── ModelUnavailable        the model or its package is missing
    ├── DataFolderError         unwritable, or in use by another server
    │   └── FactsInUse          the facts alone are: the two have different data folders
    ├── StoreCorrupt            the fact store does not check out
    └── PortInUse
"""

from __future__ import annotations


class InferScaleError(Exception):
    """Root of the tree."""


class RequestError(InferScaleError):
    """An error with a place in OpenAI's error shape: `{"error": {"message", "type", "code", "param"}}`."""

    status = 500
    type = "server_error"

    def __init__(
        self, message: str, *, code: str | None = None, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.param = param
        self.retry_after_s = retry_after_s

    default_code = "internal_error"


class InvalidRequest(RequestError):
    """The client wrote something that cannot be accepted."""

    status = 400
    type = "invalid_request_error"
    default_code = "invalid_request"


class ExtractionUnavailable(InvalidRequest):
    """Messages were sent to be turned into facts by a model, which this server does not do."""

    default_code = "extraction_unavailable"


class Unauthorized(RequestError):
    """No API key, or none that is valid now. Says the same whichever it is."""

    status = 401
    type = "invalid_request_error"
    default_code = "invalid_api_key"


class Forbidden(RequestError):
    """The key is valid, but not for this."""

    status = 403
    type = "permission_error"
    default_code = "forbidden"


class NotFound(RequestError):
    """No such route, or no such fact for this owner."""

    status = 404
    type = "invalid_request_error"
    default_code = "not_found"


class Conflict(RequestError):
    """What is there already does not go with what is asked for."""

    status = 409
    type = "invalid_request_error"
    default_code = "conflict"


class TooLarge(RequestError):
    """A body or a text is over its limit."""

    status = 413
    type = "invalid_request_error"
    default_code = "too_large"


class TooManyRequests(RequestError):
    """A queue or quota is full; try again."""

    status = 429
    type = "rate_limit_error"
    default_code = "rate_limited"


class Unavailable(RequestError):
    """A part of the server is not ready or not reachable."""

    status = 503
    type = "server_error"
    default_code = "unavailable"


class StorageFull(RequestError):
    """The disk or a quota on stored bytes is full; what was stored before is unharmed."""

    status = 507
    type = "server_error"
    default_code = "storage_full"


class KvFileError(InferScaleError):
    """A file with chunk KV cannot be written, or does not check out. `reason` is one of a fixed set of words."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


class StartupError(InferScaleError):
    """The server cannot start. The message is one line that says what to do."""


class EngineDied(InferScaleError):
    """The engine ended without being told to, and the server with it."""


class ConfigError(StartupError):
    """An option, environment variable or config file is wrong; the message names key and value."""


class UnsupportedOption(StartupError):
    """A vLLM option that InferScale cannot work with; the message says why."""


class ModelUnavailable(StartupError):
    """The model or its package is missing or cannot be served."""


class DataFolderError(StartupError):
    """The data folder cannot be written, or another server holds it."""


class FactsInUse(DataFolderError):
    """Another process, with a data folder of its own, holds the fact file."""


class StoreCorrupt(StartupError):
    """The fact store exists but does not check out; nothing was changed."""


class PortInUse(StartupError):
    """Another process listens there, or another server that is starting will."""
