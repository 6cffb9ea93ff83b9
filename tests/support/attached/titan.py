"""Two ranks in the shape of torchtitan: a mesh, meta weights, containers, checkpoints between."""

import copy
import functools
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class Optimizers(torch.optim.Optimizer):
    """An optimizer that holds one for each part of the model, and is one for its schedulers."""

    def __init__(self, parts, options):
        self.parts = parts
        self.optimizers = [torch.optim.AdamW(part.parameters(), **options) for part in parts]
        super().__init__([p for part in parts for p in part.parameters()], options)

    def step(self, closure=None):
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none=True):
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def state_dict(self):
        both = zip(self.parts, self.optimizers, strict=True)
        found = [get_optimizer_state_dict(part, one, options=FLAT) for part, one in both]
        return functools.reduce(lambda a, b: {**a, **b}, found)

    def load_state_dict(self, state):
        for part, one in zip(self.parts, self.optimizers, strict=True):
            set_optimizer_state_dict(part, one, optim_state_dict=state, options=FLAT)


def clip(parameters, limit):
    """Clip to the norm of all ranks, as torchtitan does."""
    grads = [p.grad for p in parameters]
    norm = torch.nn.utils.get_total_norm(grads)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)


dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp_shard",))
shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
shape |= {"num_attention_heads": 2, "vocab_size": 64, "max_position_embeddings": 16}
config = LlamaConfig(**shape, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False)
with torch.device("meta"):
    model = LlamaForCausalLM(config)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
model.to_empty(device="cpu")
torch.manual_seed(0)
with torch.no_grad():
    for p in model.parameters():
        torch.nn.init.normal_(p, 1.0 if p.dim() == 1 else 0.0, 0.02)
    for module in model.modules():
        if hasattr(module, "original_inv_freq"):
            fresh = type(module)(config)
            module.inv_freq, module.original_inv_freq = fresh.inv_freq, fresh.original_inv_freq
model.train()
optimizers = Optimizers([model], {"lr": 1e-3, "fused": False})
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizers.optimizers[0], lambda step: min(1.0, (step + 1) / 3)
)
optimizers.load_state_dict(copy.deepcopy(optimizers.state_dict()))  # which takes a step at rate 0
generator = torch.Generator().manual_seed(rank)
losses = []
for step in range(12):
    optimizers.zero_grad()
    tokens = torch.randint(64, (4, 17), generator=generator)
    logits = model(tokens[:, :-1]).logits
    loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
    del logits
    loss.backward()
    clip(list(model.parameters()), 1.0)
    optimizers.step()
    schedule.step()
    losses.append(loss.item())
    if step == 6:
        kept = {"model": get_model_state_dict(model), "optimizer": optimizers.state_dict()}
        dcp.save(kept, checkpoint_id="checkpoint")
Path(f"losses.{rank}").write_text("\n".join(map(repr, losses)))
dist.barrier()  # gloo aborts a rank whose peer is gone before its last message has arrived
dist.destroy_process_group()
