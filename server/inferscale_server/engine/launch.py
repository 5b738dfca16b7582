"""`inferscale serve`: builds vLLM's arguments, sets what the design needs, and runs vLLM's own server."""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from pydantic import ValidationError

from inferscale_server.config import ServerConfig
from inferscale_server.data_folder import DataFolder
from inferscale_server.edge.keys import read_keys
from inferscale_server.engine.families import keeps_states
from inferscale_server.engine.host_memory import available_gib, check_memory, weights_of
from inferscale_server.engine.lifeline import end_at_signals, killed_by, told_to_stop
from inferscale_server.engine.log_file import first_fault
from inferscale_server.engine.model_check import check_model
from inferscale_server.engine.options import refuse_named
from inferscale_server.engine.port import held_port
from inferscale_server.errors import ConfigError, EngineDied, ModelUnavailable, StartupError, StoreCorrupt
from inferscale_server.facts import FactStore
from inferscale_server.kv_codec import KvCodec, head_bytes
from inferscale_server.models import resolve_model

logger = logging.getLogger(__name__)

PLUGINS = ("inferscale", "inferscale_lifeline")
CONNECTOR = ("InferScaleConnector", "inferscale_server.engine.connector")
STATES_CONNECTOR = ("InferScaleStatesConnector", "inferscale_server.engine.connector")
"""For models that keep running states: they start under no other."""
WORKER_EXTENSION = "inferscale_server.engine.extension.InferScaleWorker"
GUARD = "inferscale_server.edge.guard.Guard"
SERVED_NAME_DEFAULT = "smollm2-135m-instruct"
MAX_LOGPROBS = 100
"""What `bench accuracy` asks for at each position; vLLM's own default is 20."""
MOST_LORAS = 8
"""Adapters computed at once unless `--max-loras` says another number: each place takes memory of the model's device."""
EMBEDDED_TOOL_PARSER = "hermes"
"""vLLM's name for the way in which the embedded model's template shows tool calls."""
GIB = 1 << 30
LOG_LEVEL = "VLLM_LOGGING_LEVEL"
"""vLLM's variable. Whoever sets it wants to see vLLM's words on the terminal."""
COMPILED = "compiled"
"""Folder of the cache for kernels that torch has compiled."""
HTTP_STOP_S = 2
"""How long open connections may take to end when the server stops; ours are told after half of that."""


class StartReport(Protocol):
    """Who is told how far the start is."""

    def stage(self, text: str) -> None:
        """This begins now, and takes a while."""

    def ready(self, text: str) -> None:
        """The server takes requests."""

    def say(self, text: str) -> None:
        """The operator should hear this while the server runs."""

    def close(self) -> None:
        """The start was broken off: leave the terminal as it was. May be called in a signal handler."""


def tell_ready(report: StartReport, url: str, model: str, refusals: Sequence[str]) -> None:
    """Say what is served where, and why memory is text where it is: its operator may look at the terminal alone."""
    report.ready(f"ready: {url} serves {model}, memory as {'text' if refusals else 'KV'}")
    for refusal in refusals:
        report.say(f"KV mode is off, memory is served as text: {refusal}")


def log_path(config: ServerConfig, vllm_args: Sequence[str], environ: Mapping[str, str]) -> Path | None:
    """The file for vLLM's output. None: to the terminal, because its log level or its help was asked for."""
    if environ.get(LOG_LEVEL) or {"-h", "--help"} & set(vllm_args) or any(a.startswith("--help=") for a in vllm_args):
        return None
    return config.data_path / "logs" / "engine.log"


@contextmanager
def checked_start(config: ServerConfig, vllm_args: Sequence[str]) -> Iterator[DataFolder]:
    """The data folder, held from the first look at it to the end of the block, and the port: nobody else may take them.

    Raises StartupError for what is known to fail without vLLM, which takes long to import and longer to load. What
    needs no folder comes first: a server that is refused leaves none behind.
    """
    with held_port(config.host, config.port):
        check_access(config)
        refuse_named(vllm_args, os.environ)
        if not os.environ.get("VLLM_USE_MODELSCOPE"):  # another hub
            check_model(config.model, vllm_args)
        with DataFolder.hold(config.data_path, facts=config.facts_path) as folder:
            check_stores(config)
            yield folder


