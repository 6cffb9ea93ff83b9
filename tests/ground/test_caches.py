"""A cache holds whole entries or none, stays small, and never stops the work."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rksp.ground.files import Cache, user_cache


def _aged(cache: Cache, name: str, seconds: int) -> None:
    os.utime(cache.folder / f"{name}.json", (seconds, seconds))


def test_what_is_written_is_read(tmp_path):
    cache = Cache(tmp_path / "new" / "folder", 1000)
    assert cache.read("a") is None
    cache.write("a", b"one\ntwo")
    assert cache.read("a") == b"one\ntwo"
    cache.write("a", b"three")
    assert cache.read("a") == b"three"


@pytest.mark.parametrize(
    "damage", [lambda x: x[:-1], lambda x: x.replace(b"7", b"8"), lambda x: b"", lambda x: x + b"0"]
)
def test_a_damaged_entry_is_none(tmp_path, damage):
    cache = Cache(tmp_path, 1000)
    cache.write("a", b"7" * 100)
    file = tmp_path / "a.json"
    file.write_bytes(damage(file.read_bytes()))
    assert cache.read("a") is None
    cache.write("a", b"7")
    assert cache.read("a") == b"7"


def test_the_oldest_entries_go_and_reading_keeps_one_young(tmp_path):
    cache = Cache(tmp_path, 500)
    for age, name in enumerate("abc"):
        cache.write(name, bytes(90))  # 155 bytes with the digest
        _aged(cache, name, 1000 + age)
    assert cache.read("a") is not None
    cache.write("d", bytes(90))
    assert [name for name in "abcd" if cache.read(name) is not None] == ["a", "c", "d"]
    cache.write("whole", bytes(501))
    assert cache.read("whole") is None and cache.read("d") is not None


def test_many_writers_leave_whole_entries_and_nothing_else(tmp_path):
    def work(seed: int) -> None:
        cache = Cache(tmp_path, 20_000)
        for turn in range(20):
            cache.write(f"{turn % 5}", bytes([seed]) * 3000)
            found = cache.read(f"{(turn + 1) % 5}")
            assert found is None or (len({*found}) == 1 and len(found) == 3000)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [f"{turn}.json" for turn in range(5)]


def test_a_folder_that_cannot_be_made_keeps_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "folder", 1000)
    cache.write("a", b"1")
    assert cache.read("a") is None


def test_the_place_is_the_one_that_the_user_named(monkeypatch, tmp_path):
    monkeypatch.setenv("RKSP_CACHE", str(tmp_path / "own"))
    assert user_cache() == tmp_path / "own"
    monkeypatch.delenv("RKSP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "rksp"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache() not in (None, Path("relative/rksp"))
    monkeypatch.setattr(Path, "home", classmethod(lambda cls: (_ for _ in ()).throw(RuntimeError)))
    assert user_cache() is None
