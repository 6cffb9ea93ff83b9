"""Lightning's litgpt: YAML for `litgpt pretrain` and the `litgpt finetune` family."""

from __future__ import annotations

from rksp.recipe_files.readers.known_models import shape_of
from rksp.recipe_files.table.batch import batch, devices
from rksp.recipe_files.table.convert import (
    betas,
    clip,
    lowest_rate,
    number,
    over_peak,
    precision,
    put_optimizer,
)
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.duration import epochs, put_epochs, put_steps
from rksp.recipe_files.table.reader import Marks, Reader, Row


def _optimizer(draft: Draft) -> None:
    found = draft.text("optimizer") or draft.text("optimizer.class_path")
    if found is not None:
        put_optimizer(draft, found)
    draft.default("optimizer", "adamw")


def _is_finetuning(draft: Draft) -> bool:
    return draft.document.has("checkpoint_dir") or draft.document.has("lora_r")


def _steps(draft: Draft) -> None:
    """Set the length: steps, tokens (only pretraining: litgpt/pretrain.py), or epochs."""
    steps, tokens = draft.get("train.max_steps"), draft.get("train.max_tokens")
    if steps is not None:
        put_steps(draft, "max_steps", steps)
    elif tokens is not None:
        put_steps(draft, "max_steps", tokens, "tok")
    elif not _is_finetuning(draft) and not draft.document.has("train.epochs"):
        size, length = int(draft.value("batch_size")), int(draft.value("sequence_length"))
        whole = round(3e12 / (size * length))
        draft.default("max_steps", whole, "3e12 tokens", ("batch_size", "sequence_length"))
    else:
        epochs("train.epochs", 5)(draft)


def _lowest(draft: Draft) -> None:
    """Set the lowest rate; finetuning ignores `min_lr` and ends at 0 (litgpt/finetune/full.py)."""
    if _is_finetuning(draft):
        draft.default("min_lr_ratio", 0.0, "finetuning anneals to zero and ignores min_lr")
        return
    lowest_rate(draft, "min_lr_ratio", ["train.min_lr"])
    draft.default("min_lr_ratio", *over_peak(draft, 4e-5))


def _warmup(draft: Draft) -> None:
    number(draft, "warmup_steps", ["train.lr_warmup_steps"])
    share = draft.number("train.lr_warmup_fraction")
    if share is not None and not draft.knows("warmup_steps"):
        put_epochs(draft, "warmup_steps", share.value, share, share.key)
    draft.default("warmup_steps", 100 if _is_finetuning(draft) else 2000)


def _clip(draft: Draft) -> float | None:
    """Return the default clipping, which only pretraining has (litgpt/pretrain.py, setup)."""
    return None if _is_finetuning(draft) else 1.0


def _lora(draft: Draft) -> None:
    quantized = draft.text("quantize")
    is_four = quantized is not None and quantized.value.removeprefix("bnb.")[:2] in ("nf", "fp")
    found = draft.number("lora_r")
    if found is None:
        return
    draft.put("peft", "qlora" if is_four else "lora", found, quantized if is_four else None)
    draft.put("lora_rank", found.value, found)
    number(draft, "lora_alpha", ["lora_alpha"])
    draft.default("lora_alpha", 16.0)
    parts = ("query", "key", "value", "projection", "mlp", "head")
    on = tuple(part for part in parts if draft.true(f"lora_{part}") is not None)
    if on:
        draft.put("lora_targets", on, *(draft.get(f"lora_{part}") for part in on))


def _model(draft: Draft) -> None:
    if draft.text("checkpoint_dir", "initial_checkpoint_dir") is not None:
        draft.start_trained()
    settings = draft.mapping("model_config")
    if settings.get("n_layer") and settings.get("n_embd"):
        _describe(draft, settings)
        return
    base = draft.text("checkpoint_dir")
    if base is not None:
        name = base.value.removeprefix("checkpoints/")
        draft.describe(name, {}, "checkpoint_dir: it starts from those weights.")
        return
    name = draft.text("model_name")
    known = shape_of(name.value) if name is not None else None
    if known is not None:
        draft.describe(*known)
    elif name is not None:
        draft.no_target(f"{name.value!r} is litgpt's name for its own model; name a TARGET.")


def _describe(draft: Draft, settings) -> None:
    """Translate `litgpt.Config` to transformers (litgpt/scripts/convert_lit_checkpoint.py)."""
    is_llama = "RMSNorm" in str(settings.get("norm_class_name", "LayerNorm"))
    common = {
        "num_hidden_layers": settings.get("n_layer"),
        "num_attention_heads": settings.get("n_head"),
        "hidden_size": settings.get("n_embd"),
        "intermediate_size": settings.get("intermediate_size"),
        "vocab_size": settings.get("padded_vocab_size") or settings.get("vocab_size"),
        "max_position_embeddings": settings.get("block_size"),
    }
    if is_llama:
        kind, groups = "llama", settings.get("n_query_groups") or settings.get("n_head")
        common["num_key_value_heads"] = groups
    else:
        kind = "gpt_neox"
        common["use_parallel_residual"] = settings.get("parallel_residual", True)
        share = settings.get("rotary_percentage", 0.25)
        common["rope_parameters.partial_rotary_factor"] = share
    tied = draft.true("train.tie_embeddings")
    draft.describe(kind, common | {"tie_word_embeddings": tied is not None})


READER = Reader(
    name="litgpt",
    written={"warmup_steps": "train.lr_warmup_steps"},
    title="litgpt",
    version="0.5.13",
    source="Lightning-AI/litgpt, litgpt/{args,pretrain,utils}.py and litgpt/finetune",
    marks=(Marks(all="train.global_batch_size train.micro_batch_size"),),
    steps=(
        _lora,
        devices("devices", "num_nodes"),
        _optimizer,
        Row("learning_rate", "optimizer.init_args.lr train.learning_rate", default=1e-3),
        betas("optimizer.init_args.betas"),
        Row("adam_beta1", "train.beta1", default=0.9),
        Row("adam_beta2", "train.beta2", default=0.999),
        Row("adam_epsilon", "optimizer.init_args.eps", default=1e-8),
        Row("weight_decay", "optimizer.init_args.weight_decay train.weight_decay", default=0.01),
        Row("max_grad_norm", "train.max_norm", clip, _clip),
        Row("sequence_length", "train.max_seq_length"),
        batch("train.micro_batch_size", whole="train.global_batch_size"),
        _steps,
        _warmup,
        Row("schedule", "", default="cosine"),
        _lowest,
        Row("precision", "precision", precision, "bf16"),
        _model,
    ),
)
