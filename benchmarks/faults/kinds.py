"""The kinds of input that a stranger controls, each as a strategy of commands with files."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from hypothesis import strategies as st

from faults import originals
from faults.answers import Case
from faults.damage import damaged_bytes, damaged_json, damaged_text, words
from faults.originals import SCORE
from rksp.flags import flags_of
from rksp.models.resolve import resolve
from rksp.recipe import Recipe
from rksp.report.formats import FORMATS

CONFIG = ("--evidence", "config")
JSON = ("--format", "json")
_DRY = ("--dry-run", "--max-cells", "500")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of input.

    Attributes:
        name: In the table.
        cases: What to run.
        inputs: How many the full harness tries.
    """

    name: str
    cases: st.SearchStrategy[Case]
    inputs: int


def kinds(part: str = "") -> list[Kind]:
    """Return the kinds whose names hold `part`; each makes the whole files that it damages."""
    found = [
        Kind(name=name, cases=make(), inputs=inputs)
        for name, make, inputs in _KINDS
        if part in name
    ]
    return [*(kind for kind in _recipes() if part in kind.name), *found]


def _recipes() -> list[Kind]:
    found = []
    for trainer, texts in originals.recipes().items():
        files = st.one_of(
            *(_file(f"run{suffix}", damaged_text(whole)) for suffix, whole in texts.items())
        )
        with_json = [json.loads(text) for text in texts.get(".json", ())]
        if with_json:
            files = st.one_of(files, _file("run.json", damaged_json(with_json)))
        cases = files.flatmap(_reader_of_a_recipe)
        found.append(Kind(name=f"recipe: {trainer}", cases=cases, inputs=180))
    return found


def _reader_of_a_recipe(files: Mapping[str, bytes]) -> st.SearchStrategy[Case]:
    (name,) = files
    commands = (
        ("explain-config", name, "--devices", "8"),
        ("explain-config", name, "--devices", "8", *JSON),
        (*SCORE[:-2], *CONFIG, *JSON, "--recipe", name, "--devices", "8"),
        (*SCORE[:-2], *CONFIG, "--recipe", name, "--devices", "3", "--lr", "1e-3"),
        ("score", name, *CONFIG, *JSON, "--devices", "8"),
        ("grid", name, "lr=1e-4,1e-3", "--devices", "8", *_DRY),
    )
    return st.sampled_from(commands).map(lambda words: Case(command=words, files=files))


def _configurations() -> st.SearchStrategy[Case]:
    whole = originals.configurations()
    texts = [json.dumps(config, indent=1) for config in whole]
    files = st.one_of(
        _file("config.json", damaged_json(whole)),
        _file("config.json", damaged_json(whole)),
        _file("config.json", damaged_text(texts)),
    )
    read = ("score", "config.json", "--lr", "1e-4")
    bounded = ("--max-params", "1e5", "--stream", "never", "--snapshots", "64")
    commands = (
        *((*read, *CONFIG, *JSON), (*read, *CONFIG)),
        ("transfer", "config.json", "gpt2", "--lr", "1e-3", *JSON),
        (*read, "--evidence", "forward", *bounded, *JSON),
    )
    return _each(commands, files)


def _checkpoints() -> st.SearchStrategy[Case]:
    def damaged(family: str) -> st.SearchStrategy[dict[str, bytes]]:
        whole = {f"model/{name}": data for name, data in originals.checkpoint(family).items()}

        def with_damage(name: str) -> st.SearchStrategy[dict[str, bytes]]:
            content = damaged_bytes([whole[name]])
            if name.endswith(".json"):
                texts = damaged_json([json.loads(whole[name])])
                content = st.one_of(content, texts.map(_encoded))
            return content.map(lambda data: whole | {name: data})

        return st.sampled_from(sorted(whole)).flatmap(with_damage)

    files = st.sampled_from(originals.CHECKPOINTS).flatmap(damaged)
    read = ("score", "model", "--lr", "1e-3", "--snapshots", "64", "--max-params", "1e6")
    never = ("--stream", "never")
    commands = (
        (*read, *CONFIG, *JSON),
        *((*read, *never, "--evidence", "forward", *JSON), (*read, "--stream", "always", *JSON)),
    )
    return _each(commands, files)


