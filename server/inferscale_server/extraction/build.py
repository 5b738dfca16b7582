"""Puts an extractor and a judge together, as the configuration says.

Knows: which of them there are. Raises ConfigError at the start, never later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inferscale_server.config import ServerConfig
from inferscale_server.embed_endpoint import PREFIX, parse_endpoint
from inferscale_server.extraction.backlog import TurnBacklog, Waiting
from inferscale_server.extraction.endpoint import EndpointWriter
from inferscale_server.extraction.extraction import Extraction
from inferscale_server.extraction.extractor import Extractor, LlmExtractor, VerbatimExtractor
from inferscale_server.extraction.judge import Judge, ModelJudge, RuleJudge
from inferscale_server.extraction.mem0_pipeline import Mem0Extractor
from inferscale_server.extraction.prompt import Writer
from inferscale_server.memory import MemoryService

MEM0_FOLDER = "mem0"


@dataclass(frozen=True, slots=True)
class ExtractorChoice:
    """Which extractor is in use, and why, in words for the operator."""

    name: str
    reason: str


def choose_extractor(config: ServerConfig) -> ExtractorChoice:
    """What `auto` means here; another name is taken as it was given."""
    if config.extractor != "auto":
        return ExtractorChoice(config.extractor, "asked for")
    if config.model is None:
        return ExtractorChoice("verbatim", "auto: the embedded model is too small to make facts of messages")
    return ExtractorChoice("llm", "auto: the served model makes facts of messages")


def build_extraction(
    config: ServerConfig, memory: MemoryService, served: Writer, tell: Callable[[str], None]
) -> Extraction | None:
    """What turns conversations into facts here; None when it is switched off. `served` is the model that is served.

    Raises ConfigError.
    """
    name = choose_extractor(config).name
    if name == "off":
        return None
    endpoint = None
    if name.startswith(PREFIX):
        at = parse_endpoint(name, config.extractor_url, config.extractor_secret, "extractor")
        endpoint = EndpointWriter(at)
    writer = endpoint or served
    extractor, judge = _extractor(name, config, writer), _judge(config, writer)
    return Extraction(memory, extractor, judge, config.extract_from, tell, endpoint)


def backlog_of(extraction: Extraction, tell: Callable[[str], None]) -> TurnBacklog:
    """The queue in front of `extraction` for turns of chats."""

    async def remember(waiting: Waiting) -> None:
        await extraction.remember(waiting.owner, (waiting.turn,), None, waiting.since)
        tell("done")

    return TurnBacklog(remember, tell)


def _extractor(name: str, config: ServerConfig, writer: Writer) -> Extractor:
    if name == "verbatim":
        return VerbatimExtractor()
    if name == "mem0":
        return Mem0Extractor(writer, config.data_path / MEM0_FOLDER)
    return LlmExtractor(writer)


def _judge(config: ServerConfig, writer: Writer) -> Judge:
    return ModelJudge(writer) if config.judged_by_model else RuleJudge()
