"""Streams: pieces as they come, the whole answer at the end, errors in between."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from inferscale_sdk import APIConnectionError, APIResponseValidationError, InferScaleError, RateLimitError
from inferscale_sdk._accumulate import Accumulator
from inferscale_sdk._sse import EventDecoder

from .script import CHAT, DONE, LAST, Pieces, event, piece, script, streamed

WHOLE = (piece("Bru"), piece("no", "stop"), LAST, DONE)


def body_of(response: httpx.Response) -> Pieces:
    assert isinstance(response.stream, Pieces)
    return response.stream


def test_a_stream_gives_its_text_and_then_the_whole_answer() -> None:
    response = streamed(*WHOLE)
    with script(response).client().chat("alice", "hi", stream=True) as stream:
        assert list(stream.text_stream) == ["Bru", "no"]
        final = stream.get_final_response()
    assert (final.text, final.finish_reason, final.mode, final.request_id) == ("Bruno", "stop", "kv", "req-9")
    assert final.usage is not None and final.usage.total_tokens == 8
    assert [fact.id for fact in final.facts] == ["f1"]
    assert body_of(response).closed > 0


def test_a_stream_shows_the_answer_as_far_as_it_has_come() -> None:
    tool = event({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}]})
    with (
        script(streamed(piece("Bru"), piece("no", "stop"), tool, LAST, DONE))
        .client()
        .chat("alice", "hi", stream=True) as stream
    ):
        seen = [(stream.so_far.text, len(stream.so_far.tool_calls)) for _ in stream]
    assert seen == [("Bru", 0), ("Bruno", 0), ("Bruno", 1), ("Bruno", 1)]


async def test_an_async_stream_gives_the_same() -> None:
    response = streamed(*WHOLE)
    async with await script(response).async_client().chat("alice", "hi", stream=True) as stream:
        assert [text async for text in stream.text_stream] == ["Bru", "no"]
        final = await stream.get_final_response()
    assert (final.text, final.mode, final.request_id) == ("Bruno", "kv", "req-9")
    assert body_of(response).closed > 0


def test_the_final_response_can_be_had_without_iterating() -> None:
    stream = script(streamed(*WHOLE)).client().chat("alice", "hi", stream=True)
    assert stream.get_final_response().text == "Bruno"


def test_iterating_gives_chunks_and_the_last_one_carries_the_memory() -> None:
    stream = script(streamed(*WHOLE)).client().chat("alice", "hi", stream=True)
    chunks = list(stream)
    assert [chunk.text for chunk in chunks] == ["Bru", "no", ""]
    assert chunks[-1].inferscale is not None and chunks[-1].inferscale.mode == "kv"
    assert chunks[-1].choices == ()


def test_the_memory_may_also_come_with_the_last_text() -> None:
    choice = {"index": 0, "delta": {"content": "Bruno"}, "finish_reason": "stop"}
    last = event({"choices": [choice], "inferscale": CHAT["inferscale"]})
    final = script(streamed(last, DONE)).client().chat("alice", "hi", stream=True).get_final_response()
    assert (final.text, final.mode) == ("Bruno", "kv")


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
def test_the_slicing_of_the_bytes_does_not_matter(size: int) -> None:
    whole = b"".join([piece("Grüße ☺ "), *WHOLE])
    slices = [whole[start : start + size] for start in range(0, len(whole), size)]
    final = script(streamed(*slices)).client().chat("alice", "hi", stream=True).get_final_response()
    assert final.text == "Grüße ☺ Bruno"


async def test_an_error_event_raises_the_mapped_error_after_the_text_before_it() -> None:
    broken = event({"error": {"message": "queue full", "type": "rate_limit_error", "code": 429}})
    server = script(streamed(piece("Bru") + broken))
    texts = server.client().chat("alice", "hi", stream=True).text_stream
    assert next(texts) == "Bru"
    with pytest.raises(RateLimitError, match="queue full") as caught:
        next(texts)
    assert caught.value.request_id == "req-9"
    twin = await script(streamed(piece("Bru") + broken)).async_client().chat("alice", "hi", stream=True)
    with pytest.raises(RateLimitError):
        await twin.get_final_response()
    assert len(server.requests) == 1


async def test_a_connection_that_breaks_in_the_stream_is_an_error_and_not_tried_again() -> None:
    server = script(streamed(piece("Bru"), httpx.ReadError("reset")))
    with pytest.raises(APIConnectionError):
        server.client().chat("alice", "hi", stream=True).get_final_response()
    twin = script(streamed(piece("Bru"), httpx.ReadError("reset")))
    with pytest.raises(APIConnectionError):
        await (await twin.async_client().chat("alice", "hi", stream=True)).get_final_response()
    assert len(server.requests) == len(twin.requests) == 1


def test_an_answer_that_is_cut_off_is_not_taken_for_a_whole_one() -> None:
    stream = script(streamed(piece("Bru"))).client().chat("alice", "hi", stream=True)
    with pytest.raises(APIConnectionError, match="before"):
        stream.get_final_response()


def test_what_follows_the_end_mark_is_not_read() -> None:
    response = streamed(piece("Bruno"), DONE, piece("more"))
    assert script(response).client().chat("alice", "hi", stream=True).get_final_response().text == "Bruno"
    assert body_of(response).read == 2


def test_a_closed_stream_stops_and_has_no_final_response() -> None:
    response = streamed(*WHOLE)
    stream = script(response).client().chat("alice", "hi", stream=True)
    assert next(iter(stream)).text == "Bru"
    stream.close()
    stream.close()
    assert list(stream) == []
    assert body_of(response).read == 1
    with pytest.raises(InferScaleError, match="no final response"):
        stream.get_final_response()


def test_closing_while_another_thread_waits_for_a_piece_ends_the_iteration() -> None:
    def hang_up() -> bytes:
        stream.close()
        raise httpx.ReadError("closed under the reader")

    stream = script(streamed(piece("Bru"), hang_up)).client().chat("alice", "hi", stream=True)
    assert list(stream.text_stream) == ["Bru"]


async def test_leaving_an_async_stream_early_closes_the_connection() -> None:
    response = streamed(*WHOLE)
    async with await script(response).async_client().chat("alice", "hi", stream=True) as stream:
        async for _ in stream.text_stream:
            break
    assert body_of(response).closed > 0
    with pytest.raises(InferScaleError, match="no final response"):
        await stream.get_final_response()


def test_an_event_that_is_not_json_is_a_validation_error() -> None:
    with pytest.raises(APIResponseValidationError, match="not JSON"):
        list(script(streamed(event("{broken"))).client().chat("alice", "hi", stream=True))


def test_a_streamed_tool_call_is_put_together() -> None:
    def part(**call: Any) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}

    total = Accumulator()
    total.take(part(index=0, id="c1", type="function", function={"name": "look", "arguments": ""}))
    total.take(part(index=0, function={"arguments": '{"a"'}))
    total.take(part(index=1, id="c2", function={"name": "go", "arguments": "{}"}))
    total.take(part(index=0, function={"arguments": ": 1}"}))
    calls = total.total()["choices"][0]["message"]["tool_calls"]
    assert [(call["id"], call["function"]) for call in calls] == [
        ("c1", {"name": "look", "arguments": '{"a": 1}'}),
        ("c2", {"name": "go", "arguments": "{}"}),
    ]


def test_several_choices_and_their_logprobs_are_kept_apart() -> None:
    total = Accumulator()
    for index, text in ((1, "b"), (0, "a"), (1, "B"), (0, "A")):
        scores = {"content": [{"token": text, "logprob": -1.0}]}
        total.take({"choices": [{"index": index, "delta": {"content": text}, "logprobs": scores}]})
    choices = total.total()["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["aA", "bB"]
    assert [[scored["token"] for scored in choice["logprobs"]["content"]] for choice in choices] == [
        ["a", "A"],
        ["b", "B"],
    ]


@pytest.mark.parametrize(
    ("raw", "events"),
    [
        (b"data: a\n\ndata: b\n\n", ["a", "b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
        (b"data: a\r\rdata: b\r\r", ["a"]),
        (b": keep alive\n\nevent: x\nid: 1\ndata:a\n\n", ["a"]),
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b"data: unfinished\n", []),
    ],
)
def test_events_are_cut_at_blank_lines_however_lines_end(raw: bytes, events: list[str]) -> None:
    whole = EventDecoder()
    assert list(whole.push(raw)) == events
    bytewise = EventDecoder()
    assert [found for byte in raw for found in bytewise.push(bytes([byte]))] == events


def test_an_event_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferscale_sdk._sse.MAX_EVENT_BYTES", 100)
    decoder = EventDecoder()
    with pytest.raises(APIResponseValidationError, match="100 bytes"):
        for _ in range(20):
            list(decoder.push(json.dumps("x" * 20).encode()))
