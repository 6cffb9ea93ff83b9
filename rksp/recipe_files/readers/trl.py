"""TRL: `TrainingArguments` with another default rate for each trainer, and PEFT's settings."""

from __future__ import annotations

from rksp.recipe_files.readers.hugging_face import (
    NOT_PLAIN,
    WRITTEN,
    adapters,
    arguments,
    model,
    objective,
)
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.reader import Marks, Reader


def _rate(draft: Draft) -> float:
    """Return the default rate; each of TRL's trainers has its own (trl/trainer/*_config.py)."""
    rates = dict.fromkeys(("dpo", "kto", "orpo", "grpo", "ppo"), 1e-6) | {"reward": 1e-4}
    return rates.get(str(draft.value("objective")), 2e-5)


def _alpha(draft: Draft) -> None:
    """Set the default scale of the adapters (trl/trainer/model_config.py)."""
    if draft.value("peft") != "none":
        draft.default("lora_alpha", 32.0)


def _completions(draft: Draft) -> None:
    """Leave the length assumed for GRPO, which limits completions but not prompts."""
    if draft.value("objective") == "grpo" and not draft.document.has("max_length"):
        found = draft.number("max_completion_length")
        limit = found.value if found is not None else "512 (the default)"
        why = f"max_completion_length: {limit} tokens come after a prompt of unknown length"
        draft.assume("sequence_length", f"{why}; give --sequence-length", found)


READER = Reader(
    name="trl",
    written=WRITTEN,
    title="TRL",
    version="1.16.0",
    source="huggingface/trl, trl/trainer/{sft,dpo,kto,reward,grpo,rloo,base,model}_config.py and "
    "trl/experimental/orpo/orpo_config.py",
    marks=(
        Marks(
            some=(
                "use_peft lora_r dataset_text_field max_prompt_length num_generations "
                "max_completion_length assistant_only_loss dataset_mixer dataset_name "
                "dataset_num_proc attn_implementation packing eos_token loss_type chat_template "
                "use_vllm system_prompt max_seq_length"
            ),
            least=2,
            all="learning_rate",
            none=f"{NOT_PLAIN} template finetuning_type",
        ),
        Marks(program=r"^trl |^(sft|dpo|kto|grpo|reward_modeling|orpo)(_\w+)?\.py$"),
        Marks(program=r"Config$", syntax="script"),
    ),
    steps=(
        objective,
        *adapters,
        _alpha,
        _completions,
        *arguments(rate=_rate, length=1024, precision="bf16"),
        model,
    ),
)
