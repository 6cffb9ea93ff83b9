"""A training script with nothing wrong, of many kinds: KEY=VALUE ... (see `Setting`).

Every model is small and learns: letters or words of Python's own source, waves, pictures of bars.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import inspect
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

LENGTH, CLASSES = 32, 8
OTHERS = ["vit", "cnn", "mlp", "two", "regression", "diffusion", "autoencoder", "contrastive"]


@dataclass
class Setting:
    """What a run has; a word of the command each."""

    model: str = "own"
    loop: str = "plain"  # trainer, lightning, fsdp
    data: str = "letters"  # words, few
    width: int = 64
    optimizer: str = "adamw"
    rate: float = 3e-3
    schedule: str = "cosine"
    warm: int = 10
    steps: int = 100
    batch: int = 8
    accumulate: int = 1
    clip: float = 1.0
    decay: float = 0.1
    dropout: float = 0.0
    dtype: str = "float32"
    init: float = 0.02
    tied: int = 1
    call: str = "position"  # name, logits: who computes the loss
    smooth: float = 0.0
    checkpointing: int = 0
    frozen: str = ""  # part of a name; lora
    average: int = 0  # EMA, evaluated
    evaluate: int = 0
    part: int = 1  # 2 goes on with what 1 saved
    folder: str = "."
    seed: int = 0


class Attention(nn.Module):
    """Causal attention, with norms of queries and keys or without."""

    def __init__(self, width: int, dropout: float, normed: bool) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dropout, self.normed = dropout, normed

    def forward(self, x: Tensor) -> Tensor:
        """Map `[batch, time, width]` to the same shape."""
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.normed:
            q, k = F.rms_norm(q, q.shape[-1:]), F.rms_norm(k, k.shape[-1:])
        drop = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=drop)
        return self.proj(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A block of a GPT."""

    def __init__(self, width: int, dropout: float, chat: bool) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.chat = Attention(width, dropout, chat), chat
        self.fc, self.proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map `[batch, time, width]` to the same shape."""
        x = x + self.drop(self.attn(self.ln_1(x)))
        h = self.fc(self.ln_2(x))
        return x + self.drop(self.proj(F.relu(h).square() if self.chat else F.gelu(h)))


class GPT(nn.Module):
    """A GPT as people write it; `chat` as in nanochat: a head of zeros, a cap on its logits."""

    def __init__(self, of: Setting, words: int) -> None:
        super().__init__()
        self.chat, self.smooth = of.model == "chat", of.smooth
        self.wte, self.wpe = nn.Embedding(words, of.width), nn.Embedding(LENGTH, of.width)
        self.h = nn.ModuleList(Block(of.width, of.dropout, self.chat) for _ in range(3))
        self.ln_f, self.lm_head = nn.LayerNorm(of.width), nn.Linear(of.width, words, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                deep = name.endswith("proj.weight")
                nn.init.normal_(p, std=of.init / (math.sqrt(6) if deep else 1.0))
        if self.chat:
            nn.init.normal_(self.wte.weight)
            nn.init.zeros_(self.lm_head.weight)
        elif of.tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return logits `[batch, time, words]`, and the loss where there are targets."""
        x = self.wte(idx) + self.wpe.weight[: idx.shape[1]]
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        if self.chat:
            logits = 15 * torch.tanh(logits / 15)
        if targets is None:
            return logits, None
        flat = logits.view(-1, logits.size(-1)).float()
        return logits, F.cross_entropy(flat, targets.reshape(-1), label_smoothing=self.smooth)


def corpus(kind: str) -> tuple[Tensor, int]:
    """Return a text as numbers, and how many kinds of them there are."""
    text = "".join(map(inspect.getsource, (argparse, inspect, transformers.modeling_utils)))
    if kind == "few":
        text = re.sub(r"[^aeiou \n]", "x", text.lower())
    parts = re.findall(r"\w+|\s+|[^\w\s]", text) if kind == "words" else list(text)
    most = [word for word, _ in Counter(parts).most_common(1999)]
    number = {word: at + 1 for at, word in enumerate(most)}
    return torch.tensor([number.get(word, 0) for word in parts]), len(most) + 1


Step = Callable[[], Tensor]


