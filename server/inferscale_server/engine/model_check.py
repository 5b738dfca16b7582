"""What the name of a model tells before vLLM is imported: is it there, and does it say what it is?"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferscale_server.errors import ModelUnavailable
from inferscale_server.models import named_model

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_ELSEWHERE = frozenset({"--revision", "--hf-token", "--hf-config-path", "--config-format", "--load-format"})
"""vLLM flags that change where or how the configuration is read: then vLLM is left to judge."""
REPLY_S = 5.0


def check_model(name: str | None, vllm_args: Sequence[str]) -> None:
    """Raises ModelUnavailable for a model that is certain not to load. Whatever is in doubt passes."""
    if name is None:
        return
    found = named_model(name)
    if {word.split("=", 1)[0].replace("_", "-") for word in vllm_args} & _ELSEWHERE:
        return
    if isinstance(found, Path):
        check_config(name, found / "config.json")
    elif _HUB_ID.fullmatch(name):
        _check_hub(name)


def check_config(name: str, file: Path) -> None:
    """Raises ModelUnavailable when the file is no configuration of a model."""
    try:
        config: Any = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"the config.json of model {name} cannot be read: {error}") from error
    if not isinstance(config, dict) or not config.get("architectures"):
        raise ModelUnavailable(f"the config.json of model {name} names no architectures: is it a language model?")


def _check_hub(name: str) -> None:
    from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError

    cached = try_to_load_from_cache(name, "config.json")
    if isinstance(cached, str):
        return check_config(name, Path(cached))
    if HF_HUB_OFFLINE:
        raise ModelUnavailable(f"model {name} is neither a folder nor in the hub's cache, and HF_HUB_OFFLINE is set")
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), token=get_token(), timeout=REPLY_S)
    except RepositoryNotFoundError:
        raise ModelUnavailable(
            f"model {name} is neither a folder nor a public model of the hub (a private one needs HF_TOKEN)"
        ) from None
    except (EntryNotFoundError, HfHubHTTPError):
        return  # another format, or the hub has a bad day: vLLM will see
    except Exception as error:  # the hub's client has changed its HTTP library, and so its errors, before
        raise ModelUnavailable(
            f"model {name} is neither a folder nor in the hub's cache, and the hub cannot be reached "
            f"({type(error).__name__})"
        ) from error
