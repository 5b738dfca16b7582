"""Claims about conversations that become facts, with a scripted model over a real store."""

from __future__ import annotations

import asyncio

import pytest

from inferscale_server.errors import Conflict, NotFound
from inferscale_server.extraction.answer import MAX_FACTS_PER_TURN
from inferscale_server.extraction.extraction import Extraction
from inferscale_server.extraction.extractor import VerbatimExtractor
from inferscale_server.extraction.judge import ModelJudge, RuleJudge
from inferscale_server.extraction.prompt import MAX_FACT_LETTERS
from inferscale_server.extraction.turn import Sources
from inferscale_server.memory import MemoryService
from inferscale_server.types import AddOutcome, FactDraft, IdempotencyKey
from tests.extraction.script import ALICE, SAID_AT, assistant, extraction, facts, relation, script, texts, turns, user
from tests.memory.fakes import RecordingSink

KEY = IdempotencyKey("k", "digest")


def statuses(outcomes: tuple[AddOutcome, ...]) -> list[str]:
    return [outcome.status for outcome in outcomes]


async def test_a_turn_becomes_facts_that_are_found(memory: MemoryService) -> None:
    model = script(facts("User has a dog called Rex.", "User went hiking yesterday."))
    said = turns("My dog is called Rex. Yesterday I went hiking.")
    outcomes = await extraction(memory, model).remember(ALICE, said)
    assert statuses(outcomes) == ["stored", "stored"]
    assert texts(memory) == ["User has a dog called Rex.", "User went hiking yesterday (2023-05-07)."]
    [first, _] = memory.facts(ALICE)
    assert (first.speaker, first.occurred_at) == ("user", SAID_AT)
    assert (await memory.search(ALICE, "dog Rex", 1))[0].fact == first


async def test_the_model_sees_the_message_its_date_and_the_schema_and_nothing_else(memory: MemoryService) -> None:
    model = script(facts())
    said = turns({"role": "system", "content": "User likes tea (memory)"}, user("I moved yesterday", name="Ann"))
    await extraction(memory, model).remember(ALICE, said)
    [prompt] = model.asked
    assert prompt.user == "Said on Monday, 2023-05-08.\nAnn: I moved yesterday (2023-05-07)"
    assert "tea" not in prompt.system
    assert prompt.schema["properties"]["facts"]["items"]["properties"]["who"]["enum"] == ["Ann"]


async def test_30_turns_of_ok_make_no_fact_and_no_question(memory: MemoryService) -> None:
    await memory.add(ALICE, [FactDraft("The user likes tea.")])
    said = turns(*(message for _ in range(30) for message in (user("ok"), assistant("You like tea, as you know."))))
    assert await extraction(memory, script()).remember(ALICE, said) == ()
    assert texts(memory) == ["The user likes tea."]


async def test_a_system_message_is_not_remembered(memory: MemoryService) -> None:
    said = turns({"role": "system", "content": "User likes tea (memory)"})
    assert await extraction(memory, script()).remember(ALICE, said) == ()
    assert texts(memory) == []


async def test_a_broken_answer_is_asked_for_once_more(memory: MemoryService) -> None:
    model = script("", facts("User has a dog."))
    assert statuses(await extraction(memory, model).remember(ALICE, turns("I have a dog"))) == ["stored"]
    first, second = model.asked
    assert first.temperature == 0 and second.temperature > 0 and "JSON" in second.user
    assert first.max_tokens >= MAX_FACTS_PER_TURN * MAX_FACT_LETTERS and second.max_tokens > 2 * first.max_tokens


async def test_the_end_of_a_long_turn_that_was_not_read_is_reported(memory: MemoryService) -> None:
    model = script(facts("User has a dog."))
    said = turns("I have a dog. " + "Woof! " * 1_100)
    outcomes = await extraction(memory, model).remember(ALICE, said)
    assert len(model.asked[0].user) < 6_100
    assert statuses(outcomes) == ["stored", "failed"] and "characters of the turn were not read" in str(outcomes[1])


