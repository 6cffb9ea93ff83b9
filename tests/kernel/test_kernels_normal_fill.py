"""The counter-based fills: published vectors, independence of order, moments."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from scipy import stats

from rksp.ground.errors import InputError
from rksp.kernels.normal_fill import normal_fill, philox, truncated_normal_fill, uniform_fill

FILLS = pytest.mark.parametrize("fill", [normal_fill, uniform_fill, truncated_normal_fill])


@pytest.mark.parametrize(
    ("low", "high", "seed", "words"),
    [
        (0, 0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (-1, 2**64 - 1, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            0x85A308D3243F6A88 - 2**64,
            0x0370734413198A2E,
            0x299F31D0A4093822,
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_philox_vectors_of_random123(low, high, seed, words):
    result = philox(torch.tensor([low]), seed, high=high)
    assert " ".join(f"{word.item():08x}" for word in result) == words


@FILLS
@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4, 2**40 + 1])
def test_an_element_depends_on_its_number_only(fill, offset):
    whole = fill((300_000,), 11, offset)
    pieces = torch.empty(300_000)
    cuts = [0, 1, 2, 7, 262_143, 262_149, 300_000]
    for start, stop in reversed(list(pairwise(cuts))):
        fill(pieces[start:stop], 11, offset + start)
    assert torch.equal(whole, pieces)
    assert not torch.equal(whole, fill((300_000,), 12, offset))
    assert not torch.equal(whole, fill((300_000,), 11, offset + 1))


@FILLS
def test_layout_and_dtype_do_not_change_the_values(fill):
    flat = fill((6, 4), 3)
    strided = torch.zeros(6, 8)[:, ::2]
    assert fill(strided, 3) is strided and torch.equal(strided, flat)
    assert torch.equal(fill(torch.empty(4, 6).T, 3), flat)
    assert torch.equal(fill(torch.empty(6, 4, dtype=torch.bfloat16), 3), flat.bfloat16())
    parameter = torch.nn.Parameter(torch.empty(6, 4))
    assert torch.equal(fill(parameter, 3), flat) and parameter.requires_grad
    assert fill((0, 3), 3).numel() == 0 and fill((), 3).shape == ()


def test_normals_are_normal():
    values = normal_fill((400_000,), 5)
    count = values.numel()
    assert abs(values.mean()) < 4 / math.sqrt(count)
    assert abs(values.var() - 1) < 4 * math.sqrt(2 / count)
    assert abs((values**4).mean() - 3) < 4 * math.sqrt(96 / count)
    assert stats.kstest(values.numpy(), "norm").pvalue > 1e-3
    pairs = values.reshape(-1, 4)
    correlation = torch.corrcoef(pairs.T) - torch.eye(4)
    assert correlation.abs().max() < 5 / math.sqrt(count / 4)
    assert values.abs().max() < 5.77


def test_mean_and_std():
    plain = normal_fill((1000,), 6)
    torch.testing.assert_close(normal_fill((1000,), 6, mean=3.0, std=0.5), 0.5 * plain + 3.0)
    assert normal_fill((10,), 6, mean=2.0, std=0.0).tolist() == [2.0] * 10


def test_uniforms_and_truncated_normals_have_their_distribution():
    uniform = uniform_fill((200_000,), 7, low=-2.0, high=3.0)
    assert uniform.min() > -2 and uniform.max() < 3
    assert stats.kstest(uniform.numpy(), "uniform", (-2, 5)).pvalue > 1e-3
    normal = truncated_normal_fill((200_000,), 7, mean=1.0, std=0.5, low=-1.0, high=2.0)
    assert normal.min() >= 0.5 and normal.max() <= 2
    assert stats.kstest(normal.numpy(), "truncnorm", (-1.0, 2.0, 1.0, 0.5)).pvalue > 1e-3
    # Against a wrong distribution the same test must fail.
    assert stats.kstest(normal.numpy(), "norm", (1.0, 0.5)).pvalue < 1e-6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (((3,), -1), "seed"),
        (((3,), 2**64), "seed"),
        (((3,), 0, -1), "offset"),
        (((3,), 0, 2**63 - 2), "offset"),
        (((3,), 0, 0, 0.0, -1.0), "std"),
        ((torch.zeros(3, dtype=torch.int64), 0), "floating"),
    ],
)
def test_normal_fill_refuses(arguments, words):
    with pytest.raises(InputError, match=words):
        normal_fill(*arguments)


def test_truncated_normal_refuses_empty_bounds():
    with pytest.raises(InputError, match="low < high"):
        truncated_normal_fill((3,), 0, low=1.0, high=1.0)
