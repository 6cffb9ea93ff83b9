"""A stranger's training script, for `lab.bench.unseen_faults`: FAULT SEED [FOLDER] [PART].

Written before its author had read a rule of `rksp watch`. Three programs share the file: letters
of Python's own source (a decoder with attention by hand), a classifier of blobs, a regression.
Anything that goes wrong is planted by name; nothing here imports rksp.
"""

from __future__ import annotations

import argparse
import inspect
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS, TOKENS = 12, 32


class Norm(nn.Module):
    """Root-mean-square norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize `[..., width]`."""
        return self.gain * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Mixer(nn.Module):
    """Causal attention of several heads, as a product, a softmax and a product."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.low = heads, False
        self.inp, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map `[rows, tokens, width]` to the same shape."""
        rows, tokens, width = x.shape
        q, k, v = self.inp(x).view(rows, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.low:
            q = (q * 3e4).half().float()
        scores = q @ k.transpose(-1, -2) / math.sqrt(width / self.heads)
        mask = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(rows, tokens, width))


class Experts(nn.Module):
    """Four small experts, of which a gate chooses one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 4)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Map `[..., width]` to the same shape."""
        share = self.gate(x).softmax(-1)
        best, which = share.max(-1, keepdim=True)
        every = torch.stack([expert(x) for expert in self.experts], -2)
        chosen = every.gather(-2, which[..., None].expand(*x.shape[:-1], 1, x.shape[-1]))
        return best * F.relu(chosen.squeeze(-2))


