"""ms-swift: `TrainingArguments` with its own defaults, adapters unless told otherwise."""

from __future__ import annotations

import math

from rksp.recipe_files.parse.document import Found
from rksp.recipe_files.readers.hugging_face import WRITTEN, arguments, model, objective
from rksp.recipe_files.table.convert import kind_of_adapters, number, put_targets
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.names import precision_of
from rksp.recipe_files.table.reader import Marks, Reader


def _swift_adapters(draft: Draft) -> None:
    """Set the adapters; LoRA is the default (swift/arguments/base_args/base_args.py)."""
    kind = draft.text("tuner_type", "train_type", "sft_type")
    bits = draft.number("quant_bits", "quantization_bit")
    named = kind.value if kind is not None else "lora"
    if named == "full":
        return
    is_four = bits is not None and bits.value == 4
    word = "qlora" if is_four else "lora" if "lora" in named else "other"
    word, switch = kind_of_adapters(draft, word)
    draft.put("peft", word, kind, bits, switch)
    number(draft, "lora_rank", ["lora_rank"])
    draft.default("lora_rank", 8)
    number(draft, "lora_alpha", ["lora_alpha"])
    draft.default("lora_alpha", 32.0)
    modules = draft.get("target_modules", "lora_target_modules")
    if modules is not None:
        put_targets(draft, modules)


def _rate(draft: Draft) -> float:
    """Return the default rate: 1e-4 for adapters, else 1e-5 (swift/arguments/sft_args.py)."""
    return 1e-4 if draft.value("peft") != "none" else 1e-5


def _swift_batch(draft: Draft) -> None:
    """Set the default accumulation, which fills the batch up to 16 (trainers/arguments.py)."""
    if draft.number("gradient_accumulation_steps") is not None:
        return
    size = draft.number("per_device_train_batch_size")
    micro, copies = int(size.value) if size is not None else 1, draft.devices or 1
    is_grpo = draft.value("objective") == "grpo"
    steps = 1 if is_grpo else max(1, math.ceil(16 / micro / copies))
    text = f"{micro} × {steps} accumulated by default × {copies} replicas"
    draft.put("batch_size", micro * steps * copies, size, text=text, after=("devices",))
    draft.put("gradient_accumulation_steps", steps, size, text=text, after=("devices",))


def _swift_objective(draft: Draft) -> None:
    """Set the default of `swift rlhf`, which is DPO (swift/arguments/rlhf_args.py)."""
    program = draft.document.program
    if program.startswith("swift rlhf") and draft.get("rlhf_type") is None:
        draft.put("objective", "dpo", Found(key=program, value="dpo"), text="dpo by default")


def _swift_precision(draft: Draft) -> None:
    """Set mixed precision from `torch_dtype`; full training upcasts the weights to float32."""
    found = draft.text("torch_dtype")
    if found is not None and not draft.knows("precision"):
        draft.put("precision", precision_of(found.value) or "bf16", found)


def _swift_model(draft: Draft) -> None:
    """Set the model, whose weights are always loaded (swift/model/register.py)."""
    model(draft)
    if draft.text("model") is not None:
        draft.start_trained()


_OWN = ("tuner_type", "train_type", "sft_type", "rlhf_type", "model_id_or_path", "swift_version")
_OTHERS = (
    "model torch_dtype template_type split_dataset_ratio model_author lora_rank learning_rate "
    "dataset quant_bits max_length per_device_train_batch_size"
)
_NOT = "base_model finetuning_type stage use_peft"

READER = Reader(
    name="ms-swift",
    written=WRITTEN,
    title="ms-swift",
    version="4.6.0",
    source="modelscope/ms-swift, swift/trainers/arguments.py and swift/arguments",
    marks=(
        *(Marks(all=key, some=_OTHERS, none=_NOT) for key in _OWN),
        Marks(program=r"^swift (sft|pt|rlhf)"),
    ),
    steps=(
        _swift_adapters,
        _swift_precision,
        *arguments(rate=_rate, falls="cosine", beta2=0.95, decay=0.1, micro=1, precision="bf16"),
        _swift_objective,
        objective,
        _swift_batch,
        _swift_model,
    ),
)
