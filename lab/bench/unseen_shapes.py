"""Five ways to train that `unseen_script.py` does not have, each with faults of its own.

An encoder-decoder, a ViT with labels, experts, two optimizers (Muon and AdamW), and accumulated
half-precision gradients under a scaler. `main` is the whole script; a fault is a word in it.

    python unseen_shapes.py SHAPE:FAULT SEED FOLDER [PART]

Part 2 goes on from what part 1 saved in FOLDER.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEPS, LATE, WORDS, LENGTH, BATCH, WIDTH, CLASSES = 160, 100, 40, 24, 16, 64, 8
Batch = tuple[Tensor, ...]


class Attend(nn.Module):
    """Attention of a sequence on itself, or on a memory."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.both = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, memory: Tensor | None = None, causal: bool = False) -> Tensor:
        """Return what each position takes from the memory, `[batch, length, width]`."""
        memory = x if memory is None else memory
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(x), *self.both(memory).chunk(2, -1))
        )
        taken = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return self.out(taken.transpose(1, 2).flatten(2))


class Experts(nn.Module):
    """Two of four experts for each token."""

    def __init__(self, width: int, drop: float = 0.0) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
            for _ in range(4)
        )
        self.balance = torch.zeros(())
        self.lost = False

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted sum of the chosen experts' outputs."""
        shares = self.gate(x).softmax(-1)
        best, chosen = shares.topk(2, -1)
        weights = torch.zeros_like(shares).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
        self.balance = 4 * ((weights > 0).float().mean((0, 1)) * shares.mean((0, 1))).sum()
        out = torch.stack([expert(x) for expert in self.experts], -1)
        return (out * weights.unsqueeze(-2)).sum(-1) * (0 if self.lost else 1)


class Layer(nn.Module):
    """A pre-norm layer, with cross-attention where it has a memory."""

    def __init__(self, width: int, experts: bool = False, cross: bool = False, drop: float = 0.0):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = Attend(width)
        self.cross = Attend(width) if cross else None
        self.norm3 = nn.LayerNorm(width) if cross else None
        wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.mlp = Experts(width) if experts else wide
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor, memory: Tensor | None = None, causal: bool = True) -> Tensor:
        """Map `[batch, length, width]` to the same shape."""
        x = x + self.drop(self.attend(self.norm1(x), causal=causal))
        if self.cross is not None:
            x = x + self.drop(self.cross(self.norm3(x), memory))
        return x + self.drop(self.mlp(self.norm2(x)))


