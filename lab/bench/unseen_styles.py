"""Three more ways to train, in the style of people's scripts: SHAPE:FAULT SEED FOLDER [PART].

A GPT of one's own (einsum attention, tied head, accumulation in bfloat16, scheduler), a classifier
of series with a relative bias in its attention, and a script of transformers' Trainer.
"""

from __future__ import annotations

import copy
import math
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

STEPS, LATE, WORDS, LENGTH, CLASSES = 160, 100, 50, 32, 6


class SelfAttention(nn.Module):
    """Attention in einsums, causal or with a bias for distances."""

    def __init__(self, dim: int, n_head: int, causal: bool) -> None:
        super().__init__()
        self.n_head, self.causal = n_head, causal
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.bias = None if causal else nn.Parameter(torch.zeros(n_head, LENGTH, LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        """Map `[batch, time, dim]` to the same shape."""
        q, k, v = (w(x).unflatten(-1, (self.n_head, -1)) for w in (self.wq, self.wk, self.wv))
        att = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        if self.causal:
            att = att.masked_fill(torch.ones_like(att, dtype=torch.bool).triu(1), -torch.inf)
        if self.bias is not None:
            att = att + self.bias
        y = torch.einsum("bhij,bjhd->bihd", F.softmax(att, -1), v)
        return self.wo(y.flatten(2))


class Block(nn.Module):
    """Attention and a gated MLP, each behind an RMSNorm."""

    def __init__(self, dim: int, n_head: int, causal: bool) -> None:
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attn = SelfAttention(dim, n_head, causal)
        self.gate, self.up, self.down = (
            nn.Linear(dim, 3 * dim),
            nn.Linear(dim, 3 * dim),
            nn.Linear(3 * dim, dim),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map `[batch, time, dim]` to the same shape."""
        x = x + self.attn(self.n1(x))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class GPT(nn.Module):
    """A decoder with a tied head, that returns its loss beside its logits."""

    def __init__(self, dim: int = 64, causal: bool = True) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, dim), nn.Embedding(LENGTH, dim)
        self.blocks = nn.ModuleList(Block(dim, 4, causal) for _ in range(2))
        self.norm_f, self.lm_head = nn.RMSNorm(dim), nn.Linear(dim, WORDS, bias=False)
        for p in self.parameters():
            nn.init.normal_(p, std=0.02) if p.dim() > 1 else None
        self.lm_head.weight = self.wte.weight

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits `[batch, time, words]` and the loss."""
        x = self.wte(idx) + self.wpe.weight[: idx.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.norm_f(x))
        return logits, F.cross_entropy(logits.view(-1, WORDS), targets.reshape(-1))


class SeriesNet(nn.Module):
    """A classifier of `[batch, time, 4]` series."""

    def __init__(self, dim: int = 48, stop: bool = False) -> None:
        super().__init__()
        self.stem, self.stop = nn.Conv1d(4, dim, 5, padding=2), stop
        self.blocks = nn.ModuleList(Block(dim, 4, causal=False) for _ in range(2))
        self.fc = nn.Linear(dim, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `[batch, classes]`."""
        x = self.stem(x.transpose(1, 2)).transpose(1, 2)
        with torch.set_grad_enabled(not self.stop):
            for block in self.blocks:
                x = block(x)
        return self.fc(x.mean(1))


def chains(count: int, draw: torch.Generator, noise: float = 0.15) -> Tensor:
    """Return `[count, LENGTH + 1]` words that mostly follow one map."""
    follow = torch.randperm(WORDS, generator=torch.Generator().manual_seed(3))
    out = torch.randint(WORDS, (count, LENGTH + 1), generator=draw)
    kept = torch.rand(out.shape, generator=draw) > noise
    for t in range(LENGTH):
        out[:, t + 1] = torch.where(kept[:, t], follow[out[:, t]], out[:, t + 1])
    return out


def series(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return waves of `CLASSES` frequencies in noise, and which."""
    kind = torch.randint(CLASSES, (count,), generator=draw)
    phase = 6.3 * torch.rand(count, 1, 4, generator=draw)
    time = torch.arange(LENGTH)[None, :, None] * (0.25 + 0.3 * kind)[:, None, None]
    return (time + phase).sin() + 0.8 * torch.randn(count, LENGTH, 4, generator=draw), kind


def gpt(fault: str, seed: int, folder: Path, again: bool) -> None:
    """Pretrain with accumulation in bfloat16, clipping, and a warm-up with cosine decay."""
    draw = torch.Generator().manual_seed(seed + 10 * again)
    model = GPT(48 if fault == "small" else 64, causal=fault != "mask_missing")
    if fault == "projections_large":
        for block in model.blocks:
            nn.init.normal_(block.down.weight, std=4.0)
            nn.init.normal_(model.wte.weight, std=1.0)
    rate, start = {"rate_in_percent": 0.3}.get(fault, 3e-3), 0
    if again:
        rate *= {"resume_rate": 25.0, "resume_moments": 4.0}.get(fault, 1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    if again:
        kept = torch.load(folder / "ckpt.pt")
        start, weights = kept["iter"], kept["model"]
        if fault == "resume_prefix":
            weights = {f"_orig_mod.{name}": w for name, w in weights.items()}
        model.load_state_dict(weights, strict=False)
        if fault not in ("resume_moments", "resume_rate", "resume_prefix"):
            optimizer.load_state_dict(kept["optimizer"])
        for group in optimizer.param_groups:
            group["initial_lr"] = rate

    def factor(step: int) -> float:
        step += start
        if fault == "rate_late" and step >= LATE:
            return 60.0
        if fault == "rate_cut" and step >= LATE:
            return 0.3
        warm = 1 if fault in ("rate_in_percent", "resume_moments") else 10
        return min(1.0, (step + 1) / warm) * (0.55 + 0.45 * math.cos(math.pi * step / 300))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    first, stale = copy.deepcopy(model.state_dict()), chains(8, draw)
    shuffled = torch.randperm(WORDS, generator=torch.Generator().manual_seed(9))
    for step in range(start, STEPS if again or not fault.startswith("resume") else LATE):
        if fault == "ema_empty_late" and step == LATE:
            model.load_state_dict(first)
        total, accumulation = 0.0, 8 if fault == "batch_doubled" and step >= LATE else 4
        for _ in range(accumulation):
            rows = stale if fault == "same_loader" else chains(8, draw)
            if fault == "file_ends_late" and step >= LATE:
                rows = torch.zeros_like(rows)
            if (fault == "tokens_late" and step >= LATE) or (fault == "resume_tokens" and again):
                rows = shuffled[rows]
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(rows[:, :-1], rows[:, 1:])[1]
            (loss / accumulation).backward()
            total += loss.item() / accumulation
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        if step % 20 == 0:
            print(f"iter {step}: loss {total:.4f}", flush=True)
            with torch.no_grad():
                model.eval()
                model(rows[:, :-1], rows[:, 1:])
                model.train()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state | {"iter": step + 1}, folder / "ckpt.pt")


def classify(fault: str, seed: int, folder: Path, again: bool) -> None:
    """Train the classifier of series over a loader, with one cycle of the rate."""
    draw = torch.Generator().manual_seed(seed + 10 * again)
    model = SeriesNet(stop=fault == "no_grad_left")
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    if fault == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if fault == "stem_frozen":
        model.stem.requires_grad_(False)
    start = 0
    if again:
        kept = torch.load(folder / "last.pt")
        start, weights = kept["step"], kept["net"]
        if fault == "resume_head_new":
            weights = {name: w for name, w in weights.items() if not name.startswith("fc")}
        if fault == "resume_rounded":
            weights = {name: (w * 5).round() / 5 for name, w in weights.items()}
        model.load_state_dict(weights, strict=False)
        optimizer.load_state_dict(kept["opt"])
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1 if fault == "smoothed" else 0.0)
    size = 48
    inputs, labels = series(size * STEPS, draw)
    if fault == "labels_next_row":
        labels = labels.roll(1)
    if fault == "inputs_unscaled":
        inputs = inputs * 2000 + 500
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, labels), size)
    last = STEPS if again or not fault.startswith("resume") else LATE
    for step, (x, y) in enumerate(loader, start):
        if step == last:
            break
        if fault == "classes_late" and step >= LATE:
            y = (y + 2) % CLASSES
        loss = criterion(model(x), y)
        if fault == "weight_nan_late" and step >= LATE:
            loss = loss + 0.1 * (y[y > CLASSES].float()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item(), flush=True)
    kept = {"net": model.state_dict(), "opt": optimizer.state_dict(), "step": step}
    torch.save(kept, folder / "last.pt")


class Rows(torch.utils.data.Dataset):
    """Rows of words, as Trainer takes them."""

    def __init__(self, fault: str, seed: int, again: bool) -> None:
        self.rows = chains(8 * STEPS, torch.Generator().manual_seed(seed))
        self.fault, self.again = fault, again

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        words = self.rows[index]
        labels = words.clone()
        if self.fault == "masked_all":
            labels[:] = -100
        if self.fault == "resume_shifted" and self.again:
            labels = labels.roll(-1)
        return {"input_ids": words, "labels": labels}


class Meddle(TrainerCallback):
    """A callback that makes a layer anew."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Do it at one step."""
        if state.global_step == LATE:
            nn.init.normal_(more["model"].model.layers[0].mlp.down_proj.weight, std=0.5)


class OwnLoss(Trainer):
    """A Trainer whose loss gains a term late."""

    def compute_loss(self, model: Any, inputs: Any, **more: Any) -> Any:
        """Return the model's loss and the term."""
        loss = model(**inputs).loss
        if self.state.global_step >= LATE:
            loss = loss + 30 * model.lm_head.weight.square().sum()
        return loss


def trained(fault: str, seed: int, folder: Path, again: bool) -> None:
    """Train a small Llama as a script of transformers does."""
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=WORDS, hidden_size=64, intermediate_size=160, **sizes)
    model = LlamaForCausalLM(config)
    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=8,
        max_steps=STEPS if again or not fault.startswith("resume") else LATE,
        learning_rate={"rate_forgotten_zeros": 3e-9, "adafactor": 1e-2}.get(fault, 3e-3),
        warmup_steps=10,
        lr_scheduler_type="constant_with_warmup",
        optim="adafactor" if fault == "adafactor" else "adamw_torch",
        save_steps=20,
        save_strategy="steps" if fault.startswith("resume") else "no",
        report_to=[],
        disable_tqdm=True,
        logging_steps=20,
        use_cpu=True,
        seed=seed,
    )
    own = OwnLoss if fault == "term_late" else Trainer
    more = [Meddle()] if fault == "layer_new_late" else []
    data = Rows(fault, seed, again)
    trainer = own(model=model, args=arguments, train_dataset=data, callbacks=more)
    point = 20 if fault == "resume_old" else LATE
    trainer.train(resume_from_checkpoint=str(folder / f"out/checkpoint-{point}") if again else None)


if __name__ == "__main__":
    torch.set_num_threads(1)
    shape, _, planted = sys.argv[1].partition(":")
    torch.manual_seed(int(sys.argv[2]))
    run = {"gpt": gpt, "series": classify, "trainer": trained}[shape]
    run(planted, int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:] == ["2"])
