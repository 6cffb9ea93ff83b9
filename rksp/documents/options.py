"""Define how a model is measured: one set of options for score, confirm, grid and Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import ByteSize, Field

from rksp.ground.flags import Flag
from rksp.ground.model import Finite

STATES = 2048  # enough for a full-rank spectrum at width 768: 2.7 states per dimension


class MeasureOptions(Finite):
    """What is measured, on which inputs, and with which resources.

    Attributes:
        evidence: How much may be spent. `config`: nothing is built. `forward`: one forward pass
            with its spectra. `gradient`: also one backward pass, whose norm moves the rates.
            A model without a known loss stops at `forward`.
        seed: Seed of the initialization.
        probe: A text to use as input in place of the bundled one.
        data: The user's own examples, as `rksp.datasets.own_data` reads them, in place of text.
        states: Token states per block.
        blocks: Module path of the list of blocks, if rksp cannot find it.
        variant: Definition of the spectrum, a name in `rksp.documents.spectrum.VARIANTS`.
        rank: Principal directions kept; None follows the variant.
        spectra: Whose spectra are fitted, which is half the cost of a forward pass with them. The
            rates do not depend on them.
        streaming: `always` draws or reads weights as they are used and drops them after, `never`
            holds the model in memory, `auto` streams a model that does not fit. The numbers are the
            same.
        max_memory: Bytes, default the free memory. The gradient needs up to two copies of the
            weights, and `auto` streams a model if they do not fit.
        threads: Threads that fit spectra and draw weights; None is one.
    """

    evidence: Annotated[
        Literal["config", "forward", "gradient"],
        Flag(
            "--evidence",
            "How much to measure; each includes the one before.",
            also="fast quick",
        ),
    ] = "gradient"
    seed: Annotated[int, Flag("--seed", "Seed of the initialization.", unit="seed")] = Field(
        default=0, ge=0
    )
    probe: Annotated[Path | None, Flag("--probe", "Text to use instead of the bundled one.")] = None
    data: Annotated[
        Path | None,
        Flag(
            "--data",
            "Your own examples: JSON Lines, CSV, Parquet, text, or a folder of one kind.",
            also="dataset corpus train_file",
        ),
    ] = None
    states: Annotated[int, Flag("--snapshots", "Token states per block.", unit="states")] = Field(
        default=STATES, ge=2, le=1_000_000
    )
    blocks: Annotated[str | None, Flag("--blocks", "Module path of the list of blocks.")] = None
    variant: Annotated[
        Literal["rksp-1", "paper-full-1", "paper-filtered-1"],
        Flag("--variant", "Definition of the spectrum that rksp fits."),
    ] = "rksp-1"
    rank: Annotated[
        int | None, Flag("--directions", "Principal directions to keep.", unit="directions")
    ] = Field(default=None, ge=1)
    spectra: Annotated[
        Literal["all", "some", "none"],
        Flag("--spectra", "Blocks whose spectra are fitted: all, at most four, or none."),
    ] = "all"
    streaming: Annotated[
        Literal["auto", "always", "never"],
        Flag("--stream", "Load and drop weights block by block; auto: if the model does not fit."),
    ] = "auto"
    max_memory: Annotated[
        ByteSize | None,
        Flag(
            "--max-memory",
            "Refuse what needs more, such as 8GB; default the free memory.",
            unit="size",
            also="memory ram",
            is_text=True,
        ),
    ] = Field(default=None, gt=0)
    threads: Annotated[
        int | None,
        Flag(
            "--threads",
            "Threads; default half of the cores.",
            unit="threads",
            also="cpus cores",
            from_file=True,
        ),
    ] = Field(default=None, ge=1, le=1024)

    def at_seeds(self, count: int) -> list[MeasureOptions]:
        """Return the options at this many seeds, beginning with their own; one for a config."""
        seeds = range(self.seed, self.seed + (1 if self.evidence == "config" else count))
        return [self.model_copy(update={"seed": seed}) for seed in seeds]

    @property
    def workers(self) -> int:
        """The number of threads."""
        return self.threads or 1
