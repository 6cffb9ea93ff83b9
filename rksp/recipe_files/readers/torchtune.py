"""torchtune: OmegaConf YAML whose parts name the class they build (`_component_`)."""

from __future__ import annotations

from rksp.ground.model import definite
from rksp.recipe_files.parse.document import Found
from rksp.recipe_files.readers.known_models import hub_id_of
from rksp.recipe_files.table.batch import batch
from rksp.recipe_files.table.convert import (
    betas,
    clip,
    kind_of_adapters,
    optimizer,
    put_precision,
    schedule,
)
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.duration import put_epochs
from rksp.recipe_files.table.reader import Marks, Reader, Row

# Switches of a builder that give adapters to more modules than `lora_attn_modules` names.
_MORE_TARGETS = (
    ("apply_lora_to_mlp", ("gate_proj", "up_proj", "down_proj")),
    ("apply_lora_to_output", ("output",)),
)
_OBJECTIVES = {"dpo": "dpo", "ppo": "ppo", "forwardkl": "distillation", "grpo": "grpo"}


def _steps(draft: Draft) -> None:
    """Set steps per epoch times epochs; epochs alone need the number of rows."""
    steps, rounds = draft.number("max_steps_per_epoch"), draft.number("epochs")
    if draft.document.has("ppo_batch_size", "num_steps", "batch_size"):
        _ppo_steps(draft)
        return
    if steps is not None:
        count = int(rounds.value) if rounds is not None else 1
        text = f"{steps.value} a pass × {count} passes"
        draft.put("max_steps", int(steps.value) * count, steps, rounds, text=text)
    elif rounds is not None:
        put_epochs(draft, "max_steps", rounds.value, rounds, "epochs")


def _ppo_steps(draft: Draft) -> None:
    """Set PPO's steps: each of `num_steps // batch_size` rollouts is trained on in batches."""
    found = [draft.number(key) for key in ("num_steps", "batch_size", "ppo_batch_size")]
    if None in found:
        return
    count, size, micro = (max(1, int(definite(one).value)) for one in found)
    passes = draft.number("ppo_epochs")
    rounds = int(passes.value) if passes is not None else 1
    steps = max(1, (count // size) * rounds * (size // micro))
    text = f"{count} // {size} rollouts × {rounds} passes × {size // micro} batches"
    draft.put("max_steps", steps, *found, passes, text=text)


def _own_defaults(draft: Draft) -> None:
    """Set torch.optim's weight decay, and no schedule unless the file builds one."""
    draft.default("weight_decay", 0.01 if draft.value("optimizer") == "adamw" else 0.0)
    draft.default("schedule", "cosine" if draft.document.find("lr_scheduler") else "constant")


def _precision(draft: Draft) -> None:
    """Set the precision; torchtune has no mixed precision, so `dtype: bf16` is bf16-pure."""
    found = draft.text("dtype")
    if found is not None:
        name = f"pure_{found.value}" if found.value in ("bf16", "fp16") else found.value
        put_precision(draft, Found(key=found.key, value=name, line=found.line))


def _adapters(draft: Draft) -> None:
    """Set the adapters from the model's builder: `lora_llama3_8b`, `qlora_llama2_7b`."""
    built = draft.text("model._component_")
    name = built.value.rsplit(".", 1)[-1] if built is not None else ""
    if not name.startswith(("lora_", "qlora_", "dora_", "qdora_")) and "lora" not in name:
        return
    word = "qlora" if name.startswith(("qlora", "qdora")) else "lora"
    word, switch = kind_of_adapters(draft, "dora" if name.startswith("dora_") else word)
    draft.put("peft", word, built, switch)
    for field, key in (("lora_rank", "model.lora_rank"), ("lora_alpha", "model.lora_alpha")):
        found = draft.number(key)
        if found is not None:
            draft.put(field, found.value, found)
    draft.default("lora_rank", 8)
    modules = draft.get("model.lora_attn_modules")
    if modules is not None and isinstance(modules.value, list):
        others = [(draft.true(f"model.{key}"), names) for key, names in _MORE_TARGETS]
        more = [name for found, names in others if found is not None for name in names]
        targets = (*(str(part) for part in modules.value), *more)
        draft.put("lora_targets", targets, modules, *(found for found, _ in others))


def _objective(draft: Draft) -> None:
    built = draft.text("loss._component_", "loss_fn._component_")
    name = built.value.lower() if built is not None else ""
    found = next((meaning for word, meaning in _OBJECTIVES.items() if word in name), None)
    kd = draft.text("kd_loss._component_")
    if found is None and kd is not None:
        found, built = "distillation", kd
    if found is not None:
        draft.put("objective", found, built)


def _model(draft: Draft) -> None:
    """Set the model from a folder of downloaded weights with its repository's name."""
    folder = draft.text("checkpointer.checkpoint_dir")
    if folder is not None:
        draft.start_trained()
    name = hub_id_of(folder.value) if folder is not None else None
    found = draft.text("model._component_")
    if name is not None:
        read = definite(folder).value
        note = f"checkpoint_dir: {read} is read as the Hub's {name}, with its weights."
        draft.describe(name, {}, note)
    elif found is not None:
        draft.no_target(f"{found.value} builds its own model; name the same model as TARGET.")


READER = Reader(
    name="torchtune",
    title="torchtune",
    version="0.6.1",
    source="pytorch/torchtune, recipes/*.py and torchtune/training/lr_schedulers.py; torch.optim",
    marks=(
        Marks(
            all="optimizer._component_",
            some="model._component_ tokenizer._component_ checkpointer._component_",
        ),
        Marks(
            all="model._component_ tokenizer._component_",
            some="epochs lr_scheduler ppo_epochs loss",
        ),
    ),
    steps=(
        _adapters,
        Row("optimizer", "optimizer._component_", optimizer),
        Row("learning_rate", "optimizer.lr"),
        betas("optimizer.betas"),
        Row("adam_beta1", "", default=0.9),
        Row("adam_beta2", "", default=0.999),
        Row("adam_epsilon", "optimizer.eps", default=1e-8),
        Row("weight_decay", "optimizer.weight_decay"),
        Row("max_grad_norm", "clip_grad_norm", clip, None),
        Row("sequence_length", "tokenizer.max_seq_len"),
        batch("batch_size", "gradient_accumulation_steps", whole="ppo_batch_size"),
        _steps,
        Row("schedule", "lr_scheduler._component_", schedule),
        Row("warmup_steps", "lr_scheduler.num_warmup_steps", default=0),
        _own_defaults,
        Row("min_lr_ratio", "", default=0.0),
        _precision,
        Row("precision", "", default="fp32"),
        _objective,
        _model,
    ),
)
