"""InferScale's KV connector: vLLM's hooks, each guarded, over the scheduler's and the worker's half.

An exception that escapes a hook kills the engine for everybody. Scheduler half: a fault claims nothing and is counted.
Worker half: after a claim the blocks are already hashed, so a fault is reported as failed blocks, never swallowed.
Contract: vllm/distributed/kv_transfer/kv_connector/v1/base.py.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from inferscale_server.command import FAULTS_KEY, PARAMS_KEY
from inferscale_server.engine.lifeline import die_with_parent
from inferscale_server.engine.scheduler_half import SchedulerHalf, StepCommands, scheduled_of
from inferscale_server.engine.worker_half import WorkerHalf

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass
class StepMetadata(KVConnectorMetadata):
    """One step's commands on their way to the workers."""

    commands: StepCommands = field(default_factory=StepCommands)


class InferScaleConnector(KVConnectorBase_V1):
    """Claims verified tokens, and writes their stored keys and values into the paged cache.

    Extra config: `slab_rows` (int), `host_rows` (int, 0: no host tier), `secret` (hex); `codec` of host rows and files,
    `slab_codec`.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        slab_rows = int(extra["slab_rows"])
        self.hook_errors: Counter[str] = Counter()
        self.worker = WorkerHalf(
            slab_rows, int(extra.get("host_rows", 0)), extra.get("codec", "none"), extra.get("slab_codec", "none")
        )
        self.scheduler: SchedulerHalf | None = None
        if role == KVConnectorRole.SCHEDULER:
            die_with_parent()
            block_size = vllm_config.cache_config.block_size
            self.scheduler = SchedulerHalf(block_size, slab_rows, bytes.fromhex(extra["secret"]))

    @property
    def requires_kv_delivery(self) -> bool:
        """A dropped save is a later encode: preemption may keep its output."""
        return False

    # Scheduler half

    def on_new_request(self, request: Any) -> None:
        """Verify and remember the request's command."""
        try:
            self._scheduler().arrived(request)
        except Exception as error:
            self._fault("on_new_request", error)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens past the local hit that the slab holds; synchronous."""
        try:
            return _counted(self._scheduler().claim(request, num_computed_tokens)), False
        except Exception as error:
            self._fault("get_num_new_matched_tokens", error)
            return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The claim got its blocks."""
        try:
            self._scheduler().allocated(request, num_external_tokens)
        except Exception as error:
            self._fault("update_state_after_alloc", error)
            self._unserved(request, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """This step's loads and captures, whatever list a request stands in."""
        try:
            commands = _checked(StepCommands, self._scheduler().step(scheduled_of(scheduler_output), self._block_ids))
            if unscheduled := self._scheduler().unscheduled_claims():
                self.hook_errors["unscheduled_claim"] += unscheduled
        except Exception as error:
            self._fault("build_connector_meta", error)
            commands = self._lost(list(scheduler_output.num_scheduled_tokens))
        return StepMetadata(commands)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """The one clean-up point; tells the API process how much of the plan was covered."""
        report: dict[str, Any] | None = None
        try:
            found = self._scheduler().finished(request.request_id)
            report = None if found is None else _checked(dict, found)
        except Exception as error:
            self._fault("request_finished", error)
        if self.hook_errors and PARAMS_KEY in (request.kv_transfer_params or {}):
            report = {**(report or {}), FAULTS_KEY: dict(self.hook_errors)}
        return False, report

    # Worker half

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Arm the capture here: start_load_kv runs after the forward in steps without loads."""
        super().bind_connector_metadata(connector_metadata)
        try:
            self.worker.begin(self._commands())
        except Exception as error:
            self.worker.failed("bind_connector_metadata", error)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Write this step's claimed tokens into the paged cache."""
        loads = self._commands().loads
        try:
            self.worker.load(loads)
        except Exception as error:
            self.worker.failed("start_load_kv", error)
            self.worker.load_failed(loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are complete when start_load_kv returns."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Capture happens in the tap on the cache write."""

    def wait_for_save(self) -> None:
        """Make captured keys position-free."""
        try:
            self.worker.end()
        except Exception as error:
            self.worker.failed("wait_for_save", error)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks whose load failed: their requests end with an error and are sent again as text."""
        try:
            return _checked(set, self.worker.take_failed_blocks())
        except Exception as error:
            self.worker.failed("get_block_ids_with_load_errors", error)
            return set()

    def _commands(self) -> StepCommands:
        metadata = self._connector_metadata
        return metadata.commands if isinstance(metadata, StepMetadata) else StepCommands()

    def _scheduler(self) -> SchedulerHalf:
        assert self.scheduler is not None, "a scheduler hook was called on a worker's connector"
        return self.scheduler

    def _block_ids(self, request_id: str) -> Sequence[int]:
        assert self._kv_cache_manager is not None
        return self._kv_cache_manager.get_block_ids(request_id)[0]

    def _unserved(self, request: Any, num_external_tokens: int) -> None:
        try:
            self._scheduler().unserved(request, num_external_tokens)
        except Exception as error:
            self._fault("update_state_after_alloc", error)

    def _lost(self, request_ids: list[str]) -> StepCommands:
        try:
            return self._scheduler().lost(request_ids, self._block_ids)
        except Exception as error:
            self._fault("build_connector_meta", error)
            return StepCommands()

    def _fault(self, hook: str, error: BaseException) -> None:
        self.hook_errors[hook] += 1
        logger.error("inferscale: hook %s failed: %s", hook, type(error).__name__, exc_info=error)


def _checked(kind: type[T], value: object) -> T:
    """vLLM would fail on anything else, outside of a hook's guard."""
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} where {kind.__name__} is due")
    return value


def _counted(tokens: object) -> int:
    """Not None: vLLM would take it for "ask again later", and ask for ever."""
    if not isinstance(tokens, int) or tokens < 0:
        raise TypeError(f"{tokens!r} is no number of tokens")
    return tokens


class InferScaleStatesConnector(InferScaleConnector, SupportsHMA):
    """The same for models with running states: vLLM starts them only under a connector that takes several cache groups.

    Their memory is served as text (families.py says why), so no request of theirs carries a command. Other models keep
    one group: KV mode needs it.
    """

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The clean-up point of a request with several groups of blocks."""
        return self.request_finished(request, [])
