"""Two ranks under DDP, FSDP2 or FSDP; the losses of each go to a file."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from transformers import GPT2Config, GPT2LMHeadModel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
shape = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64, "n_positions": 16}
model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
if sys.argv[1] == "fsdp":
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
elif sys.argv[1].startswith("flat"):
    model = FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), use_orig_params=sys.argv[1] == "flat-named"
    )
else:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(rank)
losses = []
for _ in range(12):
    tokens = torch.randint(64, (4, 16), generator=generator)
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    if isinstance(model, FullyShardedDataParallel):
        model.clip_grad_norm_(1.0)
    else:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
Path(f"losses.{rank}").write_text("\n".join(map(repr, losses)))
dist.barrier()  # gloo aborts a rank whose peer is gone before its last message has arrived
del model, optimizer
dist.destroy_process_group()
