"""What `serve` decides before vLLM is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from inferscale_server.config import ServerConfig
from inferscale_server.engine.launch import check_start, log_path, prepare_environment
from inferscale_server.errors import UnsupportedOption


def test_vllm_logs_into_the_data_folder_unless_its_level_or_help_is_asked_for(tmp_path: Path) -> None:
    config = ServerConfig(data_dir=tmp_path)
    assert log_path(config, ("--dtype", "float32"), {}) == tmp_path / "logs" / "engine.log"
    assert log_path(config, (), {"VLLM_LOGGING_LEVEL": "INFO"}) is None
    assert log_path(config, ("--help",), {}) is None and log_path(config, ("--help=ModelConfig",), {}) is None


@pytest.mark.parametrize("flag", ["--enable-log-requests", "--kv-transfer-config={}", "--api_key=x"])
def test_a_flag_that_breaks_the_design_is_refused_before_vllm_is_imported(tmp_path: Path, flag: str) -> None:
    with pytest.raises(UnsupportedOption, match=flag.split("=")[0].replace("_", "-")):
        check_start(ServerConfig(data_dir=tmp_path, port=1024 + 47 * 1000), (flag, "1"))


def test_the_checks_load_no_engine() -> None:
    code = "import sys; import inferscale_server.engine.launch; print({'torch', 'vllm'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch is built for a GPU")
def test_on_a_cpu_what_was_compiled_is_found_again_by_the_next_start(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    prepare_environment(environ, tmp_path)
    assert environ["VLLM_USE_AOT_COMPILE"] == "0" and environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
    mine = {"VLLM_USE_AOT_COMPILE": "1", "TORCHINDUCTOR_CACHE_DIR": "/mine"}
    prepare_environment(mine, tmp_path)
    assert (mine["VLLM_USE_AOT_COMPILE"], mine["TORCHINDUCTOR_CACHE_DIR"]) == ("1", "/mine")
