"""The toys of preferences and rewards: their rewards, losses and edges are known."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch

from lab.post_training import (
    LENGTH,
    RATES,
    PolicyLadder,
    Spec,
    Trained,
    dpo_loss,
    grpo_loss,
    log_probabilities,
    new_policy,
    pack,
    plan,
    prompts,
    rewards,
    right_answers,
    sampled,
    stored_ladders,
    tables,
    wrong_answers,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_brackets_earn_by_brute_force():
    answers = torch.tensor(list(itertools.product((0, 1, 2), repeat=LENGTH)))
    asked = torch.tensor([0, 1, 0, 0]).expand(len(answers), -1)
    for row, earned in zip(answers.tolist(), rewards("brackets", asked, answers), strict=True):
        text = "()((" + "".join("()x"[token] for token in row)
        while "()" in text:
            text = text.replace("()", "")
        assert earned == (text == "")


@pytest.mark.parametrize("toy", ["digits", "brackets"])
def test_right_answers_earn_all_and_wrong_ones_less(toy):
    random = generator()
    asked = prompts(toy, 500, random)
    right = right_answers(toy, asked, random)
    assert rewards(toy, asked, right).min() == 1
    assert rewards(toy, asked, wrong_answers(toy, right, random)).mean() < 0.5


class Table(torch.nn.Module):
    """A policy whose logits are parameters, whatever it reads."""

    def __init__(self):
        super().__init__()
        self.logits = torch.nn.Parameter(torch.randn(2 * LENGTH + 1, 12, dtype=torch.float64))

    def forward(self, input_ids):
        rows = self.logits[: input_ids.shape[1]].expand(len(input_ids), -1, -1)
        return type("Output", (), {"logits": rows})()


def test_the_loss_of_pairs_is_that_of_the_paper():
    policy, asked = Table(), torch.zeros(2, LENGTH, dtype=torch.long)
    right, wrong = torch.randint(0, 10, (2, 2, LENGTH), generator=generator())
    first = torch.tensor([0.3, -0.2], dtype=torch.float64)
    logs = policy.logits.detach().log_softmax(-1)[LENGTH + 1 : 2 * LENGTH + 1]
    ahead = [
        sum(float(logs[place, a[place]] - logs[place, b[place]]) for place in range(LENGTH))
        for a, b in zip(right, wrong, strict=True)
    ]
    gaps = [now - before for now, before in zip(ahead, (0.3, -0.2), strict=True)]
    by_hand = sum(math.log1p(math.exp(-0.4 * gap)) for gap in gaps) / 2
    assert dpo_loss(policy, asked, (right, wrong), first, 0.4).item() == pytest.approx(by_hand)


def test_the_loss_of_rewards_is_that_of_the_paper():
    now = torch.tensor([[-1.0], [-2.0], [-0.5], [-3.0]], dtype=torch.float64, requires_grad=True)
    first = torch.tensor([[-1.5], [-2.0], [-0.2], [-2.0]], dtype=torch.float64)
    earned = torch.tensor([1.0, 0.0, 0.25, 0.75], dtype=torch.float64)
    loss = grpo_loss(now, first, earned, 2, 0.1)
    loss.backward()
    away = [math.exp(d) - d - 1 for d in (-0.5, 0.0, 0.3, 1.0)]
    assert loss.item() == pytest.approx(0.1 * sum(away) / 4)  # the advantages of a group sum to 0
    spreads = [(0.5, 2**-0.5), (-0.5, 2**-0.5), (-0.25, 0.5 * 2**-0.5), (0.25, 0.5 * 2**-0.5)]
    slopes = [
        (-gain / (spread + 1e-4) + 0.1 * (1 - math.exp(d))) / 4
        for (gain, spread), d in zip(spreads, (-0.5, 0.0, 0.3, 1.0), strict=True)
    ]
    assert now.grad[:, 0].tolist() == pytest.approx(slopes)


def test_answers_are_drawn_from_the_policy():
    policy = Table()
    answers = sampled(policy, torch.zeros(4000, LENGTH, dtype=torch.long), generator())
    shares = torch.stack([(answers == token).double().mean(0) for token in range(12)], 1)
    assert (shares - policy.logits[LENGTH + 1 : 2 * LENGTH + 1].softmax(-1)).abs().max() < 0.04


def test_a_token_does_not_see_those_after_it():
    policy = new_policy("gpt2", 0).eval()
    asked = prompts("digits", 3, generator())
    answers = right_answers("digits", asked, generator())
    changed = answers.clone()
    changed[:, 2:] = 0
    before, after = (log_probabilities(policy, asked, rows) for rows in (answers, changed))
    torch.testing.assert_close(before[:, :2], after[:, :2])


def planted(*found, before=0.5, **fields):
    spec = Spec(objective="grpo", toy="digits", family="gpt2", beta=0.0, group=4, seed=0, **fields)
    runs = [
        Trained(rate=rate, reward=reward, divergence=0.1, seconds=0)
        for rate, reward in zip(spec.rates, found, strict=True)
    ]
    return PolicyLadder(spec=spec, before=before, runs=tuple(runs))


def test_the_edge_of_a_planted_ladder():
    ladder = planted(0.55, 0.6, 0.9, 0.8, 0.69, 0.6, None, None)
    assert (ladder.best.rate, ladder.edge) == (ladder.spec.rates[2], ladder.spec.rates[4])
    assert planted(0.55, 0.6, 0.9, 0.8, 0.71, 0.71, 0.71, None).edge == ladder.spec.rates[7]
    assert planted(*[0.6] * RATES).edge is None


def test_the_plan_and_what_is_stored(tmp_path):
    specs = plan()
    assert len({spec.id for spec in specs}) == len(specs) >= 120
    pack([planted(*[0.6] * RATES)], tmp_path / "x.json")
    assert len(json.loads((tmp_path / "x.json").read_text())) == 1
    stored = stored_ladders()
    assert {ladder.spec.id for ladder in stored} <= {spec.id for spec in specs}
    assert f"{len(stored)} ladders" in tables(stored)
