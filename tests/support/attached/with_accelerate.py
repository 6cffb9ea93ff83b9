"""A loop of Accelerate with accumulation and a clip."""

import torch
from accelerate import Accelerator
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
shape = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64, "n_positions": 16}
model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=12)
loader = torch.utils.data.DataLoader(torch.randint(64, (48, 16)), batch_size=2)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
total = 0.0
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(batch, labels=batch).loss
        accelerator.backward(loss)
        total += loss.item() / 2
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            print(repr(total))
            total = 0.0
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
