"""Faults written without sight of the rules of `rksp watch`: what it says of a stranger's script.

The scripts (`unseen_script.py`, then `unseen_shapes.py` with other shapes: its rows have a colon)
and the words of this table came before their author had read a rule of the watch (its command and
the reviews, or its issue, were known); no row is fitted to the rules.
Each row names what a practitioner would accept: `right` as the cause, `partly` as the symptom.
What a run says is its alarms and its causes:

- right: a cause, or an alarm, that says what is wrong;
- partly: the symptom is told, and no other cause is named;
- wrong: a cause is named that has nothing to do with it;
- unknown: an alarm, and neither;
- silent: nothing.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from rksp.confirm.watched import watched_run
from rksp.documents.confirm import WatchReport

SCRIPT = Path(__file__).with_name("unseen_script.py")
SHAPES = SCRIPT.with_name("unseen_shapes.py")
STYLES = SCRIPT.with_name("unseen_styles.py")
HABITS = SCRIPT.with_name("unseen_habits.py")
TABLE = Path(__file__).with_suffix(".csv")
UNTRAINED = r"optimizer (never|does not|has not|was not)|not in the optimizer|never got"
BETWEEN = r"without (it|the optimizer|a step)|not the optimizer|between"
UNLEARNT = r"not (begun to )?learn|worse than|frequenc|plateau|above its own|ln \d|knows nothing"


class Fault(NamedTuple):
    """What is planted, and the words that are accepted for it."""

    right: str
    partly: str = UNLEARNT
    parts: int = 1  # 2: a first run that is healthy, then a second that goes on with it


HARMFUL: dict[str, Fault] = {
    # wrong from the start
    "init_one": Fault(r"initiali[sz]"),
    "head_large": Fault(r"initiali[sz]"),
    "embedding_large": Fault(r"initiali[sz]"),
    "bf16_weights": Fault(r"round"),
    "half_weights": Fault(r"ε|epsilon|eps\b|precision"),
    "labels_masked": Fault(r"label|target|mask", r"data|nan|not finite"),
    "labels_are_inputs": Fault(r"leak|labels? (are|equal)|too good|same as the inputs?"),
    "labels_shuffled": Fault(r"label|target.*(nothing|random)|data"),
    "head_only": Fault(UNTRAINED),
    "half_left_out": Fault(UNTRAINED),
    "remade_after": Fault(UNTRAINED + "|made again"),
    "trunk_detached": Fault(r"no gradient|gradient.*(zero|none|0)|detach"),
    "rate_huge": Fault(r"\brate\b"),
    "rate_tiny": Fault(r"\brate\b|hardly move|do not move"),
    "rate_zero": Fault(r"\brate\b.*\b0\b|do not move|rate is 0"),
    "decay_huge": Fault(r"decay"),
    "tiny_clip": Fault(r"clip"),
    "sum_loss_sgd": Fault(r"\brate\b|sum|gradient"),
    "softmax_twice": Fault(r"softmax|logits"),
    "one_batch": Fault(r"same batch|repeat|too good|leak"),
    "never_zeroed": Fault(
        r"zero_grad|accumulat|gradients? (of|from) .*step|never (zeroed|cleared)"
    ),
    "never_stepped": Fault(
        r"optimizer.*(never|no step)|do not move|no step", r"no optimizer|nothing was"
    ),
    "experts_collapsed": Fault(r"expert|router"),
    "dead_relu": Fault(r"dead|relu|activation"),
    "blobs_labels_random": Fault(r"label|data"),
    "blobs_inputs_large": Fault(r"input|scale|initiali[sz]|\brate\b"),
    # later
    "rate_late": Fault(r"\brate\b", r"jump|rose|above"),
    "labels_shuffled_late": Fault(r"label|data|batch", r"jump|rose|above"),
    "words_late": Fault(r"data|batch", r"jump|rose|above"),
    "constant_late": Fault(r"data|batch|too good", r"jump|rose|above|fell"),
    "half_by_hand": Fault(r"precision|half|float16|cast", r"jump|rose|above|not finite|nan"),
    "auxiliary_nan": Fault(r"script|auxiliary|what backward", r"not finite|nan"),
    "loss_scaled_late": Fault(r"script|negative|sign|what backward", r"jump|rose|above"),
    "hang": Fault(r"no step (for|since)|hang|stood still"),
    "average_copied_back": Fault(BETWEEN),
    "rolled_back": Fault(BETWEEN + r"|weights? (changed|were)", r"jump|rose|above"),
    "new_optimizer": Fault(r"state|new optimizer|\brate\b", r"jump|rose|above"),
    # at a resume
    "resume_weights_only": Fault(r"state|resume|continue", r"jump|rose|above|\brate\b", 2),
    "resume_rate": Fault(r"\brate\b|continue", r"jump|rose|above|resume", 2),
    "resume_nothing": Fault(r"continue|resume|weights", r"jump|rose|above", 2),
    "resume_words": Fault(r"continue|resume|data|weights", r"jump|rose|above|initiali", 2),
}
HARMLESS: dict[str, int] = dict.fromkeys(
    (
        "batch_halved",
        "rate_halved",
        "restarts",
        "accumulated",
        "evaluated",
        "frozen_embedding",
        "smoothed",
        "z_loss",
    ),
    1,
) | {"resume": 2}
HEALTHY: dict[str, int] = dict.fromkeys(
    ("healthy", "healthy_small", "momentum_sgd", "adafactor", "experts", "blobs", "lines"), 1
)

# Of the second script, written in session 21 before its author had read a rule.
DATA = r"data|batch|label|target|input"
GONE_ON = r"jump|rose|above|not finite|nan"
HARMFUL_SHAPES: dict[str, Fault] = {
    "translate:not_shifted": Fault(r"leak|too good|same as the inputs?"),
    "translate:no_causal_mask": Fault(r"leak|too good"),
    "translate:padding_counted": Fault(r"padding|one (word|class|target)|frequen"),
    "translate:blind": Fault(r"no gradient|gradient.*(zero|none|\b0\b)|detach"),
    "translate:gain": Fault(r"initiali[sz]"),
    "translate:rate_20": Fault(r"\brate\b|warm"),
    "translate:decoder_alone": Fault(UNTRAINED),
    "vision:pixels": Fault(r"input|scale of|initiali[sz]", UNLEARNT),
    "vision:random_kinds": Fault(r"label|target.*(nothing|random)|data"),
    "vision:one_kind": Fault(r"too good|one class|same (label|target|class)|leak|constant"),
    "vision:not_logarithms": Fault(r"softmax|negative|logits|below 0|log"),
    "vision:dropout": Fault(r"dropout", UNLEARNT),
    "vision:sgd_fast": Fault(r"\brate\b", UNLEARNT + "|" + GONE_ON),
    "vision:group_of_zero": Fault(r"\brate\b.*\b0\b|do not move|never move", UNLEARNT),
    "experts:gate_large": Fault(r"router|expert|initiali[sz]"),
    "experts:balance_huge": Fault(r"auxiliary|what backward|script|added"),
    "experts:same_word": Fault(r"leak|too good|same as the inputs?"),
    "experts:bf16": Fault(r"round"),
    "experts:experts_lost": Fault(r"no gradient|gradient.*(zero|none|\b0\b)|expert|dead"),
    "muon:muon_fast": Fault(r"\brate\b", UNLEARNT + "|" + GONE_ON),
    "muon:second_not_stepped": Fault(UNTRAINED + r"|never stepped|no step|do not move"),
    "muon:cleared_before_step": Fault(
        r"gradient.*(zero|none|\b0\b|cleared)|no gradient|zero_grad|do not move"
    ),
    "muon:cap_tiny": Fault(r"\bcap\b|logits|bound", UNLEARNT),
    "muon:all_zero": Fault(r"initiali[sz]|no gradient|gradient.*(zero|\b0\b)", UNLEARNT),
    "muon:decay": Fault(r"decay"),
    "scaled:sgd_not_divided": Fault(r"\brate\b|accumul|sum|gradient"),
    "scaled:scale_huge": Fault(r"scaler?\b|skipped|overflow", r"not finite|nan|inf|no step"),
    "scaled:clip_scaled": Fault(r"clip"),
    "scaled:epsilon": Fault(r"ε|epsilon|eps\b"),
    "scaled:rate_low": Fault(r"\brate\b|hardly move|do not move"),
    "translate:sources_mixed_late": Fault(DATA, GONE_ON),
    "translate:head_made_anew_late": Fault(BETWEEN + r"|weights? (changed|were)", GONE_ON),
    "vision:kinds_moved_late": Fault(DATA, GONE_ON),
    "vision:nan_picture_late": Fault(DATA, GONE_ON),
    "experts:gates_grow_late": Fault(BETWEEN + r"|router|weights? (changed|were)", GONE_ON),
    "experts:one_weight_late": Fault(BETWEEN + r"|weight", GONE_ON),
    "experts:reversed_late": Fault(DATA, GONE_ON),
    "muon:rate_late": Fault(r"\brate\b", GONE_ON),
    "muon:layer_lost_late": Fault(BETWEEN + r"|weights? (changed|were)", GONE_ON),
    "scaled:overflow_late": Fault(r"scaler?\b|skipped|overflow|script|what backward", GONE_ON),
    "scaled:kept_late": Fault(r"zero_grad|accumulat|never (zeroed|cleared)", GONE_ON),
    "scaled:penalty_late": Fault(r"script|auxiliary|what backward|added", GONE_ON),
    "vision:resume_no_state": Fault(r"state|resume|continue", GONE_ON + r"|\brate\b", 2),
    "experts:resume_part": Fault(r"continue|resume|weights", GONE_ON, 2),
    "muon:resume_rate": Fault(r"\brate\b|continue", GONE_ON + "|resume", 2),
    "muon:resume_renumbered": Fault(r"continue|resume|data|weights", GONE_ON, 2),
    "translate:resume_other_place": Fault(r"continue|resume|weights", GONE_ON, 2),
    "scaled:resume_no_state": Fault(r"state|resume|continue", GONE_ON + r"|\brate\b", 2),
}
HARMLESS_SHAPES: dict[str, int] = dict.fromkeys(
    (
        "vision:mixed",
        "vision:dropped",
        "vision:brighter",
        "vision:patches_frozen",
        "translate:smoothed",
        "translate:looked_at",
        "experts:unbalanced",
        "scaled:batch_grows",
        "muon:constant",
    ),
    1,
) | {"scaled:resume": 2, "muon:resume": 2, "vision:resume_schedule": 2}
HEALTHY_SHAPES: dict[str, int] = dict.fromkeys(
    (
        "translate:",
        "vision:",
        "vision:sgd",
        "vision:noisy_kinds",
        "experts:",
        "experts:fsdp",
        "experts:spike",
        "experts:narrow",
        "experts:high_and_fine",
        "muon:",
        "muon:ddp",
        "muon:noisy",
        "scaled:",
        "scaled:warm_restarts",
        "scaled:curriculum",
        "scaled:unclipped",
    ),
    1,
)

# Of the third, written in session 22 before its author had read a rule.
HARMFUL_STYLES: dict[str, Fault] = {
    "gpt:mask_missing": Fault(r"leak|too good|mask"),
    "gpt:projections_large": Fault(r"initiali[sz]"),
    "gpt:rate_in_percent": Fault(r"\brate\b|warm", UNLEARNT + "|" + GONE_ON),
    "gpt:same_loader": Fault(r"same batch|repeat|too good|leak"),
    "series:labels_next_row": Fault(r"label|target.*(nothing|random)|data"),
    "series:inputs_unscaled": Fault(r"input|scale of|initiali[sz]", UNLEARNT),
    "series:no_grad_left": Fault(r"no gradient|gradient.*(zero|none|\b0\b)|detach|no_grad"),
    "trainer:rate_forgotten_zeros": Fault(r"\brate\b|hardly move|do not move"),
    "trainer:masked_all": Fault(r"label|target|mask", r"data|nan|not finite"),
    "gpt:file_ends_late": Fault(DATA + "|too good", GONE_ON + "|fell"),
    "gpt:rate_late": Fault(r"\brate\b", GONE_ON),
    "gpt:tokens_late": Fault(DATA, GONE_ON),
    "gpt:ema_empty_late": Fault(BETWEEN + r"|weights? (changed|were)", GONE_ON),
    "series:classes_late": Fault(DATA, GONE_ON),
    "series:weight_nan_late": Fault(r"script|auxiliary|what backward|added", GONE_ON),
    "trainer:layer_new_late": Fault(BETWEEN + r"|weights? (changed|were)", GONE_ON),
    "trainer:term_late": Fault(r"script|auxiliary|what backward|added", GONE_ON),
    "gpt:resume_moments": Fault(r"state|resume|continue", GONE_ON + r"|\brate\b", 2),
    "gpt:resume_rate": Fault(r"\brate\b|continue", GONE_ON + "|resume", 2),
    "gpt:resume_prefix": Fault(r"continue|resume|weights", GONE_ON, 2),
    "gpt:resume_tokens": Fault(r"continue|resume|data|weights", GONE_ON, 2),
    "series:resume_head_new": Fault(r"continue|resume|weights", GONE_ON, 2),
    "series:resume_rounded": Fault(r"continue|resume|weights", GONE_ON, 2),
    "trainer:resume_old": Fault(r"continue|resume|weights", GONE_ON, 2),
    "trainer:resume_shifted": Fault(r"continue|resume|data|label", GONE_ON, 2),
}
HARMLESS_STYLES: dict[str, int] = dict.fromkeys(
    ("gpt:rate_cut", "gpt:batch_doubled", "series:smoothed", "series:stem_frozen"), 1
) | dict.fromkeys(("gpt:resume", "series:resume", "trainer:resume"), 2)
HEALTHY_STYLES: dict[str, int] = dict.fromkeys(
    ("gpt:", "gpt:small", "series:", "series:sgd", "trainer:", "trainer:adafactor"), 1
)
# Of the fourth, written in session 23 before its author had read a rule.
HARMFUL_HABITS: dict[str, Fault] = {
    "gpt2:shifted_twice": Fault(r"shift|moved|label|target"),
    "gpt2:mostly_padding": Fault(r"padding|one (word|class|target)|same (label|target)|too good"),
    "gpt2:warm_up_endless": Fault(r"\brate\b|warm"),
    "lstm:tied_wide": Fault(r"initiali[sz]"),
    "lstm:targets_other_order": Fault(r"label|target.*(nothing|random)|data|order"),
    "lstm:rate_one": Fault(r"\brate\b", UNLEARNT + "|" + GONE_ON),
    "lstm:sgd_slow": Fault(r"\brate\b|hardly move|do not move"),
    "lstm:sgd_clipped": Fault(r"clip"),
    "towers:scale_huge": Fault(r"initiali[sz]|temperature|scale|logits", UNLEARNT),
    "towers:pairs_mixed": Fault(r"label|target.*(nothing|random)|data"),
    "towers:one_tower_cut": Fault(r"no gradient|gradient.*(zero|none|\b0\b)|detach"),
    "denoise:other_noise": Fault(r"label|target.*(nothing|random)|data"),
    "denoise:pixels_255": Fault(r"input|scale of|target|initiali[sz]|\brate\b"),
    "denoise:rate_one": Fault(r"\brate\b", UNLEARNT + "|" + GONE_ON),
    "preferences:beta_huge": Fault(r"scale|\brate\b|saturat|initiali[sz]", UNLEARNT),
    "preferences:reference_is_policy": Fault(r"no gradient|gradient.*(zero|none|\b0\b)|reference"),
    "module:head_alone": Fault(UNTRAINED),
    "module:loss_detached_scale": Fault(r"ε|epsilon|scale|script|what backward|gradient"),
    "gpt2:loader_stuck_late": Fault(r"same batch|repeat|too good|leak|data", "fell"),
    "gpt2:tokenizer_other_late": Fault(DATA, GONE_ON),
    "gpt2:labels_lost_late": Fault(DATA, GONE_ON),
    "gpt2:embedding_new_late": Fault(BETWEEN + r"|weights? (changed|were)", GONE_ON),
    "gpt2:rate_typed_late": Fault(r"\brate\b", GONE_ON),
    "lstm:forget_state_nan_late": Fault(r"state|input|not finite.*model|script", GONE_ON),
    "lstm:only_last_word_late": Fault(DATA + "|too good", GONE_ON + "|fell"),
    "lstm:summed_late": Fault(r"script|sum|scale|what backward", GONE_ON),
    "towers:pairs_mixed_late": Fault(DATA, GONE_ON),
    "towers:tower_made_anew_late": Fault(BETWEEN + r"|weights? (changed|were)", GONE_ON),
    "denoise:sign_late": Fault(DATA, GONE_ON),
    "denoise:picture_nan_late": Fault(DATA, GONE_ON),
    "denoise:time_left_out_late": Fault(DATA, GONE_ON),
    "preferences:judge_flips_late": Fault(DATA, GONE_ON),
    "module:penalty_wrong_late": Fault(r"script|auxiliary|what backward|added", GONE_ON),
    "gpt2:resume_nothing_loaded": Fault(r"continue|resume|weights", GONE_ON, 2),
    "gpt2:resume_tokenizer": Fault(r"continue|resume|data|weights", GONE_ON, 2),
    "lstm:resume_rate_typed": Fault(r"\brate\b|continue", GONE_ON + "|resume", 2),
    "lstm:resume_other_optimizer": Fault(r"state|optimizer|resume|continue|\brate\b", GONE_ON, 2),
    "towers:resume_pairs": Fault(r"continue|resume|data|label|weights", GONE_ON, 2),
    "module:resume_layers_renamed": Fault(r"continue|resume|weights", GONE_ON, 2),
}
HARMLESS_HABITS: dict[str, int] = dict.fromkeys(
    ("gpt2:two_layers_frozen", "gpt2:padded", "gpt2:evaluated", "lstm:smoothed"), 1
) | dict.fromkeys(("gpt2:resume", "lstm:resume", "towers:resume", "module:resume"), 2)
HEALTHY_HABITS: dict[str, int] = dict.fromkeys(
    ("gpt2:", "lstm:", "towers:", "denoise:", "preferences:", "module:"), 1
)
TABLES = (
    (HARMFUL, HARMLESS, HEALTHY, SCRIPT),
    (HARMFUL_SHAPES, HARMLESS_SHAPES, HEALTHY_SHAPES, SHAPES),
    (HARMFUL_STYLES, HARMLESS_STYLES, HEALTHY_STYLES, STYLES),
    (HARMFUL_HABITS, HARMLESS_HABITS, HEALTHY_HABITS, HABITS),
)


class Row(NamedTuple):
    """A run of the table."""

    fault: str
    seed: int
    kind: str
    judged: str
    first_step: int
    stopped: bool
    said: str


def watched(source: Path, fault: str, seed: int, parts: int) -> WatchReport:
    """Run a script under the watch as a user would, and read its log."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "watch.jsonl"
        for part in range(1, parts + 1):
            script = [sys.executable, str(source), fault, str(seed), folder, str(part)]
            options = ["--log", str(log), "--on-alarm", "stop", "--status", "5"]
            subprocess.run(
                [sys.executable, "-m", "rksp", "watch", *options, "--", *script],
                capture_output=True,
                check=False,
                env={**os.environ, "PYTHONPATH": str(Path.cwd())},
            )
        return watched_run(log)


