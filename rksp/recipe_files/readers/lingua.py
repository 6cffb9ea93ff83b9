"""Meta's lingua: OmegaConf YAML with `optim`, `distributed`, `model` and `data`."""

from __future__ import annotations

from rksp.recipe_files.table.batch import batch, devices
from rksp.recipe_files.table.convert import clip, precision, schedule
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.reader import Marks, Reader, Row
from rksp.recipe_files.table.shape import read_shape


def _fall(draft: Draft) -> None:
    """Set the decay; WSD decays over the last `decay_fraction`, a cosine of cycles restarts."""
    share, cycle = draft.number("optim.decay_fraction"), draft.number("optim.cycle_length")
    if draft.value("schedule") == "wsd":
        part = float(share.value) if share is not None else 0.1
        total = int(draft.value("max_steps"))
        draft.put(
            "decay_steps", max(1, round(part * total)), share, text=f"{part:g} of {total} steps"
        )
    if cycle is not None and cycle.value != 1:
        draft.note("optim.cycle_length: the cosine restarts, which rksp leaves out.")


def _model(draft: Draft) -> None:
    is_resumed = draft.true("checkpoint.continue_training_from_init") is not None
    if draft.text("checkpoint.init_ckpt_path") is not None and not is_resumed:
        draft.start_trained()
    sizes = read_shape(
        draft,
        hidden_size="model.dim",
        num_hidden_layers="model.n_layers",
        num_attention_heads="model.n_heads",
        num_key_value_heads="model.n_kv_heads",
        max_position_embeddings="model.max_seqlen data.seq_len",
    )
    if not sizes:
        return
    unit = draft.count("model.multiple_of", default=256)
    scale = draft.amount("model.ffn_dim_multiplier", default=1.0)
    sizes["intermediate_size"] = unit * -(-int(8 * sizes["hidden_size"] / 3 * scale) // unit)
    vocabulary = draft.count("model.vocab_size", default=0)
    if vocabulary > 0:
        draft.describe("llama", sizes | {"vocab_size": vocabulary})
    else:
        note = "The vocabulary is the tokenizer's; transformers' default of 32000 is used."
        draft.describe("llama", sizes, note)


READER = Reader(
    name="lingua",
    title="lingua",
    version="2024",
    source="facebookresearch/lingua, lingua/{optim,data,distributed}.py and apps/main/train.py",
    marks=(
        Marks(
            all="steps optim.lr",
            some=(
                "grad_acc_steps distributed.model_dtype distributed.fsdp_type data.seq_len "
                "model.dim dump_dir"
            ),
            least=2,
        ),
    ),
    steps=(
        Row("optimizer", "", default="adamw"),
        Row("learning_rate", "optim.lr", default=3e-4),
        Row("adam_beta1", "optim.beta1", default=0.9),
        Row("adam_beta2", "optim.beta2", default=0.95),
        Row("adam_epsilon", "optim.epsilon", default=1e-8),
        Row("weight_decay", "optim.weight_decay", default=0.1),
        Row("max_grad_norm", "optim.clip", clip, 1.0),
        Row("sequence_length", "data.seq_len", default=2048),
        devices("distributed.dp_shard", "distributed.dp_replicate"),
        batch("data.batch_size", "grad_acc_steps", shared=("distributed.tp_size",), default=2),
        Row("max_steps", "steps", default=1000),
        Row("schedule", "optim.scheduler", schedule, "cosine"),
        Row("warmup_steps", "optim.warmup", default=2000),
        _fall,
        Row("min_lr_ratio", "optim.lr_min_ratio", default=0.1),
        # FSDP keeps float32 weights (lingua/distributed.py).
        Row("precision", "distributed.model_dtype", precision, "bf16"),
        _model,
    ),
)
