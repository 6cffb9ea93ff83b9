"""verl and OpenRLHF: an actor with its optimizer, and rollouts that make the batches."""

from __future__ import annotations

import math
from dataclasses import replace

from rksp.recipe_files.parse.document import Found, FoundNumber
from rksp.recipe_files.table import convert
from rksp.recipe_files.table.draft import Draft

_ACTOR = "actor_rollout_ref.actor"
_EPOCHS = "trainer.total_epochs"


def _rollouts(draft: Draft) -> None:
    """Set the batch and the steps of verl: a rollout is cut into mini-batches, `n` an answer.

    Prompts are counted, each with `n` answers (verl/trainer/config/actor/actor.yaml).
    """
    mini = draft.number_or(256, f"{_ACTOR}.ppo_mini_batch_size")
    group = draft.number_or(1, "actor_rollout_ref.rollout.n")
    size, each = int(mini.value), int(group.value)
    prompts = draft.number_or(1024, "data.train_batch_size")
    if prompts.value < size:  # verl refuses it; another program cuts it otherwise
        mini = replace(mini, key=prompts.key, open=f"less than a mini-batch of {size}")
    text = f"{size} prompts × {each} answers"
    draft.put("batch_size", size * each, mini, group, text=text)
    program = draft.document.program
    if each == 1 and group.key and program and not program.startswith("verl"):
        draft.unknown("batch_size", group, "its program may make more answers than rollout.n")
    whole, agents = int(prompts.value), draft.number("actor_rollout_ref.rollout.n_agent")
    if agents is not None:  # of verl's forks for tools, which count the mini-batch in answers
        draft.put("generations", int(agents.value), agents)
    answers = whole * (1 if agents is None else int(agents.value))
    updates = max(1, answers // size) * (draft.count(f"{_ACTOR}.ppo_epochs") or 1)
    _length(draft, updates, whole, 30, f" × {updates} updates a rollout")
    if not prompts.key and draft.document.has("data.train_batch_size"):  # null: computed elsewhere
        prompts = replace(prompts, key="data.train_batch_size", open="null")
    for part in (prompts, mini):
        if part.open and draft.knows("max_steps"):
            draft.unknown("max_steps", part)
            draft.unknown("warmup_steps", part)
    parts = [draft.number_or(512, f"data.max_{part}_length") for part in ("prompt", "response")]
    length = sum(int(part.value) for part in parts)
    draft.put("sequence_length", length, *parts, text="prompt and answer")


def _length(draft: Draft, updates: int, whole: int, epochs: int, said: str) -> None:
    steps, rounds = draft.number("trainer.total_training_steps"), draft.number(_EPOCHS)
    rows, count = draft.value("rows"), rounds.value if rounds else epochs
    if steps is not None and steps.value > 0:
        text = said and f"{steps.value}{said}"
        draft.put("max_steps", int(steps.value) * updates, steps, text=text)
    elif rows is not None:
        made = max(1, int(rows // whole * count)) * updates
        text = f"{count:g} epochs of {rows:,} rows / {whole}{said}"
        draft.put("max_steps", made, rounds, text=text, after=("rows",))
    else:
        why = f"{count:g} epochs need the size of the data set; give --rows or --max-steps"
        draft.assume("max_steps", f"{_EPOCHS}: {why}", rounds)
    for home in (f"{_ACTOR}.optim", "optim"):
        warm, share = (draft.number(f"{home}.lr_warmup_steps{end}") for end in ("", "_ratio"))
        if warm is not None and warm.value > 0:
            text = said and f"{warm.value}{said}"
            draft.put("warmup_steps", int(warm.value) * updates, warm, text=text)
        elif share is not None and not draft.knows("warmup_steps"):
            convert.put_warmup(draft, share, int)


def _sft_length(draft: Draft) -> None:
    _length(draft, 1, int(draft.value("batch_size")), 4, "")


def _first_sft(draft: Draft) -> None:
    is_first = "fsdp_sft_trainer" in draft.document.program
    if not is_first and not draft.document.has("model.partial_pretrain"):
        return
    draft.default("learning_rate", 1e-5)
    draft.default("adam_beta1", 0.9)
    draft.default("adam_beta2", 0.95)
    draft.default("schedule", "cosine")
    convert.warmup_share(draft, 0.1)


def _kind(draft: Draft) -> str:
    return draft.document.program.rpartition("train_")[2].removesuffix(".py")


def _open_objective(draft: Draft) -> None:
    kind = _kind(draft)
    if kind.startswith("ppo"):
        for key in ("advantage_estimator", "algo.advantage.estimator"):
            convert.stated_objective(draft, key)
        draft.default("objective", "ppo")
    elif kind != "sft":
        known = {"dpo": "dpo", "rm": "reward", "kto": "kto", "kd": "distillation"}
        found = Found(key=draft.document.program, value=kind)
        draft.put("objective", known.get(kind, "other"), found)


def _open_length(draft: Draft) -> None:
    size = draft.number_or(128, "train.batch_size", "train_batch_size")
    draft.put("batch_size", int(size.value), size)
    convert.number(draft, "sequence_length", ["data.max_len", "max_len"])
    parts = [draft.number_or(1024, "prompt_max_len"), draft.number_or(1024, "generate_max_len")]
    if any(part.key for part in parts) and not draft.knows("sequence_length"):
        length = sum(int(part.value) for part in parts)
        draft.put("sequence_length", length, *parts, text="prompt and answer")
    draft.default("sequence_length", 512 if _kind(draft) in ("dpo", "rm") else 2048)
    if _kind(draft).startswith("ppo"):
        draft.assume("max_steps", "episodes need the number of prompts; give --max-steps")
        draft.look("num_episodes", "train.num_episodes", "max_epochs", "train.max_epochs")
    else:
        rounds = draft.number("train.max_epochs", "max_epochs")
        convert.put_epochs(
            draft, "max_steps", rounds.value if rounds else None, rounds, "max_epochs", 1
        )
    share = draft.number("actor.lr_warmup_ratio", "lr_warmup_ratio")
    convert.put_warmup(
        draft, share or FoundNumber(key="lr_warmup_ratio (the default)", value=0.03), math.ceil
    )
