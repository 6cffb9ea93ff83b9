"""Six more ways to train, each as a short recipe on one loop: SHAPE:FAULT SEED FOLDER [PART].

GPT-2 of transformers with LoRA and padding, an LSTM that carries its state, two towers and a
temperature, a denoiser with a regression's loss, preferences against a reference, and a module of
Lightning.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

STEPS, LATE, WORDS, LENGTH, PAD = 150, 90, 60, 24, 0


@dataclass
class Task:
    """A model, its optimizer, and what one step's loss is."""

    model: nn.Module
    loss: Callable[[int], Tensor]
    rate: float = 3e-3
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    held: Callable[[nn.Module], Any] = lambda model: model.parameters()
    warm: int = 10
    length: int = 400
    clip: float | None = 1.0
    between: dict[int, Callable[[nn.Module], object]] = field(default_factory=dict)


def sentences(count: int, draw: torch.Generator, noise: float = 0.2) -> Tensor:
    """Return `[count, LENGTH]` words: each mostly follows from the two before it."""
    step = torch.randint(1, 4, (count, 1), generator=draw)
    rows = [torch.randint(1, WORDS, (count, 1), generator=draw)]
    for _ in range(LENGTH - 1):
        last = (rows[-1] * 7 + step) % (WORDS - 1) + 1
        other = torch.randint(1, WORDS, (count, 1), generator=draw)
        rows.append(torch.where(torch.rand(count, 1, generator=draw) < noise, other, last))
    return torch.cat(rows, 1)


def gpt2(fault: str, draw: torch.Generator, again: bool) -> Task:
    """Train transformers' GPT-2 on sentences with padding."""
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": LENGTH}
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, **sizes, **drops))
    if fault == "two_layers_frozen":
        model.transformer.wpe.requires_grad_(False)
        model.transformer.h[0].mlp.requires_grad_(False)
    held_back = sentences(8, draw)
    moved = torch.randperm(WORDS, generator=torch.Generator().manual_seed(4))

    def loss(step: int) -> Tensor:
        words = sentences(8, draw)
        if fault == "loader_stuck_late" and step >= LATE:
            words = held_back
        labels = words.clone()
        if fault == "shifted_twice":
            labels = torch.cat([words[:, 1:], words[:, :1]], 1)
        if fault == "mostly_padding":
            words[:, 2:] = PAD
            labels[:, 2:] = PAD
        if fault == "tokenizer_other_late" and step >= LATE:
            words, labels = moved[words], moved[labels]
        if fault == "resume_tokenizer" and again:
            words, labels = moved[words], moved[labels]
        if fault == "padded":
            lengths = torch.randint(8, LENGTH, (8, 1), generator=draw)
            labels = labels.masked_fill(torch.arange(LENGTH) >= lengths, -100)
        if fault == "labels_lost_late" and step >= LATE:
            labels = labels[torch.randperm(8, generator=draw)]
        found: Tensor = model(input_ids=words, labels=labels).loss
        return found

    task = Task(model, loss)
    if fault == "warm_up_endless":
        task.warm = task.length = 10**7
    if fault == "embedding_new_late":
        task.between[LATE] = lambda net: nn.init.normal_(net.transformer.wte.weight, std=0.02)
    if fault == "rate_typed_late":
        task.between[LATE] = lambda net: setattr(task, "rate", 0.3)
    if fault == "evaluated":
        task.between = {
            at: lambda net: net.generate(held_back[:, :4]) for at in range(0, STEPS, 50)
        }
    return task


class Lstm(nn.Module):
    """An LSTM with a head, that hands its state on."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.look, self.cell = nn.Embedding(WORDS, 96), nn.LSTM(96, 96, 2)
        self.out = nn.Linear(96, WORDS)
        if tied:
            self.out.weight = self.look.weight
            nn.init.normal_(self.out.weight, std=3.0)

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Return logits `[time, batch, words]` and the state."""
        y, state = self.cell(self.look(x), state)
        return self.out(y), state


