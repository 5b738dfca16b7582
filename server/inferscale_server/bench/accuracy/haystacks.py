"""Where questions come from: LoCoMo, LongMemEval, a user's own lines, or the project's sample memories.

Knows: which format a file has, and which questions have an answer to be scored. Refuses to know: what they are for.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from inferscale_server.bench.accuracy.case import Case, Haystack
from inferscale_server.bench.accuracy.longmemeval import is_longmemeval, parse_longmemeval
from inferscale_server.bench.accuracy.own_lines import read_own_lines
from inferscale_server.bench.conversation import Conversation, sample_conversation
from inferscale_server.bench.locomo import parse_conversation
from inferscale_server.demo.conversations import Memory
from inferscale_server.errors import ConfigError

LOCOMO_CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
"""LoCoMo's numbers in words. Category 5, adversarial, has no answers."""
LINES_SUFFIX = ".jsonl"


def read_haystacks(path: Path) -> list[Haystack]:
    """All questions with an answer below a folder, or of one file. Raises ConfigError that names the file."""
    files = [path] if path.is_file() else sorted(f for f in path.glob("*") if f.suffix in (".json", LINES_SUFFIX))
    if not files:
        raise ConfigError(f"option 'data': {str(path)!r} is neither a file nor a folder with *.json or *.jsonl files")
    haystacks = [haystack for file in files for haystack in _read(file) if haystack.cases]
    if not haystacks:
        raise ConfigError(f"option 'data': no question in {str(path)!r} has an answer")
    [(key, times)] = Counter(case.key for haystack in haystacks for case in haystack.cases).most_common(1)
    if times > 1:
        raise ConfigError(f"option 'data': {times} questions in {str(path)!r} are named {key!r}")
    return haystacks


def _read(file: Path) -> Sequence[Haystack]:
    try:
        haystacks = _parsed(file.stem, file.suffix, file.read_text("utf-8-sig"))
        for text in _texts(haystacks):
            text.encode()
        return haystacks
    except (OSError, ValueError, RecursionError) as error:  # ValueError: bad UTF-8, bad JSON, half a character, ours
        raise ConfigError(f"option 'data': {file}: {error}") from error


def _parsed(name: str, suffix: str, text: str) -> Sequence[Haystack]:
    if suffix == LINES_SUFFIX:
        return read_own_lines(name, text)
    read = json.loads(text)
    return parse_longmemeval(name, read) if is_longmemeval(read) else [locomo_haystack(parse_conversation(name, read))]


def _texts(haystacks: Sequence[Haystack]) -> Iterator[str]:
    for haystack in haystacks:
        for fact in haystack.facts:
            yield from (fact.text, fact.speaker or "", fact.session or "")
        for case in haystack.cases:
            yield from (case.key, case.question, case.answer, case.category)


def locomo_haystack(conversation: Conversation) -> Haystack:
    """A LoCoMo conversation's observations and its questions that have an answer, each numbered as in the file."""
    cases = tuple(
        Case(f"{conversation.name}/{at}", question.text, question.answer, LOCOMO_CATEGORIES[question.category])
        for at, question in enumerate(conversation.questions)
        if question.answer
        and question.answer.strip()
        and question.text.strip()
        and question.category in LOCOMO_CATEGORIES
    )
    return Haystack(conversation.name, conversation.facts, cases, is_locomo=True)


def sample_haystack(memories: Sequence[Memory]) -> Haystack:
    """The project's sample memories as one user's; the answers are the words that the demo looks for."""
    asked = [question for memory in memories for question in memory.questions]
    cases = [Case(f"sample/{at}", one.text, one.accept[0].capitalize(), "sample") for at, one in enumerate(asked)]
    return Haystack("sample", sample_conversation(memories).facts, tuple(cases))
