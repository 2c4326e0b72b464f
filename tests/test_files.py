"""Files are written whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.files import write_text, written_whole


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "below" / "page.html"
    write_text(path, "old")
    write_text(path, "new")
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_an_error_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")

    def fill_the_disk() -> None:
        with written_whole(path) as scratch:
            scratch.write_text("ne")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        fill_the_disk()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_process_killed_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    code = (
        "import os, signal, sys\n"
        "from equipoise.files import written_whole\n"
        "with written_whole(sys.argv[1]) as scratch:\n"
        "    scratch.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert result.returncode == -signal.SIGKILL
    assert path.read_text() == "old"


def test_a_new_file_never_replaces_another(tmp_path: Path) -> None:
    path = tmp_path / "0.json"

    def write_second() -> None:
        with written_whole(path, new=True) as scratch:
            scratch.write_text("mine")
            path.write_text("theirs")  # another process, meanwhile

    with pytest.raises(FileExistsError):
        write_second()
    assert path.read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [path]


def test_links_and_permissions_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "real.txt", tmp_path / "link.txt"
    path.write_text("old")
    path.chmod(0o664)
    link.symlink_to(path)
    write_text(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o664
    fresh = tmp_path / "fresh.txt"
    write_text(fresh, "")
    mask = os.umask(0)
    os.umask(mask)
    assert fresh.stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reading = subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE)
    write_text(tmp_path / "pipe", "text")
    assert reading.communicate(timeout=60)[0] == b"text"
    code = "from equipoise.files import write_text; write_text('/dev/stdout', 'text')"
    found = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert found.stdout == b"text"


def test_a_new_file_is_written_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    with written_whole(tmp_path / "0.json", new=True) as scratch:
        scratch.write_text("mine")
    with pytest.raises(FileExistsError), written_whole(tmp_path / "0.json", new=True) as scratch:
        scratch.write_text("theirs")
    assert (tmp_path / "0.json").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"\[Errno \d+\] .*: '/proc/page.html'"):
        write_text("/proc/page.html", "text")
    write_text(tmp_path / ("x" * 250), "text")  # the longest names have no room for another ending
    assert [len(path.name) for path in tmp_path.iterdir()] == [250]


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a folder: name a file"):
        write_text(tmp_path, "text")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_a_library_puts_in_the_place_of_ours_can_be_read_by_others_too(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    with written_whole(tmp_path / "model.bin") as scratch:
        scratch.unlink()  # as safetensors does
        scratch.write_bytes(b"whole")
        scratch.chmod(0o600)
    assert (tmp_path / "model.bin").stat().st_mode == (tmp_path / "usual").stat().st_mode
