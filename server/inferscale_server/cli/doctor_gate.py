"""The part of `inferscale doctor` that needs the model: its family, and the gate of a server that is started for it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from inferscale_server.cli.check import Check
from inferscale_server.config import ServerConfig, environ_of
from inferscale_server.demo.server import running_server, sigterm_unwinds
from inferscale_server.demo.start_log import log_folder
from inferscale_server.engine.families import refusal_of
from inferscale_server.errors import StartupError
from inferscale_server.models import resolve_model

Report = Callable[[str], None]


def check_family(config: ServerConfig, report: Report) -> Check:
    """What the model's own `config.json` says about KV mode. A hub id that is not here yet is left to the gate."""
    try:
        model = resolve_model(config.model, config.cache_path, report)
    except StartupError as error:
        return Check("model", str(config.model), str(error))
    if not isinstance(model, Path):
        return Check("model", f"{model} (its configuration is on the hub; the gate will see)")
    read = _read(model / "config.json")
    found = f"{config.model or model.name}: {', '.join(read.get('architectures') or ('unknown architecture',))}"
    reason = refusal_of(read)
    return Check("model", found, None if reason is None else f"memory is served as text: {reason}")


def check_gate(config: ServerConfig, vllm_args: Sequence[str], report: Report) -> Check:
    """Start a server with these settings and an empty data folder, and read its gate's verdict."""
    try:
        with (
            sigterm_unwinds(),
            log_folder() as logs,
            tempfile.TemporaryDirectory(prefix="inferscale-doctor-") as data,
            running_server(
                Path(data), logs / "server.log", vllm_args, report, config.model, settings=environ_of(config)
            ) as client,
        ):
            kv = client.status().raw["kv"]
    except StartupError as error:
        return Check("gate", "the server did not start", str(error))
    assert isinstance(kv, Mapping), f"status.kv is {kv!r}"
    return verdict_of(kv)


def verdict_of(kv: Mapping[str, Any]) -> Check:
    """One line for what the status route says about KV."""
    refusals, gate = kv["refusals"], kv["gate"]
    if refusals:
        return Check("gate", f"red on {kv['backend']}", f"memory is served as text: {'; '.join(refusals)}")
    measured = [probe["measured"] for probe in gate["probes"]]
    again = ", known from an earlier start" if gate["recalled"] else ""
    found = f"green on {kv['backend']}: {len(measured)} probes, largest difference {max(measured):.1g}{again}"
    return Check("gate", f"{found}; tail {kv['tail_tokens']} tokens")


def _read(file: Path) -> Mapping[str, Any]:
    try:
        read = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, Mapping) else {}
