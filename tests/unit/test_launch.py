"""What `serve` decides before vLLM is imported."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from inferscale_server.cli import main
from inferscale_server.config import ServerConfig
from inferscale_server.demo.progress import Progress
from inferscale_server.demo.server import free_port
from inferscale_server.engine.launch import (
    MOST_LORAS,
    checked_start,
    failed_codes,
    log_path,
    loras_at_once,
    prepare_environment,
    rows_of,
    tell_ready,
    why_ended,
)
from inferscale_server.errors import ConfigError, StoreCorrupt, UnsupportedOption
from inferscale_server.limits import MAX_TIER_GIB
from tests.cli.held_folder import held


def test_vllm_logs_into_the_data_folder_unless_its_level_or_help_is_asked_for(tmp_path: Path) -> None:
    config = ServerConfig(data_dir=tmp_path)
    assert log_path(config, ("--dtype", "float32"), {}) == tmp_path / "logs" / "engine.log"
    assert log_path(config, (), {"VLLM_LOGGING_LEVEL": "INFO"}) is None
    assert log_path(config, ("--help",), {}) is None and log_path(config, ("--help=ModelConfig",), {}) is None


def test_the_terminal_says_why_memory_is_text_and_nothing_more_where_it_is_kv() -> None:
    said = {}
    for refusals in ((), ("the start-up gate is red: [rotation at 0] differs", "ALiBi")):
        terminal = StringIO()
        tell_ready(Progress(Console(file=terminal)), "http://127.0.0.1:8000", "tiny", refusals)
        said[refusals] = [line.split("s  ", 1)[1] for line in terminal.getvalue().splitlines()]
    kv, text = said.values()
    assert kv == ["ready: http://127.0.0.1:8000 serves tiny, memory as KV"]
    assert text == [
        "ready: http://127.0.0.1:8000 serves tiny, memory as text",
        "KV mode is off, memory is served as text: the start-up gate is red: [rotation at 0] differs",
        "KV mode is off, memory is served as text: ALiBi",
    ]


@pytest.mark.parametrize("flag", ["--enable-log-requests", "--kv-transfer-config={}", "--api_key=x"])
def test_a_flag_that_breaks_the_design_is_refused_before_vllm_is_imported(tmp_path: Path, flag: str) -> None:
    config, named = ServerConfig(data_dir=tmp_path, port=1024 + 47 * 1000), flag.split("=")[0].replace("_", "-")
    with pytest.raises(UnsupportedOption, match=named), checked_start(config, (flag, "1")):
        pass


def held_by_another(folder: Path) -> str:
    """What a process that wants the folder is told; empty when it gets it."""
    code = (
        "import sys; from pathlib import Path; from inferscale_server.data_folder import DataFolder\n"
        "try: DataFolder.hold(Path(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_folder_is_held_from_the_checks_to_the_end_of_the_server(tmp_path: Path) -> None:
    with checked_start(_config(tmp_path / "data"), ()) as folder:
        assert folder.path == tmp_path / "data"
        assert held_by_another(folder.path) == "DataFolderError"
    assert held_by_another(folder.path) == ""


def test_a_check_that_fails_lets_go_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "facts.sqlite3").write_text("no store")
    with pytest.raises(StoreCorrupt, match="inferscale restore"), checked_start(_config(tmp_path), ()):
        pass
    assert held_by_another(tmp_path) == ""


def test_a_second_start_is_refused_and_touches_neither_lock_nor_log_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "logs" / "engine.log"
    log.parent.mkdir()
    log.write_text("the running server's")
    with held(tmp_path):
        lock = (tmp_path / "lock").read_bytes()
        with pytest.raises(SystemExit) as ended:
            main(["serve", "--data-dir", str(tmp_path), "--port", str(free_port())])
        assert ended.value.code == 2 and (tmp_path / "lock").read_bytes() == lock
    assert "in use by another server" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in log.parent.iterdir()] == [("engine.log", "the running server's")]


def test_a_killed_engine_is_told_by_its_signal(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process.kill()
    code, log = process.wait(), tmp_path / "engine.log"
    log.write_text("nothing of use\n")
    assert why_ended(log, (None, 0, code)) == f"killed by signal 9: out of memory? (more in {log})"
    assert why_ended(None, (code,)) == "killed by signal 9: out of memory?"
    assert why_ended(log, failed_codes("Failed core proc(s): {'EngineCore_DP0': -11}")) == (
        f"killed by signal 11 (Segmentation fault) (more in {log})"
    )


def test_an_engine_that_ended_by_itself_is_told_by_its_log(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("ValueError: too little memory\n")
    codes = failed_codes("Engine core initialization failed. Failed core proc(s): {'EngineCore_DP0': 1, 'B': -15}")
    assert codes == [1, -15]
    assert why_ended(log, codes) == f"ValueError: too little memory (more in {log})"
    assert why_ended(tmp_path / "none", ()) == f"no reason given (more in {tmp_path / 'none'})"
    assert why_ended(None, ()) == "reason above"


MODEL = SimpleNamespace(
    get_num_layers=lambda parallel: 30,
    get_num_kv_heads=lambda parallel: 3,
    get_head_size=lambda: 64,
    dtype="torch.bfloat16",
)
PLANNED = SimpleNamespace(model_config=MODEL, parallel_config=None)


@pytest.mark.parametrize("option", ["kv_device_gib", "kv_host_gib"])
def test_a_tier_too_small_for_one_token_is_refused_and_not_left_out(option: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{option}': value 1e-06 holds no token \(23040 bytes each\)"):
        rows_of(ServerConfig(**{option: 1e-6}), PLANNED)


def test_a_host_tier_of_nothing_is_none_and_the_largest_can_be_counted() -> None:
    assert rows_of(ServerConfig(kv_host_gib=0), PLANNED).host == 0
    assert rows_of(ServerConfig(kv_host_gib=MAX_TIER_GIB), PLANNED).host == (MAX_TIER_GIB << 30) // 23040


def _config(folder: Path) -> ServerConfig:
    return ServerConfig(data_dir=folder, port=free_port())


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


@pytest.mark.parametrize(("named", "places"), [(0, 1), (1, 1), (3, 3), (50, MOST_LORAS)])
def test_each_adapter_that_is_named_has_a_place_as_far_as_there_are_any(named: int, places: int) -> None:
    assert loras_at_once(named) == places
