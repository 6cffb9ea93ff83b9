"""Ladders of preference learning and of rewards: DPO and GRPO on toys that a small model learns.

`python -m lab post-training FOLDER` trains them, resumes there, and prints what moves the edge.
A policy of width 64 first learns to answer with mistakes: to sort digits, or to close brackets. It
is then trained at eight rates on pairs of a right and a wrong answer (DPO; Rafailov et al. 2023,
eq. 7) or on rewards of its own answers (GRPO; Shao et al. 2024, eq. 3 with one update a sample),
with all weights or with LoRA. Every run is judged by the mean reward of sampled answers to prompts
that it has not seen. The toys show what moves an edge; their rates are not those of real models.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lab.ladders.markdown import table
from rksp.ground.files import ResultFolder, atomic_write, digest
from rksp.ground.model import Strict
from rksp.models.adapters import with_adapters
from rksp.recipe import Recipe

Objective = Literal["dpo", "grpo"]
Toy = Literal["digits", "brackets"]
LENGTH = 4  # tokens of a prompt, and of an answer
EQUALS, START, VOCABULARY = 10, 11, 12  # tokens beside the digits; brackets are 0 and 1
RATES = 8
STEP = 0.36  # decades
FIRST = {"all": 3e-5, "lora": 1e-4}
COMPLETIONS = 32  # a step of GRPO
PAIRS = 512  # fixed, of which a step of DPO takes 32
STEPS = {"dpo": 80, "grpo": 60}
STORED = Path(__file__).parent / "experiments" / "results" / "post-training.json"
GAIN = 0.05  # of the mean reward
_MOST_WRONG = 0.6  # of the answers that a policy first learns from
_JUDGED = 512  # answers that judge a run


class Spec(Strict):
    """What the runs of one ladder share.

    Attributes:
        objective: `dpo` or `grpo`.
        toy: What is to be answered.
        family: A model type of transformers, as the policy.
        beta: DPO's β, or GRPO's coefficient of the KL divergence.
        group: Answers to one prompt in GRPO; 0 for DPO.
        rank: Of LoRA; 0 trains all weights.
        alpha: Of LoRA.
        seed: Of the policy, the prompts and the answers.
    """

    objective: Objective
    toy: Toy
    family: str
    beta: float
    group: int = 0
    rank: int = 0
    alpha: float = 0.0
    seed: int

    @property
    def id(self) -> str:
        """Hash of the content."""
        return digest(json.dumps(self.model_dump(mode="json"), sort_keys=True))

    @property
    def method(self) -> str:
        """What is trained."""
        return "lora" if self.rank else "all"

    @property
    def rates(self) -> list[float]:
        """Learning rates, ascending."""
        return [FIRST[self.method] * 10 ** (STEP * place) for place in range(RATES)]


class Trained(Strict):
    """One run: the mean reward and the mean divergence from the first policy at its end.

    A run whose weights are not finite has neither.
    """

    rate: float
    reward: float | None
    divergence: float | None
    seconds: float


class PolicyLadder(Strict):
    """A trained ladder; `before` is the first policy's mean reward."""

    spec: Spec
    before: float
    runs: tuple[Trained, ...]

    @property
    def best(self) -> Trained:
        """The run of the highest reward."""
        return max(self.runs, key=lambda run: -1.0 if run.reward is None else run.reward)

    @property
    def gain(self) -> float:
        """What the best run adds to the mean reward."""
        return (self.best.reward or 0.0) - self.before

    @property
    def edge(self) -> float | None:
        """The first rate above the best that loses half of the gain; None if none does."""
        least = self.before + self.gain / 2
        for run in self.runs:
            if run.rate > self.best.rate and (run.reward is None or run.reward < least):
                return run.rate
        return None


