"""A loop that prints every loss; with an argument it ends itself as SIGKILL does."""

import os
import sys

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(3)
model = nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 16), nn.Dropout(0.1), nn.Linear(16, 32))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(12):
    tokens = torch.randint(32, (4, 8))
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(repr(loss.item()), flush=True)
    if step == 8 and sys.argv[1:] == ["kill"]:
        os.kill(os.getpid(), 9)
