"""What every result has in common: frozen, tolerant of fields it does not know, and traceable."""

from __future__ import annotations

import json
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from inferscale_sdk._errors import APIResponseValidationError
from inferscale_sdk._reply import Reply


class Wire(BaseModel):
    """A JSON object of the server. Unknown fields are kept as attributes (`model_extra`)."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())

    _request_id: str | None = PrivateAttr(default=None)
    _raw: dict[str, object] = PrivateAttr(default_factory=dict)

    @property
    def request_id(self) -> str | None:
        """The server's `x-request-id`: quote it when asking for help. Set on whole answers, None on their parts."""
        return self._request_id

    @property
    def raw(self) -> dict[str, object]:
        """The JSON object as it came. Set on whole answers, empty on their parts."""
        return self._raw


W = TypeVar("W", bound=Wire)


def parse_reply(model: type[W], reply: Reply) -> W:
    """The reply's JSON body as `model`; an empty body counts as `{}`. Raises APIResponseValidationError."""
    try:
        decoded = json.loads(reply.body or b"{}")
    except ValueError as error:
        raise _invalid(f"status {reply.status_code} with a body that is not JSON", reply.request_id) from error
    return parse_object(model, decoded, reply.request_id)


def parse_object(model: type[W], decoded: object, request_id: str | None) -> W:
    """A decoded JSON object as `model`. Raises APIResponseValidationError that names the first wrong field."""
    if not isinstance(decoded, dict):
        raise _invalid(f"a JSON {type(decoded).__name__} where an object belongs", request_id)
    try:
        parsed = model.model_validate(decoded)
    except ValidationError as error:
        # Only place and kind: the values are somebody's memories.
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _invalid(f"{model.__name__}: field {place!r}: {first['msg']}", request_id) from None
    parsed._request_id = request_id
    parsed._raw = decoded
    return parsed


def _invalid(what: str, request_id: str | None) -> APIResponseValidationError:
    return APIResponseValidationError(f"unexpected answer: {what}", request_id=request_id)