class Decoder(nn.Module):
    """A language model, dense or of experts."""

    def __init__(self, width: int = WIDTH, experts: bool = False, cap: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(WORDS, width), nn.Embedding(2 * LENGTH, width)
        self.layers = nn.ModuleList(Layer(width, experts) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        self.cap = cap

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, `[batch, length, words]`."""
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return self.cap * torch.tanh(logits / self.cap) if self.cap else logits


class Translator(nn.Module):
    """An encoder and a decoder."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, width), nn.Embedding(WORDS, width)
        self.places = nn.Embedding(2 * LENGTH, width)
        self.encoder = nn.ModuleList(Layer(width) for _ in range(2))
        self.decoder = nn.ModuleList(Layer(width, cross=True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)
        self.causal, self.blind = True, False

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return logits, `[batch, length, words]`."""
        memory = self.source(source) + self.places.weight[: source.shape[1]]
        for layer in self.encoder:
            memory = layer(memory, causal=False)
        memory = memory.detach() * 0 if self.blind else memory
        x = self.target(target) + self.places.weight[: target.shape[1]]
        for layer in self.decoder:
            x = layer(x, memory, causal=self.causal)
        return self.head(self.norm(x))


class Vision(nn.Module):
    """A ViT on pictures of 16 by 16."""

    def __init__(self, width: int = WIDTH, drop: float = 0.0) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        self.layers = nn.ModuleList(Layer(width, drop=drop) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return logits, `[batch, classes]`."""
        x = self.patches(pictures).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        for layer in self.layers:
            x = layer(x, causal=False)
        return self.head(self.norm(x[:, 0]))


class Data:
    """Chains that follow one of three maps with 0.9; pictures of a class with noise."""

    def __init__(self, seed: int, fault: str) -> None:
        self.fault, self.source = fault, torch.Generator().manual_seed(seed + 100)
        fixed = torch.Generator().manual_seed(7)
        self.maps = torch.stack([torch.randperm(WORDS - 1, generator=fixed) + 1 for _ in range(3)])
        self.pictures = torch.randn(CLASSES, 3, 16, 16, generator=fixed)

    def chains(self, style: Tensor, length: int, noise: float = 0.1) -> Tensor:
        """Return `[batch, length + 1]` words; 0 is padding and never comes."""
        words = torch.randint(1, WORDS, (len(style), length + 1), generator=self.source)
        kept = torch.rand(words.shape, generator=self.source) > noise
        for place in range(length):
            follows = self.maps[style, words[:, place] - 1]
            words[:, place + 1] = torch.where(kept[:, place], follows, words[:, place + 1])
        return words

    def text(self, batch: int, length: int, noise: float = 0.1) -> Tensor:
        """Return chains of the first map."""
        return self.chains(torch.zeros(batch, dtype=torch.long), length, noise)

    def pairs(self, batch: int) -> tuple[Tensor, Tensor]:
        """Return sources that name the map, and targets that follow it, some of them padded."""
        style = torch.randint(3, (batch,), generator=self.source)
        source = torch.randint(4, WORDS, (batch, 8), generator=self.source)
        source[:, ::2] = style.unsqueeze(1) + 1
        target = self.chains(style, LENGTH)
        ends = torch.randint(LENGTH // 2, LENGTH + 1, (batch, 1), generator=self.source)
        return source, target.masked_fill(torch.arange(LENGTH + 1) > ends, 0)

    def seen(self, batch: int) -> tuple[Tensor, Tensor]:
        """Return pictures and classes."""
        kind = torch.randint(CLASSES, (batch,), generator=self.source)
        noise = torch.randn(batch, 3, 16, 16, generator=self.source)
        return self.pictures[kind] + 1.5 * noise, kind


def losses(logits: Tensor, targets: Tensor, **how: float) -> Tensor:
    """Return cross-entropy over what is not padding."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=0, **how)


def built(shape: str, fault: str) -> nn.Module:
    """Return the model as the script sets it up, with what is wrong from the start."""
    model: nn.Module
    if shape == "translate":
        model = Translator()
        model.causal, model.blind = fault != "no_causal_mask", fault == "blind"
    elif shape == "vision":
        model = Vision(drop={"dropout": 0.95, "dropped": 0.2}.get(fault, 0.0))
    else:
        width = 48 if fault == "narrow" else WIDTH
        cap = {"cap_tiny": 0.5}.get(fault, 15.0) if shape == "muon" else 0.0
        model = Decoder(width, experts=shape == "experts", cap=cap)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
            if fault == "gain":
                nn.init.xavier_normal_(module.weight, gain=12.0)
            if fault == "all_zero":
                nn.init.zeros_(module.weight)
            if fault == "gate_large" and name.endswith("gate"):
                nn.init.normal_(module.weight, std=20.0)
        if isinstance(module, Experts):
            module.lost = fault == "experts_lost"
    if shape == "muon" and fault != "all_zero":
        nn.init.zeros_(model.head.weight)
    if fault == "bf16":
        model.to(torch.bfloat16)
    if fault == "patches_frozen":
        model.patches.requires_grad_(False)
    return model


def optimizers_of(shape: str, fault: str, model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return the script's optimizers."""
    rate = {
        "rate_20": 0.06,
        "rate_low": 1e-8,
        "high_and_fine": 6e-3,
        "bf16": 3e-5,
    }.get(fault, 2e-3)
    own = list(model.parameters())
    if fault == "decoder_alone":
        own = [p for n, p in model.named_parameters() if not n.startswith(("encoder", "source"))]
    if shape == "muon":
        rest = [p for n, p in model.named_parameters() if p.ndim < 2 or "layers" not in n]
        matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "layers" in n]
        speed = 2.0 if fault == "muon_fast" else 0.02
        decay = 40.0 if fault == "decay" else 0.0
        return [
            torch.optim.Muon(matrices, lr=speed, weight_decay=decay),
            torch.optim.AdamW(rest, lr=rate, betas=(0.8, 0.95), weight_decay=decay),
        ]
    if fault == "group_of_zero":
        matrices = [p for p in own if p.ndim >= 2]
        rest = [p for p in own if p.ndim < 2]
        return [torch.optim.AdamW([{"params": matrices, "lr": 0.0}, {"params": rest}], lr=rate)]
    if fault in ("sgd", "sgd_not_divided"):
        return [torch.optim.SGD(own, lr=0.1 if fault == "sgd" else 0.5, momentum=0.9)]
    if fault == "sgd_fast":
        return [torch.optim.SGD(own, lr=20.0, momentum=0.9)]
    epsilon = 1.0 if fault == "epsilon" else 1e-8
    return [torch.optim.AdamW(own, lr=rate, eps=epsilon, weight_decay=0.05)]


def schedule(shape: str, fault: str, step: int, restarted: int) -> float:
    """Return the factor of the rate at a step."""
    since = step - restarted
    if fault == "warm_restarts":
        return 1.0 - 0.9 * (step % 50) / 50
    if fault == "constant":
        return 1.0
    if fault == "rate_late" and step >= LATE:
        return 40.0
    if fault == "rate_20":
        return 1.0
    if shape == "muon":
        return min(1.0, 2.0 * (1 - step / (2 * STEPS)))
    return min(1.0, (since + 1) / 15) * (1 - 0.7 * step / (2 * STEPS))


def batch_of(shape: str, fault: str, data: Data, step: int) -> Batch:
    """Return the batch of a step, with what is wrong with the data."""
    late = step >= LATE
    if shape == "translate":
        source, target = data.pairs(BATCH)
        if fault == "sources_mixed_late" and late:
            source = source[torch.randperm(BATCH, generator=data.source)]
            target[:, 1:] = target[torch.randperm(BATCH, generator=data.source), 1:]
        return source, target
    if shape == "vision":
        pictures, kinds = data.seen(2 * BATCH)
        if fault == "pixels":
            pictures = pictures * 64 + 128
        if fault in ("random_kinds",) or (fault == "noisy_kinds" and step % 4 == 0):
            kinds = torch.randint(CLASSES, kinds.shape, generator=data.source)
        if fault == "one_kind":
            kinds = torch.full_like(kinds, 3)
        if fault == "kinds_moved_late" and late:
            kinds = (kinds + 3) % CLASSES
        if fault == "nan_picture_late" and late:
            pictures[0, 0, 0, 0] = float("nan")
        if fault == "brighter":
            pictures = pictures * (1.0 if step < LATE else 1.2)
        return pictures, kinds
    length = 8 + 16 * step // STEPS if fault == "curriculum" else LENGTH
    noise = 0.6 if fault == "noisy" else 0.1
    words = data.text(BATCH * (2 if fault == "batch_grows" and late else 1), length, noise)
    if fault == "spike" and step == LATE:
        words = torch.randint(1, WORDS, words.shape, generator=data.source)
    if fault == "reversed_late" and late:
        words = words.flip(1)
    if fault == "renumbered" and late:
        words = (words + 11) % (WORDS - 1) + 1
    return (words,)


def loss_of(shape: str, fault: str, model: nn.Module, batch: Batch, step: int) -> Tensor:
    """Return what the script calls backward on."""
    if shape == "translate":
        source, target = batch
        inputs = target[:, 1:] if fault == "not_shifted" else target[:, :-1]
        how = {"label_smoothing": 0.1} if fault == "smoothed" else {}
        logits = model(source, inputs)
        if fault == "padding_counted":
            return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        return losses(logits, target[:, 1:], **how)
    if shape == "vision":
        pictures, kinds = batch
        if fault == "mixed":
            share = 0.8
            mixed = share * pictures + (1 - share) * pictures.flip(0)
            logits = model(mixed)
            first, second = F.cross_entropy(logits, kinds), F.cross_entropy(logits, kinds.flip(0))
            return share * first + (1 - share) * second
        logits = model(pictures)
        if fault == "not_logarithms":
            return F.nll_loss(logits.softmax(-1), kinds)
        return F.cross_entropy(logits, kinds)
    (words,) = batch
    targets = words[:, :-1] if fault == "same_word" else words[:, 1:]
    loss = losses(model(words[:, :-1]), targets)
    if shape == "experts":
        weight = {"balance_huge": 50.0, "unbalanced": 0.0}.get(fault, 0.01)
        loss = loss + weight * sum(layer.mlp.balance for layer in model.layers)
    if fault == "penalty_late" and step >= LATE:
        loss = loss + 3.0 * sum(p.square().sum() for p in model.parameters())
    return loss


def meddle(fault: str, model: nn.Module, step: int) -> None:
    """Do to the weights, between two steps, what the fault says."""
    if step != LATE:
        return
    with torch.no_grad():
        if fault == "head_made_anew_late":
            nn.init.normal_(model.head.weight, std=0.5)
        if fault == "gates_grow_late":
            for layer in model.layers:
                layer.mlp.gate.weight.mul_(200)
        if fault == "one_weight_late":
            model.layers[0].mlp.experts[0][0].weight[3, 5] = 3e4
        if fault == "layer_lost_late":
            for parameter in model.layers[1].parameters():
                parameter.zero_()


def wrapped(fault: str, model: nn.Module) -> nn.Module:
    """Return the model as one process of several would hold it."""
    if fault not in ("ddp", "fsdp"):
        return model
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(20000 + os.getpid() % 20000))
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    if fault == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def load(fault: str, model: nn.Module, optimizers: list[torch.optim.Optimizer], kept: dict) -> None:
    """Take up what the first part saved, as far as the fault lets it."""
    weights = kept["model"]
    if fault == "resume_part":
        weights = {name: value for name, value in weights.items() if "layers" not in name}
    if fault != "resume_other_place":
        model.load_state_dict(weights, strict=False)
    if fault not in ("resume_no_state", "resume_other_place"):
        for optimizer, state in zip(optimizers, kept["optimizers"], strict=True):
            optimizer.load_state_dict(state)


def main(what: str, seed: int, folder: Path, part: int = 1) -> None:
    """Train for one part."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    shape, _, fault = what.partition(":")
    data, model = Data(seed + 50 * part, fault), built(shape, fault)
    model = wrapped(fault, model)
    optimizers = optimizers_of(shape, fault, model)
    bases = [[group["lr"] for group in one.param_groups] for one in optimizers]
    half = shape == "scaled"
    scaler = torch.amp.GradScaler(
        "cpu",
        enabled=half,
        init_scale=2.0**60 if fault == "scale_huge" else 2.0**10,
        backoff_factor=0.9999 if fault == "scale_huge" else 0.5,
    )
    pieces = 4 if half else 1
    saved, start = folder / "state.pt", 0
    if part == 2:
        kept = torch.load(saved, weights_only=False)
        start = kept["step"]
        load(fault, model, optimizers, kept)
    restarted = start if fault == "resume_schedule" else 0
    steps = STEPS if part == 2 or not fault.startswith("resume") else LATE
    second = {"resume_rate": 25.0}.get(fault, 1.0) if part == 2 else 1.0
    step_one: Callable[[torch.optim.Optimizer], object] = scaler.step
    for step in range(start, steps):
        meddle(fault, model, step)
        for optimizer, base in zip(optimizers, bases, strict=True):
            for group, rate in zip(optimizer.param_groups, base, strict=True):
                group["lr"] = second * rate * schedule(shape, fault, step, restarted)
        total = 0.0
        for _ in range(pieces):
            batch = batch_of(shape, fault, data, step)
            if fault == "resume_renumbered" and part == 2:
                batch = ((batch[0] + 11) % (WORDS - 1) + 1,)
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = loss_of(shape, fault, model, batch, step)
            loss = loss if fault == "sgd_not_divided" else loss / pieces
            if fault == "overflow_late" and step >= LATE:
                loss = loss * 1e38 * 10
            scaler.scale(loss).backward()
            total += loss.item()
        if fault == "cleared_before_step":
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=False)
        if half and fault != "clip_scaled":
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
        if fault != "unclipped":
            limit = 1e-4 if fault == "clip_scaled" else 1.0
            nn.utils.clip_grad_norm_(model.parameters(), limit)
        for optimizer in optimizers[: 1 if fault == "second_not_stepped" else None]:
            step_one(optimizer)
        scaler.update()
        if not (fault == "kept_late" and step >= LATE):
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
        if step % 40 == 0:
            print(step, round(total, 3), flush=True)
            if fault == "looked_at":
                model.eval()
                with torch.no_grad():
                    loss_of(shape, fault, model, batch_of(shape, "", data, step), step)
                model.train()
    print("end", round(total, 3))
    states = [one.state_dict() for one in optimizers]
    if fault not in ("ddp", "fsdp"):
        kept = {"model": model.state_dict(), "optimizers": states, "step": steps}
        torch.save(kept, saved)
    else:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]) if sys.argv[4:] else 1)
