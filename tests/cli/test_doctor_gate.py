"""What `inferscale doctor` makes of a model's configuration and of a server's verdict."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from inferscale_server.cli import doctor, doctor_gate, main
from inferscale_server.cli.check import Check
from inferscale_server.config import ServerConfig, load_config
from inferscale_server.demo import server

PROBES = [{"name": "answer", "measured": 2e-5, "allowed": 1e-3}, {"name": "rotation at 0", "measured": 1e-6}]
GATE = {"passed": True, "recalled": False, "probes": PROBES}


def model(folder: Path, config: str) -> ServerConfig:
    (folder / "config.json").write_text(config)
    return ServerConfig(model=str(folder), cache_dir=folder / "cache")


def test_a_model_without_movable_keys_is_named_with_the_reason(tmp_path: Path) -> None:
    config = model(tmp_path, '{"architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 512}')
    check = doctor_gate.check_family(config, print)
    assert "DeepseekV3ForCausalLM" in check.found and "served as text" in (check.reason or "")


def test_a_model_with_movable_keys_will_do(tmp_path: Path) -> None:
    config = model(tmp_path, '{"architectures": ["LlamaForCausalLM"]}')
    assert doctor_gate.check_family(config, print).reason is None


def test_a_model_that_is_not_there_is_a_reason(tmp_path: Path) -> None:
    check = doctor_gate.check_family(ServerConfig(model=str(tmp_path / "none")), print)
    assert "no model folder" in (check.reason or "")


def test_a_hub_id_is_left_to_the_gate(tmp_path: Path) -> None:
    check = doctor_gate.check_family(ServerConfig(model="acme/none-such"), print)
    assert check.reason is None and "acme/none-such" in check.found


def test_a_green_gate_says_how_far_apart_the_worst_was() -> None:
    check = doctor_gate.verdict_of({"refusals": [], "backend": "CPU_ATTN", "gate": GATE, "tail_tokens": 64})
    assert check.reason is None
    assert check.found == "green on CPU_ATTN: 2 probes, largest difference 2e-05; tail 64 tokens"


def test_the_gate_that_is_asked_is_that_of_the_configuration_at_hand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'recipe = "isolated"\nkv_codec = "int8"\nmodel = "{tmp_path}"\nfacts_url = "sqlite:////srv/f"\n')
    code = "import os, sys; print(sys.argv[-1], *sorted(n + '=' + v for n, v in os.environ.items() if 'INFERSC' in n))"
    argv = [sys.executable, "-c", f"{code}; raise SystemExit(3)"]
    monkeypatch.setattr(server, "serve_command", lambda port, data, vllm, model, options: [*argv, model])
    check = doctor_gate.check_gate(load_config({}, {}, file), (), lambda line: None)
    assert check.reason is not None
    assert check.reason.endswith(f"{tmp_path} INFERSCALE_KV_CODEC=int8 INFERSCALE_RECIPE=isolated")


def test_a_red_gate_gives_every_reason() -> None:
    check = doctor_gate.verdict_of({"refusals": ["a", "b"], "backend": "X", "gate": {}, "tail_tokens": 0})
    assert check.reason == "memory is served as text: a; b"


def test_no_engine_is_started_for_a_model_that_is_served_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_gate, "check_gate", lambda *args: pytest.fail("an engine was started"))
    config = model(tmp_path, '{"architectures": ["BloomForCausalLM"], "model_type": "bloom"}')
    (check,) = doctor.examine_model(config, (), print)
    assert "ALiBi" in (check.reason or "")


@pytest.mark.parametrize(("words", "asked"), [([], 1), (["--quick"], 0)])
def test_quick_leaves_the_model_out(monkeypatch: pytest.MonkeyPatch, words: list[str], asked: int) -> None:
    calls: list[Any] = []

    def examine_model(*args: Any) -> list[Check]:
        calls.append(args)
        return [Check("gate", "green")]

    monkeypatch.setattr(doctor, "examine", lambda config: [Check("g++", "there")])
    monkeypatch.setattr(doctor, "examine_model", examine_model)
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *words, "--", "--dtype", "float32"])
    assert not ended.value.code and len(calls) == asked
    assert all(args[1] == ["--dtype", "float32"] for args in calls)


def test_a_red_gate_ends_doctor_with_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "examine", lambda config: [Check("g++", "there")])
    monkeypatch.setattr(doctor, "examine_model", lambda *args: [Check("gate", "red", "memory is served as text: x")])
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])
    assert ended.value.code == 1
    assert capsys.readouterr().err == "inferscale doctor: gate: memory is served as text: x\n"
