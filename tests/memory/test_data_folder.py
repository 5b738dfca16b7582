from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from inferscale_server.data_folder import DataFolder
from inferscale_server.errors import DataFolderError

HOLD = """
import sys
from pathlib import Path
from inferscale_server.data_folder import DataFolder
from inferscale_server.errors import DataFolderError
try:
    folder = DataFolder.hold(Path(sys.argv[1]))
except DataFolderError as error:
    print(error, flush=True)
else:
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_second_server_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with holder(folder) as first:
        try:
            assert first_line(first) == "held"
            with pytest.raises(DataFolderError, match=str(folder)):
                DataFolder.hold(folder)
        finally:
            first.kill()
    DataFolder.hold(folder).release()


def test_a_held_folder_refuses_another_process_and_a_released_one_does_not(tmp_path: Path) -> None:
    with DataFolder.hold(tmp_path), holder(tmp_path) as refused:
        assert str(tmp_path) in first_line(refused)
    with holder(tmp_path) as second:
        assert first_line(second) == "held"
        second.kill()


def test_others_can_read_where_the_holder_serves_once_it_has_said_so(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from inferscale_server.data_folder import DataFolder as Folder\n"
    code += "print(Folder.holder(Path(sys.argv[1])).url)"
    with DataFolder.hold(tmp_path) as folder:
        read = [sys.executable, "-c", code, str(tmp_path)]
        assert subprocess.run(read, capture_output=True, text=True).stdout == "None\n"
        folder.announce("http://127.0.0.1:8000")
        assert subprocess.run(read, capture_output=True, text=True).stdout == "http://127.0.0.1:8000\n"


def test_the_folder_is_created_for_its_owner_alone(tmp_path: Path) -> None:
    with DataFolder.hold(tmp_path / "a" / "b") as folder:
        assert folder.path.stat().st_mode & 0o777 == 0o700


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DataFolderError, match=str(path)):
            DataFolder.hold(path)


def test_a_folder_whose_lock_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(DataFolderError, match=str(tmp_path)):
        DataFolder.hold(tmp_path)