_GRIDS = (
    "target: gpt2\nset: {n_layer: 1}\ngrid:\n  lr: [1e-4, 3e-4]\n  batch_size: [8, 16]\n",
    "target: gpt2\nseed: [0, 1]\nzip:\n  lr: [1e-4, 1e-3]\n  warmup_steps: [10, 20]\n",
    "method: grid\nparameters:\n  lr:\n    values: [0.1, 0.2]\n  target:\n    value: gpt2\n",
    "method: random\nparameters:\n  lr:\n    distribution: log_uniform_values\n    min: 1e-5\n"
    "    max: 1e-2\n  optimizer:\n    values: [adamw, sgd]\n    probabilities: [0.5, 0.5]\n"
    "  n_layer:\n    distribution: q_uniform\n    min: 1\n    max: 8\n    q: 1\n",
    "- {lr: [1e-4], n_layer: [1, 2]}\n- {lr: [1e-3], n_embd: [16, 32]}\n",
    "lr: [1e-4, 3e-4]\nn_layer: [1, 2, 3]\nadam_beta2: [0.95, 0.999]\n",
    "base: run.yaml\ngrid:\n  lr: [1e-4]\n",
)


def _grids() -> st.SearchStrategy[Case]:
    parsed = [yaml.safe_load(text) for text in _GRIDS]
    beside = st.just({"run.yaml": _GRIDS[0].encode()})
    files = st.one_of(
        _file("grid.yaml", damaged_text(_GRIDS)),
        _file("grid.json", damaged_json(parsed)),
        st.builds(lambda a, b: a | b, beside, _file("grid.yaml", damaged_text(_GRIDS[-1:]))),
    )
    some = (("--samples", "5"), ("--target", "gpt2"), ("--samples", "3", "--target", "gpt2"), ())
    commands = [
        ("grid", name, *more, *_DRY) for name in ("grid.yaml", "grid.json") for more in some
    ]
    return _each(commands, files)


_TABLE = [
    {"target": "gpt2", "lr": 1e-4, "batch_size": 8, "optimizer": "adamw", "val_loss": 3.1},
    {"target": "gpt2", "lr": 3e-4, "batch_size": 16, "optimizer": "lion", "val_loss": None},
    {"target": "llama", "lr": 1e-3, "batch_size": 8, "optimizer": "sgd", "val_loss": 9.9},
]


def _rows() -> st.SearchStrategy[Case]:
    csv = "\n".join([",".join(_TABLE[0]), *(",".join(map(str, r.values())) for r in _TABLE)])
    lines = "\n".join(json.dumps(row) for row in _TABLE)
    files = st.one_of(
        _file("rows.csv", damaged_text([csv])),
        _file("rows.jsonl", damaged_text([lines])),
        _file(
            "rows.jsonl", damaged_json([_TABLE]).map(lambda t: t.strip("[]").replace("}, ", "}\n"))
        ),
        damaged_bytes([originals.parquet(_TABLE)]).map(lambda data: {"rows.parquet": data}),
        damaged_bytes([csv.encode()]).map(lambda data: {"rows.csv": data}),
    )
    return files.map(lambda f: Case(command=("grid", next(iter(f)), *_DRY), files=f))


def _axes() -> st.SearchStrategy[Case]:
    whole = ("lr=1e-4,3e-4", "n_layer=range(2,9,2)", "lr=logspace(-4,-2,9)", "seed=0,1,2")
    whole += ("lr=interval(1e-5,1e-3)", "lr=tag(log,interval(1e-5,1e-3))", "optimizer=adamw,sgd")
    axis = st.one_of(damaged_text(whole), st.builds("{}={}".format, _NAMES, words()))
    typed = st.lists(axis.filter(lambda text: "\0" not in text), min_size=1, max_size=3)
    more = st.sampled_from(((), ("--samples", "4"), ("--ignore", "x")))
    return st.builds(
        lambda axes, rest: Case(command=("grid", "gpt2", *_DRY, *rest, "--", *axes), files={}),
        typed,
        more,
    )


_SETTINGS = (
    *("n_layer", "n_embd", "n_head", "vocab_size", "n_positions", "n_inner", "resid_pdrop"),
    *("activation_function", "initializer_range", "layer_norm_epsilon", "dtype", "model_type"),
    *("tie_word_embeddings", "rope_parameters", "num_hidden_layers", "a.b.c", "num_labels"),
    *("hidden_size", "num_experts", "attn_implementation", "auto_map", "quantization_config"),
)
_NAMES = st.one_of(
    st.sampled_from(("lr", "seed", "target", *_SETTINGS, *Recipe.model_fields)), st.text(max_size=5)
)


