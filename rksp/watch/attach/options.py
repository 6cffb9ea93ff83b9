"""What a watch is asked for: the options that people give, and what goes with them to the run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from rksp.ground.flags import Flag
from rksp.ground.model import Finite


class WatchOptions(Finite):
    """Options of a watched run, on the command line and in Python."""

    log: Annotated[
        Path,
        Flag("--log", "The file of readings and alarms; a run is appended to it.", unit="file"),
    ] = Path("watch.jsonl")
    monitors: Annotated[
        list[str],
        Flag(
            "--monitor",
            "Use only these monitors (name or name:every=5) beside the loss; repeatable.",
            unit="monitor",
        ),
    ] = []
    on_alarm: Annotated[
        Literal["log", "checkpoint", "stop", "shape"],
        Flag(
            "--on-alarm",
            "What an alarm sets off. log: it is printed. checkpoint: the state from before a "
            "critical one is saved. stop: a critical one ends the command with exit code 75. "
            "shape: from the step after it on, no step moves a matrix far (update_bound).",
        ),
    ] = "log"
    to: Annotated[
        list[str],
        Flag(
            "--to",
            "Also send readings and alarms to tensorboard=FOLDER, or to the run that the script "
            "opens in wandb, mlflow or trackio; repeatable.",
            unit="tracker",
        ),
    ] = []
    record: Annotated[
        Path | None,
        Flag("--record", "File of runs to append this run to, for --runs of a later command."),
    ] = None
    memory: Annotated[
        float,
        Flag(
            "--memory",
            "Host memory for finding the cause of an alarm: two copies of the weights, and the "
            "inputs of the newest steps. 0 looks for no cause.",
            unit="GiB",
        ),
    ] = Field(default=4.0, ge=0)
    status: Annotated[
        float,
        Flag("--status", "Seconds between two lines of status; 0 prints none.", unit="seconds"),
    ] = Field(default=60.0, ge=0)


class Watching(WatchOptions):
    """The options of a watch as the process that trains has them.

    Attributes:
        folder: Where it leaves files for `rksp watch`.
        command: The command that trains; empty in a process that watches itself.
        watcher: The process of `rksp watch`; None in one that watches itself.
        interventions: Lines (`backoff`, `zclip:threshold=3`) or interventions, in their order.
        sinks: What else gets readings and alarms.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    folder: Path = Path()
    command: str = ""
    watcher: int | None = None
    interventions: tuple[Any, ...] = ()
    sinks: tuple[Any, ...] = ()