def said(report: WatchReport) -> tuple[str, str, int]:
    """Return all that a run was told of alarms, of causes, and the first step of it."""
    alarms = "; ".join(f"{one.monitor}: {one.text}" for one in report.alarms)
    causes = "; ".join(
        f"{one.cause}: {one.text}" for one in report.causes if one.cause != "unknown"
    )
    return alarms, causes, min((one.step for one in report.alarms), default=-1)


def judged(fault: Fault, alarms: str, causes: str) -> str:
    """Judge what was said of a harmful run."""
    if re.search(fault.right, causes, re.IGNORECASE):
        return "right"
    if causes:
        return "wrong"
    if not alarms:
        return "silent"
    if re.search(fault.right, alarms, re.IGNORECASE):
        return "right"
    return "partly" if re.search(fault.partly, alarms, re.IGNORECASE) else "unknown"


def row_of(fault: str, seed: int) -> Row:
    """Run and judge one fault."""
    harmful, harmless, healthy, source = next(
        row for row in TABLES if any(fault in names for names in row[:3])
    )
    planted = harmful.get(fault)
    parts = planted.parts if planted else (harmless | healthy)[fault]
    report = watched(source, fault, seed, parts)
    alarms, causes, step = said(report)
    kind = "harmful" if planted else "harmless" if fault in harmless else "healthy"
    verdict = judged(planted, alarms, causes) if planted else "alarm" if alarms else "silent"
    stopped = "stopped" in str(report.ended)
    return Row(fault, seed, kind, verdict, step, stopped, f"{causes} | {alarms}"[:300])