class Layer(nn.Module):
    """Mix tokens, then change each."""

    def __init__(self, width: int, heads: int, experts: bool) -> None:
        super().__init__()
        self.first, self.second, self.mix = Norm(width), Norm(width), Mixer(width, heads)
        self.change = (
            Experts(width)
            if experts
            else nn.Sequential(nn.Linear(width, 3 * width), nn.SiLU(), nn.Linear(3 * width, width))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map `[rows, tokens, width]` to the same shape."""
        x = x + self.mix(self.first(x))
        return x + self.change(self.second(x))


class Letters(nn.Module):
    """A decoder of letters."""

    def __init__(self, letters: int, width: int, layers: int, heads: int, experts: bool) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(TOKENS, width)
        self.layers = nn.ModuleList(Layer(width, heads, experts) for _ in range(layers))
        self.last, self.read = Norm(width), nn.Linear(width, letters)
        self.stop_trunk = False
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Map letters `[rows, tokens]` to logits."""
        x = self.letter(x) + self.place.weight[: x.shape[1]]
        for layer in self.layers:
            x = layer(x)
        x = self.last(x)
        return self.read(x.detach() if self.stop_trunk else x)


def text(seed: int) -> tuple[Tensor, int]:
    """Return the letters of a module of Python as numbers, and how many kinds there are."""
    whole = inspect.getsource(argparse)
    kinds = sorted(set(whole))
    return torch.tensor([kinds.index(letter) for letter in whole]), len(kinds)


def letters(fault: str, seed: int, folder: Path, part: int) -> None:
    """Train the decoder of letters."""
    torch.manual_seed(seed + 1000 * part)
    data, kinds = text(seed)
    width = 48 if fault == "healthy_small" else 64
    steps = 130
    model = Letters(kinds, width, 2, 4, experts="expert" in fault)
    if fault == "init_one":
        for p in model.parameters():
            nn.init.normal_(p)
    if fault == "head_large":
        model.read.weight.data.mul_(60)
    if fault == "embedding_large":
        model.letter.weight.data.mul_(4000)
        model.last = nn.Identity()
    if fault == "experts_collapsed":
        model.layers[0].change.gate.bias.data[2] = 60.0
        model.layers[1].change.gate.bias.data[0] = 60.0
    if fault == "dead_relu":
        for layer in model.layers:
            layer.change[1] = nn.ReLU()
            layer.change[0].bias.data.fill_(-30.0)
    model.stop_trunk = fault == "trunk_detached"
    if fault in ("bf16_weights",):
        model.bfloat16()
    if fault == "half_weights":
        model.half()
    rate, warm, clip, decay = 3e-3, 10, 1.0, 0.01
    rate = {"rate_tiny": 1e-7, "bf16_weights": 1e-5, "rate_huge": 0.5}.get(fault, rate)
    rate = {"momentum_sgd": 0.3, "sum_loss_sgd": 0.3, "tiny_clip": 0.3}.get(fault, rate)
    warm = 0 if fault in ("rate_huge",) else warm
    decay = 300.0 if fault == "decay_huge" else decay
    clip = {"tiny_clip": 1e-5, "sum_loss_sgd": 0.0}.get(fault, clip)
    if fault == "frozen_embedding":
        model.letter.weight.requires_grad_(False)
    held: Any = [p for p in model.parameters() if p.requires_grad]
    if fault == "head_only":
        held = list(model.read.parameters())
    if fault == "half_left_out":
        held = [p for n, p in model.named_parameters() if not n.startswith("layers")]

    def made() -> torch.optim.Optimizer:
        if fault in ("momentum_sgd", "sum_loss_sgd", "tiny_clip"):
            return torch.optim.SGD(held, lr=rate, momentum=0.9)
        if fault == "adafactor":
            return torch.optim.Adafactor(held, lr=1e-2)
        return torch.optim.AdamW(held, lr=rate, weight_decay=decay)

    optimizer = made()
    if fault == "remade_after":
        model.layers = nn.ModuleList(Layer(width, 4, False) for _ in range(2))
        model.read = nn.Linear(width, kinds)
    first = 0
    saved = folder / "model.pt"
    if part == 2 and fault != "resume_nothing":
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        first = state["step"]
        if fault not in ("resume_weights_only", "resume_rate"):
            optimizer.load_state_dict(state["optimizer"])
    if part == 2 and fault == "resume_nothing":
        first = 130
    if part == 2 and fault == "resume_words":
        order = torch.randperm(kinds, generator=torch.Generator().manual_seed(5))
        data = order[data]
    if part == 2 and fault in ("resume_rate", "resume_weights_only"):
        rate = 0.1 if fault == "resume_rate" else 3e-2
        warm = 0
    draw = torch.Generator().manual_seed(seed + part)
    kept: list[Tensor] = []
    average = [p.detach().clone() for p in model.parameters()]
    for step in range(first, first + steps):
        size = ROWS // 2 if fault == "batch_halved" and step >= 70 else ROWS
        at = torch.randint(len(data) - TOKENS - 1, (size,), generator=draw)
        rows = torch.stack([data[i : i + TOKENS + 1] for i in at.tolist()])
        if fault == "one_batch":
            rows = kept[0] if kept else rows
            kept.append(rows)
        x, y = rows[:, :-1], rows[:, 1:].clone()
        if fault == "labels_are_inputs":
            y = x
        if fault == "labels_shuffled" or (fault == "labels_shuffled_late" and step >= 70):
            y = y.flatten()[torch.randperm(y.numel(), generator=draw)].view_as(y)
        if fault == "labels_masked":
            y[:] = -100
        if fault == "words_late" and step >= 70:
            x = x.flip(1)
        if fault == "constant_late" and step >= 70:
            x, y = torch.zeros_like(x), torch.zeros_like(y)
        if fault == "half_by_hand" and step == 70:
            for layer in model.layers:
                layer.mix.low = True
        now = rate * min(1.0, (step - first + 1) / warm) if warm else rate
        if fault == "rate_late" and step >= 70:
            now = 100 * rate
        if fault == "rate_halved" and step >= 70:
            now = rate / 2
        if fault == "restarts":
            now = rate * (0.5 + 0.5 * math.cos(math.pi * (step % 40) / 40))
        if fault == "rate_zero":
            now = rate * (step // 1000)
        for group in optimizer.param_groups:
            group["lr"] = now
        if fault == "hang" and step == 70:
            time.sleep(45)
        parts = 3 if fault == "accumulated" else 1
        total = 0.0
        for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True):
            logits = model(a).float()
            if fault == "softmax_twice":
                logits = logits.softmax(-1)
            smooth = 0.1 if fault == "smoothed" else 0.0
            how = "sum" if fault == "sum_loss_sgd" else "mean"
            loss = F.cross_entropy(
                logits.flatten(0, 1), b.flatten(), label_smoothing=smooth, reduction=how
            )
            if fault == "auxiliary_nan" and step >= 70:
                loss = loss + 0.01 * (loss.detach() * 0).log() * 0
            if fault == "loss_scaled_late" and step >= 70:
                loss = -loss
            if fault == "z_loss":
                loss = loss + 1e-4 * logits.logsumexp(-1).pow(2).mean()
            (loss / parts).backward()
            total += float(loss.detach()) / parts
        if clip:
            nn.utils.clip_grad_norm_(held, clip)
        if fault == "never_stepped":
            pass
        elif fault == "new_optimizer" and step >= 70:
            optimizer = made()
            for group in optimizer.param_groups:
                group["lr"] = 10 * now
            optimizer.step()
        else:
            optimizer.step()
        if fault != "never_zeroed":
            model.zero_grad()
        with torch.no_grad():
            for mean, p in zip(average, model.parameters(), strict=True):
                mean.mul_(0.98).add_(p.detach(), alpha=0.02)
            if fault == "average_copied_back" and step >= 60:
                for mean, p in zip(average, model.parameters(), strict=True):
                    p.copy_(mean)
            if fault == "rolled_back" and step == 70:
                model.load_state_dict(Letters(kinds, width, 2, 4, False).state_dict())
            if fault == "evaluated" and step % 10 == 0:
                model.eval()
                F.cross_entropy(model(x).flatten(0, 1), y.flatten())
                model.train()
        print(f"step {step} loss {total:.4f}", flush=True)
    kept_state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(kept_state | {"step": first + steps}, saved)


def blobs(fault: str, seed: int) -> None:
    """Train a classifier of ten blobs, with SGD."""
    torch.manual_seed(seed)
    centers = torch.randn(10, 20) * 0.8
    model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    if fault == "blobs_labels_random":
        centers = centers * 0
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 150)
    for step in range(150):
        y = torch.randint(10, (64,))
        x = centers[y] + torch.randn(64, 20)
        if fault == "blobs_inputs_large":
            x = x * 1e4
            model[1] = nn.Identity()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)


def lines(fault: str, seed: int) -> None:
    """Fit a curve by squares, with Adam."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    truth = torch.randn(8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(150):
        x = torch.randn(64, 8)
        y = (x @ truth).sin()[:, None] + 0.1 * torch.randn(64, 1)
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    name, number = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    if name.startswith("blobs"):
        blobs(name, number)
    elif name.startswith("lines"):
        lines(name, number)
    else:
        letters(name, number, Path(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 1)
