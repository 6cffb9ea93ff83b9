"""Disks that are full or mounted read-only: files and jobs stay whole, and go on afterwards."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from lab.faults.processes import code_of
from lab.faults.scenes import ConfirmScene, GridScene, LabScene, Scene
from lab.faults.writes import Writes, refused, ways, wholes_of

_NEW_NAMESPACE = 0x20000  # CLONE_NEWNS: mounts of this process, which end with it
_UNABLE = 75
_PAGE = 4096
_SIZE = 24 * 2**20  # bytes of the disk


def on_disks() -> list[Writes]:
    """Write on a full and on a read-only disk; an empty list if this machine lets us mount none."""
    with tempfile.TemporaryDirectory() as place:
        said, disk = Path(place) / "said.json", Path(place) / "disk"
        disk.mkdir()
        if code_of(lambda: _with_a_disk(disk, said), 900) == _UNABLE:
            return []
        return [Writes(**record) for record in json.loads(said.read_text())]


def _with_a_disk(disk: Path, said: Path) -> None:
    """Mount a small disk where only this process and its children see it, and try it."""
    if ctypes.CDLL(None).unshare(_NEW_NAMESPACE) or not _is_mounted(disk):
        raise SystemExit(_UNABLE)
    os.chdir(disk)
    scenes = (GridScene(), LabScene(), ConfirmScene())
    found = [*_files(disk), *(_job(scene, disk) for scene in scenes)]
    said.write_text(json.dumps([asdict(tally) for tally in found]))


def _is_mounted(disk: Path) -> bool:
    options = f"size={_SIZE}"
    steps = (
        ("mount", "--make-rprivate", "/"),
        ("mount", "-t", "tmpfs", "-o", options, "tmpfs", disk),
    )
    return all(subprocess.run(step, capture_output=True).returncode == 0 for step in steps)


def _files(disk: Path) -> list[Writes]:
    """Let everything that writes a file meet a full and a read-only disk."""
    found = []
    for name, (path, write) in ways(disk).items():
        tally = Writes(name=f"{name}, disk")
        pages = -(-len(wholes_of(path, write)[1]) // _PAGE)
        write(0)
        for where in _without_room(disk, tally, sorted({0, pages // 2, pages - 1})):
            refused(path, lambda write=write: write(1), tally, where)
        found.append(tally)
    return found


def _job(scene: Scene, disk: Path) -> Writes:
    """Let a job meet a full disk; once there is room, it ends as if nothing had happened."""
    tally = Writes(name=f"{scene.name}, disk")
    whole, folder = disk / f"{scene.name}, whole", disk / scene.name
    for place in (whole, folder):
        place.mkdir()
    assert code_of(lambda: scene.work(whole)) == 0, scene.name
    for where in _without_room(disk, tally, (0, 2, 6)):
        if code_of(lambda: scene.work(folder)) == 0:
            tally.wrong += 1
            tally.said.append(f"{tally.name} ended well with {where}")
    if code_of(lambda: scene.work(folder)) or scene.rows(folder) != scene.rows(whole):
        tally.wrong += 1
        tally.said.append(f"{tally.name} did not go on when there was room again")
    return tally


def _without_room(disk: Path, tally: Writes, rooms: Iterable[int]) -> Iterator[str]:
    """Yield while a disk has room for so many pages, then while it is read-only."""
    filler = disk / "filler"
    for room in rooms:
        filler.write_bytes(bytes(max(0, os.statvfs(disk).f_bavail - room) * _PAGE))
        tally.full += 1
        yield f"{room} pages of room"
        filler.unlink()
    subprocess.run(("mount", "-o", "remount,ro", disk), check=True)
    tally.read_only += 1
    yield "a read-only disk"
    subprocess.run(("mount", "-o", "remount,rw", disk), check=True)
