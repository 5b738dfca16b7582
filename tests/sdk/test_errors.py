"""Each status is its own error, with the server's words and request id."""

from __future__ import annotations

import pickle

import httpx
import pytest

import inferscale_sdk as sdk
from inferscale_sdk._errors import error_from_event

from .script import answer, failure, script

TREE = {
    400: sdk.BadRequestError,
    401: sdk.AuthenticationError,
    403: sdk.PermissionDeniedError,
    404: sdk.NotFoundError,
    409: sdk.ConflictError,
    413: sdk.APIStatusError,
    422: sdk.UnprocessableEntityError,
    429: sdk.RateLimitError,
    500: sdk.InternalServerError,
    503: sdk.InternalServerError,
    507: sdk.InternalServerError,
}


@pytest.mark.parametrize("status", TREE)
async def test_a_status_becomes_its_error_in_both_clients(status: int) -> None:
    server = script(failure(status, "that is wrong"))
    with pytest.raises(TREE[status]) as caught:
        server.client(max_retries=0).status()
    with pytest.raises(TREE[status]):
        await server.async_client(max_retries=0).status()
    error = caught.value
    assert type(error) is TREE[status]
    assert (str(error), error.status_code, error.request_id) == ("that is wrong", status, "req-1")
    assert (error.type, error.code, error.param) == ("t", "c", "p")


def test_all_errors_have_one_root() -> None:
    assert issubclass(sdk.APIError, sdk.InferScaleError)
    assert issubclass(sdk.APITimeoutError, sdk.APIConnectionError)
    assert all(issubclass(error, sdk.APIStatusError) for error in TREE.values())
    for name in sdk.__all__:
        if name.endswith("Error"):
            assert issubclass(getattr(sdk, name), sdk.InferScaleError)


def test_a_proxys_html_page_is_still_a_typed_error() -> None:
    page = httpx.Response(502, text="<html>Bad gateway</html>")
    with pytest.raises(sdk.InternalServerError, match="status 502") as caught:
        script(page).client(max_retries=0).status()
    assert caught.value.body == "<html>Bad gateway</html>"


@pytest.mark.parametrize("body", [b"not json", b"[]", b'{"results": 3}', b'{"results": [{}]}', b"\xff"])
def test_a_success_in_the_wrong_shape_is_a_validation_error(body: bytes) -> None:
    server = script(httpx.Response(200, content=body, headers={"x-request-id": "req-2"}))
    with pytest.raises(sdk.APIResponseValidationError) as caught:
        server.client().memories.add("alice", facts=["x"])
    assert caught.value.request_id == "req-2"
    assert len(server.requests) == 1


def test_a_validation_error_does_not_quote_what_was_remembered() -> None:
    server = script(answer(json={"data": [{"id": 7, "text": "canary-4711"}]}))
    with pytest.raises(sdk.APIResponseValidationError, match=r"data\.0\.id") as caught:
        server.client().memories.list("alice")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "m", "code": 400}, sdk.BadRequestError),
        ({"message": "m", "code": 503, "type": "invalid_request_error"}, sdk.InternalServerError),
        ({"message": "m", "type": "rate_limit_error", "code": "rate_limited"}, sdk.RateLimitError),
        ({"message": "m", "type": "BadRequestError"}, sdk.BadRequestError),
        ({"message": "m", "type": "strange"}, sdk.APIError),
        ("just words", sdk.APIError),
    ],
)
def test_an_error_event_is_mapped_by_its_code_or_type(error: object, kind: type[sdk.APIError]) -> None:
    assert type(error_from_event({"error": error}, "req-3")) is kind


def test_errors_travel_between_processes() -> None:
    error = sdk.RateLimitError("no", status_code=429, headers={"retry-after": "1"}, request_id="req-4", code="c")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is sdk.RateLimitError
    assert vars(copy) == vars(error)
    assert str(copy) == "no"
