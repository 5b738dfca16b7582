"""A model whose answers are written down beforehand, and turns for it to read."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fastapi import FastAPI

from inferscale_server.config import load_config
from inferscale_server.edge.services import Services
from inferscale_server.errors import Unavailable
from inferscale_server.extraction.build import build_extraction
from inferscale_server.extraction.extraction import Extraction
from inferscale_server.extraction.extractor import LlmExtractor
from inferscale_server.extraction.judge import Judge, RuleJudge
from inferscale_server.extraction.prompt import Prompt
from inferscale_server.extraction.turn import Sources, Turn, turns_in
from inferscale_server.memory import MemoryService
from inferscale_server.remember import DraftDefaults, said_in
from inferscale_server.types import Owner
from tests.edge.conftest import guarded

ALICE = Owner("local", "alice")
SAID_AT = 1_683_554_160.0
"""Monday, 8 May 2023, 13:56 UTC."""


@dataclass
class Script:
    """Gives the next answer, keeps the questions; None stands for a model that does not answer."""

    answers: deque[str | None] = field(default_factory=deque)
    asked: list[Prompt] = field(default_factory=list)

    def __call__(self, *answers: str | None) -> Script:
        self.answers.extend(answers)
        return self

    async def write(self, prompt: Prompt) -> str:
        self.asked.append(prompt)
        assert self.answers, f"nobody expected this question: {prompt.user!r}"
        answer = self.answers.popleft()
        if answer is None:
            raise Unavailable("the model is away")
        return answer


def script(*answers: str | None) -> Script:
    return Script()(*answers)


def facts(*texts: str, who: str = "user") -> str:
    """A good answer with these facts."""
    return json.dumps({"facts": [{"who": who, "text": text} for text in texts]}, ensure_ascii=False)


def relation(name: str, number: int = 0) -> str:
    """A good answer of the judge."""
    return json.dumps({"relation": name, "number": number})


def user(text: str, **more: object) -> dict[str, object]:
    return {"role": "user", "content": text, **more}


def assistant(text: str) -> dict[str, object]:
    return {"role": "assistant", "content": text}


def turns(
    *messages: Mapping[str, object] | str, sources: Sources = "user", at: float | None = SAID_AT
) -> Sequence[Turn]:
    """The turns of these messages; a text is the user's."""
    listed = [user(one) if isinstance(one, str) else one for one in messages]
    return turns_in(said_in(listed, DraftDefaults(occurred_at=at)), sources)


def extraction(
    memory: MemoryService, model: Script, judge: Judge | None = None, sources: Sources = "user"
) -> Extraction:
    """An extraction whose model is scripted; duplicates are found by words unless a judge is given."""
    return Extraction(memory, LlmExtractor(model.write, lambda: SAID_AT), judge or RuleJudge(), sources)


def texts(memory: MemoryService, owner: Owner = ALICE) -> list[str]:
    """What is remembered, oldest first."""
    return [fact.text for fact in memory.facts(owner)]


def by_default(services: Services) -> FastAPI:
    """The routes as a server with the embedded model and no settings has them: no model is asked."""
    return guarded(with_defaults(services))


def with_defaults(services: Services) -> Services:
    """The services with the extraction of a server with the embedded model and no settings."""
    extraction = build_extraction(load_config({}, {}), services.memory, script().write, lambda status: None)
    return replace(services, extraction=extraction)
