"""Hugging Face `TrainingArguments`, and the table that TRL, LLaMA-Factory and ms-swift extend.

Each is the same table with its own defaults. A DeepSpeed file that is named there, or stands there,
decides what the arguments leave `auto` (transformers/integrations/deepspeed.py).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.ground.text import words
from rksp.recipe_files.parse.document import Document, Found, load_document
from rksp.recipe_files.readers import deepspeed
from rksp.recipe_files.said.origin import OriginKind
from rksp.recipe_files.table.batch import batch
from rksp.recipe_files.table.convert import (
    clip,
    kind_of_adapters,
    lora,
    number,
    optimizer,
    over_peak,
    positive,
    put_targets,
    put_warmup,
    schedule,
    stated_objective,
)
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.duration import epochs
from rksp.recipe_files.table.names import DECAY_SHAPES, OBJECTIVES, precision_of
from rksp.recipe_files.table.reader import NOTHING, Marks, Reader, Row, Step

_LENGTHS = "max_seq_length max_length cutoff_len block_size seq_length model_max_length"
_WEIGHTS = ("torch_dtype", "dtype", "model_init_kwargs.torch_dtype", "model_init_kwargs.dtype")


def arguments(
    *,
    rate: Any = 5e-5,
    falls: str = "linear",
    beta2: float = 0.999,
    decay: float = 0.0,
    micro: int = 8,
    length: Any = NOTHING,
    precision: str = "fp32",
) -> tuple[Step, ...]:
    """Build the table of `TrainingArguments`, with the defaults of a trainer that extends them."""
    return (
        Row("optimizer", "optim", optimizer, "adamw"),
        Row("learning_rate", "learning_rate", default=rate),
        Row("adam_beta1", "adam_beta1", default=0.9),
        Row("adam_beta2", "adam_beta2", default=beta2),
        Row("adam_epsilon", "adam_epsilon", default=1e-8),
        Row("weight_decay", "weight_decay", default=decay),
        Row("max_grad_norm", "max_grad_norm", clip, 1.0),
        Row("sequence_length", _LENGTHS, _length, length),
        batch(
            "per_device_train_batch_size per_gpu_train_batch_size",
            "gradient_accumulation_steps",
            default=micro,
        ),
        Row("max_steps", "max_steps", positive),
        epochs("num_train_epochs", 3),
        Row("schedule", "lr_scheduler_type", schedule, falls),
        _warmup,
        Row("warmup_steps", "", default=0),
        _shape,
        Row("min_lr_ratio", "", default=0.0),
        _deepspeed,
        _precision,
        Row("precision", "", default=precision),
    )


def _length(draft: Draft, name: str, keys: Sequence[str]) -> None:
    """Set the sequence length; `max_length` next to model settings belongs to generation.

    TRL cuts nothing where `max_length` is null.
    """
    if draft.document.has("architectures"):
        keys = [key for key in keys if key != "max_length"]
    positive(draft, name, keys)
    null = next((key for key in keys if draft.document.has(key)), None)
    if null is not None and draft.document.find(*keys) is None:
        draft.assume(name, f"{null} is null, so that no sequence is cut; give --sequence-length")


# Schedules that get no warm-up at all (transformers/optimization.py, get_scheduler).
WITHOUT_WARMUP = ("constant", "reduce_lr_on_plateau", "greedy")


def ignores_warmup(draft: Draft, key: str) -> bool:
    """Set no warm-up if the schedule under `key` is one that ignores it."""
    kind = draft.text(key)
    if kind is None or kind.value not in WITHOUT_WARMUP:
        return False
    draft.put("warmup_steps", 0, kind, text=f"{kind.value} ignores the warm-up")
    return True


def _warmup(draft: Draft) -> None:
    """Set the warm-up; a positive `warmup_steps` wins, and both keys may be a share below one."""
    if ignores_warmup(draft, "lr_scheduler_type"):
        return
    steps, ratio = draft.number("warmup_steps"), draft.number("warmup_ratio")
    found = steps if steps is not None and steps.value > 0 else ratio or steps
    if found is not None:
        put_warmup(draft, found, math.ceil)
    else:
        draft.stands_elsewhere("warmup_steps", ["warmup_steps", "warmup_ratio"])


def _shape(draft: Draft) -> None:
    """Set the fields of `lr_scheduler_kwargs` (transformers/optimization.py)."""
    inline = draft.text("lr_scheduler_kwargs")
    settings: Mapping[str, Any] = draft.mapping("lr_scheduler_kwargs")
    if inline is not None:
        try:
            settings = json.loads(inline.value)
        except ValueError:
            settings = {}
    where = inline or draft.get("lr_scheduler_kwargs")
    if not settings or where is None:
        return
    for key, field in (("num_decay_steps", "decay_steps"), ("power", "decay_power"),
                       ("min_lr_rate", "min_lr_ratio"), ("min_lr_ratio", "min_lr_ratio"),
                       ("timescale", "decay_steps")):  # fmt: skip
        if isinstance(settings.get(key), int | float):
            draft.put(field, settings[key], _inside(where, key))
    for key in ("min_lr", "lr_end"):
        if isinstance(settings.get(key), int | float) and draft.value("learning_rate"):
            ratio, text = over_peak(draft, settings[key])
            draft.put("min_lr_ratio", ratio, _inside(where, key), text=text)
    if settings.get("decay_type") in DECAY_SHAPES:
        shape = DECAY_SHAPES[settings["decay_type"]]
        draft.put("decay_shape", shape, _inside(where, "decay_type"))


def _inside(where: Found, key: str) -> Found:
    return Found(key=f"{where.key}.{key}", value=None, line=where.line)


def _deepspeed(draft: Draft) -> None:
    """Let a DeepSpeed file's optimizer and schedule replace those of the arguments."""
    inline = draft.get("deepspeed")
    if inline is None:
        return
    if isinstance(inline.value, Mapping):
        document = Document(path=draft.document.path, syntax="json", data=inline.value)
    elif not str(inline.value).endswith(".json"):
        draft.note(f"deepspeed is {inline.value!r}, but its settings are not in this file.")
        return
    else:
        there = beside(draft.document.path, str(inline.value))
        if there is None:
            draft.note(f"The DeepSpeed file {inline.value} was not found, so it is not read.")
            return
        try:
            document = load_document(there)
        except InputError as error:
            draft.note(f"The DeepSpeed file cannot be read: {error}")
            return
    draft.deepspeed = document
    other = Draft(document, draft.trainer, devices=draft.devices)
    deepspeed.READER.read(other)
    for field in other.finish().fields:
        if field.origin.kind in (OriginKind.FILE, OriginKind.COMPUTED) and field.name not in (
            "batch_size",
            "gradient_accumulation_steps",
        ):
            draft.adopt(field)


