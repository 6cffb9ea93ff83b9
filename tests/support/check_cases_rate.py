"""Cases of the checks of the rate, its warm-up and fine-tuning."""

from __future__ import annotations

from support.check_evidence import TUNED, healthy

from rksp.documents.finding import Level

REPEATED = {"rows": 500, "batch_size": 16, "max_steps": 1_000, "learning_rate": 2e-5}
UNANSWERED = dict.fromkeys(("start_here", "do_not_exceed", "likely_edge"))
UNWARMED = {"warmup_steps": 0, "learning_rate": 9e-5}


def tuned(facts: dict[str, object], **recipe: object) -> dict[str, object]:
    """Trained weights that are trained on, with 16,384 tokens a step."""
    return {
        "facts": facts,
        "recipe": {"batch_size": 32, "sequence_length": 512} | recipe,
        "start": TUNED,
        **UNANSWERED,
    }


# name → (what trips it, its level, the stable twin)
CASES = {
    "learning-rate": (
        healthy(recipe={"learning_rate": 6e-2}),
        Level.ERROR,
        healthy(recipe={"learning_rate": 6e-4}),
    ),
    "learning-rate, under the edge": (
        healthy(recipe={"learning_rate": 5e-3}),
        Level.WARNING,
        healthy(recipe={"learning_rate": 9e-4}),
    ),
    "published-rate": (
        healthy(recipe={"learning_rate": 1e-2}),
        Level.WARNING,
        healthy(recipe={"learning_rate": 1e-3}),
    ),
    "warmup": (
        healthy(recipe={"warmup_steps": 0}),
        Level.WARNING,
        healthy(recipe={"warmup_steps": 0, "optimizer": "sgd"}),
    ),
    "warmup, too short": (
        healthy(recipe={"warmup_steps": 100}),
        Level.WARNING,
        healthy(recipe={"warmup_steps": 100, "max_steps": 3000}),
    ),
    "warmup, in tokens": (
        healthy(recipe={"warmup_steps": 100, "batch_size": 256}),
        Level.WARNING,
        healthy(recipe={"warmup_steps": 100, "batch_size": 1600, "adam_beta2": 0.95}),  # GPT-3 175B
    ),
    "warmup, near the edge": (
        healthy(recipe={"warmup_steps": 500, "max_steps": 20_480, "learning_rate": 8e-3}),
        Level.WARNING,
        healthy(recipe={"warmup_steps": 500, "max_steps": 20_480, "learning_rate": 6e-4}),
    ),
    "warmup, by optimizer": (
        healthy(recipe={"warmup_steps": 0}),
        Level.WARNING,
        healthy(recipe={"warmup_steps": 0, "optimizer": "muon"}),
    ),
    "warmup-length": (
        healthy(recipe={"warmup_steps": 2000, "max_steps": 1000}),
        Level.WARNING,
        healthy(recipe={"warmup_steps": 200, "max_steps": 1000}),
    ),
    "no-movement": (
        healthy(recipe={"learning_rate": 1e-12}),
        Level.ERROR,
        healthy(recipe={"learning_rate": 5e-7, "max_steps": 500}, start=TUNED),
    ),
    "optimizer-rate": (
        healthy(recipe={"learning_rate": 6e-4, "optimizer": "lion"}),
        Level.WARNING,
        healthy(recipe={"learning_rate": 1e-4, "optimizer": "lion"}),
    ),
    "optimizer-rate, muon": (
        healthy(recipe={"learning_rate": 0.1, "optimizer": "muon"}),
        Level.WARNING,
        healthy(recipe={"learning_rate": 0.02, "optimizer": "muon"}),
    ),
    "fine-tuning-rate": (
        healthy(facts={"parameters": 7_000_000_000}, recipe={"learning_rate": 1e-2}, start=TUNED),
        Level.ERROR,
        healthy(facts={"parameters": 7_000_000_000}, recipe={"learning_rate": 2e-5}, start=TUNED),
    ),
    "fine-tuning-rate, 7B at 1e-4": (
        healthy(**tuned({"parameters": 7_000_000_000}, learning_rate=1e-4)),
        Level.WARNING,
        healthy(**tuned({"parameters": 2_000_000_000}, learning_rate=1e-4)),
    ),
    "fine-tuning-rate, encoders": (
        healthy(**tuned({}, learning_rate=1e-4), config={"model_type": "roberta"}),
        Level.WARNING,
        healthy(**tuned({}, learning_rate=5e-5), config={"model_type": "roberta"}),
    ),
    "fine-tuning-rate, large encoders": (
        healthy(
            **tuned({}, learning_rate=5e-5), config={"model_type": "bert", "hidden_size": 1024}
        ),
        Level.WARNING,
        healthy(
            **tuned({}, learning_rate=3e-5), config={"model_type": "bert", "hidden_size": 1024}
        ),
    ),
    "fine-tuning-rate, adapters": (
        healthy(recipe={"learning_rate": 5e-3, "peft": "lora"}, **UNANSWERED),
        Level.WARNING,
        healthy(recipe={"learning_rate": 5e-3, "peft": "lora"}),  # its own model says its rates
    ),
    "fine-tuning-rate, preferences": (
        healthy(recipe={"learning_rate": 1e-4, "objective": "dpo"}, start=TUNED),
        Level.WARNING,
        healthy(recipe={"learning_rate": 5e-7, "objective": "dpo"}, start=TUNED),
    ),
    "fine-tuning-batch": (
        healthy(recipe={"learning_rate": 5e-5, "batch_size": 1}, start=TUNED),
        Level.WARNING,
        healthy(recipe={"learning_rate": 5e-5, "batch_size": 16}, start=TUNED),
    ),
    "adapter-scale": (
        healthy(recipe={"peft": "lora", "lora_rank": 8, "lora_alpha": 256.0}),
        Level.WARNING,
        healthy(recipe={"peft": "lora", "lora_rank": 16, "lora_alpha": 32.0}),
    ),
    "adapter-scale, of the usual rank": (
        healthy(recipe={"peft": "lora", "lora_alpha": 1024.0}),
        Level.WARNING,
        healthy(recipe={"peft": "lora", "lora_alpha": 32.0}),
    ),
    "adapter-scale, nine": (
        healthy(recipe={"peft": "lora", "lora_rank": 16, "lora_alpha": 144.0}),
        Level.WARNING,
        healthy(recipe={"peft": "lora", "lora_rank": 16, "lora_alpha": 64.0}),
    ),
    "adapter-scale, over the root": (
        healthy(recipe={"peft": "rslora", "lora_rank": 16, "lora_alpha": 256.0}),
        Level.WARNING,
        healthy(recipe={"peft": "rslora", "lora_rank": 4, "lora_alpha": 16.0}),
    ),
    "preference-beta": (
        healthy(recipe={"objective": "dpo", "preference_beta": 0.0}),
        Level.WARNING,
        healthy(recipe={"objective": "orpo", "preference_beta": 0.1}),
    ),
    "preference-beta, far above": (
        healthy(recipe={"objective": "kto", "preference_beta": 50.0}),
        Level.NOTE,
        healthy(recipe={"objective": "dpo", "preference_beta": 10.0}),
    ),
    "kl-penalty": (
        healthy(recipe={"objective": "grpo", "kl_coefficient": 5.0}),
        Level.WARNING,
        healthy(recipe={"objective": "ppo", "kl_coefficient": 0.2}),
    ),
    "group-size": (
        healthy(recipe={"objective": "grpo", "generations": 1}),
        Level.WARNING,
        healthy(recipe={"objective": "ppo", "generations": 1}),
    ),
    "group-size, two": (
        healthy(recipe={"objective": "grpo", "generations": 2}),
        Level.NOTE,
        healthy(recipe={"objective": "grpo", "generations": 4}),
    ),
    "clip-range": (
        healthy(recipe={"objective": "grpo", "clip_range": 5.0}),
        Level.NOTE,
        healthy(recipe={"objective": "ppo", "clip_range": 0.28}),
    ),
    "adapter-scale, a little": (
        healthy(recipe={"peft": "lora", "lora_rank": 16, "lora_alpha": 2.0}),
        Level.NOTE,
        healthy(recipe={"peft": "rslora", "lora_rank": 16, "lora_alpha": 32.0}),
    ),
    "fine-tuning-epochs": (
        healthy(recipe=REPEATED, start=TUNED),
        Level.WARNING,
        healthy(recipe=REPEATED | {"rows": 16_000}, start=TUNED),
    ),
    "fine-tuning-epochs, some": (
        healthy(recipe=REPEATED | {"rows": 1_000}, start=TUNED),
        Level.NOTE,
        healthy(recipe=REPEATED),  # from random weights every example is new for long
    ),
    "lost-updates, adapters": (
        healthy(recipe={"precision": "bf16-pure", "learning_rate": 1e-5}, start=TUNED),
        Level.WARNING,
        healthy(recipe={"precision": "bf16-pure", "learning_rate": 1e-5, "peft": "lora"}),
    ),
    "warmup, fine-tuning": (
        healthy(recipe={"warmup_steps": 0, "learning_rate": 1e-3}, start=TUNED),
        Level.WARNING,
        healthy(recipe={"warmup_steps": 0, "learning_rate": 2e-5}, start=TUNED),
    ),
    "warmup, at a low rate": (
        healthy(recipe={"warmup_steps": 0, "learning_rate": 3e-4}),
        Level.WARNING,
        healthy(recipe={"warmup_steps": 0, "learning_rate": 1e-4}),
    ),
    "warmup, at a low rate for a small model": (
        healthy(facts={"parameters": 7_000_000_000}, recipe=UNWARMED),
        Level.WARNING,
        healthy(recipe=UNWARMED),
    ),
    "batch-scaling": (
        healthy(recipe={"batch_size": 1, "sequence_length": 256, "learning_rate": 6e-4}),
        Level.WARNING,
        healthy(recipe={"batch_size": 64, "sequence_length": 256, "learning_rate": 6e-4}),
    ),
}