def serve(
    config: ServerConfig, vllm_args: Sequence[str], report: StartReport, folder: DataFolder, log: Path | None = None
) -> None:
    """Serve until SIGINT or SIGTERM. Raises StartupError with one line for whatever keeps it from starting.

    Args:
        folder: the data folder, held; the server releases it when its stores are closed.
        log: the file that this process's output goes to, if it does; an engine that dies is explained from it.
    """
    end_at_signals(report.close)
    if config.keys_path is not None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it would end a server that is still starting; then it reloads
    report.stage("preparing the model")
    model = str(resolve_model(config.model, config.cache_path, report.stage))
    prepare_environment(os.environ, config.cache_path / COMPILED)
    _check_memory(config, Path(model))
    report.stage("reading the model's configuration")
    args = build_args(config, model, vllm_args)
    args.start_report, args.data_folder = report, folder
    report.stage(f"loading {args.served_model_name[0]} into vLLM and warming up (about a minute on a CPU that is free)")
    run(args, log)


def _check_memory(config: ServerConfig, model: Path) -> None:
    import torch

    if not torch.cuda.is_available():
        check_memory(config, os.environ, weights_of(model), available_gib())


def check_stores(config: ServerConfig) -> None:
    """Fail now and not after the model has loaded: fact store corrupt or too new. The caller holds the data folder."""
    try:
        FactStore(config.facts_path).close()
    except StoreCorrupt as error:
        mend = f"inferscale restore FILE --data-dir {config.data_path}"
        raise StoreCorrupt(f"{error}; put a backup in its place with: {mend}") from error


def check_access(config: ServerConfig) -> None:
    """Raises ConfigError for a broken file of API keys; warns when everybody can read and delete memories."""
    if config.keys_path is not None:
        if not read_keys(config.keys_path):
            logger.warning("inferscale: %s holds no key: nobody is let in", config.keys_path)
    elif config.public:
        logger.warning(
            "inferscale: %s is public and there are no API keys: whoever reaches it can read and delete all memories",
            config.host,
        )


def prepare_environment(environ: Any, compiled: Path) -> None:
    """Environment variables that vLLM reads; what the operator has set wins, except where the design breaks.

    Args:
        compiled: folder where compiled kernels are kept for the next start.
    """
    named = [name for name in environ.get("VLLM_PLUGINS", "").split(",") if name]
    environ["VLLM_PLUGINS"] = ",".join(dict.fromkeys([*named, *PLUGINS]))
    environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
    environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")  # until the gate has passed on it
    environ.setdefault(LOG_LEVEL, "WARNING")
    environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch asks for huge pages: a fifth off an injection on a CPU
    import torch  # after the line above, which it reads

    if torch.version.cuda is None:
        # On a CPU vLLM 0.32 cannot load what it compiled ahead of time ("no attribute 'finalize_loading'"), and its
        # names for it are random, so that torch's own cache misses too: a minute of compiling at each start.
        environ.setdefault("VLLM_USE_AOT_COMPILE", "0")
        environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled))


