"""One way to write monitors, interventions, faults and arms in a line."""

from __future__ import annotations

import pytest

from rksp.ground.errors import InputError
from rksp.ground.option_lines import split_line
from rksp.watch.registry import (
    FAULTS,
    INTERVENTIONS,
    MONITORS,
    make_fault,
    make_intervention,
    make_monitors,
)


def test_monitors_take_the_options_of_their_constructors() -> None:
    (mass,) = make_monitors(["near-unit-mass:states=256, rank=8,every=3"])
    assert (mass.states, mass.rank, mass.every) == (256, 8, 3)
    (entropy,) = make_monitors(["qk_entropy:windows=5/50"])
    assert entropy.windows == (5, 50)
    with pytest.raises(InputError, match="states='0' cannot be used"):
        make_monitors(["near-unit-mass:states=0"])


def test_hyphens_and_underscores_are_the_same() -> None:
    assert make_intervention("z-loss").name == make_intervention("z_loss").name == "z_loss"
    assert make_fault("large-rate:factor=2").name == "large_rate"
    (guard,) = make_monitors(["silent-corruption:checksum-every=3"])
    assert guard.checksum_every == 3


def test_a_bare_value_is_that_of_the_first_option() -> None:
    assert make_intervention("clip=0.5").norm == 0.5
    assert split_line("clip=0.5", noun="arm") == ("clip", {"": "0.5"})


@pytest.mark.parametrize(
    ("make", "table", "noun"),
    [
        (lambda line: make_monitors([line]), MONITORS, "monitors"),
        (make_intervention, INTERVENTIONS, "interventions"),
        (make_fault, FAULTS, "faults"),
    ],
)
def test_an_unknown_name_lists_all_names(make, table, noun) -> None:
    with pytest.raises(InputError) as caught:
        make("xyzzy")
    assert f"'xyzzy'. The {noun} are {', '.join(table)}." in str(caught.value)
    with pytest.raises(InputError, match=r"did you mean .*\? The "):
        make(f"{next(iter(table))}x")


def test_an_option_cannot_stand_twice() -> None:
    with pytest.raises(InputError, match="two values of every"):
        make_monitors(["loss:every=2,every=3"])
