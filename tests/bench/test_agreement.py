"""When two answers count as the same."""

from __future__ import annotations

from math import inf

import pytest

from inferscale_server.bench.agreement import Token, compare, complaints, read_tokens
from inferscale_server.errors import Unavailable

ANSWER = (Token("a", {"a": -0.1, "b": -2.0}), Token("c", {"c": -0.2, "d": -1.5}))


def test_equal_answers_agree() -> None:
    agreement = compare("kv", "Why?", ANSWER, ANSWER)
    assert (agreement.tokens, agreement.identical_tokens, agreement.difference) == (2, 2, 0.0)
    assert agreement.holds and complaints([agreement]) == []


@pytest.mark.parametrize(("shift", "holds"), [(0.0009, True), (0.0011, False)])
def test_the_largest_difference_of_any_ranked_token_counts(shift: float, holds: bool) -> None:
    other = (ANSWER[0], Token("c", {"c": -0.2, "d": -1.5 + shift}))
    agreement = compare("kv", "Why?", ANSWER, other)
    assert agreement.difference == pytest.approx(shift)
    assert agreement.holds is holds


def test_after_a_different_token_nothing_is_compared() -> None:
    ours = (Token("a", {"a": -0.7}), Token("x", {"x": -5.0}))
    theirs = (Token("b", {"b": -0.7, "a": -0.7}), Token("x", {"x": -1.0}))
    agreement = compare("kv", "Why?", ours, theirs)
    assert (agreement.identical_tokens, agreement.difference) == (0, 0.0)
    assert complaints([agreement]) == ["kv: 0 of 2 tokens identical, logprobs differ by 0.0e+00: Why?"]


def test_an_answer_that_ends_early_does_not_agree() -> None:
    assert not compare("kv", "Why?", ANSWER, ANSWER[:1]).holds


def test_tokens_that_no_ranking_shares_differ_infinitely() -> None:
    assert compare("kv", "Why?", ANSWER[:1], (Token("z", {"z": -0.1}),)).difference == inf


def test_two_halves_of_a_character_are_not_the_same_token() -> None:
    halves = [{"token": "\ufffd", "bytes": [byte], "logprob": -1.0, "top_logprobs": []} for byte in (195, 164)]
    one, other = read_tokens({"content": halves})
    assert one.text != other.text


def test_rankings_are_read_with_the_chosen_token_in_them() -> None:
    content = [{"token": "a", "logprob": -3.0, "top_logprobs": [{"token": "b", "logprob": -0.1}]}]
    assert read_tokens({"content": content}) == (Token("'a'", {"'a'": -3.0, "'b'": -0.1}),)


@pytest.mark.parametrize("logprobs", [None, {}, {"content": None}, {"content": []}])
def test_an_answer_without_logprobs_is_an_error(logprobs: dict[str, object] | None) -> None:
    with pytest.raises(Unavailable, match="without logprobs"):
        read_tokens(logprobs)