def beside(path: Path, name: str) -> Path | None:
    """Find the named file beside the run file or in a folder above it."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        return None
    for folder in (path.parent, *list(path.resolve().parents)[1:5]):
        if (folder / name).is_file():
            return folder / name
    return None


def _precision(draft: Draft) -> None:
    """Set the precision; autocast keeps float32 weights unless they were loaded in 16 bits.

    FSDP and DeepSpeed keep a float32 copy even then (accelerate/accelerator.py; DeepSpeed's
    bf16_optimizer); adapters are float32 unless told otherwise (peft, `autocast_adapter_dtype`).
    """
    pure = draft.true("pure_bf16")
    if pure is not None:
        draft.put("precision", "bf16-pure", pure)
        return
    kept = draft.get("deepspeed", "fsdp", "fsdp_config")
    weights = draft.text(*_WEIGHTS)
    low = weights is not None and weights.value in ("bfloat16", "float16")
    adapters = draft.value("peft") != "none"
    for name in ("bf16", "fp16"):
        found = draft.true(name)
        if found is None:
            continue
        if low and not kept and not adapters:
            draft.put("precision", f"{name}-pure", found, weights, text="weights loaded in 16 bits")
        else:
            draft.put("precision", name, found)
        return
    if low and not draft.knows("precision"):
        short = precision_of(definite(weights).value)
        draft.put("precision", short if kept or adapters else f"{short}-pure", weights)


def objective(draft: Draft) -> None:
    """Set the objective from the stage, the subcommand, the script's name or typical keys."""
    for key in ("objective", "stage", "rlhf_type"):  # the first is a script's
        stated_objective(key)(draft)
    program = draft.document.program.lower()
    for word, meaning in OBJECTIVES.items():
        named = (f"{word}.py", f"{word}_", f" {word}", f"_{word}")
        if not draft.knows("objective") and any(
            program.endswith(name) or program.startswith(f"{word}_") for name in named
        ):
            found = Found(key=draft.document.program, value=word)
            draft.put("objective", meaning, found)
    _by_script(draft)
    _by_name(draft)
    for keys, meaning in (
        (("num_generations", "max_completion_length"), "grpo"),
        (("max_prompt_length", "rpo_alpha", "precompute_ref_log_probs"), "dpo"),
        (("center_rewards_coefficient",), "reward"),
        (("desirable_weight",), "kto"),
    ):
        sign = None if draft.knows("objective") else draft.get(*keys)
        if sign is not None:
            draft.put("objective", meaning, sign)
    for key, word, meaning in (
        ("task_name", "", "classification"),
        ("num_labels", "", "classification"),
        ("mlm_probability", "", "mlm"),
        ("problem_type", "", "classification"),
    ):
        if not draft.knows("objective") and draft.get(key) is not None:
            draft.put("objective", meaning, draft.get(key), text=word)


_SCRIPTS = {"run_clm": "lm", "run_mlm": "mlm", "run_plm": "other", "run_glue": "classification",
            "run_classification": "classification", "run_ner": "classification", "run_qa": "other",
            "run_xnli": "classification", "run_summarization": "seq2seq", "run_asr": "other",
            "run_translation": "seq2seq", "run_speech": "other", "run_image": "classification",
            "run_seq2seq": "seq2seq", "run_swag": "classification"}  # fmt: skip


