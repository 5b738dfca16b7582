"""LoRA adapters: through which one a chat reads, and the fingerprint that keeps its KV apart from all others'.

KV that one adapter's weights computed is wrong for another's and for the base model. Knows: vLLM's list of adapters and
their files. Refuses to know: plans, and how KV is kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.lora.request import LoRARequest
from vllm.lora.utils import get_adapter_absolute_path

from inferscale_server.brain import Brain
from inferscale_server.engine.door import EngineDoor
from inferscale_server.types import Owner

logger = logging.getLogger(__name__)

FILES = "adapter_*"
"""An adapter's configuration and weights, in its folder."""


@dataclass(frozen=True, slots=True)
class _Known:
    """An adapter whose files were read: None when they could not be, and its chats get text."""

    request: LoRARequest
    fingerprint: str | None


class Adapters:
    """The adapters of one server. `models` is vLLM's OpenAIServingModels, which may load others later."""

    def __init__(self, models: Any, door: EngineDoor, brain: Brain) -> None:
        self._models, self._door, self._brain = models, door, brain
        self._known: dict[str, _Known] = {}

    async def reader(self, model: str | None, owner: Owner) -> Owner | None:
        """The owner as the model of this name reads the owner's facts; None when nobody can say with which weights."""
        if not model or self._models.is_base_model(model):
            return owner
        fingerprint = await self._learned(model)
        return None if fingerprint is None else self._brain.readers.through(owner, fingerprint)

    async def load(self) -> None:
        """Once, at the start: whoever's facts were encoded for an adapter before has them loaded again."""
        brain = self._brain
        if brain.support.refusals or brain.disk is None:
            return
        for model in tuple(self._models.lora_requests):
            known = await self._learned(model)
            stored = frozenset[str]() if known is None else brain.disk.shelf.owners_with(known)
            for owner in [one for one in brain.memory.owners() if stored and one.digest() in stored]:
                brain.encoder.added(brain.readers.through(owner, known or ""), ())

    def knows(self, model: str | None) -> bool:
        """Does `reader` say with which weights the model of this name reads?"""
        if not model or self._models.is_base_model(model):
            return True
        known = self._known.get(model)
        loaded = self._models.lora_requests.get(model)
        return known is not None and known.request is loaded and known.fingerprint is not None

    async def _learned(self, model: str) -> str | None:
        """The fingerprint of model and adapter, under which the encoder may ask for it from now on."""
        request = self._models.lora_requests.get(model)
        if request is None:
            return None
        known = self._known.get(model)
        if known is None or known.request is not request:  # another one may be loaded under the same name
            known = self._known[model] = _Known(request, await asyncio.to_thread(self._read, request))
        if known.fingerprint is not None:
            self._door.adapters[known.fingerprint] = request
            if self._brain.disk is not None:
                self._brain.disk.shelf.adopt(known.fingerprint)
        return known.fingerprint

    def _read(self, request: LoRARequest) -> str | None:
        try:
            return self._brain.fingerprint_with(digest_of_files(Path(get_adapter_absolute_path(request.lora_path))))
        except (OSError, ValueError) as error:
            logger.warning(
                "inferscale: the files of the adapter %s cannot be read (%s): its chats get their memory as text",
                request.lora_name,
                type(error).__name__,
            )
            return None


def digest_of_files(folder: Path) -> str:
    """Names an adapter by its files' names and bytes. Raises OSError, also when there are none."""
    files = sorted(folder.glob(FILES))
    if not files:
        raise FileNotFoundError(folder)
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            one = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.name}\0{one}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