async def test_a_date_in_the_models_own_words_loses_no_fact(memory: MemoryService) -> None:
    model = script(facts("User moved to Rome on May 7, 2023.", "User moved to Rome on May 9, 2023."))
    outcomes = await extraction(memory, model).remember(ALICE, turns("I moved to Rome yesterday"))
    assert statuses(outcomes) == ["stored", "failed"]
    assert texts(memory) == ["User moved to Rome on May 7, 2023."]


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (("", ""), "the answer is empty"),
        (("I cannot do that.", "Sorry."), "the answer is no JSON"),
        (('{"dogs": 1}', '{"dogs": 1}'), "the answer holds no list of facts"),
        ((None, None), "the model is away"),
        ((None, "{"), "the answer is no JSON"),
    ],
)
async def test_two_broken_answers_are_a_failure_with_the_reason(
    memory: MemoryService, answers: tuple[str | None, ...], reason: str
) -> None:
    model = script(*answers, facts("User has a cat."))
    outcomes = await extraction(memory, model).remember(ALICE, turns("I have a dog", "I have a cat"))
    assert outcomes[0] == AddOutcome(None, "I have a dog", "failed", reason)
    assert statuses(outcomes) == ["failed", "stored"] and texts(memory) == ["User has a cat."]


async def test_what_is_whole_of_a_cut_answer_is_stored_and_the_cut_is_reported(memory: MemoryService) -> None:
    cut = facts("User has a dog.", "User has a cat.")[:-12]
    outcomes = await extraction(memory, script(cut, cut)).remember(ALICE, turns("I have a dog and a cat"))
    assert statuses(outcomes) == ["stored", "failed"] and "cut short" in str(outcomes[1].reason)


async def test_an_invented_fact_is_left_out_and_reported(memory: MemoryService) -> None:
    model = script(facts("User has a dog.", "User likes green tea."))
    outcomes = await extraction(memory, model).remember(ALICE, turns("I have a dog"))
    assert statuses(outcomes) == ["stored", "failed"] and "not in the words" in str(outcomes[1].reason)
    assert texts(memory) == ["User has a dog."]


@pytest.mark.parametrize(
    "again", ["User is allergic to peanuts.", "user is allergic to PEANUTS", "User is allergic  to peanuts!"]
)
async def test_the_same_fact_twice_is_one(memory: MemoryService, again: str) -> None:
    model = script(facts("User is allergic to peanuts."), facts(again))
    service = extraction(memory, model)
    said = turns("I am allergic to peanuts")
    [first] = await service.remember(ALICE, said)
    [second] = await service.remember(ALICE, said)
    assert (second.status, second.id) == ("duplicate", first.id)
    assert texts(memory) == ["User is allergic to peanuts."]


async def test_two_turns_at_once_do_not_both_store_the_same(memory: MemoryService) -> None:
    model = script(facts("User has a dog."), facts("user has a DOG"))
    service = extraction(memory, model)
    both = await asyncio.gather(*(service.remember(ALICE, turns("I have a dog")) for _ in range(2)))
    assert sorted(statuses(both[0] + both[1])) == ["duplicate", "stored"]


async def test_S10_a_superseded_fact_can_be_deleted_by_its_id(memory: MemoryService) -> None:
    model = script(facts("User lives in Oslo."), facts("User lives in Rome."), relation("replaces", 1))
    service = extraction(memory, model, ModelJudge(model.write))
    [first] = await service.remember(ALICE, turns("I live in Oslo"))
    await service.remember(ALICE, turns("I live in Rome"))
    await memory.delete(ALICE, str(first.id))
    assert [event.text for event in await memory.history(ALICE, str(first.id))] == [None, None, None]
    with pytest.raises(NotFound):
        await memory.delete(ALICE, str(first.id))


async def test_a_contradiction_takes_the_older_ones_place(memory: MemoryService, sink: RecordingSink) -> None:
    model = script(facts("User loves Chinese food."), facts("User hates Chinese food."), relation("replaces", 1))
    service = extraction(memory, model, ModelJudge(model.write))
    [first] = await service.remember(ALICE, turns("I love Chinese food"))
    epoch = memory.epoch(ALICE)
    new, old = await service.remember(ALICE, turns("I hate Chinese food", at=SAID_AT + 60))
    assert (new.status, old.status, old.id, old.text) == ("stored", "superseded", first.id, "User loves Chinese food.")
    assert old.reason == f"by {new.id}"
    assert texts(memory) == ["User hates Chinese food."]
    assert [hit.fact.id for hit in await memory.search(ALICE, "loves Chinese food", 5)] == [new.id]
    assert memory.epoch(ALICE) == epoch + 1
    assert ("forgotten", ALICE, (old.id,)) in sink.heard
    events = await memory.history(ALICE, str(old.id))
    assert [(event.event, event.text) for event in events] == [
        ("added", "User loves Chinese food."),
        ("superseded", None),
    ]
    assert events[1].metadata == {"by": new.id}