def _by_script(draft: Draft) -> None:
    """Set the objective that the name of a transformers example script states."""
    program = draft.document.program
    for start, meaning in _SCRIPTS.items():
        if program.startswith(start) and not draft.knows("objective"):
            draft.put("objective", meaning, Found(key=program, value=meaning))


def _by_name(draft: Draft) -> None:
    """Set the preference loss; the run's name distinguishes losses with the same settings."""
    for key in ("output_dir", "hub_model_id", "run_name"):
        found = draft.text(key)
        words = re.split(r"[^a-z]+", found.value.lower()) if found is not None else []
        for word in ("orpo", "kto", "dpo", "grpo", "ppo", "reward"):
            if word in words and not draft.knows("objective"):
                draft.put("objective", OBJECTIVES[word], found, text=f"named {word}")


def _peft_config(draft: Draft) -> None:
    """Set the adapters from `peft_config`, one entry each: logged to W&B, or a script's call."""
    parts = dict(draft.mapping("peft_config"))
    for name in parts:
        settings = parts[name]
        kind = settings.get("peft_type") if isinstance(settings, Mapping) else None
        if kind is None:
            continue
        home = f"peft_config.{name}."
        bits = draft.true("load_in_4bit")
        plain = "lora" if bits is None else "qlora"
        if str(kind).lower() != "lora":
            plain, bits = "other", None
        named, switch = kind_of_adapters(draft, plain, home=home)
        draft.put("peft", named, switch or draft.get(f"{home}peft_type"), bits)
        number(draft, "lora_rank", [f"{home}r"])
        number(draft, "lora_alpha", [f"{home}lora_alpha"])
        modules, task = draft.get(f"{home}target_modules"), draft.text(f"{home}task_type")
        if modules is not None:
            put_targets(draft, modules)
        if task is not None and task.value == "SEQ_CLS" and not draft.knows("objective"):
            draft.put("objective", "classification", task)
        return


adapters = (
    _peft_config,
    lora(
        "load_in_4bit",
        rank="lora_r lora_rank",
        alpha="lora_alpha",
        targets="lora_target_modules lora_target target_modules",
        kind="qlora",
        default_rank=16,
    ),
    lora(
        "use_peft",
        rank="lora_r lora_rank",
        alpha="lora_alpha",
        targets="lora_target_modules target_modules",
        default_rank=16,
    ),
)


def model(draft: Draft) -> None:
    """Set the model by name, or by the settings in the file (W&B logs the whole config)."""
    base = draft.text(
        "model_name_or_path", "model_id_or_path", "config_name", "_name_or_path", "model_name"
    )
    if base is None and isinstance(getattr(draft.get("model"), "value", None), str):
        base = draft.text("model")
    settings = draft.mapping("model_config", "config", "model")
    kind = draft.text("model_type")
    if base is not None and base.value.lower() != "none":
        draft.describe(base.value, {})
        is_random = draft.true("train_from_scratch") is not None  # LLaMA-Factory
        if draft.text("model_name_or_path", "model_id_or_path") is not None and not is_random:
            draft.start_trained()
    elif "model_type" in settings:
        rest = {key: value for key, value in settings.items() if key != "model_type"}
        draft.describe(str(settings["model_type"]), rest)
    elif kind is not None:
        shape = {
            name: definite(draft.get(name)).value for name in _SHAPE if draft.get(name) is not None
        }
        draft.describe(kind.value, shape)


_SHAPE = words(
    "hidden_size num_hidden_layers num_attention_heads num_key_value_heads intermediate_size "
    "vocab_size max_position_embeddings n_embd n_layer n_head n_positions d_model "
    "tie_word_embeddings initializer_range"
)
_STRONG = (
    "per_device_train_batch_size lr_scheduler_type num_train_epochs adam_beta2 "
    "per_device_eval_batch_size logging_strategy save_strategy eval_strategy evaluation_strategy "
    "lr_scheduler_kwargs gradient_checkpointing_kwargs"
)
_WEAK = (
    "output_dir warmup_ratio gradient_accumulation_steps logging_steps save_steps max_grad_norm "
    "fp16 bf16 do_train gradient_checkpointing eval_steps model_name_or_path max_steps "
    "weight_decay warmup_steps"
)
NOT_PLAIN = (
    "base_model micro_batch_size base_output_directory tuner_type train_type sft_type stage "
    "trainer network_module params neptune"
)

# Keys of fields that are set by functions; warmup_steps wins where warmup_ratio stands beside it.
WRITTEN = {name: name for name in ("warmup_steps", "gradient_accumulation_steps")}
READER = Reader(
    name="hugging-face",
    written=WRITTEN,
    title="Hugging Face TrainingArguments",
    version="5.23.0",
    source="huggingface/transformers, src/transformers/training_args.py",
    marks=(
        Marks(all="learning_rate", some=_STRONG, none=NOT_PLAIN),
        Marks(all="learning_rate", some=_WEAK, least=2, none=NOT_PLAIN),
        Marks(some=f"{_STRONG} {_WEAK}", least=4, none=NOT_PLAIN),
        Marks(program=r"TrainingArguments$", syntax="script"),
    ),
    steps=(*adapters, *arguments(), objective, model),
)
