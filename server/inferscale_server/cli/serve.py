"""`inferscale serve`: one option for each field of ServerConfig, so that the two cannot drift apart."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from rich.console import Console

from inferscale_server.config import ENV_PREFIX, ServerConfig, load_config
from inferscale_server.demo.progress import Progress

HELP = {
    "host": "Address to listen on.",
    "port": "Port to listen on.",
    "data_dir": "Folder that holds the facts.",
    "cache_dir": "Folder for prepared models and compiled kernels.",
    "embedder": "Embedding model: minilm (embedded), a folder, a hub id, or openai:MODEL[@URL].",
    "embedder_url": "Base URL of the endpoint for openai:MODEL.",
    "embedder_key": "Key for that endpoint; better in the environment, where other users cannot see it.",
    "extractor": "What makes facts of messages: llm (the served model), openai:MODEL[@URL], mem0, verbatim, off;"
    " auto: llm, but verbatim for the embedded model.",
    "extractor_url": "Base URL of the endpoint for openai:MODEL.",
    "extractor_key": "Key for that endpoint; better in the environment, where other users cannot see it.",
    "extract_from": "Whose messages become facts: the user's alone, or the assistant's as well.",
    "contradictions": "Who finds duplicates and contradictions: a model, or a rule about words; auto: by the model.",
    "index": "How facts are searched: auto, exact, faiss or cuvs.",
    "recipe": "Text before a fact: primer, session, window, neighbours, header, isolated, or primer+session.",
    "primer_facts": "Facts that the primer holds.",
    "primer_choice": "Which facts the primer holds: those that stand for the others, or the oldest.",
    "window": "Preceding facts that the recipe `window` encodes a fact behind.",
    "neighbours": "Nearest facts that the recipe `neighbours` encodes a fact behind.",
    "system_prompt": "System prompt for chats that send none.",
    "memory_intro": "Sentence that heads the memory.",
    "memory_place": "Where the memory stands in the system message: at its end, or at its start and without the intro.",
    "fact_wrapper": "How one fact reads; {fact} stands for date, speaker and text.",
    "fact_order": "How facts stand in the prompt: the best next to the question, the best first, or by age.",
    "tail_tokens": "Last tokens of the memory that each answer computes afresh; unset, the gate chooses 0 or 64.",
    "k": "Facts recalled for a chat that names no k.",
    "kv_device_gib": "Memory for the facts' KV on the device, in GiB.",
    "kv_host_gib": "Host memory for copies of the facts' KV, behind the device, in GiB; of no use on a CPU.",
    "kv_disk_gib": "Disk for the facts' KV, kept over restarts, in GiB; 0 keeps none.",
    "kv_codec": "How KV lies on disk and in host memory: none (as the model made it), int8, or int4 (an experiment).",
    "kv_codec_device": "Keep KV on the device as int8 too; kv_codec must be int8.",
    "stage_deadline_ms": "Longest wait for KV that lies in host memory or on disk, in ms; 0: such facts go in as text.",
    "max_sessions": "Sessions whose memory block is kept, of all users; the least recently used is forgotten.",
    "session_idle_s": "Seconds after which an unused session is forgotten.",
    "facts_url": "Where the facts lie, if not in the data folder: sqlite:///path.",
    "api_keys": "File of API keys (inferscale keys create FILE); read again on SIGHUP.",
    "insecure": "Serve on a public address without API keys.",
    "max_facts_per_user": "Facts that one user can have.",
    "max_bytes_per_user": "Bytes of text and metadata that one user can have.",
    "max_requests_per_user": "Requests that one user can have in flight.",
    "access_log": "A line in the log for each request: route, status, time, request id, key id; no user and no text.",
    "verbose": "vLLM's log on the terminal and not in DATA_DIR/logs/engine.log; so does VLLM_LOGGING_LEVEL.",
}
"""A line for each field except the model, which is an argument."""

MODEL_HELP = "Folder or hub id of the model to serve. Without it: the embedded SmolLM2-135M-Instruct."


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(name="serve", help=_help(), context_settings={"help_option_names": ["--help", "-h"]})(command())


def command() -> Callable[..., None]:
    """The function that typer calls, with a signature made from ServerConfig's fields."""

    def serve(ctx: typer.Context, config: Path | None, **flags: object) -> None:
        run(load_config(flags, file=config), list(ctx.obj or ()))

    serve.__signature__ = inspect.Signature(_parameters())  # type: ignore[attr-defined]
    return serve


def run(config: ServerConfig, vllm_args: list[str]) -> None:
    """Serve until stopped."""
    from inferscale_server.engine import launch, log_file

    with launch.checked_start(config, vllm_args) as folder:  # before the log: a running server's must not be put aside
        if config.verbose:
            os.environ.setdefault(launch.LOG_LEVEL, "INFO")
        log = launch.log_path(config, vllm_args, os.environ)
        if log is None:
            with Progress(_console(sys.stderr)) as progress:
                launch.serve(config, vllm_args, progress, folder)
            return
        with log_file.diverted(log) as terminal, Progress(_console(terminal)) as progress:
            progress.stage(f"vLLM's log goes to {log}")
            launch.serve(config, vllm_args, progress, folder, log)


def _console(stream: TextIO) -> Console:
    return Console(file=stream, highlight=False)


def _help() -> str:
    return (
        "Serve a model with memory. Flags after -- go to vLLM: inferscale serve -- --max-model-len 4096.\n\n"
        f"Every option is also {ENV_PREFIX}NAME in the environment and NAME in the config file; "
        "a flag wins over the environment, the environment over the file."
    )


def _parameters() -> list[inspect.Parameter]:
    model = Annotated[str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]
    config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="TOML file with these options.")]
    fields = [(name, field) for name, field in ServerConfig.model_fields.items() if name != "model"]
    return [
        inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
        _parameter("model", model),
        _parameter("config", config),
        *(_parameter(name, _option(name, field)) for name, field in fields),
    ]


def _parameter(name: str, annotation: object) -> inspect.Parameter:
    # None means "not given": the environment and the file get their say.
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _option(name: str, field: FieldInfo) -> object:
    flag = "--" + name.replace("_", "-")
    if field.annotation is bool:
        return Annotated[bool | None, typer.Option(flag, help=HELP[name], show_default=False)]
    # Values stay text here: ServerConfig checks flags, environment and file with the same words.
    shown = HELP[name] if field.default is None else f"{HELP[name]} (default: {field.default})"
    return Annotated[str | None, typer.Option(flag, metavar=_metavar(field.annotation), help=shown)]


def _metavar(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    return {int: "N", int | None: "N", float: "NUMBER", Path: "DIR"}.get(annotation, "TEXT")
