"""fairseq and metaseq: Hydra YAML by groups, or the flags of `fairseq-train`."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from rksp.recipe_files.parse.document import Found
from rksp.recipe_files.table.batch import devices, put_batch
from rksp.recipe_files.table.convert import (
    betas,
    clip,
    optimizer,
    over_peak,
    put_decay_until,
    put_schedule,
    switches,
)
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.reader import NOTHING, Marks, Reader, Row

_LOWEST = ("lr_scheduler.min_lr", "lr_scheduler.end_learning_rate", "end_learning_rate", "min_lr")


def _schedule(draft: Draft) -> None:
    """Set the schedule; `fixed` without annealing is constant (fairseq/optim/lr_scheduler)."""
    found = draft.text("lr_scheduler._name", "lr_scheduler")
    if found is None:
        draft.default("schedule", "constant", "fixed")
        return
    name = {"fixed": "constant", "pass_through": "constant", "polynomial_decay": "polynomial"}.get(
        found.value, found.value
    )
    put_schedule(draft, Found(key=found.key, value=name, line=found.line))


_END = ("lr_scheduler.total_num_update", "total_num_update", "lr_scheduler.max_update")


def _until_the_end(draft: Draft) -> None:
    """Set the steps of a run without `max_update`: nothing is learned once the rate is zero."""
    end = draft.number(*_END) if draft.value("schedule") == "polynomial" else None
    if end is not None and not draft.knows("max_steps"):
        draft.put("max_steps", int(end.value), end, text="where the rate ends")


def _fall(draft: Draft) -> None:
    """Set the schedule; polynomial_decay ends at `total_num_update`, tri_stage has a plateau."""
    end = draft.number(*_END)
    total = int(draft.value("max_steps"))
    if end is not None and int(end.value) != total and draft.value("schedule") != "inverse_sqrt":
        put_decay_until(draft, int(end.value), end)
    power = draft.number("lr_scheduler.power", "power")
    if power is not None:
        draft.put("decay_power", power.value, power)
    _stages(draft)
    stages = draft.get("lr_scheduler.phase_ratio")
    if stages is not None and isinstance(stages.value, list) and len(stages.value) == 3:
        warm_share, _, fall_share = (float(part) for part in stages.value)
        draft.put("schedule", "wsd", stages, text="three stages")
        draft.put(
            "warmup_steps", round(warm_share * total), stages, text=f"{warm_share:g} of {total}"
        )
        draft.put(
            "decay_steps",
            max(1, round(fall_share * total)),
            stages,
            text=f"{fall_share:g} of {total}",
        )
        draft.put("decay_shape", "exponential", stages)
        last = draft.number("lr_scheduler.final_lr_scale")
        draft.put("min_lr_ratio", last.value if last is not None else 0.01, last)
    least, rate = draft.number(*_LOWEST), draft.value("learning_rate") or -1.0
    if draft.value("schedule") != "constant" and least is not None and 0 <= least.value <= rate:
        ratio, text = over_peak(draft, least.value)
        draft.put("min_lr_ratio", ratio, least, text=text)
    draft.default("min_lr_ratio", 0.0)


def _task(draft: Draft) -> Found | None:
    """Return the task; `fairseq-train` translates unless told otherwise (fairseq/options.py)."""
    found, program = draft.get("task._name", "task"), draft.document.program
    if found is None and program.startswith("fairseq-train"):
        return Found(key=f"{program} without --task", value="translation")
    if found is not None and isinstance(found.value, list):  # the data folder stands behind it
        found = dataclasses.replace(found, value=str(found.value[0]))
    return found if found is not None and isinstance(found.value, str) else None


def _stages(draft: Draft) -> None:
    """Set three stages that are given in steps, without `phase_ratio`."""
    warm = draft.number("lr_scheduler.warmup_steps", "warmup_steps")
    fall = draft.number("lr_scheduler.decay_steps", "decay_steps")
    kind = draft.text("lr_scheduler._name", "lr_scheduler")
    if kind is None or kind.value != "tri_stage" or fall is None or fall.value < 1:
        return
    draft.put("schedule", "wsd", kind, text="three stages")
    draft.put("decay_steps", int(fall.value), fall)
    draft.put("decay_shape", "exponential", kind)
    if warm is not None:
        draft.put("warmup_steps", int(warm.value), warm)
    last = draft.number("lr_scheduler.final_lr_scale", "final_lr_scale")
    draft.put("min_lr_ratio", last.value if last is not None else 0.01, last)


def _warmup(draft: Draft) -> int:
    """Return the default warm-up; inverse_sqrt has 4000 steps of it, the others none."""
    return 4000 if draft.value("schedule") == "inverse_sqrt" else 0


def _length(draft: Draft) -> Any:
    """Return the default length; language models have 1024 tokens (fairseq/tasks)."""
    task = _task(draft)
    is_language = task is not None and task.value in ("language_modeling", "masked_lm")
    return 1024 if is_language else NOTHING


def _batch(draft: Draft) -> None:
    """Set the batch in sequences; `max_tokens` needs the sequence length."""
    steps = draft.number("optimization.update_freq", "update_freq")
    size = draft.number("dataset.batch_size", "batch_size", "max_sentences")
    tokens = draft.number("dataset.max_tokens", "max_tokens")
    copies = draft.devices or 1
    if size is not None:
        put_batch(draft, size, steps, copies)
        return
    if tokens is None:
        return
    task = _task(draft)
    if task is not None and re.search(r"audio|speech|hubert|s2t", task.value):
        why = f"{tokens.key} counts audio samples, not tokens; give --batch-size"
        draft.assume("batch_size", why, tokens)
        return
    length = int(draft.value("sequence_length"))
    count = max(1, int(tokens.value) // length)
    accumulated = int(steps.value) if steps is not None else 1
    text = f"{tokens.value} tokens / {length} × {accumulated} × {copies} replicas"
    draft.put("batch_size", count * accumulated * copies, tokens, steps, text=text,
              after=("sequence_length", "devices"))  # fmt: skip
    if steps is not None:
        draft.put("gradient_accumulation_steps", accumulated, steps)


def _objective(draft: Draft) -> None:
    found = _task(draft)
    if found is None:
        return
    known = {"masked_lm": "mlm", "translation": "seq2seq", "denoising": "seq2seq",
             "sentence_prediction": "classification", "language_modeling": "lm",
             "streaming_language_modeling": "lm", "multilingual_masked_lm": "mlm",
             "translation_from_pretrained_bart": "seq2seq"}  # fmt: skip
    meaning = known.get(found.value, "other")
    if meaning != "lm":
        draft.put("objective", meaning, found)


_RECOGNIZERS = ("wav2vec_ctc", "wav2vec_seq2seq", "hubert_ctc", "hubert_seq2seq")


def _starts_trained(draft: Draft) -> bool:
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


def _model(draft: Draft) -> None:
    if _starts_trained(draft):
        draft.start_trained()
    found = draft.text("model._name", "arch", "model.arch")
    if found is not None and found.value in ("roberta", "roberta_base"):
        longest = draft.count("model.max_positions")
        positions = None if longest is None else longest + 2
        draft.describe("roberta", {"max_position_embeddings": positions})
        return
    name = f"{found.value!r}" if found is not None else "its model"
    draft.no_target(f"{name} is an architecture of fairseq; name the same model as TARGET.")


READER = Reader(
    name="fairseq",
    title="fairseq",
    version="0.12.2",
    unverified="metaseq's own keys",
    source="facebookresearch/fairseq, fairseq/dataclass/configs.py, fairseq/optim and "
    "fairseq/tasks; and metaseq",
    marks=(
        Marks(
            some=(
                "optimization.max_update optimization.lr lr_scheduler._name optimizer._name "
                "task._name dataset.max_tokens criterion._name distributed_training"
            ),
            least=2,
        ),
        Marks(
            some=(
                "lr_scheduler arch max_tokens max_sentences update_freq clip_norm adam_betas "
                "warmup_updates total_num_update max_update criterion"
            ),
            least=3,
            syntax="shell",
        ),
        Marks(program=r"^fairseq-|^opt-baselines"),
    ),
    steps=(
        Row("optimizer", "optimizer._name optimizer", optimizer),
        Row("learning_rate", "optimization.lr lr", default=0.25),
        betas("optimizer.adam_betas", "adam_betas"),
        Row("adam_beta1", "", default=0.9),
        Row("adam_beta2", "", default=0.999),
        Row("adam_epsilon", "optimizer.adam_eps adam_eps", default=1e-8),
        Row("weight_decay", "optimizer.weight_decay weight_decay", default=0.0),
        Row("max_grad_norm", "optimization.clip_norm clip_norm", clip, None),
        Row(
            "sequence_length",
            "task.tokens_per_sample tokens_per_sample max_source_positions",
            default=_length,
        ),
        devices("distributed_training.distributed_world_size"),
        devices("distributed_world_size"),
        _batch,
        Row("max_steps", "optimization.max_update max_update"),
        _schedule,
        _until_the_end,
        Row("warmup_steps", "lr_scheduler.warmup_updates warmup_updates", default=_warmup),
        _fall,
        switches(
            common__memory_efficient_bf16="bf16-pure",
            common__bf16="bf16",
            common__memory_efficient_fp16="fp16-pure",
            common__fp16="fp16",
            memory_efficient_bf16="bf16-pure",
            bf16="bf16",
            memory_efficient_fp16="fp16-pure",
            fp16="fp16",
        ),
        Row("precision", "", default="fp32"),
        _objective,
        _model,
    ),
)