def text_step(of: Setting, draw: torch.Generator) -> tuple[nn.Module, Step]:
    """Return a language model and its step."""
    data, words = corpus(of.data)

    def rows() -> Tensor:
        at = torch.randint(len(data) - LENGTH - 1, (of.batch,), generator=draw)
        return torch.stack([data[i : i + LENGTH + 1] for i in at.tolist()])

    if of.model in ("own", "chat"):
        model: Any = GPT(of, words)

        def own() -> Tensor:
            x = rows()
            if of.call == "name":
                loss: Tensor = model(idx=x[:, :-1], targets=x[:, 1:])[1]
            elif of.call == "logits":
                logits = model(x[:, :-1])[0]
                loss = F.cross_entropy(logits.transpose(1, 2), x[:, 1:], label_smoothing=of.smooth)
            else:
                loss = model(x[:, :-1], x[:, 1:])[1]
            return loss

        return model, own
    if of.model == "lstm":
        return lstm_step(of, rows, words)
    model = published(of, words)

    def theirs() -> Tensor:
        x = rows()[:, :-1]
        if of.model == "bert":
            hidden = torch.rand(x.shape, generator=draw) < 0.15
            labels = x.masked_fill(~hidden, -100)
            loss: Tensor = model(input_ids=x.masked_fill(hidden, words), labels=labels).loss
        elif of.model == "t5":
            half = LENGTH // 2
            loss = model(input_ids=x[:, :half], labels=x[:, half:].contiguous()).loss
        elif of.call == "logits":
            logits = model(x).logits
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten())
        else:
            loss = model(input_ids=x, labels=x).loss
        return loss

    return model, theirs


def published(of: Setting, words: int) -> Any:
    """Return a model of transformers with fresh weights."""
    width = {"hidden_size": of.width, "num_attention_heads": 4, "num_hidden_layers": 2}
    wide = width | {"intermediate_size": 3 * of.width, "max_position_embeddings": 64}
    grouped = wide | {"num_key_value_heads": 2}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": of.width}
    seven = {"d_model": of.width, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    rows: dict[str, tuple[str, dict[str, Any]]] = {
        "gpt2": ("GPT2", {"n_embd": of.width, "n_layer": 2, "n_head": 4, "n_positions": 64}),
        "llama": ("Llama", grouped),
        "qwen3": ("Qwen3", grouped | {"head_dim": 16}),
        "neox": ("GPTNeoX", wide),
        "opt": ("OPT", width | {"ffn_dim": 128, "word_embed_proj_dim": of.width}),
        "gemma2": ("Gemma2", grouped | {"head_dim": 16}),
        "mixtral": ("Mixtral", grouped | {"num_local_experts": 4, "output_router_logits": True}),
        "moe": ("Qwen3Moe", grouped | experts | {"head_dim": 16}),
        "t5": ("T5", seven | {"decoder_start_token_id": 0, "pad_token_id": 0}),
        "bert": ("Bert", wide),
    }
    name, more = rows[of.model]
    endings = {"t5": "ForConditionalGeneration", "bert": "ForMaskedLM", "gpt2": "LMHeadModel"}
    config = getattr(transformers, f"{name}Config")(vocab_size=words + 1, **more)
    for key in ("attention_dropout", "resid_pdrop", "hidden_dropout_prob", "dropout"):
        if hasattr(config, key):
            setattr(config, key, of.dropout)
    return getattr(transformers, name + endings.get(of.model, "ForCausalLM"))(config)


def lstm_step(of: Setting, rows: Callable[[], Tensor], words: int) -> tuple[nn.Module, Step]:
    """Return an LSTM and its step."""
    parts = {"look": nn.Embedding(words, of.width), "cell": nn.LSTM(of.width, of.width, 2)}
    model = nn.ModuleDict(parts | {"out": nn.Linear(of.width, words)})

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: Tensor) -> Tensor:
            hidden, _ = self.parts["cell"](self.parts["look"](x))
            found: Tensor = self.parts["out"](hidden)
            return found

    whole = Whole()

    def step() -> Tensor:
        x = rows().T
        return F.cross_entropy(whole(x[:-1]).flatten(0, 1), x[1:].flatten())

    return whole, step