def build_args(config: ServerConfig, model: str, vllm_args: Sequence[str]) -> Namespace:
    """vLLM's namespace, with ours on it as `inferscale`. Raises UnsupportedOption, ConfigError, ModelUnavailable."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from inferscale_server.engine.options import refuse_unsupported

    parser = make_arg_parser(FlexibleArgumentParser(prog="inferscale serve --"))
    parser.error = _refuse_arguments
    parser.set_defaults(max_logprobs=MAX_LOGPROBS, max_loras=None)
    args: Namespace = parser.parse_args(["--model", model, *vllm_args])
    refuse_unsupported(args, os.environ)
    if args.max_loras is None:  # vLLM's 1: what encodes for one adapter would wait for the chats of all others
        args.max_loras = loras_at_once(len(args.lora_modules or ()))
    args.inferscale = config
    args.model, args.host, args.port = model, config.host, config.port
    if not args.served_model_name:
        args.served_model_name = [SERVED_NAME_DEFAULT if config.model is None else config.model]
    if config.model is None:
        _let_embedded_model_use_tools(args)
    args.middleware = [*args.middleware, GUARD]
    args.scheduling_policy = "priority"
    args.enable_prompt_tokens_details = True
    args.worker_extension_cls = WORKER_EXTENSION
    args.disable_uvicorn_access_log = True
    if args.allowed_origins == ["*"]:
        args.allowed_origins = []  # vLLM's default would let any web page read a local user's memories
    try:
        validate_parsed_serve_args(args)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"vLLM's options after --: {_reason(error)}") from error
    planned = engine_config_of(args)
    rows = rows_of(config, planned)
    _reserve_memory(config, args)
    codecs = (config.kv_codec, slab_codec_of(config))
    args.kv_transfer_config = transfer_config(rows.slab, connector_of(planned), rows.host, codecs)
    engine_config_of(args)  # what vLLM refuses only beside a connector is said here, not after its server has begun
    return args


def loras_at_once(named: int) -> int:
    """Places for so many adapters."""
    return min(max(named, 1), MOST_LORAS)


def engine_config_of(args: Namespace) -> Any:
    """vLLM's configuration for these arguments. Raises ModelUnavailable with vLLM's reason."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    try:
        return AsyncEngineArgs.from_cli_args(args).create_engine_config()
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise ModelUnavailable(f"vLLM cannot serve {args.model}: {_reason(error)}") from error


def connector_of(vllm_config: Any) -> tuple[str, str]:
    """Class and module of the KV connector that this model can start under."""
    return STATES_CONNECTOR if keeps_states(vllm_config.model_config.hf_config.to_dict()) else CONNECTOR


def _let_embedded_model_use_tools(args: Namespace) -> None:
    from vllm.config import StructuredOutputsConfig

    if not args.tool_call_parser:  # without a parser vLLM refuses tools, forced ones too
        args.enable_auto_tool_choice, args.tool_call_parser = True, EMBEDDED_TOOL_PARSER
        args.tool_strict_level = "parameter"  # vLLM's default holds a call to the tool's name only
    if args.structured_outputs_config == StructuredOutputsConfig():
        # Where JSON allows blanks, so small a model goes on with blanks until its tokens are used up.
        args.structured_outputs_config = StructuredOutputsConfig(backend="xgrammar", disable_any_whitespace=True)


def _refuse_arguments(message: str) -> NoReturn:
    raise ConfigError(f"vLLM's options after --: {message}")


def transfer_config(
    slab_rows: int,
    connector: tuple[str, str] = CONNECTOR,
    host_rows: int = 0,
    codecs: tuple[KvCodec, KvCodec] = ("none", "none"),
) -> Any:
    """The KV connector's configuration, with a secret that only this process and its engine know. `codecs`: of host
    rows and files, and of the slab."""
    from vllm.config import KVTransferConfig

    name, module = connector
    rows = {"slab_rows": slab_rows, "host_rows": host_rows}
    extra = {**rows, "codec": codecs[0], "slab_codec": codecs[1], "secret": secrets.token_hex(32)}
    return KVTransferConfig(
        kv_connector=name,
        kv_connector_module_path=module,
        kv_role="kv_both",
        kv_load_failure_policy="fail",
        kv_connector_extra_config=extra,
    )


def slab_codec_of(config: ServerConfig) -> KvCodec:
    """How rows lie on the device."""
    return config.kv_codec if config.kv_codec_device else "none"


@dataclass(frozen=True, slots=True)
class TierRows:
    """How many tokens a tier holds, over all ranks."""

    slab: int
    host: int


