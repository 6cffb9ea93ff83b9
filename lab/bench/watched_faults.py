"""Plant faults in small training scripts that `rksp watch` follows, and count what it names.

Every run is a script of its own kind: the model, the loop and what the loop does not know are those
of six ways to train. The data is a Markov chain that a model learns within tens of steps. Rules
were chosen on `--choosing` runs, whose shapes and seeds are others than those of the table.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from lab.bench.under_watch import append_rows, read_rows
from rksp.confirm.watched import watched_run
from rksp.documents.confirm import WatchReport
from rksp.ground.model import definite
from rksp.watch.attach.finder import Finder
from rksp.watch.attach.options import Watching
from rksp.watch.faults.computation import LowPrecisionAttention, MatmulCorruption, flip_bit
from rksp.watch.moment import Moment

STEPS, STRIKES, WARM = 70, 45, 10
MONITORS = ["all", "key-null-sum:every=2"]  # at its default it has no baseline by step 45
Shape = tuple[int, int, int, int]  # width, layers, heads, words
Faults = tuple[str, ...]
TABLE = Path(__file__).with_suffix(".csv")
SCRIPTS = ("plain", "nanogpt", "gpt2", "llama", "gpt_neox", "qwen2")
KINDS = ("rate", "warm-up", "precision", "attention", "data", "weight", "gradient", "product")
_FROM_START = ("warm-up", "precision")  # what is planted acts, or needs float16, from step 0
# Rules were chosen on the first, and the table is of the others.
CHOOSING: Shape = (64, 2, 4, 48)
SHAPES: tuple[Shape, ...] = ((48, 3, 4, 64), (96, 2, 6, 80), (32, 5, 2, 56))


class Attention(nn.Module):
    """Causal attention as nanoGPT writes it, with a matrix each for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Map `[batch, tokens, width]` to the same shape."""
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A pre-norm block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map `[batch, tokens, width]` to the same shape."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Own(nn.Module):
    """A decoder that returns logits, and with targets its loss too."""

    def __init__(self, width: int, layers: int, heads: int, words: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Any:
        """Return logits `[batch, tokens, words]`, or with targets (logits, loss)."""
        x = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln(x))
        if targets is None:
            return logits
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@dataclass(slots=True, eq=False)
class Script:
    """A training script: what its loop reads, for a fault to change."""

    kind: str
    shape: Shape
    seed: int
    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    scaler: torch.amp.GradScaler
    low: torch.dtype | None
    rate: Callable[[int], float]
    generator: torch.Generator
    following: Tensor  # the usual next word of every word
    before: list[Callable[[int], None]] = field(default_factory=list)
    spoil: Callable[[int, Tensor], Tensor] = lambda step, tokens: tokens

    @classmethod
    def made(cls, kind: str, shape: Shape, seed: int) -> Script:
        """Set up a script of one kind."""
        width, layers, heads, words = shape
        torch.manual_seed(seed)
        if kind in ("plain", "nanogpt"):
            model: nn.Module = Own(width, layers, heads, words)
        else:
            special: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
            sizes: dict[str, Any] = {
                "hidden_size": width,
                "num_hidden_layers": layers,
                "vocab_size": words,
            }
            sizes |= {"num_attention_heads": heads, "max_position_embeddings": 64}
            if kind != "gpt2":
                sizes |= {"intermediate_size": 3 * width}
            if kind in ("llama", "qwen2"):
                sizes |= {"num_key_value_heads": heads // 2}
            off: Any = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
            more: dict[str, Any] = off if kind == "gpt2" else {}
            config = CONFIG_MAPPING[kind](**special, **sizes, **more)
            model = AutoModelForCausalLM.from_config(config)
        own, decay = list(model.parameters()), 0.01
        if kind == "qwen2":  # as Muon's scripts: matrices apart from the rest
            groups = [[p for p in own if (p.dim() > 1) is flat] for flat in (True, False)]
        else:
            groups = [own]
        optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(g, lr=1e-3, weight_decay=decay) for g in groups
        ]
        generator = torch.Generator().manual_seed(seed)
        return cls(
            kind=kind,
            shape=shape,
            seed=seed,
            model=model.train(),
            optimizers=optimizers,
            scaler=torch.amp.GradScaler("cpu", enabled=False),
            low=torch.bfloat16 if kind == "gpt_neox" else None,
            rate=lambda step: 3e-3 * min(1.0, (step + 1) / WARM),
            generator=generator,
            following=torch.randperm(words, generator=generator),
        )

    def batch(self, step: int) -> Tensor:
        """Draw `[8, 33]` tokens: nine in ten follow from the one before."""
        words = self.shape[3]
        rows = torch.randint(words, (8, 33), generator=self.generator)
        follows = torch.rand((8, 33), generator=self.generator) < 0.9
        for place in range(1, 33):
            rows[:, place] = torch.where(
                follows[:, place], self.following[rows[:, place - 1]], rows[:, place]
            )
        return self.spoil(step, rows)

    def loss(self, rows: Tensor) -> Tensor:
        """Run a forward pass, as scripts of this kind write it."""
        with torch.autocast("cpu", self.low, enabled=self.low is not None):
            if self.kind == "plain":
                logits = self.model(rows[:, :-1])
                return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
            if self.kind == "nanogpt":
                return self.model(rows[:, :-1], rows[:, 1:])[1]
            return self.model(rows, labels=rows).loss

    def train(self, steps: range) -> None:
        """Take these steps."""
        for step in steps:
            for change in self.before:
                change(step)
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = self.rate(step)
            parts = self.batch(step).chunk(2 if self.kind == "gpt2" else 1)
            for rows in parts:
                self.scaler.scale(self.loss(rows) / len(parts)).backward()
            for optimizer in self.optimizers:
                self.scaler.unscale_(optimizer)
            if self.kind in ("nanogpt", "gpt2"):
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            for optimizer in self.optimizers:
                self.scaler.step(optimizer)
                optimizer.zero_grad()
            self.scaler.update()


# Faults: each changes a script and returns the path that is bad first, or nothing.


def _rate(script: Script, draw: random.Random) -> str:
    usual, factor = script.rate, draw.choice((30, 100, 300))
    script.rate = lambda step: usual(step) * (factor if step >= STRIKES else 1)
    return ""


def _warm_up(script: Script, draw: random.Random) -> str:
    rate = 3e-3 * draw.choice((50, 100, 200))
    script.rate = lambda step: rate
    return ""


def _half(script: Script) -> None:
    script.low, script.scaler = torch.float16, torch.amp.GradScaler("cpu", init_scale=256.0)


def _precision(script: Script, draw: random.Random) -> str:
    """Exceed float16: by the loss scale, or by values that float32 would hold."""
    _half(script)
    if draw.random() < 0.5:
        scale = 2.0 ** draw.choice((36, 42, 48))

        def raise_scale(step: int) -> None:
            if step == STRIKES:
                definite(script.scaler._scale).fill_(scale)

        script.before.append(raise_scale)
        return _head(script)
    paths = [p for p, m in script.model.named_modules() if _values(m) is not None]
    path = draw.choice(paths)
    value, output, rows = _values(script.model.get_submodule(path))
    factor = 2.0 ** draw.choice((18, 20, 22))

    def stretch(step: int) -> None:
        if step != STRIKES:
            return
        held = dict(script.model.named_parameters())
        with torch.no_grad():
            for name, p in held.items():
                if name.startswith(f"{path}.{value}."):
                    part = p if p.dim() == 1 or script.kind != "gpt2" else p.T
                    rows(part).mul_(factor)
                if name == f"{path}.{output}.weight":
                    p.mul_(1 / factor)

    script.before.append(stretch)
    return f"{path}.{value}"


def _values(attention: Any) -> Any:
    """Return the names of the maps to values and from them, and which rows of the first they are.

    Scaling the ones up and the others down changes nothing but the size of the values.
    """
    if hasattr(attention, "v_proj"):
        return "v_proj", "o_proj", lambda p: p
    if isinstance(attention, Attention):
        return "v", "o", lambda p: p
    if hasattr(attention, "c_attn"):
        return "c_attn", "c_proj", lambda p: p[2 * (len(p) // 3) :]
    if hasattr(attention, "query_key_value"):
        heads = attention.config.num_attention_heads
        return "query_key_value", "dense", lambda p: p.unflatten(0, (heads, 3, -1))[:, 2]
    return None


def _head(script: Script) -> str:
    names = [p for p, m in script.model.named_modules() if isinstance(m, nn.Linear)]
    return names[-1]


def _attention(script: Script, draw: random.Random) -> str:
    fault = LowPrecisionAttention(bits=7, kind=draw.choice(("truncate", "round")))

    def strike(step: int) -> None:
        if step == STRIKES:
            fault.arm(Moment(step=step, model=script.model))  # until the fork ends

    script.before.append(strike)
    last = [p for p, m in script.model.named_modules() if _values(m) is not None]
    return last[-1]  # the first of the backward pass


def _data(script: Script, draw: random.Random) -> str:
    kind, count = draw.choice(("noise", "repeated", "shuffled")), draw.choice((1, 3, 5))

    def spoil(step: int, rows: Tensor) -> Tensor:
        if not STRIKES <= step < STRIKES + count:
            return rows
        if kind == "noise":
            return torch.randint(script.shape[3], rows.shape, generator=script.generator)
        if kind == "repeated":
            return rows[:1, :1].expand_as(rows).clone()
        order = torch.randperm(rows.shape[1], generator=script.generator)
        return rows[:, order]

    script.spoil = spoil
    return ""


def _place(script: Script, draw: random.Random) -> tuple[str, nn.Parameter, int]:
    held = [
        (n, p) for n, p in script.model.named_parameters() if p.dim() == 2 and "places" not in n
    ]
    name, parameter = draw.choice(held)
    return name, parameter, draw.randrange(parameter.numel())


def _weight(script: Script, draw: random.Random) -> str:
    name, parameter, index = _place(script, draw)

    def strike(step: int) -> None:
        if step == STRIKES:
            flip_bit(parameter.data, index, 30)

    script.before.append(strike)
    return name


def _gradient(script: Script, draw: random.Random) -> str:
    name, parameter, index = _place(script, draw)
    now = [-1]
    script.before.append(lambda step: now.__setitem__(0, step))

    def struck(grad: Tensor) -> Tensor | None:
        if now[0] != STRIKES:
            return None
        now[0] = -1  # one pass of an accumulation
        changed = grad.clone()
        flip_bit(changed, index, 30)
        return changed

    parameter.register_hook(struck)
    return name


def _product(script: Script, draw: random.Random) -> str:
    product: Any = draw.choice(("output", "input_gradient", "weight_gradient"))
    linear = [(p, m) for p, m in script.model.named_modules() if type(m) is nn.Linear]
    inside = [(p, m) for p, m in linear if not p.endswith(("head", "embed_out"))]
    path, layer = draw.choice(inside or linear)
    fault = MatmulCorruption(step=STRIKES, product=product, bit=30, name=path)
    fault.bind(script.model, seed=draw.randrange(2**31))

    def strike(step: int) -> None:
        if step == STRIKES:
            if product == "weight_gradient":
                layer.weight.register_hook(fault._changed)
            fault.arm(Moment(step=STRIKES, model=script.model))

    script.before.append(strike)
    return path


PLANT: dict[str, Callable[[Script, random.Random], str]] = {
    "rate": _rate,
    "warm-up": _warm_up,
    "precision": _precision,
    "attention": _attention,
    "data": _data,
    "weight": _weight,
    "gradient": _gradient,
    "product": _product,
}


@contextlib.contextmanager
def attached(log: Path) -> Iterator[Finder]:
    """Attach to this process, with the default monitors, until the block ends."""
    own = {"folder": log.parent, "log": log, "monitors": MONITORS}
    finder = Finder(Watching(**own, on_alarm="stop", status=0, memory=1.0))
    finder.hook()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield finder
    finally:
        finder.close()


class Row(NamedTuple):
    """A run of the table; `alarm` is the step of the first alarm at the fault or later, or −1."""

    script: str
    shape: str
    seed: int
    planted: str
    where: str
    alarm: int
    stopped: bool
    cause: str
    module: str


def rows_of(kind: str, shape: Shape, seed: int, planted: Sequence[str]) -> list[Row]:
    """Run a script once up to the strike, and from there on once for each fault.

    What is watched is then a fork of the process, with the state that it would have had alone. A
    fault that acts before the strike (a skipped warm-up, float16) has a run of its own.
    """
    alone = planted if len(planted) == 1 else ()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "watch.jsonl"
        with attached(log) as finder:
            script = Script.made(kind, shape, seed)
            where = PLANT[alone[0]](script, _drawn(seed, alone[0])) if alone and alone[0] else ""
            if alone and not alone[0] and seed % 3 == 0:
                _half(script)
            is_over = True
            with contextlib.suppress(SystemExit):
                script.train(range(STRIKES))
                is_over = False
            for place, fault in enumerate(planted):
                own = log.with_name(f"{place}.jsonl")
                child = os.fork()
                if child:
                    if os.waitpid(child, 0)[1]:
                        raise ChildProcessError(f"{fault or 'no fault'} in {kind}, seed {seed}")
                    continue
                code = 1
                try:
                    _branch(finder, log, own)
                    if fault and not alone:
                        where = PLANT[fault](script, _drawn(seed, fault))
                    if not is_over:
                        with contextlib.suppress(SystemExit):
                            script.train(range(STRIKES, STEPS))
                    finder.close()
                    row = _row(watched_run(own), kind, shape, seed, fault, where)
                    own.with_suffix(".pickle").write_bytes(pickle.dumps(row))
                    code = 0
                except Exception:
                    traceback.print_exc(file=sys.__stderr__)
                finally:
                    os._exit(code)
        for path in sorted(Path(folder).glob("*.pickle")):
            rows.append(pickle.loads(path.read_bytes()))
    return rows


def _drawn(seed: int, planted: str) -> random.Random:
    return random.Random(100 * seed + KINDS.index(planted))


def _branch(finder: Finder, log: Path, own: Path) -> None:
    """Let a fork of the process go on with a watch and a log of its own."""
    finder._process = os.getpid()
    shutil.copy(log, own)
    held = definite(finder.session).voice.log
    held._file, held.path = own.open("ab", buffering=0), own


def _row(report: WatchReport, kind: str, shape: Shape, seed: int, planted: str, where: str) -> Row:
    since = STRIKES if planted and planted != "warm-up" else 0
    alarms = [alarm.step for alarm in report.alarms if alarm.step >= since]
    found = next((one for one in report.causes if one.cause != "unknown"), None)
    return Row(
        script=kind,
        shape="x".join(map(str, shape)),
        seed=seed,
        planted=planted or "nothing",
        where=where,
        alarm=alarms[0] if alarms else -1,
        stopped="stopped" in report.ended,
        cause=found.cause if found else "",
        module=found.module if found else "",
    )


def is_named(row: Row) -> bool:
    """Tell whether the cause is right: its own word, or what it is a kind of."""
    return row.cause == row.planted


def is_placed(row: Row) -> bool:
    """Tell whether the first bad module is right, with or without a parameter's own name."""
    both = [path.removesuffix(".weight").removesuffix(".bias") for path in (row.where, row.module)]
    return bool(row.module) and both[0] == both[1]


