"""The stemmer against the examples that Porter published with it, and against another one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_server.bench.accuracy.porter import STEP_2, STEP_3, STEP_4, measure, shape, stem

# The whole way of a word; the paper gives the examples step by step, so each is followed to its end here.
PUBLISHED = """
caresses caress  ponies poni  ties ti  caress caress  cats cat
feed feed  agreed agre  plastered plaster  bled bled  motoring motor  sing sing
conflated conflat  troubled troubl  sized size  hopping hop  tanned tan  falling fall  hissing hiss  fizzed fizz
failing fail  filing file  happy happi  sky sky
relational relat  conditional condit  rational ration  valenci valenc  hesitanci hesit  digitizer digit
conformabli conform  radicalli radic  differentli differ  vileli vile  analogousli analog  vietnamization vietnam
predication predic  operator oper  feudalism feudal  decisiveness decis  hopefulness hope  callousness callous
formaliti formal  sensitiviti sensit  sensibiliti sensibl
triplicate triplic  formative form  formalize formal  electriciti electr  electrical electr  hopeful hope  goodness good
revival reviv  allowance allow  inference infer  airliner airlin  gyroscopic gyroscop  adjustable adjust
defensible defens  irritant irrit  replacement replac  adjustment adjust  dependent depend  adoption adopt
homologou homolog  communism commun  activate activ  angulariti angular  homologous homolog  effective effect
bowdlerize bowdler
probate probat  rate rate  cease ceas  controll control  roll roll
generalizations gener  oscillators oscil
connect connect  connected connect  connecting connect  connection connect  connections connect
"""


@pytest.mark.parametrize(("word", "stemmed"), [*zip(PUBLISHED.split()[::2], PUBLISHED.split()[1::2], strict=True)])
def test_the_published_examples_come_out_as_published(word: str, stemmed: str) -> None:
    assert stem(word) == stemmed


@pytest.mark.parametrize(
    ("m", "words"),
    [(0, "tr ee tree y by"), (1, "trouble oats trees ivy"), (2, "troubles private oaten orrery")],
)
def test_the_measure_is_the_published_one(m: int, words: str) -> None:
    assert [measure(word) for word in words.split()] == [m] * len(words.split())


def test_y_is_a_vowel_behind_a_consonant() -> None:
    assert (shape("toy"), shape("syzygy"), shape("yes")) == ("cvc", "cvcvcv", "cvc")


@pytest.mark.parametrize("word", ["", "a", "is", "us", "7", "2023", "ed", "ing"])
def test_short_words_and_numbers_stay(word: str) -> None:
    assert stem(word) == word


ENDINGS = [ending for ending, _ in (*STEP_2, *STEP_3, *STEP_4)]
WORDS = st.tuples(st.text("abcegilnorstyz", min_size=3, max_size=6), st.sampled_from([*ENDINGS, "ed", "ing", "s", ""]))


@given(WORDS.map("".join))
def test_another_implementation_of_the_paper_gives_the_same_stems(word: str) -> None:
    nltk = pytest.importorskip("nltk.stem.porter")
    assert stem(word) == nltk.PorterStemmer(mode="ORIGINAL_ALGORITHM").stem(word)
