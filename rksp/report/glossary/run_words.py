"""The words of confirmations, grids and the lab."""

from __future__ import annotations

from rksp.report.glossary.word import Word

RUN_WORDS: tuple[Word, ...] = (
    # Confirmations
    Word(
        name="arm",
        meaning=(
            "One variant of a confirmation: the baseline, another learning rate, or an "
            "intervention. All arms share the same initializations and batches."
        ),
        spellings=("baseline", "arms", "rate"),
    ),
    Word(
        name="failed",
        meaning=(
            "Of runs: those that diverged, or ended more than 0.25 nats above the best run. As "
            "the verdict of a confirmation: at least one run of the recipe failed."
        ),
        spellings=("runs that failed",),
    ),
    Word(
        name="trained",
        meaning="The verdict of a confirmation whose recipe learned without a failure.",
        spellings=("converged", "learned"),
    ),
    Word(
        name="undecided",
        meaning=(
            "The verdict of a confirmation that was too short: no run learned more than the "
            "frequencies of its labels."
        ),
        spellings=("too few steps to tell",),
    ),
    Word(
        name="diverged",
        meaning=(
            "Runs whose loss or gradient became NaN or infinite, or exceeded a loss of 50 or a "
            "gradient norm of 500."
        ),
        source="The thresholds are those of arXiv 2602.22988.",
    ),
    Word(
        name="prediction",
        meaning=(
            "What rksp score says of the recipe before it is trained. It held if the runs agree "
            "with its side of the bar."
        ),
        spellings=("the prediction", "held", "did not hold"),
    ),
    Word(
        name="Fisher p",
        meaning=(
            "The probability of a difference at least this large between two arms if neither were "
            "better (Fisher's exact test, two-sided)."
        ),
        spellings=("fisher", "p_value"),
    ),
    Word(
        name="final loss",
        meaning="The mean training loss over the last tenth of the run, in nats.",
        spellings=("final_loss", "loss"),
    ),
    Word(name="saved", meaning="Seeds for which the baseline failed and this arm did not."),
    Word(name="lost", meaning="Seeds for which this arm failed and the baseline did not."),
    Word(
        name="time a step",
        meaning="The time of a step above the baseline's, in percent.",
        spellings=("overhead",),
    ),
    Word(
        name="monitor",
        meaning="A quantity that is watched during training; rksp explain NAME says its alarm.",
        spellings=("monitors", "monitor, baseline"),
    ),
    Word(
        name="alarmed in",
        meaning="The number of runs in which the monitor raised an alarm.",
    ),
    Word(
        name="first alarm",
        meaning="The median step of a monitor's first alarm.",
        spellings=("first_alarm", "first alarms", "alarm"),
    ),
    Word(
        name="lead over the loss",
        meaning=(
            "The number of steps by which the alarm came before the loss showed the failure. A "
            "negative lead is an alarm that came too late."
        ),
        healthy="Above 0; the larger, the more time there is to respond.",
        spellings=("lead",),
    ),
    Word(
        name="fault",
        meaning="A defect that is planted on purpose, to test that a monitor detects it.",
        spellings=("faults", "planted faults"),
    ),
    # Grids
    Word(
        name="cell",
        meaning="One point of a grid: one model with one recipe.",
        spellings=("cells",),
    ),
    Word(
        name="axis",
        meaning="A setting that varies over the grid, by the name that you gave it.",
        spellings=("axes",),
    ),
    Word(name="rank", meaning="The place in the ranking; the least expected excess comes first."),
    Word(name="ranked", meaning="The cells in order of expected excess, then of P(failed)."),
    Word(name="model", meaning="The target of a cell, with the settings that change the model."),
    Word(
        name="best safe setting",
        meaning="Of the cells with verdict ok, the one with the least expected excess.",
        spellings=("best_safe", "best safe setting of each model"),
    ),
    Word(
        name="risk over the grid",
        meaning="P(failed) by learning rate and other settings, as a map.",
        spellings=("heat map", "map"),
    ),
    Word(
        name="incomplete",
        meaning="The verdict of a grid with a cell that has no result. The exit code is 3.",
    ),
    Word(
        name="unusable",
        meaning="The verdict of a grid in which no cell could run. The exit code is 2.",
    ),
    Word(
        name="Pareto",
        meaning="The cells that no other cell beats in both learning rate and risk.",
        spellings=("trade-off", "learning rate against risk"),
    ),
    Word(name="profile", meaning="The measurement of one model, which all its cells share."),
    # The lab and the audit of the checks
    Word(
        name="ladder",
        meaning="The runs of one model and recipe that differ only in the learning rate.",
        spellings=("ladders", "runs"),
    ),
    Word(
        name="plateau",
        meaning="A run that ended more than 0.25 nats above the best of its ladder, without NaN.",
        spellings=("plateau %", "diverged %", "all failed %"),
    ),
    Word(
        name="spiked",
        meaning="A run whose smoothed loss rose by 0.5 nats above its minimum and came back.",
        spellings=("spiked %",),
    ),
    Word(
        name="undertrained",
        meaning="A run below the best rate of its ladder that ended more than 0.25 nats above it.",
        spellings=("undertrained %",),
    ),
    Word(name="healthy run", meaning="A run that is none of these.", spellings=("healthy %",)),
    Word(
        name="init std",
        meaning="The standard deviation of the initial weights, and the scheme that drew them.",
        spellings=("init scheme",),
    ),
    Word(name="depth", meaning="The number of blocks of a model."),
    Word(
        name="Adam β1",
        meaning="The memory of Adam's moments, β1 and β2, and the constant ε that it adds.",
        spellings=("Adam β2", "Adam ε", "β1", "β2", "ε", "β₁", "β₂"),
    ),
    Word(name="clipping", meaning="The gradient norm above which gradients are scaled down."),
    Word(
        name="warm-up share",
        meaning="The steps of the warm-up divided by all steps.",
        spellings=("warm-up", "warmup"),
    ),
    Word(
        name="sequences per batch",
        meaning="The size of a batch in sequences, and of a sequence in tokens.",
        spellings=("tokens per sequence",),
    ),
    Word(name="name", meaning="The short name of a check; rksp explain NAME explains it."),
    Word(name="hits", meaning="Public failures that the check warned of."),
    Word(name="misses", meaning="Public failures of its kind that the check did not warn of."),
    Word(
        name="false alarms",
        meaning="Public successes that the check warned of.",
        spellings=("false alarm",),
    ),
)
