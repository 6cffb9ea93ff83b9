"""LLaMA-Factory: `TrainingArguments` with `stage` and `finetuning_type`."""

from __future__ import annotations

from rksp.recipe_files.readers.hugging_face import WRITTEN, arguments, model, objective
from rksp.recipe_files.table.convert import (
    kind_of_adapters,
    no_optimizer,
    number,
    put_targets,
)
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.reader import Marks, Reader


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
    for key in ("use_galore", "use_apollo", "use_badam", "use_adam_mini"):
        found = draft.true(key)
        if found is not None:
            no_optimizer(draft, f"{key} trains by {key.removeprefix('use_')}")


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