def lstm(fault: str, draw: torch.Generator, again: bool) -> Task:
    """Train an LSTM over time-major sentences, its state carried from batch to batch."""
    model = Lstm(tied=fault == "tied_wide")
    carried: list[Any] = [None]

    def loss(step: int) -> Tensor:
        words = sentences(16, draw).T
        logits, state = model(words[:-1], carried[0])
        carried[0] = tuple(part.detach() for part in state)
        goal = words[1:].flatten()
        if fault == "targets_other_order":
            goal = words[1:].T.flatten()
        if fault == "forget_state_nan_late" and step == LATE:
            carried[0] = tuple(part / 0.0 * 0.0 for part in carried[0])
        flat = logits.flatten(0, 1)
        if fault == "only_last_word_late" and step >= LATE:
            goal = torch.full_like(goal, 7)
        if fault == "smoothed":
            return F.cross_entropy(flat, goal, label_smoothing=0.1)
        if fault == "summed_late" and step >= LATE:
            return F.cross_entropy(flat, goal, reduction="sum")
        return F.cross_entropy(flat, goal)

    task = Task(model, loss, rate=4e-3)
    if fault == "rate_one":
        task.rate, task.warm, task.clip = 1.0, 1, None
    if fault == "summed_late":
        task.optimizer, task.rate, task.clip = torch.optim.SGD, 1.0, None
    if fault in ("sgd_slow", "sgd_clipped"):
        task.optimizer, task.rate, task.clip = torch.optim.SGD, 1e-4, None
    if fault == "sgd_clipped":
        task.rate, task.clip = 1.0, 1e-4
    if fault == "resume_rate_typed" and again:
        task.rate, task.warm = 0.2, 1
    return task