def planned(choosing: bool, faults: int, healthy: int) -> Iterator[tuple[str, Shape, int, Faults]]:
    """Yield script, shape, seed and faults of every run; the two sets share no seed and no shape.

    Healthy runs beyond the first of every script and seed end with the fork of the faults.
    """
    shapes, start = ((CHOOSING,), 10_000) if choosing else (SHAPES, 0)
    at_strike = tuple(kind for kind in KINDS if kind not in _FROM_START)
    for number in range(max(faults, healthy)):
        for place, script in enumerate(SCRIPTS):
            shape, seed = shapes[(number + place) % len(shapes)], start + 6 * number + place
            if number < faults:
                yield script, shape, seed, ("", *at_strike)
                for kind in _FROM_START:
                    yield script, shape, seed, (kind,)
            elif number < healthy:
                yield script, shape, seed, ("",)


def show(rows: list[Row]) -> None:
    """Print, for every kind of fault, how many were seen, named and placed."""
    print("| planted | runs | alarmed | stopped | median delay | cause right | module right |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for planted in ("nothing", *KINDS, "all"):
        of = [
            r
            for r in rows
            if planted in (r.planted, "all") and (planted == "nothing" or r.planted != "nothing")
        ]
        if not of:
            continue
        since = 0 if planted in ("nothing", "warm-up") else STRIKES
        delays = sorted(r.alarm - since for r in of if r.alarm >= 0)
        middle = str(delays[len(delays) // 2]) if delays and planted != "all" else "–"
        named = sum(map(is_named, of)) if planted != "nothing" else sum(r.cause != "" for r in of)
        with_place = [r for r in of if r.where]
        placed = f"{sum(map(is_placed, with_place))} of {len(with_place)}" if with_place else "–"
        stopped = sum(r.stopped for r in of)
        print(
            f"| {planted} | {len(of)} | {len(delays)} | {stopped} | {middle} | {named} | {placed} |"
        )
    wrong = Counter(
        (r.planted, r.cause or "none") for r in rows if r.planted != "nothing" and not is_named(r)
    )
    print()  # a list of its own below the table
    for (planted, cause), count in wrong.most_common():
        print(f"- {planted} was taken for {cause}: {count}")


def main(
    run: Annotated[bool, typer.Option(help="Run what the table lacks.")] = False,
    choosing: Annotated[bool, typer.Option(help="Runs on which rules may be chosen.")] = False,
    table: Annotated[Path, typer.Option(help="The table.")] = TABLE,
    faults: Annotated[int, typer.Option(help="Faults of every kind in every script.")] = 5,
    healthy: Annotated[int, typer.Option(help="Healthy runs of every script.")] = 17,
) -> None:
    """Print the table of planted faults; with --run make the missing runs first."""
    torch.set_num_threads(1)
    rows = read_rows(Row, table)
    done = {(r.script, r.planted, r.seed) for r in rows}
    for script, shape, seed, kinds in planned(choosing, faults, healthy) if run else ():
        left = [k for k in kinds if (script, k or "nothing", seed) not in done]
        new = rows_of(script, shape, seed, left) if left else []
        append_rows(table, new)
        rows += new
    show(rows)


if __name__ == "__main__":
    typer.run(main)
