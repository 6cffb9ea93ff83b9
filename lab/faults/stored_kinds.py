"""Kinds of stored input: reports, baselines, defaults, files of the lab, models of the edge."""

from __future__ import annotations

import json

import yaml
from hypothesis import strategies as st

from lab.faults import originals
from lab.faults.answers import Case, each
from lab.faults.commands import CONFIG, JSON, SCORE, TINY
from lab.faults.damage import damaged_bytes, damaged_json, damaged_text, encoded, file_of, words
from rksp.recipe import Recipe
from rksp.report.formats import FORMATS


def reports() -> st.SearchStrategy[Case]:
    """Return damaged reports, shown and compared."""
    found = originals.made()
    names = ("score.json", "risky.json", "grid.json", "diff.json", "confirm.json")
    whole = [json.loads(found[name]) for name in names]
    texts = [json.dumps(document, indent=1) for document in whole]
    files = st.one_of(
        file_of("r.json", damaged_json(whole)),
        file_of("r.json", damaged_json(whole[:2])),
        file_of("r.json", damaged_text(texts)),
    )
    other = {"whole.json": found["score.json"]}
    commands = [("report", "r.json", "--format", form.name) for form in FORMATS]
    commands += [("diff", "r.json", "whole.json"), ("diff", "whole.json", "r.json", *JSON)]
    return each(commands, files.map(lambda f: f | other))


def baselines() -> st.SearchStrategy[Case]:
    """Return damaged baselines of a score."""
    whole = [json.loads(originals.made()[name]) for name in ("score.json", "risky.json")]
    command = (*SCORE, "--snapshots", "256", *JSON, "--baseline", "old.json")
    cheap = (*SCORE, *CONFIG, *JSON, "--baseline", "old.json")
    return each((cheap, cheap, cheap, command), file_of("old.json", damaged_json(whole)))


_TOML = (
    '[score]\nlr = 1e-3\nset = ["n_layer=2"]\nthreads = 1\nwarmup-steps = 10\n',
    '[score]\nlr = 1e-3\nfail-on = "error"\n[diff]\n',
    '[grid]\nsamples = 3\nignore = ["x"]\nmax-cells = 100\n[explain]\n[lab.eval]\n',
    '[tool.rksp.score]\nlr = 3e-4\nevidence = "config"\nseeds = 2\nlevel = ["RKSP001=warning"]\n',
)


def defaults() -> st.SearchStrategy[Case]:
    """Return damaged files of defaults."""
    names = ("lr", "output", "exit-zero", "baseline", "keep", "export", "engine", "recipe", "seed")
    names += ("trust-remote-code", "probe", "format", "threads", "fail-on", "store")
    values = ("'a'", "1", "true", "['a']", "[]", "{}", "nan", "inf", "1979-05-27", "'../x.json'")
    line = st.builds(
        "{} = {}".format, st.sampled_from(names), st.one_of(st.sampled_from(values), words())
    )
    table = st.sampled_from(("score", "grid", "checks", "confirm", "lab", "lab.eval", "x", "a.b"))
    invented = st.builds(
        lambda head, lines: "\n".join([f"[{head}]", *lines]), table, st.lists(line, max_size=4)
    )
    files = st.one_of(
        file_of(".rksp.toml", damaged_text(_TOML)),
        file_of("pyproject.toml", damaged_text(_TOML[-1:])),
        file_of(".rksp.toml", invented),
        damaged_bytes([_TOML[0].encode()]).map(lambda data: {".rksp.toml": data}),
    )
    commands = (
        *(("checks",), ("explain", "RKSP001"), ("grid", "gpt2", "lr=1e-4", "--dry-run")),
        *(("score", *TINY, *CONFIG, *JSON), (*SCORE, *CONFIG)),
    )
    beside = {".git/HEAD": b""}  # the search for defaults ends here
    return each(commands, files.map(lambda f: f | beside))


def plans() -> st.SearchStrategy[Case]:
    """Return damaged plans of the lab, read and expanded."""
    stored = sorted((originals.ROOT / "datasets/plans").glob("*.yaml"))
    texts = [path.read_text().replace("ladders: 900", "ladders: 9") for path in stored]
    parsed = [yaml.safe_load(text) for text in texts]
    files = st.one_of(
        file_of("plan.yaml", damaged_text(texts)), file_of("plan.yaml", damaged_json(parsed))
    )
    command = ("lab", "run", "plan.yaml", "-o", "ladders", "--workers", "1")
    return files.map(lambda f: Case(command=command, files=f, writes=("ladders",)))


def lab_files() -> st.SearchStrategy[Case]:
    """Return damaged ladders and collections."""
    curve = [5.0, 4.0, 3.0, "nan", "inf"] * 8
    runs = [
        {"learning_rate": rate, "seconds": 1.0, "loss": curve, "grad_norm": curve}
        for rate in (1e-3, 1e-2)
    ]
    spec = {
        "family": "gpt2",
        "shape": {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 256},
        "task": "bytes",
        "recipe": json.loads(Recipe(max_steps=40).model_dump_json()),
        "seed": 0,
        "first_rate": 1e-3,
    }
    ladder = {"schema": "rksp-ladder-1", "spec": spec, "provenance": {}, "runs": runs}
    stored = st.one_of(
        damaged_json([ladder]), damaged_text([json.dumps(ladder, indent=1)]), damaged_json([ladder])
    )
    pack = ("lab", "pack", "ladders", "-o", "all.parquet")
    folder = stored.map(
        lambda text: Case(
            command=pack, files={"ladders/a.json": encoded(text)}, writes=("all.parquet",)
        )
    )
    card = damaged_bytes([originals.parquet([{"ladder": "a", "spec": json.dumps(spec)}])])
    shown = ("lab", "card", "c.parquet")
    cards = card.map(lambda data: Case(command=shown, files={"c.parquet": data}))
    return st.one_of(folder, folder, cards)
