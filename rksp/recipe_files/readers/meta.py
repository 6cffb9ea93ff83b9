"""Meta's trainers: torchtitan, torchtune, lingua and fairseq.

torchtitan's registry of configurations in Python is read as a syntax tree: functions that return
`Trainer.Config(…)`. A file holds several; one is chosen by `FILE.py::NAME`. Before it had TOML
files. torchtune has OmegaConf's YAML whose parts name the class they build (`_component_`), lingua
one with `optim`, `distributed`, `model` and `data`. fairseq, and metaseq, have Hydra's YAML by
groups, or the flags of `fairseq-train`.
"""

from __future__ import annotations

import dataclasses
import re

from rksp.ground.errors import InputError, nearest
from rksp.ground.model import definite
from rksp.recipe_files.parse.document import Document, Found, FoundText, lines_below
from rksp.recipe_files.parse.python_source import FUNCTIONS
from rksp.recipe_files.parse.values import Unresolved, as_section
from rksp.recipe_files.table import convert
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.names import hub_id_of, shape_of
from rksp.recipe_files.table.reader import NOTHING

_CONVERTERS = (
    *("model.converters", "model_converters.converters", "model_spec.converters"),
    "training.converters",
)


def choose(document: Document, name: str | None) -> Document:
    """Return the configuration of a registry that is called `name`, or the only one.

    Raises:
        InputError: There are several, or none of that name.
    """
    found = {key: part for key, part in as_section(document.data[FUNCTIONS]).items()
             if isinstance(part, dict)}  # fmt: skip
    names = [*found]
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        said = f"{document.path} holds {len(names)} configurations ({', '.join(names[:8])}"
        hint = nearest(name, names) if name else ""
        more = ", …" if len(names) > 8 else ""
        raise InputError(f"{said}{more}); give {document.path}::NAME{hint}.")
    data = {**found[name], "_name": name}
    lines = lines_below(document.lines, f"{FUNCTIONS}.{name}")
    return Document(path=document.path, syntax="python", data=data, lines=lines)


def is_registry(document: Document) -> bool:
    """Return True if a Python file holds functions that return a torchtitan configuration."""
    found = document.data.get(FUNCTIONS) if document.syntax == "python" else None
    return isinstance(found, dict) and any(
        isinstance(value, dict) and "training" in value and "optimizer" in value
        for value in found.values()
    )


def _titan_optimizer(draft: Draft) -> None:
    convert.optimizer(draft, "optimizer", ["optimizer.name"])
    built = draft.text_or("", "optimizer._call")
    if "muon" in built.value.lower():
        draft.put("optimizer", "muon", built)
    draft.default("optimizer", "adamw")


def _titan_fall(draft: Draft) -> None:
    share = draft.number("lr_scheduler.decay_ratio")
    kind = draft.text_or("linear", "lr_scheduler.decay_type")
    total, warm = int(draft.value("max_steps")), int(draft.value("warmup_steps"))
    if share is not None or kind.value == "sqrt":
        span = min(total - warm, round(total * share.value)) if share is not None else total - warm
        draft.put("schedule", "wsd", share, kind, text=f"falls over the last {span} steps")
        draft.put("decay_steps", max(1, span), share or kind)
        draft.put("decay_shape", kind.value, kind)
    else:
        convert.schedule(draft, "schedule", ["lr_scheduler.decay_type"])
    draft.default("schedule", "linear")


def _titan_converters(draft: Draft) -> None:
    converters = draft.get(*_CONVERTERS)
    names = converters.value if converters is not None else ()
    for name in names if isinstance(names, list) else ():
        text = name.text if isinstance(name, Unresolved) else str(name)
        if re.search("float8|fp8|mx|fp4", text.lower()):
            draft.put("precision", "fp8", converters, text=f"{text:.60} read as fp8")
        if text.lower().startswith("lora"):
            draft.put("peft", "lora", converters, text=f"{text:.60}")
            for field, key in (("lora_rank", "rank"), ("lora_alpha", "alpha")):
                value = re.search(rf"\b{key}=([\d.]+)", text)
                if value is not None:
                    draft.put(field, float(value[1]), converters, text=value[0])


