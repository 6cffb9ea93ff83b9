"""Train a small GPT-2 on the bytes of a text; `rksp watch -- python train.py` watches it."""

from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

TEXT = Path(__file__).resolve().parents[1] / "CONCEPTS.md"
LENGTH = 128

config = GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=128, n_layer=4, n_head=4)
arguments = TrainingArguments(
    output_dir="out",
    learning_rate=1e-3,
    lr_scheduler_type="cosine",
    warmup_steps=20,
    max_steps=200,
    per_device_train_batch_size=16,
    max_grad_norm=1.0,
    logging_steps=5,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
)


def windows(path: Path) -> list[dict[str, torch.Tensor]]:
    """Cut a text into pieces of LENGTH bytes; each is its own target."""
    tokens = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()
    pieces = tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)
    return [{"input_ids": piece, "labels": piece} for piece in pieces]


if __name__ == "__main__":
    model = GPT2LMHeadModel(config)
    Trainer(model=model, args=arguments, train_dataset=windows(TEXT)).train()