def _settings() -> st.SearchStrategy[Case]:
    def of(target: str) -> st.SearchStrategy[Case]:
        known = st.sampled_from(sorted(resolve(target).config.to_dict()))
        name = st.one_of(known, known, known, st.sampled_from(_SETTINGS), words())
        pair = st.builds("{}={}".format, name, words()).filter(lambda text: "\0" not in text)
        read = ("score", target, "--lr", "1e-3", *CONFIG, *JSON)
        return st.lists(pair, min_size=1, max_size=2).map(
            lambda pairs: Case(
                command=(*read, *(word for text in pairs for word in ("--set", text))), files={}
            )
        )

    targets = ("gpt2", "llama", "bert", "mixtral", "vit", "whisper", "deepseek_v3", "mamba")
    return st.one_of(*(of(target) for target in targets))


def _options() -> st.SearchStrategy[Case]:
    flags = [flag.name for flag in flags_of(Recipe).values()]
    number = st.one_of(words(), st.sampled_from(("adamw", "muon", "sgd", "cosine", "wsd", "bf16")))
    pair = st.tuples(st.sampled_from(flags), number.filter(lambda text: "\0" not in text))
    return st.builds(
        lambda pairs, more: Case(
            command=(*SCORE[:-2], *more, *(f"{name}={value}" for name, value in pairs)), files={}
        ),
        st.lists(pair, min_size=1, max_size=4),
        st.sampled_from(
            ((*CONFIG, *JSON), CONFIG, ("--evidence", "response", "--snapshots", "64", *JSON))
        ),
    )


def _words() -> st.SearchStrategy[Case]:
    word = words().filter(lambda text: "\0" not in text and ":" not in text)
    bare = (*SCORE, *CONFIG)
    slots = (
        *(("explain", "{}"), ("schema", "{}"), ("checks", "{}"), ("{}",), ("score", "{}")),
        *((*bare, "--format={}"), (*bare, "--level={}"), (*bare, "--select={}")),
        *((*bare, "--ignore={}"), (*bare, "--fail-on={}"), (*bare, "--risk={}")),
        *((*bare, "--seed={}"), (*bare, "--snapshots={}"), (*bare, "--evidence={}")),
        *((*bare, "--max-params={}"), (*bare, "--max-memory={}"), (*bare, "--threads={}")),
        *(("confirm", "gpt2", "--lr=1e-3", "--arm={}"), ("reproduce", "{}"), ("lab", "{}")),
        *(("confirm", "gpt2", "--lr=1e-3", "--monitor={}"), ("diff", "{}", "{}"), ("bench", "{}")),
        *(
            ("confirm", "gpt2", "--lr=1e-3", "--fault={}"),
            ("report", "{}"),
            ("transfer", "{}", "gpt2"),
        ),
        *(("grid", "gpt2", "lr=1e-4", "--where={}", "--dry-run"), ("grid", "{}", "--dry-run")),
    )

    def typed(slot: Sequence[str], text: str) -> Case:
        # A confirmation that is understood would train GPT-2: it is refused for its size.
        more = ("--max-params", "1000") if slot[0] == "confirm" else ()
        return Case(command=(*(part.replace("{}", text) for part in slot), *more), files={})

    return st.builds(typed, st.sampled_from(slots), word)


_PROBE = ("--snapshots", "64", "--evidence", "forward", *JSON)


def _probes() -> st.SearchStrategy[Case]:
    text = "First Citizen: before we proceed any further, hear me speak. " * 40
    probe = st.one_of(damaged_bytes([text.encode()]), st.binary(max_size=40))
    tokenizer = originals.ROOT / "datasets" / "tokenizers"
    whole = {f"model/{n}": data for n, data in originals.checkpoint("gpt2").items()}
    stored = [path.read_text() for path in sorted(tokenizer.glob("*.json"))]
    texts = st.one_of(damaged_text(stored), damaged_json([json.loads(t) for t in stored]))
    return st.one_of(
        probe.map(
            lambda data: Case(
                command=(*SCORE, *_PROBE, "--probe", "probe.txt"), files={"probe.txt": data}
            )
        ),
        texts.map(
            lambda text: Case(
                command=("score", "model", "--lr", "1e-3", *_PROBE),
                files=whole | {"model/tokenizer.json": _encoded(text)},
            )
        ),
    )


