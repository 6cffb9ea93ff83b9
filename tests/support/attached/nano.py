"""A script in the way of nanoGPT: accumulation, a clip, evaluation, a rate set by hand."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.c_attn(self.ln_1(x)).split(width, dim=2)
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(64, 32), nn.Embedding(16, 32)
        self.h = nn.ModuleList(Block(32, 4) for _ in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(32), nn.Linear(32, 64, bias=False)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
if "compile" in sys.argv:
    model = torch.compile(model)
scaler = torch.amp.GradScaler("cpu", enabled=False)
data = torch.randint(64, (4000,))
for it in range(12):
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 * min(1.0, (it + 1) / 5)
    if it % 6 == 0:
        model.eval()
        with torch.no_grad():
            model(data[:64].view(4, 16), data[1:65].view(4, 16))
        model.train()
    total = 0.0
    for _ in range(3):
        starts = torch.randint(3900, (4,))
        x = torch.stack([data[i : i + 16] for i in starts])
        y = torch.stack([data[i + 1 : i + 17] for i in starts])
        _, loss = model(x, y)
        loss = loss / 3
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print(repr(total))