def waves(of: Setting, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return noisy waves `[batch, 1, 8, 8]` of `CLASSES` kinds, and which."""
    kind = torch.randint(CLASSES, (of.batch * 4,), generator=draw)
    grid = torch.arange(8.0)
    bars = ((grid[None, :, None] * (1 + kind)[:, None, None] + grid) * 0.7).sin()
    return (bars + 0.5 * torch.randn(len(kind), 8, 8, generator=draw))[:, None], kind


def other_step(of: Setting, draw: torch.Generator) -> tuple[nn.Module, Step]:
    """Return a model of another task, and its step."""
    flat = nn.Sequential(nn.Flatten(), nn.Linear(64, of.width), nn.GELU())
    if of.model == "vit":
        sizes = {"hidden_size": of.width, "num_hidden_layers": 2, "num_attention_heads": 4}
        shape = {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": CLASSES}
        vit: Any = transformers.ViTForImageClassification(
            transformers.ViTConfig(intermediate_size=128, **sizes, **shape)
        )

        def seen() -> Tensor:
            x, y = waves(of, draw)
            loss: Tensor = vit(pixel_values=x, labels=y).loss
            return loss

        return vit, seen
    if of.model in ("cnn", "mlp"):
        conv = [nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3)]
        head = [nn.ReLU(), nn.Dropout(of.dropout), nn.Flatten(), nn.Linear(512, CLASSES)]
        cnn = nn.Sequential(*conv, *head)
        net = cnn if of.model == "cnn" else nn.Sequential(*flat, nn.Linear(of.width, CLASSES))
        criterion = nn.CrossEntropyLoss(label_smoothing=of.smooth)

        def classify() -> Tensor:
            x, y = waves(of, draw)
            loss: Tensor = criterion(net(x), y)
            return loss

        return net, classify
    if of.model == "two":
        both = nn.Sequential(*flat, nn.Linear(of.width, CLASSES + 2))

        def two() -> Tensor:
            x, y = waves(of, draw)
            out = both(x)
            odd = F.cross_entropy(out[:, CLASSES:], y % 2)
            return F.cross_entropy(out[:, :CLASSES], y) + 0.3 * odd

        return both, two
    if of.model in ("regression", "diffusion", "autoencoder"):
        last = nn.Linear(of.width, 1 if of.model == "regression" else 64)
        net = nn.Sequential(*flat, nn.Linear(of.width, of.width), nn.GELU(), last)

        def fit() -> Tensor:
            x, y = waves(of, draw)
            if of.model == "regression":
                return F.huber_loss(net(x)[:, 0], y / 4 - 1)
            if of.model == "autoencoder":
                return F.mse_loss(net(x), x.flatten(1))
            noise, time = torch.randn(x.shape, generator=draw), torch.rand(len(x), 1, 1, 1)
            return F.mse_loss(net(x * (1 - time) + noise * time), noise.flatten(1))

        return net, fit
    if of.model == "contrastive":
        tower = nn.Sequential(*flat, nn.Linear(of.width, 32))

        def pairs() -> Tensor:
            x, _ = waves(of, draw)
            a, b = (
                F.normalize(tower(x + 0.3 * torch.randn(x.shape, generator=draw)), dim=-1)
                for _ in range(2)
            )
            return F.cross_entropy(a @ b.T * 10, torch.arange(len(a)))

        return tower, pairs
    raise ValueError(of.model)


def pretrain(model: nn.Module, step: Step) -> None:
    """Train briefly, for what begins with trained weights."""
    first = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(20):
        step().backward()
        first.step()
        first.zero_grad()


def preferred(of: Setting, draw: torch.Generator) -> tuple[nn.Module, Step]:
    """Return a briefly trained GPT-2, and DPO's step or that of a distillation."""
    model, step = text_step(Setting(**vars(of) | {"model": "gpt2"}), draw)
    pretrain(model, step)
    data, words = corpus(of.data)
    teacher: Any = copy.deepcopy(model).requires_grad_(False)
    student: Any = model
    if of.model == "distilled":
        student = published(Setting(**vars(of) | {"model": "gpt2"}), words)

    def logp(net: Any, x: Tensor) -> Tensor:
        out = net(input_ids=x[:, :-1]).logits.log_softmax(-1)
        found: Tensor = out.gather(-1, x[:, 1:, None]).sum((1, 2))
        return found

    def dpo() -> Tensor:
        at = torch.randint(len(data) - LENGTH, (of.batch,), generator=draw)
        good = torch.stack([data[i : i + LENGTH] for i in at.tolist()])
        if of.model == "distilled":
            ours, theirs = (net(input_ids=good).logits for net in (student, teacher))
            return F.kl_div(ours.log_softmax(-1), theirs.log_softmax(-1), log_target=True) * 60
        swap = torch.rand(good.shape, generator=draw) < 0.2
        bad = torch.where(swap, torch.randint(words, good.shape, generator=draw), good)
        gain = [logp(student, x) - logp(teacher, x) for x in (good, bad)]
        return -F.logsigmoid(0.1 * (gain[0] - gain[1])).mean()

    return student, dpo


class Lion(torch.optim.Optimizer):
    """Lion (Chen et al. 2023), as people copy it."""

    def __init__(self, params: Iterable[Any], lr: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's has overloads
        """Take a step."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_((0.9 * m + 0.1 * p.grad).sign(), alpha=-group["lr"])
                m.lerp_(p.grad, 0.01)


def optimizers_of(of: Setting, model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return the optimizers that a script makes."""
    held = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in held if p.dim() == 2]
    vectors = [p for p in held if p.dim() != 2]
    if of.optimizer == "muon":
        inner = [p for n, p in model.named_parameters() if p.dim() == 2 and "h." in n]
        rest = [p for p in held if all(p is not q for q in inner)]
        fine = torch.optim.AdamW(rest, lr=of.rate / 4, betas=(0.8, 0.95), eps=1e-10)
        return [torch.optim.Muon(inner, lr=of.rate, weight_decay=0.0), fine]
    groups = [
        {"params": matrices, "weight_decay": of.decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    kinds: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "adamw": lambda: torch.optim.AdamW(groups, lr=of.rate, betas=(0.9, 0.95)),
        "adam": lambda: torch.optim.Adam(held, lr=of.rate),
        "sgd": lambda: torch.optim.SGD(held, lr=of.rate, momentum=0.9, nesterov=True),
        "lion": lambda: Lion(held, lr=of.rate, weight_decay=of.decay),
        "adafactor": lambda: torch.optim.Adafactor(held, lr=of.rate),
        "rmsprop": lambda: torch.optim.RMSprop(held, lr=of.rate),
        "nadam": lambda: torch.optim.NAdam(held, lr=of.rate),
    }
    return [kinds[of.optimizer]()]


def factor(of: Setting) -> Callable[[int], float]:
    """Return the schedule, as a multiple of the rate."""

    def at(step: int) -> float:
        if step < of.warm:
            return (step + 1) / of.warm
        share = (step - of.warm) / max(of.steps - of.warm, 1)
        shapes = {
            "none": 1.0,
            "cosine": 0.1 + 0.45 * (1 + math.cos(math.pi * min(share, 1.0))),
            "to_zero": 0.5 * (1 + math.cos(math.pi * min(share, 1.0))),
            "wsd": min(1.0, max(5 * (1 - share), 0.0) + 0.02),
            "linear": max(1 - share, 0.02),
            "cycles": 0.5 + 0.5 * math.cos(math.pi * ((4 * share) % 1)),
            "root": (of.warm + 1) ** 0.5 / (step + 1) ** 0.5,
        }
        return shapes[of.schedule]

    return at


def built(of: Setting, draw: torch.Generator) -> tuple[nn.Module, Step]:
    """Return the model and what makes a loss."""
    makes = {"dpo": preferred, "distilled": preferred} | dict.fromkeys(OTHERS, other_step)
    model, step = makes.get(of.model, text_step)(of, draw)
    pretrained: Any = model  # of transformers
    if of.checkpointing:
        pretrained.gradient_checkpointing_enable()
    if of.frozen == "lora":
        from peft import LoraConfig, get_peft_model

        pretrain(model, step)
        get_peft_model(pretrained, LoraConfig(r=8, lora_alpha=16))
    elif of.frozen:
        for name, p in model.named_parameters():
            p.requires_grad_(of.frozen not in name)
    if of.dtype == "weights":
        model.bfloat16()
    return model, step


def plain(of: Setting) -> None:
    """Train in a loop of one's own."""
    draw = torch.Generator().manual_seed(of.seed + 100 * of.part)
    model, step = built(of, draw)
    whole: Any = model
    if of.loop == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for block in whole.h:
            fully_shard(block)
        fully_shard(model)
    optimizers = optimizers_of(of, model)
    schedules = [torch.optim.lr_scheduler.LambdaLR(one, factor(of)) for one in optimizers]
    saved, first = Path(of.folder) / "state.pt", 0
    if of.part == 2:
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        for part, kept in zip((*optimizers, *schedules), state["rest"], strict=True):
            part.load_state_dict(kept)
        first = state["step"]
    average = torch.optim.swa_utils.AveragedModel(model) if of.average else None
    autocast = (
        torch.autocast("cpu", torch.bfloat16)
        if of.dtype == "autocast"
        else contextlib.nullcontext()
    )
    for number in range(first, first + of.steps):
        total = 0.0
        for _ in range(of.accumulate):
            with autocast:
                loss = step()
            (loss / of.accumulate).backward()
            total += loss.item() / of.accumulate
        if of.clip:
            nn.utils.clip_grad_norm_(whole.parameters(), of.clip)
        for one, schedule in zip(optimizers, schedules, strict=True):
            one.step()
            schedule.step()
            one.zero_grad(set_to_none=True)
        if average is not None:
            average.update_parameters(model)
        if of.evaluate and number % 20 == 19:
            model.eval()
            with torch.no_grad():
                step()
            model.train()
        if number % 10 == 0 or number == first + of.steps - 1:
            print(f"step {number} loss {total:.4f}", flush=True)
    if of.loop == "plain":
        rest = [one.state_dict() for one in (*optimizers, *schedules)]
        torch.save({"model": model.state_dict(), "rest": rest, "step": first + of.steps}, saved)


def trainer(of: Setting) -> None:
    """Train with transformers' Trainer."""
    data, words = corpus(of.data)
    model = published(of, words)
    rows = [{"input_ids": x, "labels": x} for x in data[: LENGTH * 2000].view(-1, LENGTH)]
    arguments = transformers.TrainingArguments(
        output_dir=of.folder,
        per_device_train_batch_size=of.batch,
        gradient_accumulation_steps=of.accumulate,
        gradient_checkpointing=bool(of.checkpointing),
        max_steps=of.steps * of.part,
        learning_rate=of.rate,
        warmup_steps=of.warm,
        weight_decay=of.decay,
        max_grad_norm=of.clip,
        label_smoothing_factor=of.smooth,
        optim={"adamw": "adamw_torch"}.get(of.optimizer, of.optimizer),
        lr_scheduler_type={"none": "constant"}.get(of.schedule, of.schedule),
        bf16=of.dtype == "autocast",
        eval_strategy="steps" if of.evaluate else "no",
        eval_steps=30,
        save_steps=of.steps,
        report_to=[],
        disable_tqdm=True,
        logging_steps=10,
        use_cpu=True,
        seed=of.seed,
    )
    one = transformers.Trainer(
        model=model, args=arguments, train_dataset=rows, eval_dataset=rows[:16]
    )
    one.train(resume_from_checkpoint=of.part == 2 or None)


def lit(of: Setting) -> None:
    """Train with Lightning."""
    import lightning

    model, step = built(of, torch.Generator().manual_seed(of.seed))

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def training_step(self, batch: Any, number: int) -> Tensor:
            loss = step()
            if self.global_step % 10 == 0:
                print(f"step {self.global_step} loss {loss.item():.4f}", flush=True)
            return loss

        def configure_optimizers(self) -> Any:
            one = optimizers_of(of, self.net)[0]
            by_step = torch.optim.lr_scheduler.LambdaLR(one, factor(of))
            return [one], [{"scheduler": by_step, "interval": "step"}]

    lightning.Trainer(
        max_steps=of.steps,
        accelerator="cpu",
        precision="bf16-mixed" if of.dtype == "autocast" else "32-true",
        accumulate_grad_batches=of.accumulate,
        gradient_clip_val=of.clip or None,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Module(), torch.utils.data.DataLoader(torch.zeros(2000, 1)))


def given(words: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield the fields that words of a command set."""
    kinds = {one.name: type(one.default) for one in fields(Setting)}
    for word in words:
        name, _, value = word.partition("=")
        yield name, kinds[name](value)


if __name__ == "__main__":
    setting = Setting(**dict(given(sys.argv[1:])))
    torch.set_num_threads(1)
    torch.manual_seed(setting.seed)
    if setting.loop == "fsdp":
        torch.distributed.init_process_group("gloo")
        setting.seed += int(os.environ["RANK"])
    {"trainer": trainer, "lightning": lit}.get(setting.loop, plain)(setting)
    if setting.loop == "fsdp":
        torch.distributed.destroy_process_group()
