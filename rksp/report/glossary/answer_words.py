"""The words of the answer: verdict, rates, risk, findings and where they come from."""

from __future__ import annotations

from rksp.report.glossary.word import Word

ANSWER_WORDS: tuple[Word, ...] = (
    # The rates
    Word(
        name="start here",
        meaning=(
            "The learning rate with the lowest expected excess loss. A lower rate learns more "
            "slowly, and a higher one is more likely to fail. S marks it on the scale. In a short "
            "run it can lie above X: too low a rate then costs as much as a failure, so the best "
            "bet is above the safe line."
        ),
        spellings=("start_here", "start", "S", "best bet"),
    ),
    Word(
        name="likely edge",
        meaning=(
            "The learning rate at which this run is as likely to fail as to train well: the "
            "median of the edge's distribution. E marks it on the scale."
        ),
        spellings=("likely_edge", "edge", "E"),
    ),
    Word(
        name="do not exceed",
        meaning=(
            "The 5 % quantile of the edge's distribution: one in twenty models like this one has "
            "its edge below this learning rate (--risk sets another share). X marks it on the "
            "scale."
        ),
        spellings=("do_not_exceed", "limit", "X", "safe line"),
    ),
    Word(
        name="recipe",
        meaning=(
            "Everything about the run that is neither the model nor the data: optimizer, learning "
            "rate, schedule, batch. The dot (●) marks your learning rate on the scale."
        ),
        spellings=("●", "yours", "the whole recipe", "the recipe that was trained"),
    ),
    Word(
        name="P(failed)",
        meaning=(
            "The probability that the run diverges, or that its final loss is more than 0.25 nats "
            "above that of the best lower learning rate. The range in brackets is an 80 % "
            "interval."
        ),
        healthy="Below the bar (50 %, unless --fail-on sets another).",
        spellings=(
            "probability_failed",
            "fail",
            "interval",
            "upper bound",
            "predicted P(failed)",
            "risk against the learning rate",
        ),
    ),
    Word(
        name="edge missed by",
        meaning=(
            "The error of a scaling rule in `rksp transfer`, in decades: by how much it misses the "
            "shift of the edge from one shape to another, in the median over shapes of public "
            "sources. The model saw nothing of the source. The next column is the same for the "
            "best rate. 0.3 decades are a factor of two."
        ),
        spellings=("best rate missed by", "rule", "same rate", "1/√width", "1/width"),
    ),
    Word(name="next", meaning="The command that is most useful after this answer."),
    Word(
        name="bar",
        meaning=(
            "The P(failed) from which on the verdict is risk and the exit code is 1. --fail-on "
            "sets it."
        ),
        spellings=("threshold", "below the bar"),
    ),
    Word(
        name="expected excess",
        meaning=(
            "The loss, in nats, by which this learning rate is expected to end above the best one "
            "for the same model and recipe."
        ),
        healthy="At most 0.1 nats.",
        spellings=("expected_excess", "excess loss", "excess", "expected loss"),
    ),
    # The verdicts
    Word(
        name="verdict",
        meaning=(
            "The answer in one word: ok, caution, risk, cannot tell or not assessed, the worst of "
            "what P(failed) says and of what the findings say. risk_verdict in the JSON is what "
            "P(failed) says alone. Each word has its own explanation."
        ),
        spellings=("risk_verdict",),
    ),
    Word(
        name="ok",
        meaning=(
            "A verdict: the whole interval of P(failed) is below the bar, the learning rate is not "
            "above both “start here” and “do not exceed”, and no finding is an error."
        ),
        spellings=("safe",),
    ),
    Word(
        name="caution",
        meaning=(
            "A verdict: the interval of P(failed) contains the bar, the learning rate is above "
            "both “start here” and “do not exceed”, or a warning names a documented cause of "
            "failures. A short run (rksp confirm) gives the answer."
        ),
    ),
    Word(
        name="risk",
        meaning=(
            "A verdict: P(failed) is at or above the bar, or a finding is an error; the page names "
            "the finding."
        ),
        spellings=("high-risk", "RKSP001"),
    ),
    Word(
        name="cannot tell",
        meaning=(
            "A verdict: the evidence does not suffice for an answer. The report states the "
            "reasons, and no learning rate and no probability is printed."
        ),
        spellings=("indeterminate", "RKSP002", "no answer"),
    ),
    Word(
        name="failed run",
        meaning=(
            "An issue of rksp confirm: short runs of the recipe failed. The arms show what would "
            "have saved them."
        ),
        healthy="No failed run.",
        spellings=("failed-run", "RKSP003"),
    ),
    Word(
        name="could not run",
        meaning=(
            "The verdict of a cell of a grid whose evaluation ended in an error. The message says "
            "why."
        ),
        spellings=("could-not-run", "RKSP004", "failure"),
    ),
    Word(
        name="not assessed",
        meaning=(
            "A verdict: no classifier could be read, so the report has measurements but no "
            "probability."
        ),
    ),
    # Findings
    Word(
        name="findings",
        meaning=(
            "What the checks found. Each finding has a level, a code, the number and the smallest "
            "fix; rksp explain CODE says more."
        ),
        spellings=("finding", "check", "checks", "code", "message", "issue"),
    ),
    Word(
        name="level",
        meaning="How severe a finding is: error, warning or note.",
    ),
    Word(
        name="error",
        meaning=(
            "A level: the value is known to break runs. An error fails the build unless --fail-on "
            "is never."
        ),
    ),
    Word(
        name="warning",
        meaning=(
            "A level: the value is outside the healthy range, and some runs survive it. --fail-on "
            "warning fails on it."
        ),
    ),
    Word(
        name="note",
        meaning="A level: worth knowing, but harmless by itself; it never fails the build.",
    ),
    Word(name="fix", meaning="The smallest change that removes the finding."),
    Word(
        name="healthy",
        meaning=(
            "The range without a finding, from the check's own threshold. “Usually” is the middle "
            "90 % of the labelled models before training, which is no verdict."
        ),
        spellings=("healthy before training", "usually", "usual", "no known range"),
    ),
    # Reasons and evidence
    Word(
        name="reasons",
        meaning=(
            "The properties of this run that move its edge away from that of the average labelled "
            "run, each as a factor on the learning rate."
        ),
        spellings=("contribution", "contributions", "why", "reason", "factor"),
    ),
    Word(
        name="decades",
        meaning=(
            "Factors of ten: one decade is a factor of 10, 0.3 decades are a factor of 2, and 0.1 "
            "decades are 26 %. Learning rates are compared in decades."
        ),
        spellings=("decade",),
    ),
    Word(
        name="ranges outside",
        meaning=(
            "How far a measured number lies outside the labelled runs, in widths of the range that "
            "they cover: 3 ranges outside is three such widths beyond its nearer end. From 3 on "
            "rksp cannot tell."
        ),
        spellings=("ranges outside the labelled runs",),
    ),
    Word(
        name="the vocabulary",
        meaning=(
            "The number of tokens (or classes) that the model tells apart. A larger one raises the "
            "loss of a guess, ln V, and moves the edge a little."
        ),
        spellings=("vocabulary", "vocab_size"),
    ),
    Word(
        name="fine-tuning",
        meaning=(
            "Training that goes on from trained weights instead of random ones. It needs rates far "
            "lower than training from scratch. A model of its own answers; its card says what it "
            "was fitted on, and rksp explain RKSP508 has the usual limits."
        ),
        check="RKSP508",
        spellings=("fine tune", "finetuning", "full fine-tuning", "SFT", "answered_by"),
    ),
    Word(
        name="forgetting",
        meaning=(
            "What trained weights lose of abilities that the new task leaves untouched. The rate "
            "is the median from which LoRA loses a tenth; 27 ladders of one source show it."
        ),
        spellings=("forgets_from", "forgets"),
    ),
    Word(
        name="pretrained",
        meaning=(
            "The weights were trained before: they are read from the target's files, or the caller "
            "says so (is_pretrained). Checks of the initialization are silent."
        ),
        spellings=("is_pretrained", "trained weights"),
    ),
    Word(
        name="LoRA",
        meaning=(
            "Adapters of low rank that are trained beside frozen weights: W + (alpha / rank) B A. "
            "--peft lora, --lora-rank and --lora-alpha describe them."
        ),
        spellings=("adapters", "adapter", "QLoRA"),
        source="Hu et al., 2021 (arXiv 2106.09685)",
    ),
    Word(
        name="ignored",
        meaning=(
            "A finding that --ignore, or a comment `# rksp: ignore RKSP503` in the run file, "
            "leaves out of the report. A comment beside a setting is about the findings of that "
            "line, one on a line of its own about the whole recipe. No file can hide an error."
        ),
        spellings=("ignore", "ignores it"),
    ),
    Word(
        name="evidence",
        meaning=(
            "What was measured for the answer: config reads only the configuration; forward adds "
            "a forward pass with its spectra; response adds a gradient and a few passes."
        ),
        spellings=("tier", "config", "forward", "response", "measured"),
    ),
    Word(
        name="assumed",
        meaning=(
            "A field of the recipe that neither an option nor the run file sets. A wrong "
            "assumption gives a wrong answer, so each one is printed."
        ),
        spellings=("assumption", "the verdict depends on assumptions"),
    ),
    Word(
        name="from",
        meaning=(
            "The origin of a field: a file with its line, an option, the trainer's default, "
            "computed from other fields, or assumed."
        ),
        spellings=("origin", "file", "flag", "computed", "trainer", "unasked"),
    ),
    Word(name="field", meaning="One setting of the recipe; rksp explain FIELD says what it is."),
    Word(name="meaning", meaning="What a number says, with its unit; rksp explain says more."),
    Word(name="value", meaning="The value of a field or of a measurement; off and – mean none."),
    Word(
        name="beyond the labelled runs",
        meaning=(
            "A measurement lies outside the range of the runs that the classifier was fitted to. "
            "The number says by what factor. The interval grows with it."
        ),
        spellings=("outside", "outside the range of the labelled runs", "labelled runs"),
    ),
    Word(
        name="horizon",
        meaning=(
            "The number of steps over which the labelled runs were observed. The probability does "
            "not include later failures."
        ),
        spellings=("horizon_steps",),
    ),
    # Comparisons
    Word(
        name="since the baseline",
        meaning=(
            "The comparison with the older report that --baseline names. Only new and worse "
            "issues fail the build."
        ),
        spellings=("old", "compared with the baseline"),
    ),
    Word(name="new", meaning="The older report does not have this issue."),
    Word(name="worse", meaning="The older report has this issue at a lower level or risk."),
    Word(name="unchanged", meaning="Both reports have this issue at the same level."),
    Word(name="better", meaning="The older report has this issue at a higher level or risk."),
    Word(name="fixed", meaning="Only the older report has this issue."),
    Word(name="number", meaning="A measured number in the older and in the newer report."),
    Word(
        name="setting",
        meaning="A setting that differs: between two reports, or between the cells of a grid.",
    ),
    # Provenance
    Word(
        name="provenance",
        meaning="The versions, settings and seeds that are needed to get the same numbers again.",
    ),
    Word(name="command", meaning="The command that gives the same answer."),
    Word(name="defaults_from_file", meaning="The options that .rksp.toml or pyproject.toml set."),
    Word(
        name="rksp",
        meaning="A version of the software that made the numbers; python and the libraries follow.",
        spellings=("python", "torch", "transformers", "numpy"),
    ),
    Word(
        name="dtype",
        meaning="The arithmetic of the measurement; --precision is that of the run.",
    ),
    Word(
        name="weights",
        meaning="How rksp held the weights: in memory, streamed from disk, or not built.",
    ),
    Word(name="device", meaning="Where the runs were trained: cpu or cuda."),
    Word(
        name="configuration",
        meaning="A digest of the model's configuration: equal digests are equal models.",
        spellings=("config_hash",),
    ),
    Word(
        name="classifier",
        meaning=(
            "The fitted model of the edge. The digest names its file, or the data that it was "
            "fitted to."
        ),
        spellings=("classifier’s data", "classifier_data"),
    ),
    Word(
        name="kernels",
        meaning=(
            "Which implementation of an operation ran: reference is plain torch, triton is the "
            "GPU kernel."
        ),
        spellings=(
            "reference",
            "triton",
            "covariance",
            "symmetric_product",
            "top_singular",
            "row_cosine",
            "router_statistics",
            "normal_fill",
        ),
    ),
    Word(
        name="timings",
        meaning="Wall time of each step in seconds; it is the only part that differs between runs.",
        spellings=("build", "forward and spectra", "predict", "train", "trials"),
    ),
)
