"""LoRA adapters: through which one a chat reads, and the fingerprint that keeps its KV apart from all others'.

KV that one adapter's weights computed is wrong for another's and for the base model. Knows: vLLM's list of adapters and
their files. Refuses to know: plans, and how KV is kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm import envs
from vllm.lora.request import LoRARequest
from vllm.lora.utils import get_adapter_absolute_path

from inferscale_server.brain import Brain
from inferscale_server.engine.door import EngineDoor
from inferscale_server.types import Owner

logger = logging.getLogger(__name__)

FILES = "adapter_*"
"""An adapter's configuration and weights, in its folder."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file as its folder shows it without a look inside; times in nanoseconds."""

    name: str
    size_bytes: int
    changed_ns: int
    number: int


@dataclass(frozen=True, slots=True)
class _Known:
    """An adapter whose files were read: no fingerprint when they could not be, and its chats get text."""

    request: LoRARequest
    fingerprint: str | None
    folder: Path = Path()
    files: tuple[_File, ...] = ()


class Adapters:
    """The adapters of one server. `models` is vLLM's OpenAIServingModels, which may load others later.

    An adapter is served with KV as long as it is loaded and its files are those that were read: vLLM reads them again
    whenever another adapter had its place, and says nothing.
    """

    def __init__(self, models: Any, door: EngineDoor, brain: Brain) -> None:
        self._models, self._brain = models, brain
        self._known: dict[str, _Known] = {}
        self._reading = asyncio.Lock()
        self._told: set[str] = set()  # whose files were found changed
        door.adapters = self

    async def reader(self, model: str | None, owner: Owner) -> Owner | None:
        """The owner as the model of this name reads the owner's facts; None when nobody can say with which weights.

        Where no KV is used, the owner is the same to all of them.
        """
        if self._is_base(model) or self._brain.support.refusals:
            return owner
        known = await self._learned(model or "")
        return None if known is None else self._brain.readers.through(owner, known)

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

    def knows(self, model: str | None, owner: Owner) -> bool:
        """Is it with this owner's weights, as `reader` said, that the model of this name still reads?

        Asked when a plan is made: while facts are searched an adapter may be loaded under the name.
        """
        if self._is_base(model) or self._brain.support.refusals:
            return not owner.adapter
        return bool(owner.adapter) and self._served(model or "") == owner.adapter

    def reads(self, owner: Owner) -> bool:
        """Can facts be encoded for this owner now: is there no adapter, or one that is served?"""
        return not owner.adapter or self.through(owner.adapter) is not None

    def through(self, fingerprint: str) -> LoRARequest | None:
        """See ServedAdapters."""
        alike = [model for model, known in self._known.items() if known.fingerprint == fingerprint]
        return next((self._known[model].request for model in alike if self._served(model) is not None), None)

    def fingerprint_of(self, request: LoRARequest) -> str | None:
        """See ServedAdapters."""
        served = self._served(request.lora_name)
        return served if served is not None and self._known[request.lora_name].request is request else None

    def _is_base(self, model: str | None) -> bool:
        if not model or self._models.is_base_model(model):
            return True
        return envs.VLLM_SKIP_MODEL_NAME_VALIDATION and model not in self._models.lora_requests

    async def _learned(self, model: str) -> str | None:
        """The fingerprint of model and adapter, under which the encoder may ask for it from now on."""
        if self._is_new(model):
            async with self._reading:  # the first chats come together, and the files may be large
                while self._is_new(model):
                    request = self._models.lora_requests[model]
                    self._known[model] = await asyncio.to_thread(self._read, request)
                    self._told.discard(model)
        fingerprint = self._served(model)
        if fingerprint is not None and self._brain.disk is not None:
            self._brain.disk.shelf.adopt(fingerprint)
        return fingerprint

    def _is_new(self, model: str) -> bool:
        """Was what is loaded under this name never read? Another one may be loaded under the same name."""
        known, loaded = self._known.get(model), self._models.lora_requests.get(model)
        return loaded is not None and (known is None or known.request is not loaded)

    def _served(self, model: str) -> str | None:
        """The fingerprint of what is loaded under this name, if it was read and its files are what they were."""
        known = self._known.get(model)
        if known is None or known.fingerprint is None or self._models.lora_requests.get(model) is not known.request:
            return None
        if model not in self._told and _files_of(known.folder) != known.files:
            self._told.add(model)
            logger.warning(
                "inferscale: the files of the adapter %s have changed since they were read: its chats get their memory "
                "as text until the next start",
                model,
            )
        return None if model in self._told else known.fingerprint

    def _read(self, request: LoRARequest) -> _Known:
        try:
            folder = Path(get_adapter_absolute_path(request.lora_path))
            files = _files_of(folder)
            digest = digest_of_files(folder)
            shape = f"{digest} 3d" if request.is_3d_lora_weight else digest
            return _Known(request, self._brain.fingerprint_with(shape), folder, files)
        except (OSError, ValueError) as error:
            logger.warning(
                "inferscale: the files of the adapter %s cannot be read (%s): its chats get their memory as text",
                request.lora_name,
                type(error).__name__,
            )
            return _Known(request, None)


def _files_of(folder: Path) -> tuple[_File, ...]:
    """Some microseconds; a file that goes meanwhile is not there."""
    found = []
    for path in sorted(folder.glob(FILES)):
        with suppress(OSError):
            seen = path.stat()
            found.append(_File(path.name, seen.st_size, seen.st_mtime_ns, seen.st_ino))
    return tuple(found)


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