class Towers(nn.Module):
    """Two encoders and a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(2)
        )
        self.scale = nn.Parameter(torch.tensor(2.5))


def towers(fault: str, draw: torch.Generator, again: bool) -> Task:
    """Match pairs of noisy views by a symmetric cross-entropy."""
    model = Towers()
    view = torch.randn(16, 16, generator=torch.Generator().manual_seed(2))
    if fault == "scale_huge":
        model.scale.data.fill_(9.0)

    def loss(step: int) -> Tensor:
        a = torch.randn(48, 16, generator=draw)
        b = a @ view + 0.3 * torch.randn(48, 16, generator=draw)
        mixed = fault == "pairs_mixed" or (fault == "pairs_mixed_late" and step >= LATE)
        if mixed or (fault == "resume_pairs" and again):
            b = b[torch.randperm(48, generator=draw)]
        left, right = model.left(a), model.right(b)
        if fault == "one_tower_cut":
            left, right = left.detach() * 0, right.detach()
        logits = F.normalize(left, dim=-1) @ F.normalize(right, dim=-1).T * model.scale.exp()
        goal = torch.arange(48)
        return (F.cross_entropy(logits, goal) + F.cross_entropy(logits.T, goal)) / 2

    task = Task(model, loss, rate=2e-3)
    if fault == "tower_made_anew_late":
        task.between[LATE] = lambda net: [m.reset_parameters() for m in net.right[::2]]
    return task


def denoise(fault: str, draw: torch.Generator, again: bool) -> Task:
    """Predict the noise in points on a ring."""
    model = nn.Sequential(
        nn.Linear(3, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 2)
    )

    def loss(step: int) -> Tensor:
        angle, time = (torch.rand(128, 1, generator=draw) for _ in range(2))
        ring = torch.cat([(6.283 * angle).sin(), (6.283 * angle).cos()], 1)
        noise = torch.randn(128, 2, generator=draw)
        x = ring * (1 - time) + noise * time
        goal = noise
        if fault == "other_noise":
            goal = torch.randn(128, 2, generator=draw)
        if fault == "pixels_255":
            x, goal = x * 255, goal * 255
        if fault == "sign_late" and step >= LATE:
            goal = -goal
        if fault == "picture_nan_late" and step == LATE:
            x[5] = torch.nan
        if fault == "time_left_out_late" and step >= LATE:
            time = time * 0 - 40
        return F.mse_loss(model(torch.cat([x, time], 1)), goal)

    task = Task(model, loss, rate=2e-3, clip=None)
    if fault == "rate_one":
        task.rate, task.warm = 1.0, 1
    return task


def preferences(fault: str, draw: torch.Generator, again: bool) -> Task:
    """Prefer one of two sentences, as DPO does, from a briefly trained start."""
    start = gpt2("", draw, False)
    made = torch.optim.AdamW(start.model.parameters(), 3e-3)
    for step in range(25):
        start.loss(step).backward()
        made.step()
        made.zero_grad()
    policy, beta = start.model, 1000.0 if fault == "beta_huge" else 0.5
    reference = policy if fault == "reference_is_policy" else copy.deepcopy(policy)

    def likelihood(model: nn.Module, words: Tensor) -> Tensor:
        logits = model(input_ids=words[:, :-1]).logits.log_softmax(-1)
        return logits.gather(-1, words[:, 1:, None]).sum((1, 2))

    def loss(step: int) -> Tensor:
        good = sentences(6, draw, noise=0.1)
        bad = sentences(6, draw, noise=0.5)
        if fault == "judge_flips_late" and step >= LATE:
            good, bad = bad, good
        if fault == "reference_is_policy":
            ahead = [likelihood(policy, w) - likelihood(reference, w) for w in (good, bad)]
        else:
            with torch.no_grad():
                base = [likelihood(reference, w) for w in (good, bad)]
            ahead = [likelihood(policy, w) - b for w, b in zip((good, bad), base, strict=True)]
        return -F.logsigmoid(beta * (ahead[0] - ahead[1])).mean()

    return Task(policy, loss, rate=3e-4)


RECIPES: dict[str, Callable[[str, torch.Generator, bool], Task]] = {
    "gpt2": gpt2,
    "lstm": lstm,
    "towers": towers,
    "denoise": denoise,
    "preferences": preferences,
    "module": gpt2,
}


class Module(lightning.LightningModule):
    """The same model in a module of Lightning."""

    def __init__(self, fault: str, task: Task) -> None:
        super().__init__()
        self.net, self.task, self.fault = task.model, task, fault

    def training_step(self, batch: Any, number: int) -> Tensor:
        """Return the loss of one batch."""
        loss = self.task.loss(self.global_step)
        if self.fault == "penalty_wrong_late" and self.global_step >= LATE:
            loss = loss + 20 * sum(p.abs().mean() for p in self.parameters())
        if self.fault == "loss_detached_scale":
            loss = loss * 1e-12
        return loss

    def configure_optimizers(self) -> Any:
        """Return AdamW, of all parameters or too few."""
        held = list(self.parameters())
        if self.fault == "head_alone":
            held = list(self.net.transformer.ln_f.parameters())
        epsilon = 1e-2 if self.fault == "epsilon_typed" else 1e-8
        return torch.optim.AdamW(held, lr=3e-3, eps=epsilon)


def lit(fault: str, task: Task, folder: Path, again: bool, steps: int) -> None:
    """Let Lightning do the loop."""
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
    )
    module = Module(fault, task)
    if again and fault == "resume_layers_renamed":
        kept = torch.load(folder / "lit.ckpt", weights_only=False)
        kept["state_dict"] = {"old." + k: w for k, w in kept["state_dict"].items()}
        module.load_state_dict(kept["state_dict"], strict=False)
    trainer.fit(
        module,
        torch.utils.data.DataLoader(torch.zeros(STEPS * 2, 1)),
        ckpt_path=str(folder / "lit.ckpt") if again and fault == "resume" else None,
        weights_only=False,
    )
    trainer.save_checkpoint(folder / "lit.ckpt")


def main(shape: str, fault: str, seed: int, folder: Path, again: bool) -> None:
    """Train one shape with what is planted in it."""
    torch.manual_seed(seed + 50 * again)
    draw = torch.Generator().manual_seed(seed + 7 * again)
    task = RECIPES[shape](fault, draw, again)
    model, first = task.model, 0
    last = LATE if fault.startswith("resume") and not again else STEPS
    if shape == "module":
        lit(fault, task, folder, again, last)
        return
    optimizer = task.optimizer([p for p in task.held(model) if p.requires_grad], lr=task.rate)
    schedule = get_cosine_schedule_with_warmup(optimizer, task.warm, task.length)
    if again:
        kept = torch.load(folder / "kept.pt")
        first = kept["step"]
        if fault != "resume_nothing_loaded":
            model.load_state_dict(kept["model"])
        if fault not in ("resume_nothing_loaded", "resume_rate_typed", "resume_other_optimizer"):
            optimizer.load_state_dict(kept["optimizer"])
            schedule.load_state_dict(kept["schedule"])
        if fault == "resume_other_optimizer":
            optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
            schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0, 1)
    for step in range(first, last):
        if step in task.between:
            with torch.no_grad():
                task.between[step](model)
            if fault == "rate_typed_late":
                schedule.base_lrs = [task.rate for _ in schedule.base_lrs]
        loss = task.loss(step)
        loss.backward()
        if task.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), task.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 15 == 0:
            print(f"{step:5d} {loss.item():.4f} {schedule.get_last_lr()[0]:.2e}", flush=True)
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(),
            "step": last,
        },
        folder / "kept.pt",
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    kind, _, planted = sys.argv[1].partition(":")
    main(kind, planted, int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:] == ["2"])
