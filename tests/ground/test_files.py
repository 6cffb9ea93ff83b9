"""Files that are written whole or not at all, and folders of results."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rksp.ground import files
from rksp.ground.errors import Incomplete, InputError
from rksp.ground.files import (
    ResultFolder,
    atomic_write,
    check_writable,
    digest,
    read_limited,
    read_text,
    replacing,
)

WRITER = """
import sys, pathlib
from rksp.ground.files import atomic_write
path, letters = pathlib.Path(sys.argv[1]), "ab"
print("ready", flush=True)
for turn in range(10**9):
    atomic_write(path, letters[turn % 2] * 2_000_000)
"""


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path):
    path = tmp_path / "report.json"
    atomic_write(path, "old")
    path.chmod(0o640)
    atomic_write(path, "nü")
    assert path.read_bytes() == "nü".encode()
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_permissions_of_the_umask(tmp_path):
    mask = os.umask(0o027)
    try:
        atomic_write(tmp_path / "new", b"x")
    finally:
        os.umask(mask)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    atomic_write(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_a_failed_block_leaves_the_old_file(tmp_path):
    path = tmp_path / "kept"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as partial:
        partial.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, Incomplete), (errno.EROFS, InputError)]
)
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, number, kind):
    path = tmp_path / "kept"
    path.write_text("old")

    def fails(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.os, "fsync", fails)
    with pytest.raises(kind, match="kept cannot be written"):
        atomic_write(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_without_room_is_said():
    with pytest.raises(Incomplete, match="No space left"):
        atomic_write(Path("/dev/full"), "x")


def test_kills_while_writing_leave_a_whole_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("a" * 2_000_000)  # a busy machine may not get to the first write in time
    for kill in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        with writer:
            assert writer.stdout.readline() == "ready\n"
            time.sleep(0.03 + 0.007 * kill)
            writer.send_signal(signal.SIGKILL)
        assert path.read_text() in ("a" * 2_000_000, "b" * 2_000_000)


def test_a_place_is_checked_before_the_work(tmp_path):
    check_writable(tmp_path / "new.json")
    for bad, sentence in {
        tmp_path: "is a folder",
        tmp_path / "absent" / "x.json": "there is no folder",
        tmp_path / ("x" * 300): "cannot be written",
    }.items():
        with pytest.raises(InputError, match=sentence):
            check_writable(bad)
    with pytest.raises(InputError, match="--export"):
        check_writable(tmp_path, "--export")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_without_permission_is_refused(tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    with pytest.raises(InputError, match="permission denied"):
        check_writable(locked / "x.json")
    with pytest.raises(InputError, match="Permission denied"):
        atomic_write(locked / "x.json", "x")


def test_a_result_folder_gives_back_what_it_was_given(tmp_path):
    results = ResultFolder(tmp_path / "a" / "b")
    assert "one" not in results
    assert results.read("one") is None
    path = results.write("one", '{"x": 1}')
    assert "one" in results
    assert results.read("one") == path.read_bytes() == b'{"x": 1}'
    with pytest.raises(InputError, match="cannot be used as a folder"):
        ResultFolder(path)


def test_only_old_leftovers_are_removed(tmp_path):
    old, young = tmp_path / ".1-a.partial", tmp_path / ".2-b.partial"
    for leftover in (old, young):
        leftover.touch()
    os.utime(old, (0, 0))
    ResultFolder(tmp_path).clean()
    assert list(tmp_path.iterdir()) == [young]


def test_a_digest_is_that_of_the_content():
    assert digest("abc") == digest(b"abc") == "ba7816bf8f01cfea"  # FIPS 180-2, appendix B.1
    assert digest("a") != digest("b")


def test_a_folder_is_held_by_one(tmp_path):
    results = ResultFolder(tmp_path)
    with (
        results.alone(),
        pytest.raises(InputError, match="Another run is using"),
        ResultFolder(tmp_path).alone(),
    ):
        pass
    with results.alone():  # given back
        pass


HOLDER = """
import sys, pathlib, time
from rksp.ground.files import ResultFolder
with ResultFolder(pathlib.Path(sys.argv[1])).alone():
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_killed_holder_holds_nothing(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InputError), ResultFolder(tmp_path).alone():
            pass
        holder.kill()
    with ResultFolder(tmp_path).alone():
        pass


@pytest.mark.parametrize("content", [b"", b"x" * 10])
def test_what_fits_the_limit_is_read(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    assert read_limited(path, 10) == content


def test_what_is_no_regular_file_or_too_large_is_not_read(tmp_path):
    (tmp_path / "large").write_bytes(b"x" * 11)
    os.mkfifo(tmp_path / "pipe")
    cases = {"large": "larger than", "pipe": "regular file", "none": "no such file", ".": "cannot"}
    for name, sentence in cases.items():
        with pytest.raises(InputError, match=sentence):
            read_limited(tmp_path / name, 10)
    with pytest.raises(InputError, match="UTF-8"):
        (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
        read_text(tmp_path / "bytes", 10)