def plan() -> list[Spec]:
    """Return all ladders, those of a seed before the next seed."""
    places = list(itertools.product(("digits", "brackets"), ("gpt2", "llama")))
    found = []
    for seed in range(3):
        base: list[dict[str, Any]] = [
            {"objective": "dpo", "toy": toy, "family": family, "beta": beta}
            for toy, family in places
            for beta in (0.1, 0.5)
        ]
        base += [
            {"objective": "grpo", "toy": toy, "family": family, "beta": beta, "group": group}
            for toy, family in places
            for beta in (0.0, 0.04)
            for group in (4, 16)
        ]
        for rank in (1, 8, 64, 256):
            for alpha in (16.0, 64.0, 2.0 * rank):
                adapters = {"toy": "digits", "family": "llama", "rank": rank, "alpha": alpha}
                base.append({"objective": "dpo", "beta": 0.1, **adapters})
                base.append({"objective": "grpo", "beta": 0.0, "group": 8, **adapters})
        specs = [Spec(seed=seed, **fields) for fields in base]
        found += list({spec.id: spec for spec in specs}.values())
    return found


def prompts(toy: Toy, count: int, generator: torch.Generator) -> Tensor:
    """Return `[count, LENGTH]` tokens: digits, or brackets of which none closes too much."""
    if toy == "digits":
        return torch.randint(0, 10, (count, LENGTH), generator=generator)
    rows = torch.zeros(count, LENGTH, dtype=torch.long)
    depth = torch.zeros(count, dtype=torch.long)
    for place in range(LENGTH):
        closes = (torch.rand(count, generator=generator) < 0.4) & (depth > 0)
        rows[:, place] = closes.long()
        depth += 1 - 2 * rows[:, place]
    return rows


def right_answers(toy: Toy, asked: Tensor, generator: torch.Generator) -> Tensor:
    """Return answers that earn the whole reward, `[count, LENGTH]`."""
    if toy == "digits":
        return asked.sort(-1).values
    depth = (1 - 2 * asked).sum(-1)
    rows = torch.zeros_like(asked)
    for place in range(LENGTH):
        left = LENGTH - place
        must_close, must_open = depth >= left, depth == 0
        closes = torch.rand(len(asked), generator=generator) < 0.5
        rows[:, place] = ((closes | must_close) & ~must_open).long()
        depth = depth + 1 - 2 * rows[:, place]
    return rows


def rewards(toy: Toy, asked: Tensor, answers: Tensor) -> Tensor:
    """Return the reward of each answer, from 0 to 1: the share of tokens that are right.

    In brackets, an answer that leaves a bracket open, or closes too much, earns nothing.
    """
    if toy == "digits":
        return (answers == asked.sort(-1).values).double().mean(-1)
    moves = torch.where(answers == 0, 1, torch.where(answers == 1, -1, -100))
    depth = (1 - 2 * asked).sum(-1, keepdim=True) + moves.cumsum(-1)
    return ((depth >= 0).all(-1) & (depth[:, -1] == 0)).double()


def wrong_answers(toy: Toy, right: Tensor, generator: torch.Generator) -> Tensor:
    """Return the answers with some tokens replaced at random."""
    if toy == "digits":
        order = torch.rand(right.shape, generator=generator).argsort(-1)
        return right.gather(-1, order)
    flips = torch.rand(right.shape, generator=generator) < 0.3
    flips[:, 0] |= ~flips.any(-1)
    return torch.where(flips, 1 - right, right)


def _read(asked: Tensor, answers: Tensor) -> Tensor:
    """Return what a policy reads, `[count, 2 · LENGTH + 2]`: the prompt, a sign, the answer."""
    count = len(asked)
    start, sign = (torch.full((count, 1), token) for token in (START, EQUALS))
    return torch.cat([start, asked, sign, answers], 1)


def log_probabilities(policy: nn.Module, asked: Tensor, answers: Tensor) -> Tensor:
    """Return the log-probability of each token of the answers, `[count, LENGTH]`, in nats."""
    rows = _read(asked, answers)
    logits = policy(input_ids=rows[:, :-1]).logits[:, -LENGTH:].log_softmax(-1)
    return logits.gather(-1, answers[:, :, None])[..., 0]