def planned() -> Iterator[str]:
    """Yield the name of every run: healthy ones, harmless changes, then what harms."""
    for kind in (2, 1, 0):
        for row in TABLES:
            yield from row[kind]


def show(rows: list[Row]) -> None:
    """Print the counts of each kind."""
    for kind in ("harmful", "harmless", "healthy"):
        of = [row for row in rows if row.kind == kind]
        counts = Counter(row.judged for row in of)
        text = ", ".join(f"{word} {count}" for word, count in counts.most_common())
        print(f"{kind} ({len(of)}): {text}; stopped {sum(row.stopped for row in of)}")


def main(
    table: Annotated[Path, typer.Option(help="Where rows are, and go.")] = TABLE,
    run: Annotated[bool, typer.Option(help="Run what the table lacks.")] = False,
    only: Annotated[str, typer.Option(help="Faults whose name this finds.")] = "",
    seed: Annotated[int, typer.Option(help="Seed of every run.")] = 0,
    jobs: Annotated[int, typer.Option(help="Runs at once.")] = 1,
) -> None:
    """Print what the watch said; with --run make the missing runs first."""
    rows: list[Row] = []
    if table.exists():
        with table.open(newline="", encoding="utf-8") as file:
            for one in csv.DictReader(file):
                kept = one | {"seed": int(one["seed"]), "first_step": int(one["first_step"])}
                rows.append(Row(**kept | {"stopped": one["stopped"] == "True"}))
    done = {(row.fault, row.seed) for row in rows}
    left = [f for f in planned() if re.search(only, f) and (f, seed) not in done] if run else []
    with ThreadPoolExecutor(jobs) as pool:
        for row in pool.map(lambda fault: row_of(fault, seed), left):
            with table.open("a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                if file.tell() == 0:
                    writer.writerow(Row._fields)
                writer.writerow(row)
            rows.append(row)
            print(*row[:6], row.said[:160], sep="\t", flush=True)
    show(rows)


if __name__ == "__main__":
    typer.run(main)