def _reports() -> st.SearchStrategy[Case]:
    found = originals.made()
    names = ("score.json", "risky.json", "grid.json", "diff.json", "confirm.json")
    whole = [json.loads(found[name]) for name in names]
    texts = [json.dumps(document, indent=1) for document in whole]
    files = st.one_of(
        _file("r.json", damaged_json(whole)),
        _file("r.json", damaged_json(whole[:2])),
        _file("r.json", damaged_text(texts)),
    )
    other = {"whole.json": found["score.json"]}
    commands = [("report", "r.json", "--format", form.name) for form in FORMATS]
    commands += [("diff", "r.json", "whole.json"), ("diff", "whole.json", "r.json", *JSON)]
    return _each(commands, files.map(lambda f: f | other))


def _baselines() -> st.SearchStrategy[Case]:
    whole = [json.loads(originals.made()[name]) for name in ("score.json", "risky.json")]
    command = (*SCORE, "--snapshots", "256", *JSON, "--baseline", "old.json")
    cheap = (*SCORE, *CONFIG, *JSON, "--baseline", "old.json")
    return _each((cheap, cheap, cheap, command), _file("old.json", damaged_json(whole)))


_TOML = (
    '[score]\nlr = 1e-3\nset = ["n_layer=2"]\nkreiss = true\nwarmup-steps = 10\n',
    '[score]\nlr = 1e-3\nfail-on = "error"\n[diff]\n',
    '[grid]\nsamples = 3\nignore = ["x"]\nmax-cells = 100\n[explain]\n[lab.eval]\n',
    '[tool.rksp.score]\nlr = 3e-4\nevidence = "config"\nseeds = 2\nlevel = ["RKSP001=warning"]\n',
)


def _defaults() -> st.SearchStrategy[Case]:
    names = ("lr", "output", "exit-zero", "baseline", "keep", "export", "engine", "recipe", "seed")
    names += ("classifier", "trust-remote-code", "probe", "format", "threads", "fail-on", "store")
    values = ("'a'", "1", "true", "['a']", "[]", "{}", "nan", "inf", "1979-05-27", "'../x.json'")
    line = st.builds(
        "{} = {}".format, st.sampled_from(names), st.one_of(st.sampled_from(values), words())
    )
    table = st.sampled_from(("score", "grid", "checks", "confirm", "lab", "lab.eval", "x", "a.b"))
    invented = st.builds(
        lambda head, lines: "\n".join([f"[{head}]", *lines]), table, st.lists(line, max_size=4)
    )
    files = st.one_of(
        _file(".rksp.toml", damaged_text(_TOML)),
        _file("pyproject.toml", damaged_text(_TOML[-1:])),
        _file(".rksp.toml", invented),
        damaged_bytes([_TOML[0].encode()]).map(lambda data: {".rksp.toml": data}),
    )
    commands = (
        *(("checks",), ("explain", "RKSP001"), ("grid", "gpt2", "lr=1e-4", "--dry-run")),
        *((*SCORE[:-2], *CONFIG, *JSON), (*SCORE, *CONFIG)),
    )
    beside = {".git/HEAD": b""}  # the search for defaults ends here
    return _each(commands, files.map(lambda f: f | beside))


def _plans() -> st.SearchStrategy[Case]:
    texts = [path.read_text() for path in sorted((originals.PLANS / "plans").glob("*.yaml"))]
    texts = [text.replace("ladders: 900", "ladders: 9") for text in texts]
    parsed = [yaml.safe_load(text) for text in texts]
    files = st.one_of(
        _file("plan.yaml", damaged_text(texts)), _file("plan.yaml", damaged_json(parsed))
    )
    command = ("lab", "run", "plan.yaml", "-o", "ladders", "--workers", "1")
    return files.map(lambda f: Case(command=command, files=f, writes=("ladders",)))


def _lab_files() -> st.SearchStrategy[Case]:
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
            command=pack, files={"ladders/a.json": _encoded(text)}, writes=("all.parquet",)
        )
    )
    card = damaged_bytes([originals.parquet([{"ladder": "a", "spec": json.dumps(spec)}])])
    return st.one_of(
        folder,
        folder,
        card.map(
            lambda data: Case(command=("lab", "card", "c.parquet"), files={"c.parquet": data})
        ),
    )