@torch.no_grad()
def sampled(policy: nn.Module, asked: Tensor, generator: torch.Generator) -> Tensor:
    """Return an answer to each prompt, drawn from the policy at temperature 1."""
    rows = _read(asked, asked[:, :0])
    for _ in range(LENGTH):
        chances = policy(input_ids=rows).logits[:, -1].nan_to_num(0.0).softmax(-1)
        rows = torch.cat([rows, torch.multinomial(chances, 1, generator=generator)], 1)
    return rows[:, -LENGTH:]


def new_policy(family: str, seed: int) -> nn.Module:
    """Return a policy with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    size: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 2 * LENGTH + 2,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **size, **_MORE[family])
    return AutoModelForCausalLM.from_config(config)


@cache
def first_policy(family: str, toy: Toy, seed: int) -> nn.Module:
    """Return a policy that has learned from answers of which many are wrong."""
    policy = new_policy(family, seed)
    generator = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        asked = prompts(toy, 64, generator)
        right = right_answers(toy, asked, generator)
        is_wrong = torch.rand(64, 1, generator=generator) < _MOST_WRONG
        answers = torch.where(is_wrong, wrong_answers(toy, right, generator), right)
        return -log_probabilities(policy, asked, answers).mean()

    _train(policy, loss, Recipe(learning_rate=3e-3, max_steps=400, warmup_steps=20))
    return policy.eval()


_MORE: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 176},
    "gpt2": {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
}


def _train(policy: nn.Module, loss: Callable[[], Tensor], recipe: Recipe) -> None:
    """Train by AdamW, clipped at a norm of 1, with a rate that falls linearly to nothing."""
    weights, peak = [p for p in policy.parameters() if p.requires_grad], recipe.learning_rate
    assert peak is not None
    optimizer = torch.optim.AdamW(weights, lr=peak, weight_decay=0.0)
    for step in range(recipe.max_steps):
        rise = min(1.0, (step + 1) / max(1, recipe.warmup_steps))
        rate = peak * rise * (1 - step / recipe.max_steps)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        found = loss()
        found.backward()
        if not math.isfinite(float(torch.nn.utils.clip_grad_norm_(weights, 1.0))):
            return
        optimizer.step()


def dpo_loss(policy: nn.Module, asked: Tensor, pair: Sequence[Tensor], first: Tensor, beta: float):
    """Return the loss of DPO (Rafailov et al. 2023, eq. 7), in nats.

    Args:
        policy: The policy that is trained.
        asked: Prompts.
        pair: The right and the wrong answer to each prompt.
        first: The first policy's log-probability of the right answers minus that of the wrong.
        beta: β.
    """
    right, wrong = (log_probabilities(policy, asked, answers).sum(-1) for answers in pair)
    return -nn.functional.logsigmoid(beta * (right - wrong - first)).mean()


def grpo_loss(now: Tensor, first: Tensor, earned: Tensor, group: int, beta: float) -> Tensor:
    """Return the loss of GRPO at its first update of a sample (Shao et al. 2024, eqs. 3 and 4).

    Args:
        now: Log-probabilities of the sampled tokens, `[prompts · group, tokens]`, with a gradient.
        first: Those of the first policy.
        earned: Rewards, `[prompts · group]`, the answers to one prompt in a row.
        group: Answers to one prompt.
        beta: Coefficient of the divergence from the first policy.
    """
    groups = earned.view(-1, group)
    spread = groups.std(-1, keepdim=True) + 1e-4
    gains = ((groups - groups.mean(-1, keepdim=True)) / spread).view(-1, 1).to(now.dtype)
    ratio = (now - now.detach()).exp()
    away = (first - now).exp() - (first - now) - 1
    return (beta * away - ratio * gains).mean()


def _objective(spec: Spec, policy: nn.Module, first: nn.Module) -> Callable[[], Tensor]:
    """Return the function that draws a batch and returns its loss."""
    generator = torch.Generator().manual_seed(1000 + spec.seed)
    if spec.objective == "grpo":

        def reward_loss() -> Tensor:
            asked = prompts(spec.toy, COMPLETIONS // spec.group, generator)
            asked = asked.repeat_interleave(spec.group, 0)
            answers = sampled(policy, asked, generator)
            with torch.no_grad():
                known = log_probabilities(first, asked, answers)
            now = log_probabilities(policy, asked, answers)
            earned = rewards(spec.toy, asked, answers)
            return grpo_loss(now, known, earned, spec.group, spec.beta)

        return reward_loss
    asked = prompts(spec.toy, PAIRS, generator)
    right = right_answers(spec.toy, asked, generator)
    wrong = wrong_answers(spec.toy, right, generator)
    with torch.no_grad():
        known = [log_probabilities(first, asked, answers).sum(-1) for answers in (right, wrong)]

    def pair_loss() -> Tensor:
        rows = torch.randint(0, PAIRS, (32,), generator=generator)
        ahead = (known[0] - known[1])[rows]
        return dpo_loss(policy, asked[rows], (right[rows], wrong[rows]), ahead, spec.beta)

    return pair_loss


@torch.no_grad()
def _judge(spec: Spec, policy: nn.Module, first: nn.Module) -> tuple[float, float] | None:
    """Return the mean reward and divergence over unseen prompts; None if a weight is not finite."""
    if not all(bool(p.isfinite().all()) for p in policy.parameters()):
        return None
    generator = torch.Generator().manual_seed(2_000_003)
    asked = prompts(spec.toy, _JUDGED, generator)
    answers = sampled(policy, asked, generator)
    away = log_probabilities(policy, asked, answers) - log_probabilities(first, asked, answers)
    return float(rewards(spec.toy, asked, answers).mean()), float(away.sum(-1).mean())


def trained(spec: Spec) -> PolicyLadder:
    """Train the runs of a ladder."""
    torch.set_num_threads(1)
    first = first_policy(spec.family, spec.toy, spec.seed)
    before = _judge(spec, first, first)
    runs = []
    for rate in spec.rates:
        started = time.process_time()
        policy = copy.deepcopy(first)
        if spec.rank:
            recipe = Recipe(peft="lora", lora_rank=spec.rank, lora_alpha=spec.alpha)
            policy = with_adapters(policy, recipe, seed=spec.seed)
        recipe = Recipe(learning_rate=rate, max_steps=STEPS[spec.objective], warmup_steps=0)
        _train(policy, _objective(spec, policy, first), recipe)
        reward, divergence = _judge(spec, policy, first) or (None, None)
        seconds = time.process_time() - started
        runs.append(Trained(rate=rate, reward=reward, divergence=divergence, seconds=seconds))
    return PolicyLadder(spec=spec, before=before[0] if before else 0.0, runs=tuple(runs))


def run_ladders(folder: Path, progress: Callable[[int, int], None] | None = None) -> None:
    """Train the ladders of the plan that the folder does not hold yet."""
    results, specs = ResultFolder(folder), plan()
    for done, spec in enumerate(specs):
        if spec.id not in results:
            results.write(spec.id, trained(spec).model_dump_json())
        if progress is not None:
            progress(done + 1, len(specs))


def read_ladders(folder: Path) -> list[PolicyLadder]:
    """Return the ladders of a folder, in the order of the plan."""
    results = ResultFolder(folder)
    found = [results.read(spec.id) for spec in plan()]
    return [PolicyLadder.model_validate_json(text) for text in found if text is not None]


def stored_ladders() -> list[PolicyLadder]:
    """Return the ladders that the repository holds."""
    lines = json.loads(STORED.read_text(encoding="utf-8"))
    return [PolicyLadder.model_validate(line) for line in lines]


def pack(ladders: Sequence[PolicyLadder], path: Path) -> None:
    """Write ladders to one file, a line each."""
    lines = [ladder.model_dump_json() for ladder in ladders]
    atomic_write(path, "[\n" + ",\n".join(lines) + "\n]\n")


def tables(ladders: Sequence[PolicyLadder]) -> str:
    """Return what the toys show, as Markdown: edges by objective, and what moves them."""
    learned = [ladder for ladder in ladders if ladder.gain >= GAIN]
    pages = [
        f"{len(ladders)} ladders of {RATES} rates, {len(learned)} of which gain at least {GAIN:g} "
        "of the reward. *Edge*: the first rate above the best that loses half of the gain.",
        _edges(learned),
        "What moves an edge, all else equal: the median over pairs of ladders, in decades, of the "
        "edge and of the best rate at the second value minus those at the first.",
        _moves(learned),
    ]
    return "\n\n".join(pages) + "\n"


def _edges(ladders: Sequence[PolicyLadder]) -> str:
    groups: dict[str, list[PolicyLadder]] = {}
    for ladder in ladders:
        spec = ladder.spec
        groups.setdefault(f"{spec.objective}, {spec.method}, {spec.toy}", []).append(ladder)
    lines = []
    for name, group in sorted(groups.items()):
        edges = [ladder.edge for ladder in group if ladder.edge is not None]
        gaps = [math.log10(x.edge / x.best.rate) for x in group if x.edge is not None]
        away = [x.best.divergence or 0.0 for x in group]
        lines.append(
            [
                name,
                str(len(group)),
                f"{median(x.before for x in group):.2f}",
                f"{median(x.best.reward or 0.0 for x in group):.2f}",
                f"{median(x.best.rate for x in group):.1e}",
                f"{median(edges):.1e}" if edges else "—",
                f"{median(gaps):.2f}" if gaps else "—",
                f"{median(away):.1f}",
            ]
        )
    header = ["", "ladders", "before", "best", "best rate", "edge", "decades apart", "nats away"]
    return table(header, lines)


_FACTORS: Sequence[tuple[str, str, Sequence[float]]] = (
    ("dpo", "beta", (0.1, 0.5)),
    ("grpo", "beta", (0.0, 0.04)),
    ("grpo", "group", (4, 16)),
    ("dpo", "rank", (1, 8, 64, 256)),
    ("grpo", "rank", (1, 8, 64, 256)),
    ("dpo", "alpha", (16.0, 64.0)),
    ("grpo", "alpha", (16.0, 64.0)),
)


def _moves(ladders: Sequence[PolicyLadder]) -> str:
    lines = []
    for objective, field, values in _FACTORS:
        for low, high in itertools.pairwise(values):
            pairs = list(_pairs(ladders, objective, field, (low, high)))
            edges = [
                math.log10(b.edge / a.edge)
                for a, b in pairs
                if a.edge is not None and b.edge is not None
            ]
            best = [math.log10(b.best.rate / a.best.rate) for a, b in pairs]
            name = f"{objective}: {field} {low:g} → {high:g}"
            lines.append([name, str(len(pairs)), *map(_middle, (edges, best))])
    return table(["", "pairs", "edge", "best rate"], lines)


def _pairs(ladders: Sequence[PolicyLadder], objective: str, field: str, values: tuple):
    """Yield pairs of ladders that differ in one field alone."""
    known = {ladder.spec.id: ladder for ladder in ladders}
    for ladder in ladders:
        spec = ladder.spec
        if spec.objective == objective and getattr(spec, field) == values[0]:
            other = known.get(spec.model_copy(update={field: values[1]}).id)
            if other is not None:
                yield ladder, other


def _middle(values: Sequence[float]) -> str:
    if not values:
        return "—"
    return f"{median(values):+.2f} ({min(values):+.2f} to {max(values):+.2f})"
