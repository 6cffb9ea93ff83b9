"""LLaMA-Factory: `TrainingArguments` with `stage` and `finetuning_type`."""

from __future__ import annotations

from rksp.recipe_files.readers.hugging_face import WRITTEN, arguments, model, objective
from rksp.recipe_files.table.batch import batch
from rksp.recipe_files.table.convert import (
    clip,
    kind_of_adapters,
    lora,
    number,
    optimizer,
    positive,
    put_targets,
    schedule,
    starts_from,
)
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.duration import epochs
from rksp.recipe_files.table.reader import Marks, Reader, Row


def _factory(draft: Draft) -> None:
    """Set the adapters: LoRA, or QLoRA with `quantization_bit` (llamafactory/hparams)."""
    bits, kind = draft.number("quantization_bit"), draft.text("finetuning_type")
    named = kind.value if kind is not None else "lora"
    if named in ("full", "freeze"):
        if named == "freeze":
            draft.note("Only some layers are trained, but rksp's estimate is for training all.")
        return
    word = "other" if named == "oft" else "qlora" if bits is not None else "lora"
    word, switch = kind_of_adapters(draft, word)
    draft.put("peft", word, kind, bits, switch)
    if word == "other":
        return
    number(draft, "lora_rank", ["lora_rank"])
    draft.default("lora_rank", 8)
    number(draft, "lora_alpha", ["lora_alpha"])
    draft.default("lora_alpha", 2.0 * float(draft.value("lora_rank")), "twice the rank")
    targets = draft.get("lora_target")
    if targets is not None:
        put_targets(draft, targets)


def _optimizer(draft: Draft) -> None:
    """Set the optimizer from switches before `optim` (llamafactory/train/trainer_utils.py)."""
    found = draft.true("use_muon")
    if found is not None:
        draft.put("optimizer", "muon", found)
    for key, ours in (("use_adam_mini", "adam_mini"), ("use_apollo", "other")):
        found = draft.true(key)
        if found is not None:
            draft.put("optimizer", ours, found)


V1 = Reader(
    name="llama-factory-v1",
    title="LLaMA-Factory v1",
    version="0.9.5",
    source="hiyouga/LLaMA-Factory, src/llamafactory/v1/config/*.py and v1/core/base_trainer.py",
    marks=(
        Marks(
            all="model micro_batch_size",
            some="train_dataset kernel_config dist_config quant_config model_class template",
            least=2,
            none="base_model per_device_train_batch_size",
        ),
    ),
    steps=(
        lora(
            "peft_config.name=lora",
            rank="peft_config.r",
            alpha="peft_config.lora_alpha",
            targets="peft_config.target_modules",
            default_rank=8,
        ),
        Row("optimizer", "optim_config.name", optimizer, "adamw"),
        Row("learning_rate", "learning_rate", default=1e-4),
        Row("adam_beta1", "", default=0.9),
        Row("adam_beta2", "", default=0.999),
        Row("adam_epsilon", "", default=1e-8),
        Row("weight_decay", "", default=0.01, text="of torch.optim.AdamW"),
        Row("max_grad_norm", "max_grad_norm", clip, 1.0),
        Row("sequence_length", "cutoff_len", default=2048),
        batch("micro_batch_size", whole="global_batch_size", default=1),
        Row("max_steps", "max_steps", positive),
        epochs("num_train_epochs", 3),
        Row("schedule", "lr_scheduler_config.name", schedule, "constant"),
        Row("warmup_steps", "lr_scheduler_config.num_warmup_steps", default=0),
        lambda draft: draft.false("bf16") and draft.put("precision", "fp32", draft.false("bf16")),
        Row("precision", "", default="bf16"),
        starts_from("model"),
    ),
)
READER = Reader(
    name="llama-factory",
    written=WRITTEN,
    title="LLaMA-Factory",
    version="0.9.5",
    source="hiyouga/LLaMA-Factory, src/llamafactory/hparams/{data,finetuning,training}_args.py",
    marks=(
        Marks(
            some="stage finetuning_type template cutoff_len dataset_dir lora_target",
            least=2,
            none="base_model tuner_type train_type",
        ),
        Marks(program=r"^llamafactory-cli"),
    ),
    steps=(_factory, *arguments(length=2048), _optimizer, objective, model),
)
