"""vLLM options that InferScale sets, needs, or cannot live with. Pure: reads the argument namespace, decides, explains.

docs/compatibility.md says the same in prose.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inferscale_server.errors import UnsupportedOption


def refuse_unsupported(args: Namespace, environ: Mapping[str, str]) -> None:
    """Raises UnsupportedOption for the first option that breaks the design, with the reason."""
    for option, broken, reason in _RULES:
        value = getattr(args, option, None)
        if broken(value):
            flag = "--" + option.replace("_", "-")
            raise UnsupportedOption(f"{flag} {value!r} cannot be used with InferScale: {reason}")
    _refuse_environment(environ)


def refuse_named(vllm_args: Sequence[str], environ: Mapping[str, str]) -> None:
    """The same for what can be told from the words on the command line, before vLLM is there to parse them.

    Switches and free values are known by their name, numbers are left to the other. Raises UnsupportedOption.
    """
    named = {word.split("=", 1)[0].replace("_", "-") for word in vllm_args if word.startswith("--")}
    for option, broken, reason in _RULES:
        flag = "--" + option.replace("_", "-")
        if broken is _is_set and flag in named:
            raise UnsupportedOption(f"{flag} cannot be used with InferScale: {reason}")
    for flag in sorted(named & _OURS.keys()):
        raise UnsupportedOption(f"{flag} after -- is set by InferScale: {_OURS[flag]}")
    _refuse_environment(environ)


def _refuse_environment(environ: Mapping[str, str]) -> None:
    for name, reason in _ENVIRONMENT.items():
        if environ.get(name, "0") not in ("", "0", "false", "False"):
            raise UnsupportedOption(f"environment variable {name}={environ[name]!r} cannot be used: {reason}")
    if environ.get(_START_METHOD) == "forkserver":
        reason = "the engine's processes would not end with the server"
        raise UnsupportedOption(f"environment variable {_START_METHOD}='forkserver' cannot be used: {reason}")


def _over_one(value: Any) -> bool:
    return value is not None and int(value) > 1


def _is_set(value: Any) -> bool:
    return bool(value)


_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("api_server_count", _over_one, "one API process owns the catalog of the slab's rows"),
    ("data_parallel_size", _over_one, "each engine has its own slab, and row numbers would hit the wrong one"),
    ("decode_context_parallel_size", _over_one, "slots are per rank"),
    ("prefill_context_parallel_size", _over_one, "slots are per rank"),
    ("enable_dbo", _is_set, "two micro-batches run in one step, and captures would be mixed up"),
    ("enable_sleep_mode", _is_set, "sleeping frees the memory that the slab lies in"),
    ("enable_elastic_ep", _is_set, "ranks come and go, and the slabs with them"),
    ("kv_events_config", _is_set, "events publish token ids and cache salts"),
    ("kv_offloading_size", _is_set, "it puts another KV connector into InferScale's place; use --kv-host-gib"),
    ("kv_transfer_config", _is_set, "InferScale is the KV connector; a second one cannot be combined with it"),
    ("enable_log_requests", _is_set, "request logs hold prompts, memories included"),
    ("enable_log_outputs", _is_set, "output logs hold answers made from memories"),
    ("enable_scale_out", _is_set, "its routes take sampling parameters, extra_args included, from the client"),
    ("api_key", _is_set, "it guards only some routes"),
    ("headless", _is_set, "there would be no HTTP server"),
    ("grpc", _is_set, "memory is served over HTTP"),
    ("grpc_port", _is_set, "memory is served over HTTP"),
    ("uds", _is_set, "the operator's commands reach the server at a host and a port"),
    ("ssl_keyfile", _is_set, "the operator's commands speak plain HTTP; put a proxy that speaks TLS in front"),
    ("ssl_certfile", _is_set, "the operator's commands speak plain HTTP; put a proxy that speaks TLS in front"),
    ("worker_extension_cls", _is_set, "InferScale needs that place for its own worker extension"),
)

_OURS = {
    "--model": "name the model before --",
    "--host": "give it before --",
    "--port": "give it before --",
    "--scheduling-policy": "it is always 'priority', so that chats go before encoding",
}
"""Options of vLLM that InferScale sets: given behind `--` they would be overwritten in silence."""

_START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"

_ENVIRONMENT = {
    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE": "it logs answers made from memories",
    "VLLM_SERVER_DEV_MODE": "its routes reset caches and sleep the engine",
    "VLLM_API_KEY": "vLLM's key guards only some routes",
}
