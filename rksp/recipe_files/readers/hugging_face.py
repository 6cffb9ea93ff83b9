"""Hugging Face `TrainingArguments`, and TRL, LLaMA-Factory, ms-swift and axolotl around them.

Each is the same table with its own defaults. A DeepSpeed file that is named there, or stands there,
decides what the arguments leave `auto` (transformers/integrations/deepspeed.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rksp.ground.errors import InputError
from rksp.ground.reading import parse_json
from rksp.ground.text import words
from rksp.models.names import is_hub_id
from rksp.recipe import LOW_RANK, PREFERENCES, REINFORCED
from rksp.recipe_files.parse.document import Document, Found, named_file
from rksp.recipe_files.parse.values import Parsed
from rksp.recipe_files.readers import deepspeed
from rksp.recipe_files.said.origin import OriginKind
from rksp.recipe_files.table import by_name, convert
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.names import DECAY_SHAPES, precision_of
from rksp.recipe_files.table.objective import set_objective
from rksp.recipe_files.table.reader import reader_of

_WEIGHTS = ("torch_dtype", "dtype", "model_init_kwargs.torch_dtype", "model_init_kwargs.dtype")
_DEEPSPEED = reader_of("deepspeed", vars(deepspeed))


def _length(draft: Draft, name: str, keys: Sequence[str]) -> None:
    """Set the sequence length; `max_length` next to model settings belongs to generation.

    TRL cuts nothing where `max_length` is null.
    """
    draft.asked.update(keys)
    if draft.document.has("architectures"):
        keys = [key for key in keys if key != "max_length"]
    convert.positive(draft, name, keys)
    null = next((key for key in keys if draft.document.has(key)), None)
    if null is not None and draft.document.find(*keys) is None:
        draft.assume(name, f"{null} is null, so that no sequence is cut; give --sequence-length")


def _warmup(draft: Draft) -> None:
    """Set the warm-up; a positive `warmup_steps` wins, and both keys may be a share below one."""
    if convert.ignores_warmup(draft, "lr_scheduler_type"):
        return
    steps, ratio = draft.number("warmup_steps"), draft.number("warmup_ratio")
    found = steps if steps is not None and steps.value > 0 else ratio or steps
    if found is not None:
        convert.put_warmup(draft, found, math.ceil)
    else:
        draft.stands_elsewhere("warmup_steps", ["warmup_steps", "warmup_ratio"])


def _shape(draft: Draft) -> None:
    where = draft.get("lr_scheduler_kwargs")
    settings: Parsed = draft.mapping("lr_scheduler_kwargs")
    if where is None:
        return
    if isinstance(where.value, str):
        try:
            settings = parse_json(where.value, draft.document.path)
        except InputError:
            return
    if not isinstance(settings, Mapping):
        return

    def inside(key: str) -> Found:
        return Found(key=f"{where.key}.{key}", value=None, line=where.line)

    for key, field in (("num_decay_steps", "decay_steps"), ("power", "decay_power"),
                       ("min_lr_rate", "min_lr_ratio"), ("min_lr_ratio", "min_lr_ratio"),
                       ("timescale", "decay_steps")):  # fmt: skip
        if isinstance(value := settings.get(key), int | float):
            draft.put(field, value, inside(key))
    for key in ("min_lr", "lr_end"):
        if isinstance(value := settings.get(key), int | float) and draft.value("learning_rate"):
            ratio, text = convert.over_peak(draft, value)
            draft.put("min_lr_ratio", ratio, inside(key), text=text)
    shape = DECAY_SHAPES.get(str(settings.get("decay_type")))
    if shape is not None:
        draft.put("decay_shape", shape, inside("decay_type"))


def _deepspeed(draft: Draft) -> None:
    inline = draft.get("deepspeed")
    if inline is None:
        return
    if isinstance(inline.value, Mapping):
        document = Document(path=draft.document.path, syntax="json", data=inline.value)
    elif not str(inline.value).endswith(".json"):
        draft.note(f"deepspeed is {inline.value!r}, but its settings are not in this file.")
        return
    else:
        try:
            there = named_file(draft.document, str(inline.value))
        except InputError as error:
            draft.note(f"The DeepSpeed file cannot be read: {error}")
            return
        if there is None:
            draft.note(f"The DeepSpeed file {inline.value} was not found, so it is not read.")
            return
        document = there
    draft.deepspeed = document
    other = Draft(document, draft.trainer, devices=draft.devices)
    _DEEPSPEED.read(other)
    for field in other.finish().fields:
        if field.origin.kind in (OriginKind.FILE, OriginKind.COMPUTED) and field.name not in (
            "batch_size",
            "gradient_accumulation_steps",
        ):
            draft.adopt(field)


def _precision(draft: Draft) -> None:
    """Set the precision; autocast keeps float32 weights unless they were loaded in 16 bits.

    FSDP and DeepSpeed keep a float32 copy even then (accelerate/accelerator.py; DeepSpeed's
    bf16_optimizer); adapters are float32 unless told otherwise (peft, `autocast_adapter_dtype`).
    """
    whole = draft.true("pure_bf16")
    if whole is not None:
        draft.put("precision", "bf16-pure", whole)
        return
    kept = draft.get("deepspeed", "fsdp", "fsdp_config")
    weights = draft.text(*_WEIGHTS)
    is_low = weights is not None and weights.value in ("bfloat16", "float16")
    end = "-pure" if is_low and not kept and draft.value("peft") == "none" else ""
    found = draft.true("bf16", "fp16")
    if found is not None and end:
        text = "weights loaded in 16 bits"
        draft.put("precision", f"{found.key}-pure", found, weights, text=text)
    elif found is not None:
        draft.put("precision", found.key, found)
    elif is_low and weights is not None and not draft.knows("precision"):
        draft.put("precision", f"{precision_of(weights.value)}{end}", weights)


def objective(draft: Draft) -> None:
    """Set the objective from the stage, or from all that stands in the file and in its command."""
    for key in ("objective", "stage", "rlhf_type"):  # the first is a script's
        convert.stated_objective(draft, key)
    set_objective(draft)


def adapters(draft: Draft) -> None:
    """Set adapters by name; by their rank alone only where no program may have the switch.

    A program that is named for LoRA has adapters alone (FastChat's train_lora.py).
    """
    program = draft.document.program.lower()
    is_seen = not program or "lora" in program or bool(draft.document.defaults)
    by_name.adapters(draft, by_rank=is_seen)


def model(draft: Draft) -> None:
    """Set the model by name, or by the settings in the file (W&B logs the whole config)."""
    named = isinstance(getattr(draft.get("model"), "value", None), str)
    keys = ("model_name_or_path", "model_id_or_path", *(["model"] if named else []))
    base = draft.text(*keys, "config_name", "_name_or_path", "model_name")
    settings = draft.mapping("model_config", "config", "model")
    kind = draft.text("model_type")
    if base is not None and base.value.lower() != "none":
        draft.describe(base.value, {})
        is_random = draft.true("train_from_scratch") is not None  # LLaMA-Factory
        keys = ("model_name_or_path", "model_id_or_path", "model")
        is_held = draft.value("objective") in (*PREFERENCES, *REINFORCED)  # to trained weights
        is_stored = draft.text(*keys) is not None or (
            base.key == "model_name" and is_hub_id(base.value)
        )
        if (is_stored or is_held) and not is_random:
            draft.names_weights = True
    elif "model_type" in settings:
        rest = {key: value for key, value in settings.items() if key != "model_type"}
        draft.describe(str(settings["model_type"]), rest)
    elif kind is not None and not draft.document.has("model_name_or_path"):  # not known
        shape = {name: found.value for name in _SHAPE if (found := draft.get(name)) is not None}
        draft.describe(kind.value, shape)


_SHAPE = words(
    "hidden_size num_hidden_layers num_attention_heads num_key_value_heads intermediate_size "
    "vocab_size max_position_embeddings n_embd n_layer n_head n_positions d_model "
    "tie_word_embeddings initializer_range"
)


def _trl_alpha(draft: Draft) -> None:
    if draft.value("peft") in LOW_RANK:
        draft.default("lora_rank", 16)
        draft.default("lora_alpha", 32.0)


def _completions(draft: Draft) -> None:
    """Set the length for GRPO: of prompt and completion; the first is assumed to be short."""
    if draft.value("objective") == "grpo" and not draft.document.has("max_length"):
        answer = draft.number_or(512, "max_completion_length")
        prompt = draft.number("max_prompt_length")
        total = int(answer.value if prompt is None else prompt.value + answer.value)
        is_open = ("sequence_length",) if prompt is None else ()
        text = "of completions, after prompts of unknown length" if is_open else "both"
        draft.put("sequence_length", total, prompt, answer, text=text, after=is_open)
    elif draft.value("objective") == "ppo" and not draft.is_read("sequence_length"):
        draft.assume("sequence_length", "no setting gives the length of prompt and answer")


def _groups(draft: Draft) -> None:
    each = draft.number("num_generations")
    whole = draft.number("generation_batch_size")
    size = int(whole.value) if whole is not None else int(draft.value("batch_size"))
    is_known = whole is not None or draft.devices is not None
    if each is not None and each.value > 1 and is_known and size % int(each.value):
        draft.note(
            f"The trainer refuses this run: {each.value} answers a prompt do not divide the "
            f"{size} answers of a step; change {each.key} or the batch."
        )


def _tuning(draft: Draft, keys: str, *, bits: str, targets: str, alpha: float = 0) -> None:
    """Set the adapters, by default LoRA, with this alpha or twice the rank.

    Sources: llamafactory/hparams; swift/arguments/base_args/base_args.py.
    """
    kind, few = draft.text(*keys.split()), draft.number(*bits.split())
    named = kind.value if kind is not None else "lora"
    if named == "freeze":
        draft.note("Only some layers are trained, but rksp's estimate is for training all.")
    if named in ("full", "freeze"):
        return
    plain = "other" if "lora" not in named else "lora" if few is None else "qlora"
    word, switch = convert.kind_of_adapters(draft, plain)
    draft.put("peft", word, kind, few, switch)
    if word != "other":
        convert.put_lora(draft, "lora_rank", "lora_alpha", targets, 8)
        twice = 2.0 * float(draft.value("lora_rank"))
        draft.default("lora_alpha", alpha or twice, "" if alpha else "twice the rank")


def _swift_batch(draft: Draft) -> None:
    """Set the default accumulation, which fills the batch up to 16 (trainers/arguments.py)."""
    if draft.document.find("gradient_accumulation_steps") is not None:
        return
    size = draft.number_or(1, "per_device_train_batch_size")
    micro, copies = int(size.value), draft.devices or 1
    is_grpo = draft.value("objective") == "grpo"
    steps = 1 if is_grpo else max(1, math.ceil(16 / micro / copies))
    text = f"{micro} × {steps} accumulated by default × {copies} replicas"
    draft.put("batch_size", micro * steps * copies, size, text=text, after=("devices",))
    draft.put("gradient_accumulation_steps", steps, size, text=text, after=("devices",))


def _swift_objective(draft: Draft) -> None:
    program = draft.document.program
    if program.startswith("swift rlhf") and draft.get("rlhf_type") is None:
        draft.put("objective", "dpo", Found(key=program, value="dpo"), text="dpo by default")


def _axolotl_warmup(draft: Draft) -> None:
    """Set the warm-up, rounded down; one step becomes two (core/builders/base.py)."""
    if convert.ignores_warmup(draft, "lr_scheduler"):
        return
    found = draft.number("warmup_steps") or draft.number("warmup_ratio")
    if found is None:
        return
    convert.put_warmup(draft, found, int)
    if draft.value("warmup_steps") == 1:
        rests = ("max_steps",) if found.value < 1 else ()
        draft.put("warmup_steps", 2, found, text="one step becomes two", after=rests)


def _axolotl_fall(draft: Draft) -> None:
    """Set the decay; `cosine_constant_lr_ratio` ends it early (axolotl/utils/schedulers.py)."""
    share = draft.number("cosine_constant_lr_ratio")
    if share is None or draft.number("cosine_min_lr_ratio") is None:
        return
    total = int(draft.value("max_steps"))
    span = max(1, int(share.value * total) - int(draft.value("warmup_steps")))
    text = f"{share.value:g} of {total} steps less the warm-up"
    draft.put("decay_steps", span, share, text=text, after=("max_steps",))


def _axolotl_precision(draft: Draft) -> None:
    """Set the precision; `bf16: true` loads the weights in bf16 (`cfg.torch_dtype`, utils/config).

    FSDP and DeepSpeed keep a float32 copy of them (accelerate), and adapters are float32 (peft).
    """
    kept = draft.get("fsdp", "fsdp_config", "deepspeed")
    is_mixed = kept is not None or draft.value("peft") != "none"
    for key in ("bfloat16", "float16", "bf16", "fp16"):
        found = draft.get(key)
        if found is None or str(found.value).lower() not in ("true", "auto", "full"):
            continue
        is_pure = key in ("bfloat16", "float16") or str(found.value) == "full" or not is_mixed
        short = precision_of(key)
        text = "auto: bf16 where the device has it" if found.value == "auto" else ""
        draft.put("precision", f"{short}-pure" if is_pure else short, found, text=text)
        return
    if draft.false("bf16") is None:
        draft.default("precision", "bf16" if is_mixed else "bf16-pure", "bf16 is auto")


def _hatchery(draft: Draft) -> None:
    service = draft.get("hatchery")
    if service is not None:
        draft.put("peft", "lora", service)
        convert.put_lora(draft, "hatchery.lora_rank", "", "", 32)


def _axolotl_objective(draft: Draft) -> None:
    convert.stated_objective(draft, "rl", ebft="other")
    losses = {"importance_sampling": "grpo", "cispo": "grpo", "dro": "grpo"}
    convert.stated_objective(draft, "hatchery.loss_fn", cross_entropy="lm", **losses)
    rewards = draft.true("reward_model", "process_reward_model")
    if rewards is not None:
        draft.put("objective", "reward", rewards)


def _axolotl_model(draft: Draft) -> None:
    base = draft.text("base_model")
    if base is None:
        return
    notes = []
    if draft.true("reinit_weights") is not None:
        notes.append("reinit_weights: it starts from random weights; give the model's config.json.")
    else:
        draft.names_weights = True
    draft.describe(base.value, draft.mapping("overrides_of_model_config"), *notes)
