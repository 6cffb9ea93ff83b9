"""Write tests/families.md: the model types that rksp reads, tested by running each.

    python -m lab.bench.families [--jobs 2] [--configs FOLDER] [--only TYPE ...]

Every type of transformers' four auto classes is built at tiny size from its default configuration
and read end to end, each in its own process with a time limit. Every configuration file of a
folder follows, shrunk in the same way.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LIMIT = 150  # seconds a type
PAGE = Path(__file__).parents[2] / "tests" / "families.md"
TABLES = {
    "causal-lm": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked-lm": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "image-classification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
}


def read_one(name: str, task: str | None) -> dict[str, object]:
    """Read one type or configuration file at the first rung of the ladder that works."""
    import torch

    torch.set_num_threads(1)
    from lab.bench.rungs import RUNGS
    from rksp.ground.errors import InputError, NotCovered

    result = {"name": Path(name).name if name.endswith(".json") else name, "task": task or ""}
    problems = []
    for rung in range(len(RUNGS)):
        try:
            return result | _attempt(name, task, rung) | {"rung": rung}
        except NotCovered as error:
            return result | {
                "status": "not covered",
                "sentence": str(error).replace(name, result["name"]),
            }
        except InputError as error:
            problems.append(str(error))
            if "of model type" in str(error):
                break
    built = [p for p in problems if "cannot run" in p]
    sentence = (built or problems)[-1].replace(name, result["name"])
    return result | {"status": "not run" if built else "not built", "sentence": sentence}


def _attempt(name: str, task: str | None, rung: int) -> dict[str, object]:
    import torch

    from lab.bench.rungs import RUNGS
    from rksp.datasets.probe import make_probe
    from rksp.measure.snapshots import collect
    from rksp.models.resolve import resolve_tiny

    source = resolve_tiny(name, shrink=RUNGS[rung], task=task, max_params=3e8)
    model = source.build(0)
    probe = make_probe(source, num_sequences=4, sequence_length=64)
    finite = []

    def consume(transition) -> None:
        finite.append(bool(torch.isfinite(transition.y).all()))
        assert transition.x.shape == transition.y.shape

    seen = collect(model, probe.batch, consume=consume)
    attended = len(seen.forward.attention)
    return {
        "status": "read",
        "sentence": " ".join(seen.notes) + ("" if all(finite) else " Not all states are finite."),
        "class": source.model_class,
        "params": source.num_parameters,
        "task": source.task,
        "blocks": [f"{path} ({count})" for path, count in seen.chains],
        "attention": attended,
        "routers": len(seen.forward.routers),
        "loss": seen.forward.loss,
        "source_notes": " ".join(source.notes),
    }


def _child(name: str, task: str | None) -> dict[str, object]:
    command = [sys.executable, "-m", "lab.bench.families", "--one", name, "--task", task or ""]
    label = {"name": Path(name).name if name.endswith(".json") else name, "task": task or ""}
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            env=environment,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return label | {"status": "failed", "sentence": f"More than {LIMIT} seconds."}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1][:200]
        return label | {"status": "failed", "sentence": f"Exit {done.returncode}: {last}"}
    return json.loads(lines[-1])


def _row(entry: dict[str, object]) -> str:
    params = entry.get("params")
    cells = [
        entry["name"],
        entry["task"],
        entry.get("class", ""),
        f"{params:,}" if params else "",
        ", ".join(entry.get("blocks", [])),
        entry["status"],
        f"{entry.get('source_notes', '')} {entry['sentence']}".strip(),
    ]
    return (
        "| " + " | ".join(str(cell).replace("|", "/").replace("\n", " ") for cell in cells) + " |"
    )


def _table(entries: list[dict[str, object]]) -> str:
    names = "| name | task | class | parameters | blocks | status | remarks |"
    return "\n".join([names, "|---|---|---|---:|---|---|---|", *map(_row, entries)])


def _summary(entries: list[dict[str, object]]) -> str:
    lines = [
        "| | types | read | not covered | not run | failed | not built | read of those that build |"
    ]
    lines.append("|---|---:|---:|---:|---:|---:|---:|---:|")
    groups = [*dict.fromkeys(e["asked"] for e in entries), "sum"]
    for group in groups:
        part = [e for e in entries if group in ("sum", e["asked"])]
        count = {
            status: sum(e["status"] == status for e in part)
            for status in ("read", "not covered", "not run", "failed", "not built")
        }
        builds = len(part) - count["not built"]
        share = f"{100 * count['read'] / builds:.1f} %" if builds else ""
        lines.append(
            f"| {group} | {len(part)} | " + " | ".join(map(str, count.values())) + f" | {share} |"
        )
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one")
    parser.add_argument("--task", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--configs", type=Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--again", nargs="*", help="run only types of these states again")
    parser.add_argument("--state", type=Path, help="JSON Lines of what is done already")
    parser.add_argument("--out", type=Path, default=PAGE)
    return parser.parse_args()


def main() -> None:
    """Run what the arguments ask for."""
    options = _options()
    if options.one:
        print(json.dumps(read_one(options.one, options.task or None)))
        return
    import torch
    import transformers
    from transformers.models.auto import modeling_auto

    work = [
        (name, task)
        for task, table in TABLES.items()
        for name in sorted(getattr(modeling_auto, table))
    ]
    if options.configs:
        work += [(str(path), None) for path in sorted(options.configs.rglob("*.json"))]
    if options.only:
        work = [(n, t) for n, t in work if n in options.only or Path(n).name in options.only]
    done: dict[tuple[str, str], dict] = {}
    if options.state and options.state.exists():
        for line in options.state.read_text().splitlines():
            entry = json.loads(line)
            done[entry["key"][0], entry["key"][1]] = entry
    if options.again:
        done = {k: e for k, e in done.items() if e["status"] not in options.again}

    def run(item: tuple[str, str | None]) -> dict[str, object]:
        key = (Path(item[0]).name if item[1] is None else item[0], item[1] or "config")
        if key not in done:
            done[key] = _child(*item) | {"key": list(key), "asked": key[1]}
            if options.state:
                with options.state.open("a") as file:
                    file.write(json.dumps(done[key]) + "\n")
            print(done[key]["status"], *key, done[key]["sentence"], flush=True)
        return done[key]

    with ThreadPoolExecutor(options.jobs) as pool:
        entries = list(pool.map(run, work))
    types = [e for e in entries if e["asked"] != "config"]
    configs = [e for e in entries if e["asked"] == "config"]
    text = [
        "# Model types that rksp reads\n",
        f"Made by `lab/bench/families.py` with torch {torch.__version__} and transformers "
        f"{transformers.__version__}: every type of the four auto classes at tiny size, randomly "
        "initialized, read end to end. “Not built” means that transformers cannot make the "
        "type from its default configuration, shrunk or not; “not run”, that it builds and wants "
        "other inputs or sizes than the probe's.\n",
        _summary(types),
        "\n## By type\n",
        _table(types),
    ]
    if configs:
        text += ["\n## Published configurations, shrunk\n", _summary(configs), "", _table(configs)]
    options.out.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
