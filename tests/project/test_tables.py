"""A misspelt word in a table of rksp's own is refused where the table is loaded, with its place."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import pytest

from rksp.checks import check as checks
from rksp.checks.registry import CHECKS
from rksp.ground.tables import TableError
from rksp.models import families
from rksp.recipe.optimizers import table as optimizers
from rksp.recipe_files import registry
from rksp.recipe_files.table import reader

KEYS = files("rksp.recipe_files").joinpath("keys.toml").read_text("utf-8")
CHECK_TABLE = files("rksp.checks").joinpath("checks.toml").read_text("utf-8")
OPTIMIZERS = files("rksp.recipe.optimizers").joinpath("optimizers.toml").read_text("utf-8")


def load_keys(text, monkeypatch):
    monkeypatch.setattr(reader, "_trainers", lambda: tomllib.loads(text))
    for home, names in registry._HOMES:
        for name in names.split():
            reader.reader_of(name, vars(home))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('as = "positive"', 'as = "positiv"', r'no converter "positiv"; did you mean "positive"\?'),
        ('"_warmup",', '"_warmupp",', r'step \d+: no function "_warmupp"; did you mean "_warmup"'),
        ("{ optimizer =", "{ optimiser =", 'no field or function "optimiser"; did you mean "optim'),
        ("default = 5e-5", "defalt = 5e-5", 'no field "defalt"; did you mean "default"'),
        ("accumulation =", "acumulation =", 'setting of batch "acumulation"; did you mean "accum'),
        ("defaults = { learning_rate =", "defaults = { learningrate =", "mean .learning_rate."),
        ('some = "per_device', 'som = "per_device', r'hugging-face\] marks: no field "som"'),
        ('{ like = "arguments" }', '{ like = "argument" }', 'no table "argument"; did you mean'),
        ('by = "objective"', 'by = "objectiv"', 'no field "objectiv"; did you mean "objective"'),
        (
            '{ true = "muon" }',
            '{ true = "moun" }',
            'optimizer: no word "moun"; did you mean "muon"',
        ),
        ("written = { warmup_steps", "written = { warmup_step", 'no field "warmup_step"'),
    ],
)
def test_a_misspelt_word_in_the_table_of_keys_is_refused(old, new, said, monkeypatch):
    assert old in KEYS
    with pytest.raises(TableError, match=rf"^keys\.toml \[.*{said}"):
        load_keys(KEYS.replace(old, new, 1), monkeypatch)


def test_the_table_of_keys_loads_as_it_is(monkeypatch):
    load_keys(KEYS, monkeypatch)
    named = [(name, vars(home)) for home, names in registry._HOMES for name in names.split()]
    assert [reader.reader_of(*one).name for one in named] == [name for name, _ in named]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("is_cause", "is_caus", 'no part "is_caus"; did you mean "is_cause"'),
        ('needs = ["forward"]', 'needs = ["foward"]', 'no need "foward"; did you mean "forward"'),
        ("[RKSP102]", "[RKSP1022]", 'no check "RKSP102"; did you mean "RKSP1'),
        ('level = "error"', 'level = "eror"', 'no level "eror"; did you mean "error"'),
    ],
)
def test_a_misspelt_word_in_the_table_of_checks_is_refused(old, new, said, monkeypatch):
    table = tomllib.loads(CHECK_TABLE.replace(old, new, 1))
    monkeypatch.setattr(checks, "_written", lambda: table)
    with pytest.raises(TableError, match=rf"^checks\.toml.*{said}"):
        for one in CHECKS:
            checks.check(one.code)


def test_every_text_of_a_check_names_constants_that_its_module_has():
    for one in CHECKS:
        assert one.texts.title and "{" not in one.texts.healthy


def test_a_text_with_a_misspelt_constant_is_seen(monkeypatch):
    table = tomllib.loads(CHECK_TABLE.replace("{_EXCESS:g}", "{_EXCES:g}"))
    monkeypatch.setattr(checks, "_written", lambda: table)
    with pytest.raises(KeyError, match="_EXCES"):
        [checks._texts.__wrapped__(one) for one in CHECKS]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("decoder qk_nrm", 'no word "qk_nrm"; did you mean "qk_norm"'),
        ("decodr", 'no word "decodr"; did you mean "decoder"'),
        ("encoder off=bert", 'no word "off="'),
    ],
)
def test_a_misspelt_word_in_the_table_of_families_is_refused(words, said):
    with pytest.raises(TableError, match=rf"^families\.toml toy: {said}"):
        families._row("toy", words)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('family = "plain"', 'family = "plan"', 'no word "plan"; did you mean "plain"'),
        ("needs_warmup", "need_warmup", 'no field "need_warmup"; did you mean "needs_warmup"'),
        ('make = "muon"', 'make = "moun"', 'no function "moun"; did you mean "muon"'),
        ("passing =", "pasing =", 'rates: no field "pasing"; did you mean "passing"'),
        ('labelled = "lab"', 'labelled = "labs"', 'no word "labs"; did you mean "lab"'),
    ],
)
def test_a_misspelt_word_in_the_table_of_optimizers_is_refused(old, new, said):
    assert old in OPTIMIZERS
    rows = tomllib.loads(OPTIMIZERS.replace(old, new, 1))
    with pytest.raises(TableError, match=rf"^optimizers\.toml \[.*{said}"):
        [optimizers._spec(name, row) for name, row in rows.items()]