async def test_bob_and_ann_stay_two_even_when_the_model_says_they_are_the_same(memory: MemoryService) -> None:
    model = script(facts("Bob manages Ann."), facts("Ann manages Bob."), relation("same", 1))
    service = extraction(memory, model, ModelJudge(model.write))
    for text in ("Bob manages Ann", "Ann manages Bob"):
        assert statuses(await service.remember(ALICE, turns(text))) == ["stored"]
    assert texts(memory) == ["Bob manages Ann.", "Ann manages Bob."]


async def test_the_passive_form_is_the_same_when_the_model_says_so(memory: MemoryService) -> None:
    model = script(facts("Ann manages Bob."), facts("Bob is managed by Ann."), relation("same", 1))
    service = extraction(memory, model, ModelJudge(model.write))
    [first] = await service.remember(ALICE, turns("Ann manages Bob"))
    [second] = await service.remember(ALICE, turns("Bob is managed by Ann"))
    assert (second.status, second.id) == ("duplicate", first.id)


async def test_without_a_model_to_judge_nothing_is_merged_by_nearness(memory: MemoryService) -> None:
    model = script(facts("Bob manages Ann."), facts("Ann manages Bob."), facts("Bob manages Ann now."))
    service = extraction(memory, model, RuleJudge())
    for text in ("Bob manages Ann", "Ann manages Bob", "Bob manages Ann now"):
        await service.remember(ALICE, turns(text))
    assert len(texts(memory)) == 3


def verbatim(memory: MemoryService, sources: Sources = "user") -> Extraction:
    """What a server with the embedded model has."""
    return Extraction(memory, VerbatimExtractor(), RuleJudge(), sources)


async def test_by_rule_the_newer_taste_is_found_and_the_older_one_superseded(memory: MemoryService) -> None:
    service = verbatim(memory)
    [old] = await service.remember(ALICE, turns("I love Chinese food"))
    new, gone = await service.remember(ALICE, turns("I hate Chinese food", at=SAID_AT + 60))
    assert (new.status, gone.status, gone.id, gone.reason) == ("stored", "superseded", old.id, f"by {new.id}")
    assert [hit.fact.text for hit in await memory.search(ALICE, "love Chinese food", 5)] == ["I hate Chinese food"]


async def test_by_rule_all_that_the_new_one_makes_untrue_goes(memory: MemoryService) -> None:
    service = verbatim(memory)
    await service.remember(ALICE, turns("I love tea", "I like tea", "I love Thai food"))
    outcomes = await service.remember(ALICE, turns("I hate tea", at=None))
    assert statuses(outcomes) == ["stored", "superseded", "superseded"]
    assert texts(memory) == ["I love Thai food", "I hate tea"]


async def test_by_rule_the_passive_form_is_the_same(memory: MemoryService) -> None:
    service = verbatim(memory)
    [first] = await service.remember(ALICE, turns("Ann manages Bob"))
    [second] = await service.remember(ALICE, turns("Bob is managed by Ann"))
    assert (second.status, second.id) == ("duplicate", first.id)
    assert statuses(await service.remember(ALICE, turns("Bob manages Ann"))) == ["stored"]


@pytest.mark.parametrize(
    "message",
    [
        user("I live in Rome", name="Bob"),
        user("I live in Rome", agent_id="coach"),
        user("I live in Rome", timestamp="2023-05-01T00:00:00Z"),
    ],
)
async def test_by_rule_another_speaker_scope_or_an_earlier_time_replaces_nothing(
    memory: MemoryService, message: dict[str, object]
) -> None:
    service = verbatim(memory)
    await service.remember(ALICE, turns("I live in Oslo"))
    assert statuses(await service.remember(ALICE, turns(message))) == ["stored"]
    assert texts(memory) == ["I live in Oslo", "I live in Rome"]


@pytest.mark.parametrize(("speaker", "left"), [(None, 1), ("user", 1), ("Bob", 2)])
async def test_by_rule_what_a_program_wrote_in_nobodys_name_is_the_users(
    memory: MemoryService, speaker: str | None, left: int
) -> None:
    await memory.add(ALICE, [FactDraft("I live in Oslo", speaker)])
    await verbatim(memory).remember(ALICE, turns("I live in Rome", at=None))
    assert texts(memory) == ["I live in Oslo", "I live in Rome"][-left:]


async def test_what_was_said_earlier_does_not_take_a_later_facts_place(memory: MemoryService) -> None:
    model = script(facts("User lives in Oslo."), facts("User lives in Rome."), relation("replaces", 1))
    service = extraction(memory, model, ModelJudge(model.write))
    await service.remember(ALICE, turns("I live in Oslo"))
    await service.remember(ALICE, turns("I live in Rome", at=SAID_AT - 1e6))
    assert texts(memory) == ["User lives in Oslo.", "User lives in Rome."]