def _titan_model(draft: Draft) -> None:
    start = draft.text("checkpoint.initial_load_path")
    if start is not None and draft.false("checkpoint.initial_load_model_only") is None:
        draft.names_weights = (
            True  # with its own defaults; otherwise it goes on as a run that stopped
        )
    name, flavor = draft.text("model.name"), draft.text("model.flavor")
    flavor = flavor or draft.text("model_spec._0")
    assets = draft.text("hf_assets_path", "model.hf_assets_path")
    family = name.value if name is not None else str(draft.document.data.get("_name", ""))
    known = shape_of(f"{family}_{flavor.value}" if name is not None and flavor else family)
    weights = hub_id_of(assets.value) if assets is not None else None
    if family.startswith("sft_") and weights is not None:
        draft.names_weights = True
        draft.describe(weights, {}, f"It finetunes the weights in {definite(assets).value}.")
        return
    if known is not None:
        draft.describe(*known, "torchtitan cuts initial weights off at three deviations.")
        return
    model_name = name.value if name is not None else "the model"
    if name is None and flavor is None:
        return
    size = f" {flavor.value}" if flavor is not None else ""
    hint = f" (its assets are {assets.value})" if assets is not None else ""
    draft.no_target(
        f"{model_name}{size} is a flavor in torchtitan's code{hint}; name the same model as TARGET."
    )


# Switches of a builder that give adapters to more modules than `lora_attn_modules` names.
_MORE_TARGETS = (
    ("apply_lora_to_mlp", ("gate_proj", "up_proj", "down_proj")),
    ("apply_lora_to_output", ("output",)),
)
_OBJECTIVES = {"dpo": "dpo", "ppo": "ppo", "forwardkl": "distillation", "grpo": "grpo"}


