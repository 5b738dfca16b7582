"""Claims about the rules by which a sentence says the same as another one, or makes it untrue."""

from __future__ import annotations

import pytest

from inferscale_server.extraction.contradiction import relation_of


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("I love Chinese food", "I hate Chinese food"),
        ("User loves Chinese food.", "User dislikes Chinese food."),
        ("Ich liebe Tee", "Ich hasse Tee"),
        ("Je déteste le thé", "J'adore le thé"),
        ("Adoro il tè", "Odio il tè"),
        ("I am married", "I am divorced"),
        ("I always eat meat", "I never eat meat"),
    ],
)
def test_an_opposed_word_makes_the_older_sentence_untrue(old: str, new: str) -> None:
    assert relation_of(new, old) == "replaces"


@pytest.mark.parametrize(
    ("yes", "no"),
    [
        ("I like tea", "I do not like tea."),
        ("I like tea", "I don't like tea any more"),
        ("Ann likes tea", "Ann doesn’t like tea"),
        ("Ann has a dog", "Ann does not have a dog"),
        ("I am vegetarian", "I'm not vegetarian"),
        ("I can swim", "I can't swim"),
        ("I eat meat", "I never eat meat"),
        ("I eat meat", "I no longer eat meat"),
        ("Ann is at school", "Ann isn't at school now"),
    ],
)
def test_what_is_denied_is_untrue_and_what_is_affirmed_again_true(yes: str, no: str) -> None:
    assert relation_of(no, yes) == relation_of(yes, no) == "replaces"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("I live in Oslo.", "I live in Rome"),
        ("User lives in New York.", "User lives in Rome."),
        ("I live in Oslo", "I'm now living in Rome"),
        ("I work at Google", "I work for Meta"),
        ("my name is Bob", "My name is Ann"),
        ("The user's name is Bob", "The user's name is Ann"),
        ("My dog is called Bruno", "My dog is called Rex"),
        ("I'm 30 years old.", "I am 31 years old"),
        ("My dog is two years old", "My dog is twenty-one years old"),
        ("My favourite colour is blue", "My favourite colour is red"),
        ("My phone number is 555 1234", "My phone number is 555 4321"),
        ("My sister Ann lives in Oslo", "My sister Ann lives in Rome"),
    ],
)
def test_of_what_one_has_one_the_later_holds(old: str, new: str) -> None:
    assert relation_of(new, old) == "replaces"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("I don't like tea", "i do not like TEA!"),
        ("Ann manages Bob.", "Bob is managed by Ann"),
        ("Ann painted the house", "The house was painted by Ann."),
    ],
)
def test_the_passive_and_a_short_form_say_the_same(one: str, other: str) -> None:
    assert relation_of(one, other) == relation_of(other, one) == "same"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Bob manages Ann", "Ann manages Bob"),
        ("Bob manages Ann", "Bob is managed by Ann"),
        ("Bob manages Ann", "Bob manages Ann now"),
        ("I love Thai food", "I hate Chinese food"),
        ("I like tea", "I love tea"),
        ("I do not love tea", "I do not hate tea"),
        ("I sometimes love tea", "I sometimes hate tea"),
        ("I am only a nurse", "I am not only a nurse"),
        ("You do not like tea", "Do you like tea?"),
        ("You like tea", "You like tea not"),
        ("I am at work today", "I am not at work today"),
        ("I was at work", "I was not at work"),
        ("She is happy", "She is not happy"),
        ("I like no sugar", "I hate no sugar"),
        ("I have a dog", "I have a cat"),
        ("My dog is black", "My dog is old"),
        ("My dog is called Rex", "My cat is called Tom"),
        ("My sister lives in Oslo", "My sister lives in Rome"),
        ("My friend is called Tom", "My friend is called Bob"),
        ("My friends live in Oslo", "My friends live in Rome"),
        ("Bob lives in Oslo", "Ann lives in Rome"),
        ("Goats live in Norway", "Goats live in Iceland"),
        ("A goat lives in Norway", "A goat lives in Iceland"),
        ("I live in Oslo", "I live in a flat"),
        ("I live in Oslo", "I live in Oslo and in Rome"),
        ("I live in Oslo", "I live in Rome with Ann on weekends"),
        ("I live in Oslo", "I live in Rome. My brother lives in Oslo."),
        ("I used to live in Oslo", "I used to live in Rome"),
        ("I work at Google", "I work at home"),
        ("My name is Ann", "My name is important"),
        ("My birthday is 5 May", "My birthday is soon"),
        ("I was born in Oslo", "I was born in 1984"),
        ("I am 2 years old", "I am 3 meters tall"),
        ("Oslo", ""),
        ("I like tea " * 50, "I never like tea " + "I like tea " * 49),
    ],
)
def test_in_doubt_both_stay(one: str, other: str) -> None:
    assert relation_of(one, other) == relation_of(other, one) == "new"