@pytest.mark.parametrize("answer", ["", relation("same", 7), relation("same", 0), '{"relation": "near"}', "[]", None])
async def test_a_judge_that_cannot_be_read_loses_no_fact(memory: MemoryService, answer: str | None) -> None:
    model = script(facts("User lives in Oslo."), facts("User lives in Rome."), answer, answer)
    service = extraction(memory, model, ModelJudge(model.write))
    await service.remember(ALICE, turns("I live in Oslo"))
    [outcome] = await service.remember(ALICE, turns("I live in Rome"))
    assert outcome.status == "stored" and "without comparing" in str(outcome.reason)


async def test_a_repeat_with_the_same_key_asks_no_model(memory: MemoryService) -> None:
    service = extraction(memory, script(facts("User has a dog.")))
    first = await service.remember(ALICE, turns("I have a dog"), KEY)
    again = await service.remember(ALICE, turns("I have a dog"), KEY)
    assert [(one.id, one.status) for one in again] == [(one.id, one.status) for one in first]
    with pytest.raises(Conflict):
        await service.remember(ALICE, turns("I have a cat"), IdempotencyKey("k", "another body"))


async def test_S10_what_was_said_before_all_was_deleted_is_not_stored_after(memory: MemoryService) -> None:
    since = memory.wipes(ALICE)
    await memory.delete_owner(ALICE)
    with pytest.raises(Conflict):
        await extraction(memory, script(facts("User has a dog."))).remember(ALICE, turns("I have a dog"), None, since)
    assert texts(memory) == []


async def test_session_scope_and_metadata_are_the_messages(memory: MemoryService) -> None:
    message = user("I have a dog", session_id="s1", agent_id="coach", run_id="r1", metadata={"topic": "pets"})
    await extraction(memory, script(facts("User has a dog."))).remember(ALICE, turns(message))
    [fact] = memory.facts(ALICE)
    assert (fact.session_id, fact.agent_id, fact.run_id, fact.metadata) == ("s1", "coach", "r1", {"topic": "pets"})


async def test_verbatim_keeps_the_message_as_it_stands(memory: MemoryService) -> None:
    service = Extraction(memory, VerbatimExtractor(), RuleJudge())
    assert statuses(await service.remember(ALICE, turns("I hiked yesterday", "ok"))) == ["stored"]
    assert texts(memory) == ["I hiked yesterday"]


async def test_verbatim_leaves_out_what_only_asks(memory: MemoryService) -> None:
    said = turns("Where do I live?", "I moved. Is Rome nice?", "Did you know that I moved?")
    assert statuses(await verbatim(memory).remember(ALICE, said)) == ["stored", "stored"]
    assert texts(memory) == ["I moved. Is Rome nice?", "Did you know that I moved?"]


@pytest.mark.parametrize(
    "answer", ["Your dog is called Rex.", "Well, as you told me, your dog is called Rex, a fine name."]
)
async def test_verbatim_does_not_learn_a_recalled_memory_from_the_answer(memory: MemoryService, answer: str) -> None:
    [turn] = turns("Tell me about him", assistant(answer), sources="both")
    recalled = turn.beside(["My dog is called Rex"])
    outcomes = await verbatim(memory, "both").remember(ALICE, [recalled])
    assert statuses(outcomes) == ["stored", "failed"] and "repeats a recalled memory" in str(outcomes[1].reason)
    assert texts(memory) == ["Tell me about him"]


async def test_verbatim_keeps_an_answer_that_says_something_else(memory: MemoryService) -> None:
    [turn] = turns("My dog is called Rex", assistant("Rex means king in Latin."), sources="both")
    await verbatim(memory, "both").remember(ALICE, [turn.beside(["My dog is called Rex"])])
    assert texts(memory) == ["My dog is called Rex", "Rex means king in Latin."]


async def test_other_languages_stay_what_they_are(memory: MemoryService) -> None:
    model = script(facts("Der User wohnt seit 2019 in Köln."), facts("用户喜欢吃饺子。"))
    service = extraction(memory, model)
    await service.remember(ALICE, turns("Ich wohne seit 2019 in Köln.", "我喜欢吃饺子"))
    assert texts(memory) == ["Der User wohnt seit 2019 in Köln.", "用户喜欢吃饺子。"]


async def test_every_outcome_is_counted(memory: MemoryService) -> None:
    heard: list[str] = []
    model = script(facts("User has a dog."), facts(), "", "")
    service = extraction(memory, model)
    service.tell = heard.append
    await service.remember(ALICE, turns("I have a dog", "what is a dog?", "I have a cat"))
    assert heard == ["stored", "nothing", "failed"]