def _classifiers() -> st.SearchStrategy[Case]:
    text = originals.shipped("classifiers/fitted/edge.json").read_text()
    files = st.one_of(
        _file("edge.json", damaged_json([json.loads(text)])),
        _file("edge.json", damaged_json([json.loads(text)])),
        _file("edge.json", damaged_text([text])),
    )
    commands = (
        *((*SCORE, *CONFIG, *JSON, "--classifier", "edge.json"),) * 2,
        (*SCORE, "--snapshots", "64", *JSON, "--classifier", "edge.json"),
    )
    return _each(commands, files)


def _stores() -> st.SearchStrategy[Case]:
    whole = originals.made()["grid.db"]
    columns = ("init", "target", "overrides", "seed", "recipe", "labels", "state", "tries")
    columns += ("failure", "message", "result", "position", "owner", "lease")
    result = json.loads(_cell(whole, "result"))
    recipe = json.loads(_cell(whole, "recipe"))
    values = st.one_of(
        damaged_json([result]), damaged_json([recipe]), words(), st.binary(max_size=4), st.none()
    )
    changed = st.builds(
        lambda changes: {"grid.db": _with_values(whole, changes)},
        st.lists(st.tuples(st.sampled_from(columns), values), min_size=1, max_size=2),
    )
    meta = st.builds(
        lambda name, text: {"grid.db": _with_meta(whole, name, text)},
        st.sampled_from(("schema", "made_by", "options", "plan")),
        st.one_of(words(), damaged_json([{"rksp": "0", "classifier": "x"}])),
    )
    files = st.one_of(damaged_bytes([whole]).map(lambda d: {"grid.db": d}), changed, changed, meta)
    commands = [("grid", "grid.db", "--format", f) for f in ("text", "json", "html", "markdown")]
    commands += [("grid", "grid.db", "--where", "lr<1", *JSON), ("grid", "grid.db", "--top", "1")]
    return _each(commands, files)


def _cell(store: bytes, column: str) -> str:
    with _opened(store) as (base, _):
        return base.execute(f"SELECT {column} FROM cells").fetchone()[0]


def _with_values(store: bytes, changes: Sequence[tuple[str, object]]) -> bytes:
    with _opened(store) as (base, path):
        for column, value in changes:
            with contextlib.suppress(sqlite3.Error, UnicodeError):  # what SQLite itself refuses
                base.execute(f"UPDATE cells SET {column} = ? WHERE position = 1", (value,))
        base.commit()
        return path.read_bytes()


def _with_meta(store: bytes, name: str, text: str) -> bytes:
    with _opened(store) as (base, path):
        with contextlib.suppress(sqlite3.Error, UnicodeError):
            base.execute("UPDATE meta SET value = ? WHERE name = ?", (text, name))
        base.commit()
        return path.read_bytes()


@contextlib.contextmanager
def _opened(store: bytes):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.db"
        path.write_bytes(store)
        base = sqlite3.connect(path)
        try:
            yield base, path
        finally:
            base.close()


def _each(
    commands: Sequence[Sequence[str]], files: st.SearchStrategy[Mapping[str, bytes]]
) -> st.SearchStrategy[Case]:
    return st.builds(
        lambda command, found: Case(command=tuple(command), files=found),
        st.sampled_from(commands),
        files,
    )


def _file(name: str, text: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, bytes]]:
    return text.map(lambda found: {name: _encoded(found)})


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", errors="surrogatepass")


_KINDS: tuple[tuple[str, Callable[[], st.SearchStrategy[Case]], int], ...] = (
    ("configurations", _configurations, 900),
    ("checkpoints", _checkpoints, 400),
    ("grids and sweeps", _grids, 700),
    ("rows of a grid", _rows, 500),
    ("axes typed", _axes, 400),
    ("--set", _settings, 700),
    ("rates and recipe options", _options, 900),
    ("words typed", _words, 500),
    ("probes and tokenizers", _probes, 250),
    ("reports fed back", _reports, 900),
    ("baselines", _baselines, 300),
    (".rksp.toml", _defaults, 600),
    ("lab plans", _plans, 400),
    ("lab files", _lab_files, 250),
    ("--classifier", _classifiers, 400),
    ("sweep databases", _stores, 500),
)
