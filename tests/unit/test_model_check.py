"""What is refused from a model's name alone; whatever is in doubt is left to vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from inferscale_server.config import ServerConfig
from inferscale_server.engine.model_check import check_model
from inferscale_server.errors import ModelUnavailable


def model(folder: Path, config: str) -> str:
    (folder / "config.json").write_text(config)
    return str(folder)


@pytest.mark.parametrize("config", ["{", "[]", '{"model_type": "bert"}', '{"architectures": []}'])
def test_a_folder_that_does_not_say_what_it_is_is_refused_by_name(tmp_path: Path, config: str) -> None:
    with pytest.raises(ModelUnavailable, match=str(tmp_path)):
        check_model(model(tmp_path, config), ())


def test_a_folder_with_an_architecture_passes(tmp_path: Path) -> None:
    check_model(model(tmp_path, '{"architectures": ["LlamaForCausalLM"]}'), ())


def test_no_name_and_configurations_from_elsewhere_are_not_looked_at(tmp_path: Path) -> None:
    check_model(None, ())
    check_model(model(tmp_path, "{}"), ("--hf-config-path=/elsewhere",))


def test_an_unknown_hub_id_is_refused_at_once_when_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelUnavailable, match=r"acme/none-such .* HF_HUB_OFFLINE"):
        check_model("acme/none-such", ())


@pytest.mark.engine
def test_an_architecture_that_vllm_does_not_know_is_one_line(tmp_path: Path) -> None:
    from inferscale_server.engine.launch import build_args

    folder = model(tmp_path, '{"architectures": ["NoSuchModel"], "model_type": "llama"}')
    with pytest.raises(ModelUnavailable, match="NoSuchModel") as refused:
        build_args(ServerConfig(data_dir=tmp_path / "data"), folder, [])
    assert "\n" not in str(refused.value) and not (tmp_path / "data").exists()
