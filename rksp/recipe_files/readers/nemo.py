"""NVIDIA NeMo: Hydra YAML with `trainer`, `exp_manager` and `model.optim.sched`."""

from __future__ import annotations

from rksp.recipe import LOW_RANK
from rksp.recipe_files.table.batch import batch, devices
from rksp.recipe_files.table.convert import (
    betas,
    clip,
    lowest_rate,
    number,
    optimizer,
    positive,
    precision,
    schedule,
    warmup_by,
)
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.duration import epochs
from rksp.recipe_files.table.reader import Marks, Reader, Row
from rksp.recipe_files.table.shape import as_gpt2, read_shape

_OPTIM = "model.optim"


def _fall(draft: Draft) -> None:
    """Set the decay; CosineAnnealing ends with `constant_steps` at the lowest rate."""
    found = draft.number(f"{_OPTIM}.sched.constant_steps")
    total, warm = int(draft.value("max_steps")), int(draft.value("warmup_steps"))
    if found is not None and 0 < found.value < total - warm:
        span = total - warm - int(found.value)
        text = f"{total} - {warm} - {found.value} held at the end"
        draft.put("decay_steps", span, found, text=text, after=("max_steps",))
    power = draft.number(f"{_OPTIM}.sched.power")
    if power is not None:
        draft.put("decay_power", power.value, power)


def _rate(draft: Draft) -> None:
    """Set the peak; NoamAnnealing's rate is a factor of 1 / √(d_model × warm-up)."""
    rate, kind = draft.number(f"{_OPTIM}.lr"), draft.text(f"{_OPTIM}.sched.name")
    if rate is None or kind is None or kind.value != "NoamAnnealing":
        number(draft, "learning_rate", [f"{_OPTIM}.lr"])
        return
    width = draft.number(f"{_OPTIM}.sched.d_model")
    warm = draft.number(f"{_OPTIM}.sched.warmup_steps")
    if width is None or warm is None or warm.value < 1 or width.value < 1:
        draft.assume(
            "learning_rate",
            f"{rate.key} is a factor of NoamAnnealing, whose d_model or warmup_steps is not in "
            "this file; give the peak with --lr",
            rate,
        )
        return
    peak = float(f"{rate.value / (width.value * warm.value) ** 0.5:.6g}")
    text = f"{rate.value:g} / √({width.value} × {warm.value}), the peak of NoamAnnealing"
    draft.put("learning_rate", peak, rate, width, warm, text=text)


def _decay(draft: Draft) -> float:
    """Return the default weight decay, which is that of torch's or Apex's optimizer."""
    name = draft.text(f"{_OPTIM}.name")
    return 0.01 if name is not None and name.value == "adamw" else 0.0


def _adapters(draft: Draft) -> None:
    scheme = draft.text("model.peft.peft_scheme")
    if scheme is not None and scheme.value.lower() not in ("none", "null"):
        name = scheme.value.lower()
        draft.put("peft", name if name in LOW_RANK else "other", scheme)
        rank = draft.number("model.peft.lora_tuning.adapter_dim")
        if rank is not None:
            draft.put("lora_rank", rank.value, rank)
    start = draft.text(
        *("restore_from_path", "model.restore_from_path"),
        "pretrained_checkpoint.restore_from_path",  # NeMo-Aligner
    )
    if start is not None:
        draft.start_trained()
        draft.note(f"It starts from {start.value}, which rksp does not read.")


def _model(draft: Draft) -> None:
    sizes = read_shape(
        draft,
        num_hidden_layers="model.num_layers",
        hidden_size="model.hidden_size",
        num_attention_heads="model.num_attention_heads",
    )
    if not sizes:
        return
    encoder = draft.get("model.encoder_arch", "model.encoder")
    if encoder is not None:
        draft.put("objective", "seq2seq", encoder)
        draft.no_target("it is an encoder-decoder of NeMo's own; name a TARGET.")
        return
    norm, activation = draft.text("model.normalization"), draft.text("model.activation")
    sizes["intermediate_size"] = draft.count("model.ffn_hidden_size")
    sizes["max_position_embeddings"] = draft.count("model.max_position_embeddings")
    sizes["initializer_range"] = float(draft.amount("model.init_method_std", default=0.02))
    note = "NeMo divides the output projections' deviation by √(2 × layers)"
    if norm is None or "rms" not in norm.value.lower():
        draft.describe("gpt2", as_gpt2(sizes), f"{note}, and so does transformers' gpt2.")
        return
    if activation is not None and "glu" not in activation.value:
        draft.no_target(f"{norm.value} with {activation.value} has no equivalent; name a TARGET.")
        return
    groups = draft.count("model.num_query_groups", default=sizes["num_attention_heads"])
    untied = draft.false("model.share_embeddings_and_output_weights")
    extra = {"num_key_value_heads": groups, "tie_word_embeddings": untied is None}
    draft.describe("llama", sizes | extra, f"{note}; transformers' llama does not.")


READER = Reader(
    name="nemo",
    title="NeMo",
    version="1.x (000763d0)",
    source="NVIDIA/NeMo, nemo/core/optim and examples/nlp/language_modeling/conf",
    marks=(
        Marks(
            all="model.optim",
            some=(
                "trainer.max_steps trainer.precision trainer.devices exp_manager "
                "trainer.accumulate_grad_batches model.train_ds"
            ),
            least=2,
        ),
    ),
    steps=(
        _adapters,
        Row("optimizer", f"{_OPTIM}.name", optimizer),
        _rate,
        betas(f"{_OPTIM}.betas"),
        Row("adam_beta1", "", default=0.9),
        Row("adam_beta2", "", default=0.999),
        Row("adam_epsilon", f"{_OPTIM}.eps", default=1e-8),
        Row("weight_decay", f"{_OPTIM}.weight_decay", default=_decay),
        Row("max_grad_norm", "trainer.gradient_clip_val", clip, None),
        Row(
            "sequence_length",
            "model.encoder_seq_length model.seq_length model.data.train_ds.max_seq_length "
            "model.data.seq_length",
        ),
        devices("trainer.devices", "trainer.num_nodes"),
        batch(
            "model.micro_batch_size model.data.train_ds.micro_batch_size model.train_ds.batch_size",
            "trainer.accumulate_grad_batches",
            whole="model.global_batch_size model.data.train_ds.global_batch_size",
            shared=("model.tensor_model_parallel_size", "model.pipeline_model_parallel_size"),
        ),
        Row("max_steps", "trainer.max_steps", positive),
        epochs("trainer.max_epochs"),
        Row("schedule", f"{_OPTIM}.sched.name", schedule, "constant"),
        Row(
            "warmup_steps",
            f"{_OPTIM}.sched.warmup_steps {_OPTIM}.sched.warmup_ratio",
            warmup_by(int),
            0,
        ),
        _fall,
        Row("min_lr_ratio", f"{_OPTIM}.sched.min_lr", lowest_rate, 0.0),
        # Lightning's 16 and bf16 are mixed; Megatron's O2 keeps float32 copies.
        Row("precision", "trainer.precision", precision, "fp32"),
        _model,
    ),
)
