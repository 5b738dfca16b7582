"""Divergence and F1 against figures worked out by hand, and against the whole distribution."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_server.bench.accuracy.answer_f1 import answer_f1, token_f1
from inferscale_server.bench.accuracy.distribution import Distribution, agree, kl


def top(probabilities: list[float], count: int | None = None) -> Distribution:
    """The likeliest `count` of a whole distribution."""
    order = sorted(range(len(probabilities)), key=lambda token: -probabilities[token])[:count]
    return Distribution(tuple(order), tuple(math.log(probabilities[token]) for token in order))


def exact_kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def normalised(weights: list[float]) -> list[float]:
    return [weight / sum(weights) for weight in weights]


OPINIONS = st.lists(st.floats(0.01, 1.0), min_size=6, max_size=6).map(normalised)


@given(OPINIONS, OPINIONS)
def test_kl_of_whole_distributions_is_the_textbook_sum(p: list[float], q: list[float]) -> None:
    assert kl(top(p), top(q)) == pytest.approx(exact_kl(p, q), abs=1e-6)


@given(OPINIONS, OPINIONS, st.integers(1, 5))
def test_kl_of_the_likeliest_tokens_never_exceeds_the_whole_ones(p: list[float], q: list[float], count: int) -> None:
    assert 0 <= kl(top(p, count), top(q, count)) <= exact_kl(p, q) + 1e-6


def test_a_token_that_only_one_names_is_lumped_with_the_rest() -> None:
    # Named by both: only token 0. Rest of p 1/2, of q 3/4.
    p, q = top([0.5, 0.3, 0.2], 2), top([0.25, 0.2, 0.55], 2)
    assert q.token_ids == (2, 0)
    assert kl(p, q) == pytest.approx(0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75))


def test_equal_opinions_have_no_divergence_and_agree() -> None:
    opinion = top([0.5, 0.3, 0.2], 2)
    assert kl(opinion, opinion) == 0.0 and agree(opinion, opinion)
    assert not agree(opinion, top([0.2, 0.3, 0.5]))


@pytest.mark.parametrize(
    ("answer", "gold", "f1"),
    [
        ("7 May 2023", "7 May, 2023", 1.0),
        ("The dog, and a cat.", "dog cat", 1.0),
        ("in May", "7 May 2023", 2 * 1 / (2 + 3)),
        ("She paints and hikes.", "painting, hiking", 2 * 2 / (3 + 2)),
        ("dog dog", "dog", 2 * 1 / (2 + 1)),
        ("nobody", "7 May 2023", 0.0),
        ("", "dog", 0.0),
    ],
)
def test_token_f1(answer: str, gold: str, f1: float) -> None:
    assert token_f1(answer, gold) == pytest.approx(f1)


def test_each_part_of_a_multi_hop_answer_is_compared_with_its_nearest() -> None:
    assert answer_f1("rowing, chess", "chess, judo", "multi-hop") == pytest.approx(0.5)
    assert answer_f1("rowing, chess", "chess, judo", "single-hop") == pytest.approx(0.5)
    assert answer_f1("chess judo", "chess, judo", "multi-hop") == pytest.approx(2 / 3)


def test_of_an_open_domain_answer_only_the_first_alternative_counts() -> None:
    assert answer_f1("yes", "yes; she paints", "open-domain") == 1.0
