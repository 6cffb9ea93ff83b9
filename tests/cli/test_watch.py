"""What `rksp watch` says of a command that could not say itself how it ended."""

from __future__ import annotations

import pytest

from rksp.cli.watch import _broken_off

STEP = b'{"kind": "run", "run": {}}\n{"kind": "step", "step": 7, "loss": 2.5}\n'
END = b'{"kind": "end", "killed": "was killed by SIGKILL"}\n'


@pytest.mark.parametrize(
    ("written", "after", "kept"),
    [(b"", "step ?", END), (STEP, "step 7", STEP + END), (STEP + STEP[:9], "step 7", None)],
)
def test_a_killed_run_is_told_and_its_log_stays_readable(written, after, kept, tmp_path):
    log = tmp_path / "watch.jsonl"
    log.write_bytes(written)
    said = _broken_off(-9, log)
    assert said.startswith(f"the run was killed by SIGKILL after {after}")
    assert log.read_bytes() == (written if kept is None else kept)
