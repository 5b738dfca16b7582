"""Claims about errors of other layers: they reach a client in OpenAI's shape, with a word for a code."""

from __future__ import annotations

import json

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from fastapi.middleware.cors import CORSMiddleware
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from inferscale_server.edge.answers import reshape_error
from inferscale_server.edge.guard import Guard
from inferscale_server.edge.reply import MAX_HELD_BYTES
from tests.edge.asgi import FEW

VLLMS = {"message": "bad\nvalue", "type": "BadRequestError", "param": "messages", "code": 400}


def app_that_answers(response: Response) -> httpx.AsyncClient:
    app = FastAPI()
    app.add_middleware(
        CORSMiddleware, allow_origins=["https://good.example"], allow_methods=["GET", "POST"], allow_headers=["*"]
    )
    app.add_middleware(Guard)

    async def models() -> Response:
        if isinstance(response, PlainTextResponse) and response.status_code == 404:
            raise HTTPException(404, "no model")
        return response

    app.get("/v1/models")(models)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://testserver")


@pytest.mark.parametrize(
    ("sent", "status", "error"),
    [
        (
            JSONResponse({"error": VLLMS}, 400),
            400,
            {"message": "bad value", "type": "invalid_request_error", "code": "invalid_request", "param": "messages"},
        ),
        (
            JSONResponse({"error": {"message": "m", "type": "NotFoundError", "param": None, "code": 404}}, 404),
            404,
            {"message": "m", "type": "invalid_request_error", "code": "not_found", "param": None},
        ),
        (
            JSONResponse({"error": {"message": "m", "type": "InternalServerError", "param": None, "code": 500}}, 500),
            500,
            {"message": "m", "type": "server_error", "code": "internal_error", "param": None},
        ),
        (
            JSONResponse({"detail": [{"msg": "Field required", "loc": ["body"]}]}, 422),
            400,
            {"message": "Field required", "type": "invalid_request_error", "code": "invalid_request", "param": None},
        ),
        (
            JSONResponse({"error": "Unauthorized"}, 401),
            401,
            {"message": "Unauthorized", "type": "invalid_request_error", "code": "invalid_api_key", "param": None},
        ),
        (
            PlainTextResponse("", 404),
            404,
            {"message": "no model", "type": "invalid_request_error", "code": "not_found", "param": None},
        ),
        (
            PlainTextResponse("busy", 503),
            503,
            {"message": "busy", "type": "server_error", "code": "unavailable", "param": None},
        ),
    ],
)
async def test_a_foreign_error_comes_in_our_shape(sent: Response, status: int, error: dict[str, object]) -> None:
    async with app_that_answers(sent) as client:
        answer = await client.get("/v1/models")
    assert (answer.status_code, answer.json()) == (status, {"error": error})
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert "x-request-id" in answer.headers


async def test_an_error_of_ours_and_an_answer_pass_unchanged() -> None:
    ours = {"error": {"message": "m", "type": "t", "code": "c", "param": None}}
    for response in (JSONResponse(ours, 400), JSONResponse({"error": {"code": 400}})):
        async with app_that_answers(response) as client:
            assert (await client.get("/v1/models")).content == response.body


async def test_a_preflight_request_that_is_refused_says_so_in_our_shape() -> None:
    headers = {"origin": "https://bad.example", "access-control-request-method": "GET"}
    async with app_that_answers(JSONResponse({})) as client:
        refused = await client.options("/v1/models", headers=headers)
        granted = await client.options("/v1/models", headers={**headers, "origin": "https://good.example"})
        bare = await client.options("/v1/models")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")
    assert granted.status_code == 200
    assert granted.headers["access-control-allow-origin"] == "https://good.example"
    assert (bare.status_code, bare.json()["error"]["code"], bare.headers["allow"]) == (405, "method_not_allowed", "GET")


async def test_a_stream_is_passed_on_piece_by_piece_whatever_its_status() -> None:
    async def pieces() -> object:
        yield b'{"error": '
        yield b'{"code": 400}}'

    async with app_that_answers(StreamingResponse(pieces(), 400, media_type="application/json")) as client:  # type: ignore[arg-type]
        answer = await client.get("/v1/models")
    assert answer.json() == {"error": {"code": 400}}


async def test_a_large_error_is_not_held() -> None:
    large = "x" * (MAX_HELD_BYTES + 1)
    async with app_that_answers(PlainTextResponse(large, 400)) as client:
        assert (await client.get("/v1/models")).text == large


@FEW
@given(status=st.integers(400, 599), body=st.binary(max_size=200))
def test_whatever_an_error_says_it_becomes_a_valid_one(status: int, body: bytes) -> None:
    shaped = reshape_error(status, body)
    assert shaped is not None and shaped.status >= 400
    error = json.loads(shaped.body)["error"]
    assert set(error) == {"message", "type", "code", "param"} and isinstance(error["code"], str)
    assert reshape_error(shaped.status, shaped.body) is None


def test_a_field_of_the_body_is_named_as_the_client_wrote_it() -> None:
    foreign = {"error": {"message": "field required", "type": "Bad Request", "param": "body.messages", "code": 400}}
    shaped = reshape_error(400, json.dumps(foreign).encode())
    assert shaped is not None and json.loads(shaped.body)["error"]["param"] == "messages"
