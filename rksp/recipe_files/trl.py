"""TRL: `TrainingArguments` with another default rate for each trainer, and PEFT's settings."""

from __future__ import annotations

from rksp.recipe_files.convert import number
from rksp.recipe_files.draft import Draft
from rksp.recipe_files.hugging_face import NOT_PLAIN, adapters, arguments, model, objective
from rksp.recipe_files.table import Marks, Reader


def _trl_rate(draft: Draft) -> None:
    """Set the default rate; each of TRL's trainers has its own (trl/trainer/*_config.py)."""
    rates = {"reward": 1e-4, "dpo": 1e-6, "kto": 1e-6, "grpo": 1e-6, "ppo": 1e-6}
    number(draft, "learning_rate", ["learning_rate"])
    draft.default("learning_rate", rates.get(str(draft.value("objective")), 2e-5))


READER = Reader(
    name="trl",
    title="TRL",
    version="1.16.0",
    source="huggingface/trl, trl/trainer/{sft,dpo,kto,reward,grpo,base,model}_config.py",
    marks=(
        Marks(
            some=(
                "use_peft",
                "lora_r",
                "dataset_text_field",
                "max_prompt_length",
                "num_generations",
                "max_completion_length",
                "assistant_only_loss",
                "dataset_mixer",
                "dataset_name",
                "dataset_num_proc",
                "attn_implementation",
                "packing",
                "eos_token",
                "loss_type",
                "chat_template",
                "use_vllm",
                "system_prompt",
                "max_seq_length",
            ),
            least=2,
            all=("learning_rate",),
            none=(*NOT_PLAIN, "template", "finetuning_type"),
        ),
        Marks(program=r"^trl |^(sft|dpo|kto|grpo|reward_modeling|orpo)(_\w+)?\.py$"),
    ),
    steps=(objective, _trl_rate, *adapters, *arguments(length=1024, precision="bf16"), model),
)
