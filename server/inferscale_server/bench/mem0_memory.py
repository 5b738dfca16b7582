"""mem0 beside us: its own library with Qdrant in local (exact) mode, embedder and model on the server under test.

The same facts in the same order; what it finds stands in the same words at the same place of the prompt, best last.
mem0 and Qdrant are imported when a memory is opened.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferscale_server.bench.comparator import Prompted
from inferscale_server.bench.conversation import DatedFact
from inferscale_server.demo.server import Report
from inferscale_server.errors import ConfigError
from inferscale_server.wording import DEFAULT_SYSTEM, MEMORY_INTRO, fact_line

if TYPE_CHECKING:
    from inferscale_sdk import InferScaleClient

USER = "bench-mem0"
EVERY_SCORE = 0.0
"""mem0 leaves out what scores below 0.1 by default: then its prompts would be shorter than ours."""


@dataclass(frozen=True)
class Mem0Memory:
    """One user's facts in mem0. `memory` is a `mem0.Memory`."""

    memory: Any

    @property
    def name(self) -> str:
        """What the tables call it."""
        return "mem0"

    def prompted(self, question: str, k: int) -> Prompted:
        """Search, then the notes in the system message, as the server itself words them."""
        found = self.memory.search(question, top_k=k, filters={"user_id": USER}, threshold=EVERY_SCORE)["results"]
        system = {"role": "system", "content": system_message([hit["metadata"]["line"] for hit in found])}
        return Prompted(USER, [system, {"role": "user", "content": question}], "off", k)

    def take_in(self, facts: Sequence[DatedFact], tell: Report) -> None:
        """Store the facts as they are: no extraction."""
        for at, fact in enumerate(facts, 1):
            tell(f"storing fact {at} of {len(facts)} in mem0")
            said_at = None if fact.said_at is None else fact.said_at.timestamp()
            line = fact_line(fact.text, fact.speaker, said_at)
            self.memory.add(fact.text, user_id=USER, infer=False, metadata={"line": line})

    def close(self) -> None:
        """Let go of Qdrant's folder."""
        self.memory.close()


def system_message(best_first: Sequence[str]) -> str:
    """The default instruction, the intro, and the lines with the best one last."""
    return f"{DEFAULT_SYSTEM}\n\n{MEMORY_INTRO}{''.join(reversed(best_first))}"


def open_mem0(client: InferScaleClient, folder: Path) -> Mem0Memory:
    """An empty memory with its files in `folder`. Raises ConfigError when mem0 or Qdrant is not installed."""
    # Both are read at mem0's first import: nothing is sent anywhere, nothing is written into the home folder.
    os.environ["MEM0_TELEMETRY"], os.environ["MEM0_DIR"] = "false", str(folder)
    try:
        import qdrant_client  # noqa: F401 - mem0 asks at a terminal whether to install it
        from mem0 import Memory
    except ImportError as error:
        raise ConfigError(f"option 'mem0': {error.name} is not installed: pip install mem0ai qdrant-client") from error
    base_url, embedder = str(client.base_url), str(client.status().raw["embedder"])
    return Mem0Memory(Memory.from_config(mem0_config(base_url, embedder, dimensions(base_url), folder)))


def mem0_config(base_url: str, embedder: str, dimension: int, folder: Path) -> Mapping[str, Any]:
    """What `Memory.from_config` takes: both models at the server's OpenAI routes, Qdrant in a folder."""
    at_server = {"openai_base_url": f"{base_url.rstrip('/')}/v1", "api_key": "none"}
    store = {"path": str(folder / "qdrant"), "on_disk": True, "collection_name": "bench"}
    return {
        "embedder": {"provider": "openai", "config": {**at_server, "model": embedder}},
        "llm": {"provider": "openai", "config": {**at_server, "model": "default"}},
        "vector_store": {"provider": "qdrant", "config": {**store, "embedding_model_dims": dimension}},
        "history_db_path": ":memory:",
    }


def dimensions(base_url: str) -> int:
    """How long the server's vectors are."""
    import httpx

    answer = httpx.post(f"{base_url.rstrip('/')}/v1/embeddings", json={"model": "default", "input": "?"}, timeout=60)
    answer.raise_for_status()
    return len(answer.json()["data"][0]["embedding"])