def rows_of(config: ServerConfig, vllm_config: Any) -> TierRows:
    """How many tokens fit into device slab and host memory. Raises ConfigError for a tier that would hold none."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    heads = 2 * model.get_num_layers(parallel) * model.get_num_kv_heads(parallel)  # of keys and of values
    dtype = str(model.dtype).removeprefix("torch.")
    codecs = (slab_codec_of(config), config.kv_codec)
    slab, host = (max(heads * head_bytes(codec, model.get_head_size(), dtype), 1) for codec in codecs)
    rows = TierRows(int(config.kv_device_gib * GIB / slab), int(config.kv_host_gib * GIB / host))
    for name, row_bytes, held in (("kv_device_gib", slab, rows.slab), ("kv_host_gib", host, rows.host)):
        gib = getattr(config, name)
        if gib > 0 and held < 1:
            raise ConfigError(f"option {name!r}: value {gib} holds no token ({row_bytes} bytes each)")
    return rows


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):  # its own first line only counts the errors
        return error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ").splitlines()[0]
    return next(iter(str(error).strip().splitlines()), repr(error))


def _reserve_memory(config: ServerConfig, args: Namespace) -> None:
    """On a GPU the slab is allocated after vLLM's profiling: take its bytes off first. A CPU has no such fraction.

    Raises ConfigError when nothing would be left for vLLM.
    """
    import torch

    if not torch.cuda.is_available():
        return
    slab_bytes, left = int(config.kv_device_gib * GIB), "--kv-cache-memory-bytes"
    if args.kv_cache_memory_bytes:
        args.kv_cache_memory_bytes -= slab_bytes
        remains = args.kv_cache_memory_bytes > 0
    else:
        left = "--gpu-memory-utilization"
        args.gpu_memory_utilization -= slab_bytes / torch.cuda.get_device_properties(0).total_memory
        remains = args.gpu_memory_utilization > 0
    if not remains:
        raise ConfigError(f"option 'kv_device_gib': value {config.kv_device_gib} leaves nothing of {left} for vLLM")


def run(args: Namespace, log: Path | None = None) -> None:
    """vLLM's server entry, in this process. Returns when it was told to stop. Raises StartupError, EngineDied."""
    import uvloop
    from vllm.logger import configure_logging_from_args
    from vllm.plugins import load_endpoint_plugins

    configure_logging_from_args(args)
    if not any(plugin.name == PLUGINS[0] for plugin in load_endpoint_plugins(("generate",))):
        raise StartupError("vLLM did not load InferScale's endpoint plugin: is the package installed, not only copied?")
    try:
        uvloop.run(_run_server(args))
    except KeyboardInterrupt:
        return
    except RuntimeError as error:
        if "Engine core initialization failed" not in str(error):
            raise
        raise StartupError(f"vLLM's engine did not start: {why_ended(log, failed_codes(str(error)))}") from error
    if not told_to_stop.is_set():
        codes = [process.exitcode for process in getattr(args, "engine_processes", ())]
        raise EngineDied(f"vLLM's engine died, and the server with it: {why_ended(log, codes)}")


def failed_codes(message: str) -> list[int]:
    """The exit codes in what vLLM says of an engine that did not start: `Failed core proc(s): {'EngineCore': -9}`."""
    return [int(code) for code in re.findall(r"': (-?\d+)", message)]


def why_ended(log: Path | None, codes: Iterable[int | None]) -> str:
    """Why the engine is no more, by its processes' exit codes and its log: who is killed writes no reason anywhere."""
    killed = killed_by(codes)
    if log is None:
        return killed or "reason above"
    return f"{killed or first_fault(log) or 'no reason given'} (more in {log})"


async def _run_server(args: Namespace) -> None:
    """vLLM's `run_server` without its signal handler, which would wait for the engine to finish loading."""
    from vllm.entrypoints.launchers.api_server.entry import run_server_worker, setup_server
    from vllm.utils.system_utils import decorate_logs

    decorate_logs("APIServer", skip_if_decorated=True)
    address, listener = setup_server(args, reuse_port=False)
    await run_server_worker(address, listener, args, timeout_graceful_shutdown=HTTP_STOP_S)
