"""The Trainer of transformers, or one of TRL, with accumulation, a warm-up and a cosine."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

kind, arguments, more = Trainer, TrainingArguments, {}
if "trl" in sys.argv:
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig as arguments
    from trl import SFTTrainer as kind

    words = Tokenizer(WordLevel({str(i): i for i in range(64)}, unk_token="0"))
    special = {"pad_token": "0", "eos_token": "0"}
    more["processing_class"] = PreTrainedTokenizerFast(tokenizer_object=words, **special)

torch.manual_seed(0)
shape = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64, "n_positions": 16}
model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
generator = torch.Generator().manual_seed(0)
rows = [{"input_ids": t, "labels": t} for t in torch.randint(64, (64, 16), generator=generator)]
if "trl" in sys.argv:
    rows = Dataset.from_list([{name: t.tolist() for name, t in row.items()} for row in rows])
asked = arguments(
    "out",
    max_steps=12,
    learning_rate=1e-3,
    warmup_steps=3,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    lr_scheduler_type="cosine",
    report_to=[],
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
    logging_steps=1,
)
trainer = kind(model, asked, train_dataset=rows, **more)
trainer.train()
for step in trainer.state.log_history[:-1]:
    print(repr(step["loss"]), repr(step["grad_norm"]))
