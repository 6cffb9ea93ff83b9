"""The options of runs that rksp trains: which of them, on what, where, and what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from rksp.ground.budgets import SEEDS
from rksp.ground.flags import Flag
from rksp.ground.model import Finite


class TrialOptions(Finite):
    """Options of the runs to train and compare."""

    shrink: Annotated[
        bool,
        Flag(
            "--shrink",
            "Train a tiny model of the same type instead of the model itself.",
            also="tiny small twin",
        ),
    ] = False
    device: Annotated[str, Flag("--device", "cpu or cuda.", also="gpu cuda", unit="device")] = "cpu"

    arms: Annotated[
        list[str],
        Flag(
            "--arm",
            (
                "baseline, rate=0.3 (a factor on the learning rate), a lever (warmup=60, "
                "optimizer=muon), or an intervention (qk_norm, clip=0.5, zclip+clip=1); "
                "repeatable. The default is baseline, the predicted learning rate to start with "
                "(rate=0.3 where there is none below), update_bound under Adam's kin, and "
                "step_clip for a run of up to 300 steps."
            ),
            unit="arm",
        ),
    ] = []
    steps: Annotated[
        int,
        Flag(
            "--steps",
            "Steps of every run, to which the schedule is shortened; with --sweep 100 by default.",
            unit="steps",
        ),
    ] = Field(default=200, ge=1)  # the longest horizon of the shipped classifier
    seeds: Annotated[
        int,
        Flag("--seeds", "Number of seeds, starting at --seed; all arms share them.", unit="seeds"),
    ] = Field(default=3, ge=1, le=SEEDS)
    faults: Annotated[
        list[str],
        Flag(
            "--fault",
            "Plant a defect on purpose (bitflip:step=50,bit=30); repeatable.",
            unit="fault",
        ),
    ] = []
    monitors: Annotated[
        list[str],
        Flag(
            "--monitor",
            "Use only these monitors (name or name:every=5); repeatable.",
            unit="monitor",
        ),
    ] = []
    keep: Annotated[
        Path | None,
        Flag(
            "--keep",
            (
                "Folder for finished runs, readings and checkpoints from before a failure; the "
                "same command resumes from it."
            ),
        ),
    ] = None
    runs: Annotated[
        list[Path],
        Flag(
            "--runs",
            "Let the prediction learn from past runs, as for rksp why; repeatable.",
            unit="path",
        ),
    ] = []
    record: Annotated[
        Path | None,
        Flag(
            "--record",
            "File of runs to append these runs to, for --runs of a later command. --sweep trains "
            "no run again that it holds; its default is a new runs.jsonl.",
        ),
    ] = None
