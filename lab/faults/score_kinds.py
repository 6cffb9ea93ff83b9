"""Kinds of input of a score: models, recipes and words that are typed, probes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hypothesis import strategies as st

from lab.faults import originals
from lab.faults.answers import Case, each
from lab.faults.commands import CONFIG, JSON, RATE, SCORE, TINY
from lab.faults.damage import damaged_bytes, damaged_json, damaged_text, encoded, json_file, words
from rksp.ground.flags import flags_of
from rksp.models.resolve import resolve
from rksp.recipe import Recipe


def configurations() -> st.SearchStrategy[Case]:
    """Return damaged configurations of models, scored and transferred."""
    read = ("score", "config.json", "--lr", "1e-4")
    bounded = ("--max-params", "1e5", "--stream", "never", "--snapshots", "64")
    commands = (
        *((*read, *CONFIG, *JSON), (*read, *CONFIG)),
        ("transfer", "config.json", "gpt2", "--lr", "1e-3", *JSON),
        (*read, "--evidence", "forward", *bounded, *JSON),
    )
    return each(commands, json_file("config.json", originals.configurations()))


def checkpoints() -> st.SearchStrategy[Case]:
    """Return tiny checkpoints with one damaged file."""

    def damaged(family: str) -> st.SearchStrategy[dict[str, bytes]]:
        whole = {f"model/{name}": data for name, data in originals.checkpoint(family).items()}

        def with_damage(name: str) -> st.SearchStrategy[dict[str, bytes]]:
            content = damaged_bytes([whole[name]])
            if name.endswith(".json"):
                texts = damaged_json([json.loads(whole[name])])
                content = st.one_of(content, texts.map(encoded))
            return content.map(lambda data: whole | {name: data})

        return st.sampled_from(sorted(whole)).flatmap(with_damage)

    files = st.sampled_from(("gpt2", "llama")).flatmap(damaged)
    read = ("score", "model", "--lr", "1e-3", "--snapshots", "64", "--max-params", "1e6")
    never = ("--stream", "never")
    commands = (
        (*read, *CONFIG, *JSON),
        *((*read, *never, "--evidence", "forward", *JSON), (*read, "--stream", "always", *JSON)),
    )
    return each(commands, files)


_SETTINGS = (
    *("n_layer", "n_embd", "n_head", "vocab_size", "n_positions", "n_inner", "resid_pdrop"),
    *("activation_function", "initializer_range", "layer_norm_epsilon", "dtype", "model_type"),
    *("tie_word_embeddings", "rope_parameters", "num_hidden_layers", "a.b.c", "num_labels"),
    *("hidden_size", "num_experts", "attn_implementation", "auto_map", "quantization_config"),
)
NAMES = st.one_of(
    st.sampled_from(("lr", "seed", "target", *_SETTINGS, *Recipe.model_fields)), st.text(max_size=5)
)


def settings() -> st.SearchStrategy[Case]:
    """Return damaged `--set` of known models."""

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


def options() -> st.SearchStrategy[Case]:
    """Return rates and other options of the recipe, typed wrong."""
    flags = list(flags_of(Recipe).values())
    number = st.one_of(words(), st.sampled_from(("adamw", "muon", "sgd", "cosine", "wsd", "bf16")))
    pair = st.tuples(st.sampled_from(flags), number.filter(lambda text: "\0" not in text))
    return st.builds(
        lambda pairs, more: Case(
            command=(
                "score",
                *TINY,
                *more,
                *(word for flag, value in pairs for word in flag.typed(value)),
            ),
            files={},
        ),
        st.lists(pair, min_size=1, max_size=4),
        st.sampled_from(
            ((*CONFIG, *JSON), CONFIG, ("--evidence", "gradient", "--snapshots", "64", *JSON))
        ),
    )


def typed_words() -> st.SearchStrategy[Case]:
    """Return words typed where a command wants a name or a number."""
    word = words().filter(lambda text: "\0" not in text and ":" not in text)
    bare = (*SCORE, *CONFIG)
    options = ("format", "level", "select", "ignore", "fail-on", "risk", "seed", "snapshots")
    options += ("evidence", "max-params", "max-memory", "threads")
    # A word may be the name of a large model or an experiment, whose work takes minutes.
    confirm = ("confirm", "gpt2", "--lr=1e-3", "--max-params", "1000")
    slots = (
        *((*bare, f"--{option}={{}}") for option in options),
        *((*confirm, f"--{option}={{}}") for option in ("arm", "monitor", "fault")),
        ("score", "{}", "--max-params", "1e6", "--stream", "never"),
        *((command, "{}") for command in ("explain", "schema", "checks", "lab", "report", "bench")),
        *(("{}",), ("diff", "{}", "{}"), ("transfer", "{}", "gpt2"), ("grid", "{}", "--dry-run")),
        ("grid", "gpt2", "lr=1e-4", "--where={}", "--dry-run"),
    )

    def typed(slot: Sequence[str], text: str) -> Case:
        return Case(command=tuple(part.replace("{}", text) for part in slot), files={})

    cases = st.builds(typed, st.sampled_from(slots), word)
    return cases.filter(lambda case: case.command[:2] != ("bench", "score"))


_PROBE = ("--snapshots", "64", "--evidence", "forward", *JSON)


def probes() -> st.SearchStrategy[Case]:
    """Return damaged probe texts and tokenizers."""
    text = "First Citizen: before we proceed any further, hear me speak. " * 40
    probe = st.one_of(damaged_bytes([text.encode()]), st.binary(max_size=40))
    tokenizer = originals.ROOT / "datasets" / "tokenizers"
    whole = {f"model/{n}": data for n, data in originals.checkpoint("gpt2").items()}
    stored = [path.read_text() for path in sorted(tokenizer.glob("*.json"))]
    texts = st.one_of(damaged_text(stored), damaged_json([json.loads(t) for t in stored]))
    typed, given = (*SCORE, *_PROBE, "--probe", "p.txt"), ("score", "model", *RATE, *_PROBE)
    return st.one_of(
        probe.map(lambda data: Case(command=typed, files={"p.txt": data})),
        texts.map(
            lambda text: Case(command=given, files=whole | {"model/tokenizer.json": encoded(text)})
        ),
    )
