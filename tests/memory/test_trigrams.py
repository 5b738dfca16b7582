"""Facts in scripts that the packaged embedder does not know, found by their letters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from inferscale_server.embed import Embedder, load_embedder
from inferscale_server.facts import FactStore
from inferscale_server.index import ExactIndex
from inferscale_server.memory import MemoryService
from inferscale_server.nearest import Question, nearest
from inferscale_server.trigrams import TrigramIndex, fold, grams
from inferscale_server.types import Fact, FactChange, FactDraft, Owner
from tests.memory.fakes import FakeEmbedder, RecordingSink

ALICE, BOB = Owner("local", "alice"), Owner("local", "bob")

THAI_FRUITS = ["มะม่วง", "ทุเรียน", "กล้วย", "ส้ม", "แอปเปิล", "มังคุด", "เงาะ", "ลำไย", "ฝรั่ง", "องุ่น"]
THAI = [
    said + fruit for said in ("ฉันชอบกิน", "แม่ของฉันชอบกิน", "เมื่อวานฉันซื้อ", "ฉันไม่ชอบ", "พี่ชายปลูก") for fruit in THAI_FRUITS
]
CHINESE_FRUITS = ["芒果", "榴莲", "香蕉", "橙子", "苹果", "山竹", "葡萄", "西瓜", "草莓", "桃子"]
CHINESE = [f"我{said}{fruit}" for said in ("喜欢吃", "不喜欢", "昨天买了", "想种", "卖过") for fruit in CHINESE_FRUITS]


def fact(text: str, number: int = 0, owner: Owner = ALICE) -> Fact:
    return Fact(str(number), owner, number, text, None, None, None, {}, 0.0)


@pytest.fixture(scope="module")
def minilm() -> Embedder:
    return load_embedder("minilm")


@pytest.fixture
def best(minilm: Embedder) -> Callable[[Sequence[str], str], str]:
    """The fact that is found first for a question."""

    def find(texts: Sequence[str], question: str) -> str:
        index, trigrams = ExactIndex(), TrigramIndex(minilm.represents)
        trigrams.add(fact(text, i) for i, text in enumerate(texts))
        index.add(ALICE, [str(i) for i in range(len(texts))], minilm.embed(texts))
        asked = Question(minilm.embed([question])[0], question)
        return texts[int(nearest(index, trigrams, ALICE, asked, 5)[0].fact_id)]

    return find


@pytest.mark.parametrize("question", ["พี่ชายปลูกองุ่นไหม", "องุ่นที่พี่ชายปลูก"])
def test_a_thai_fact_is_found_among_fifty(best: Callable[[Sequence[str], str], str], question: str) -> None:
    assert best(THAI, question) == "พี่ชายปลูกองุ่น"


def test_a_chinese_fact_is_found_among_fifty(best: Callable[[Sequence[str], str], str]) -> None:
    assert best(CHINESE, "昨天买了什么西瓜?") == "我昨天买了西瓜"
    assert best(CHINESE, "我卖过桃子吗") == "我卖过桃子"


GERMAN = [
    "Meine Schwester heißt Käthe und spielt Flöte.",
    "Mein Hund frisst gerne Würstchen.",
    "Ich bin gegen Erdnüsse allergisch.",
    "Die Straße vor dem Haus wird gebaut.",
    "Unsere Katze heißt Mieze.",
]
EMOJI = [
    "I love my dog 🐕",
    "We had 🍕 on Friday",
    "The family 👨‍👩‍👧 at the lake",
    "🏳️‍🌈 parade in June",
    "❤️ Oslo",
    "Bought milk",
]
HEBREW = ["אני אוהב קפה שחור", "אחותי גרה בתל אביב", "הכלב שלי נקרא רקס", "אני עובד בבנק"]
ARABIC = ["أحب القهوة السوداء", "أختي تسكن في القاهرة", "كلبي اسمه ركس", "أعمل في بنك"]
RUSSIAN = ["Я люблю чёрный кофе", "Моя сестра живёт в Москве", "Мою собаку зовут Рекс"]
KOREAN = ["저는 커피를 좋아해요", "제 여동생은 서울에 살아요", "제 개 이름은 렉스예요"]


@pytest.mark.parametrize(
    ("texts", "question", "number"),
    [
        (GERMAN, "Wie heißt meine Schwester?", 0),
        (GERMAN, "Was frisst mein Hund?", 1),
        (GERMAN, "Wogegen bin ich allergisch? Erdnüsse?", 2),
        (GERMAN, "Was wird vor dem Haus gebaut?", 3),
        (EMOJI, "🐕", 0),
        (EMOJI, "👨‍👩‍👧", 2),
        (EMOJI, "🏳️‍🌈", 3),
        (EMOJI, "❤", 4),
        (EMOJI, "Which pet do I love?", 0),
        (HEBREW, "איפה גרה אחותי?", 1),
        (HEBREW, "\u200fקפה\u200f", 0),
        (ARABIC, "أين تسكن أختي؟", 1),
        (RUSSIAN, "Где живёт моя сестра?", 1),
        (KOREAN, "여동생은 어디에 살아요?", 1),
    ],
)
def test_a_fact_is_found_in_its_own_script(
    best: Callable[[Sequence[str], str], str], texts: Sequence[str], question: str, number: int
) -> None:
    assert best(texts, question) == texts[number]


def test_english_among_facts_in_another_script_is_found_by_meaning(best: Callable[[Sequence[str], str], str]) -> None:
    assert (
        best([*THAI, "My dog is called Rex", "I live in Oslo"], "What is the name of my pet?") == "My dog is called Rex"
    )


def test_a_foreign_word_in_an_english_fact_is_found(best: Callable[[Sequence[str], str], str]) -> None:
    texts = ["My favourite fruit is called มะม่วง in Thailand", "My dog is Rex", "I live in Oslo"]
    assert best(texts, "มะม่วง") == texts[0]


def test_what_is_represented_is_a_share(minilm: Embedder) -> None:
    assert minilm.represents("My dog is called Rex, 4417.") == 1
    assert minilm.represents("Ich wohne in Düsseldorf nahe der Königsallee.") == 1
    assert minilm.represents("ฉันชอบกินมะม่วง") == minilm.represents("👨‍👩‍👧") == 0
    assert 0.5 < minilm.represents("I love my dog 🐕") < 1
    assert minilm.represents("") == minilm.represents("\ud800") == 1


def test_text_is_compared_without_case_width_joiners_and_selectors() -> None:
    assert fold("STRASSE  Ｗｉｄｅ") == fold("straße wide")
    assert fold("❤️") == fold("❤") and grams("👨‍👩‍👧") >= {"👨", "👩", "👧"}
    assert fold("e\u0301") == fold("é")


def test_a_text_of_one_letter_or_none_has_what_it_has() -> None:
    assert grams("ก") == {"ก"} and grams("") == grams(" \u200d") == frozenset()


UNKNOWN = FakeEmbedder()
UNKNOWN.represents = lambda text: 0.0  # type: ignore[method-assign]


def found(index: TrigramIndex, question: str, owner: Owner = ALICE) -> set[str]:
    return {overlap.fact_id for overlap in index.search(owner, question)}


def test_an_owner_finds_only_their_own_facts() -> None:
    index = TrigramIndex(UNKNOWN.represents)
    index.add([fact("มะม่วง", 1), fact("มะม่วง", 2, BOB)])
    assert found(index, "มะม่วง") == {"1"} and found(index, "มะม่วง", BOB) == {"2"}
    assert found(index, "มะม่วง", Owner("other", "alice")) == set()


def test_a_removed_fact_is_not_found_and_leaves_no_letters() -> None:
    index = TrigramIndex(UNKNOWN.represents)
    index.add(fact(text, i) for i, text in enumerate(THAI))
    index.remove(ALICE, [str(i) for i in range(45)] + ["unknown"])
    assert index.count(ALICE) == 5 and found(index, "แม่ของฉัน") <= {str(i) for i in range(45, 50)}
    index.add([fact("ฉันชอบกินมะม่วง", 99)])
    assert "99" in found(index, "มะม่วง")
    index.remove_owner(ALICE)
    assert index.count(ALICE) == 0 and found(index, "มะม่วง") == set() and "มะม่วง" not in repr(index._books)


def test_a_rewritten_fact_is_found_by_what_it_says_now() -> None:
    index = TrigramIndex(UNKNOWN.represents)
    index.add([fact("มะม่วง", 1)])
    index.add([fact("ทุเรียน", 1)])
    assert found(index, "มะม่วง") == set() and found(index, "ทุเรียน") == {"1"} and index.count(ALICE) == 1


def test_a_fact_that_is_known_in_full_is_not_kept() -> None:
    index = TrigramIndex(FakeEmbedder().represents)
    index.add([fact("tea", 1)])
    assert index.count(ALICE) == 0 and index.represented(ALICE, "1") == 1


def test_scores_are_shares_and_a_minimum_is_kept() -> None:
    index, trigrams = ExactIndex(), TrigramIndex(UNKNOWN.represents)
    index.add(ALICE, ["0", "1"], FakeEmbedder().embed(["a", "b"]))
    trigrams.add([fact("มะม่วง", 0), fact("ทุเรียน", 1)])
    asked = Question(FakeEmbedder().embed(["a"])[0], "มะม่วง")
    assert [(one.fact_id, one.score) for one in nearest(index, trigrams, ALICE, asked, 5, 0.5)] == [("0", 1.0)]
    assert [one.fact_id for one in nearest(index, trigrams, ALICE, asked, 5)] == ["0", "1"]
    assert [one.fact_id for one in nearest(index, trigrams, ALICE, asked, 5, None, lambda id_: id_ == "1")] == ["1"]


def test_a_reader_beside_a_writer_never_takes_one_fact_for_another() -> None:
    index, done, wrong = TrigramIndex(UNKNOWN.represents), threading.Event(), []
    index.add([fact("กขค", 0)])

    def read() -> None:
        while not done.is_set():
            wrong.extend(id_ for id_ in found(index, "กขค") if int(id_) % 2)

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(1, 400):
        index.add([fact("กขค" if i % 2 == 0 else "จฉช", i)])
        index.remove(ALICE, [str(i - 1)] if i % 3 else [])
    done.set()
    reader.join()
    assert wrong == []


class ThaiIsUnknown(FakeEmbedder):
    """Gives all Thai texts one vector, like the packaged model."""

    def represents(self, text: str) -> float:
        return float(text.isascii())

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return super().embed([text if text.isascii() else "unknown" for text in texts])


async def test_the_memory_service_finds_updates_and_forgets_by_letters_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "facts.sqlite3"
    memory = MemoryService(FactStore(path), ExactIndex(), ThaiIsUnknown(), RecordingSink())
    await memory.start()
    await memory.add(ALICE, [FactDraft(text) for text in THAI])
    await memory.add(BOB, [FactDraft("พี่ชายปลูกองุ่น")])
    await memory.aclose()
    memory = MemoryService(FactStore(path), ExactIndex(), ThaiIsUnknown(), RecordingSink())
    await memory.start()
    first, second = (await memory.search(ALICE, "พี่ชายปลูกองุ่นไหม", 2))[:2]
    assert first.fact.text == "พี่ชายปลูกองุ่น" and first.score > second.score
    await memory.update(ALICE, second.fact.id, FactChange(text="พี่ชายปลูกองุ่นและมังคุด"))
    await memory.delete(ALICE, first.fact.id)
    assert (await memory.search(ALICE, "พี่ชายปลูกองุ่นไหม", 1))[0].fact.text == "พี่ชายปลูกองุ่นและมังคุด"
    await memory.delete_owner(ALICE)
    assert await memory.search(ALICE, "องุ่น", 5) == ()
    assert [hit.fact.owner for hit in await memory.search(BOB, "องุ่น", 5)] == [BOB]
    await memory.aclose()