def _tune_steps(draft: Draft) -> None:
    """Set steps per epoch times epochs; epochs alone need the number of rows.

    PPO trains on each of `num_steps // batch_size` rollouts in batches.
    """
    steps, rounds = draft.number("max_steps_per_epoch"), draft.number("epochs")
    keys = ("num_steps", "batch_size", "ppo_batch_size")
    if draft.document.has(*keys):
        found, passes = [draft.number(key) for key in keys], draft.number_or(1, "ppo_epochs")
        if None not in found:
            count, size, micro = (max(1, int(definite(one).value)) for one in found)
            times = int(passes.value)
            made = max(1, (count // size) * times * (size // micro))
            text = f"{count} // {size} rollouts × {times} passes × {size // micro} batches"
            draft.put("max_steps", made, *found, passes, text=text)
    elif steps is not None:
        times = int(rounds.value) if rounds is not None else 1
        text = f"{steps.value} a pass × {times} passes"
        draft.put("max_steps", int(steps.value) * times, steps, rounds, text=text)
    elif rounds is not None:
        convert.put_epochs(draft, "max_steps", rounds.value, rounds, "epochs")


def _tune_adapters(draft: Draft) -> None:
    built = draft.text_or("", "model._component_")
    name = built.value.rsplit(".", 1)[-1]
    if not name.startswith(("dora_", "qdora_")) and "lora" not in name:
        return
    word = "qlora" if name.startswith(("qlora", "qdora")) else "lora"
    word, switch = convert.kind_of_adapters(draft, "dora" if name.startswith("dora_") else word)
    draft.put("peft", word, built, switch)
    for field in ("lora_rank", "lora_alpha"):
        convert.number(draft, field, [f"model.{field}"])
    draft.default("lora_rank", 8)
    modules = draft.get("model.lora_attn_modules")
    if modules is not None and isinstance(modules.value, list):
        others = [(draft.true(f"model.{key}"), names) for key, names in _MORE_TARGETS]
        more = [name for found, names in others if found is not None for name in names]
        targets = (*(str(part) for part in modules.value), *more)
        draft.put("lora_targets", targets, modules, *(found for found, _ in others))


def _tune_objective(draft: Draft) -> None:
    built = draft.text_or("", "loss._component_", "loss_fn._component_")
    name = built.value.lower()
    found = next((meaning for word, meaning in _OBJECTIVES.items() if word in name), None)
    kd = draft.text("kd_loss._component_")
    if found is not None:
        draft.put("objective", found, built)
    elif kd is not None:
        draft.put("objective", "distillation", kd)


def _tune_model(draft: Draft) -> None:
    folder = draft.text("checkpointer.checkpoint_dir")
    if folder is not None:
        draft.names_weights = True
    name = hub_id_of(folder.value) if folder is not None else None
    found = draft.text("model._component_")
    if name is not None and folder is not None:
        note = f"checkpoint_dir: {folder.value} is read as the Hub's {name}, with its weights."
        draft.describe(name, {}, note)
    elif found is not None:
        draft.no_target(f"{found.value} builds its own model; name the same model as TARGET.")


def _lingua_fall(draft: Draft) -> None:
    """Set the decay; WSD decays over the last `decay_fraction`, a cosine of cycles restarts."""
    share = draft.number_or(0.1, "optim.decay_fraction")
    if draft.value("schedule") == "wsd":
        total = int(draft.value("max_steps"))
        text = f"{share.value:g} of {total} steps"
        draft.put("decay_steps", max(1, round(share.value * total)), share, text=text)
    if draft.amount("optim.cycle_length", default=1) != 1:
        draft.note("optim.cycle_length: the cosine restarts, which rksp leaves out.")


def _lingua_model(draft: Draft) -> None:
    is_resumed = draft.true("checkpoint.continue_training_from_init") is not None
    if draft.text("checkpoint.init_ckpt_path") is not None and not is_resumed:
        draft.names_weights = True
    sizes = convert.read_shape(
        draft,
        hidden_size="model.dim",
        num_hidden_layers="model.n_layers",
        num_attention_heads="model.n_heads",
        num_key_value_heads="model.n_kv_heads",
        max_position_embeddings="model.max_seqlen data.seq_len",
    )
    if not sizes:
        return
    unit = draft.count("model.multiple_of") or 256
    scale = draft.amount("model.ffn_dim_multiplier", default=1.0)
    sizes["intermediate_size"] = unit * -(-int(8 * sizes["hidden_size"] / 3 * scale) // unit)
    vocabulary = draft.count("model.vocab_size") or 0
    draft.describe("llama", sizes | ({"vocab_size": vocabulary} if vocabulary > 0 else {}))


_LOWEST = ("lr_scheduler.min_lr", "lr_scheduler.end_learning_rate", "end_learning_rate", "min_lr")
_END = ("lr_scheduler.total_num_update", "total_num_update", "lr_scheduler.max_update")
_SCHEDULE = ("lr_scheduler._name", "lr_scheduler")
_NAMES = {"fixed": "constant", "pass_through": "constant", "polynomial_decay": "polynomial"}
_TASKS = {"masked_lm": "mlm", "translation": "seq2seq", "denoising": "seq2seq",
          "sentence_prediction": "classification", "language_modeling": "lm",
          "streaming_language_modeling": "lm", "multilingual_masked_lm": "mlm",
          "translation_from_pretrained_bart": "seq2seq"}  # fmt: skip
_RECOGNIZERS = ("wav2vec_ctc", "wav2vec_seq2seq", "hubert_ctc", "hubert_seq2seq")


def _fair_schedule(draft: Draft) -> None:
    """Set the schedule; `fixed` without annealing is constant (fairseq/optim/lr_scheduler).

    A run without `max_update` ends where the rate is zero: nothing is learned from then on.
    """
    found = draft.text(*_SCHEDULE)
    if found is None:
        draft.default("schedule", "constant", "fixed")
    else:
        name = _NAMES.get(found.value, found.value)
        convert.put_schedule(draft, dataclasses.replace(found, value=name))
    end = draft.number(*_END) if draft.value("schedule") == "polynomial" else None
    if end is not None and not draft.knows("max_steps"):
        draft.put("max_steps", int(end.value), end, text="where the rate ends")


def _fair_fall(draft: Draft) -> None:
    """Set the schedule; polynomial_decay ends at `total_num_update`, tri_stage has a plateau."""
    end = draft.number(*_END)
    total = int(draft.value("max_steps"))
    if end is not None and int(end.value) != total and draft.value("schedule") != "inverse_sqrt":
        convert.put_decay_until(draft, int(end.value), end)
    convert.number(draft, "decay_power", ["lr_scheduler.power", "power"])
    _stages(draft, total)
    least, rate = draft.number(*_LOWEST), draft.value("learning_rate") or -1.0
    if draft.value("schedule") != "constant" and least is not None and 0 <= least.value <= rate:
        ratio, text = convert.over_peak(draft, least.value)
        draft.put("min_lr_ratio", ratio, least, text=text)
    draft.default("min_lr_ratio", 0.0)


def _stages(draft: Draft, total: int) -> None:
    warm = draft.number("lr_scheduler.warmup_steps", "warmup_steps")
    fall = draft.number("lr_scheduler.decay_steps", "decay_steps")
    kind: Found | None = draft.text(*_SCHEDULE)
    shares = draft.get("lr_scheduler.phase_ratio")
    if shares is not None and isinstance(shares.value, list) and len(shares.value) == 3:
        kind, parts = shares, draft.numbers(shares)
        texts = [f"{part:g} of {total}" for part in parts]
        up, _, down = (round(part * total) for part in parts)
        draft.put("warmup_steps", up, shares, text=texts[0])
        draft.put("decay_steps", max(1, down), shares, text=texts[2])
    elif kind is None or kind.value != "tri_stage" or fall is None or fall.value < 1:
        return
    else:
        draft.put("decay_steps", int(fall.value), fall)
        if warm is not None:
            draft.put("warmup_steps", int(warm.value), warm)
    draft.put("schedule", "wsd", kind, text="three stages")
    draft.put("decay_shape", "exponential", kind)
    last = draft.number_or(0.01, "lr_scheduler.final_lr_scale", "final_lr_scale")
    draft.put("min_lr_ratio", last.value, last)


def _task(draft: Draft) -> FoundText | None:
    """Return the task; `fairseq-train` translates unless told otherwise (fairseq/options.py)."""
    found, program = draft.get("task._name", "task"), draft.document.program
    if found is None and program.startswith("fairseq-train"):
        return FoundText(key=f"{program} without --task", value="translation")
    if found is not None and isinstance(found.value, list):  # the data folder stands behind it
        found = dataclasses.replace(found, value=str(found.value[0]))
    return None if found is None else found.as_text()


def _fair_length(draft: Draft) -> object:
    task = _task(draft)
    is_language = task is not None and task.value in ("language_modeling", "masked_lm")
    return 1024 if is_language else NOTHING


def _fair_batch(draft: Draft) -> None:
    steps = draft.number_or(1, "optimization.update_freq", "update_freq")
    size = draft.number("dataset.batch_size", "batch_size", "max_sentences")
    tokens = draft.number("dataset.max_tokens", "max_tokens")
    copies = draft.devices or 1
    if size is not None:
        convert.put_batch(draft, size, steps if steps.key else None, copies)
        return
    if tokens is None:
        return
    task = _task(draft)
    if task is not None and re.search(r"audio|speech|hubert|s2t", task.value):
        why = f"{tokens.key} counts audio samples, not tokens; give --batch-size"
        draft.assume("batch_size", why, tokens)
        return
    length, accumulated = int(draft.value("sequence_length")), int(steps.value)
    count = max(1, int(tokens.value) // length) * accumulated * copies
    text = f"{tokens.value} tokens / {length} × {accumulated} × {copies} replicas"
    rests = ("sequence_length", "devices")
    draft.put("batch_size", count, tokens, steps, text=text, after=rests)
    if steps.key:
        draft.put("gradient_accumulation_steps", accumulated, steps)


def _fair_objective(draft: Draft) -> None:
    found = _task(draft)
    meaning = "lm" if found is None else _TASKS.get(found.value, "other")
    if meaning != "lm":
        draft.put("objective", meaning, found)


def _continues_weights(draft: Draft) -> bool:
    """Tell whether another run's weights are loaded without its optimizer.

    `finetune_from_model` resets everything but the weights, `restore_file` what it is told to,
    and the recognizers of speech load the encoder that `w2v_path` must name.
    """
    if draft.text("checkpoint.finetune_from_model", "finetune_from_model") is not None:
        return True
    model = draft.text("model._name", "arch")
    if model is not None and model.value in _RECOGNIZERS:
        return draft.true("model.no_pretrained_weights", "no_pretrained_weights") is None
    is_reset = draft.true("checkpoint.reset_optimizer", "reset_optimizer") is not None
    return is_reset and draft.text("checkpoint.restore_file", "restore_file") is not None


def _fair_model(draft: Draft) -> None:
    if _continues_weights(draft):
        draft.names_weights = True
    found = draft.text("model._name", "arch", "model.arch")
    if found is not None and found.value in ("roberta", "roberta_base"):
        longest = draft.count("model.max_positions")
        positions = None if longest is None else longest + 2
        draft.describe("roberta", {"max_position_embeddings": positions})
        return
    name = f"{found.value!r}" if found is not None else "its model"
    draft.no_target(f"{name} is an architecture of fairseq; name the same model as TARGET.")
