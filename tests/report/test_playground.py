"""The playground in a real browser: its numbers are Python's, and hands and ears can use it."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import subprocess
from typing import get_args

import pytest
from support import browser
from support.commands import left_with
from support.pages import Page, embedded

from lab.fit.artifacts import artifact_json
from rksp.assessment.risk import beyond, edge_inputs, open_at
from rksp.classifiers.edge_model import load_edge_model
from rksp.documents.terms import DEFAULT_BAR, DEFAULT_RISK
from rksp.documents.verdict import word_at
from rksp.ground.text import percent, rounded_down
from rksp.recipe import MuonScale, Recipe, Schedule
from rksp.recipe.coverage import uncovered
from rksp.recipe.optimizers.table import OPTIMIZERS
from rksp.report.playground import formulas

SETTINGS = 1000
KIND = (
    *("family", "is_parallel", "normalizes_branches", "normalizes_qk", "init_std"),
    *("predicts_next", "masks"),
)
GIVEN = ("--lr", "6e-4", "--warmup-steps", "2000", "--max-steps", "100000", "--batch-size", "480")


@pytest.fixture(scope="module")
def chromium():
    yield from browser.opened()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("playground") / "page.html"
    assert left_with(["report", "gpt2", "--sliders", *GIVEN, "-o", str(path)]) == 0
    return path


@pytest.fixture
def page(chromium, file):
    chromium.open(file, width=1280)
    return chromium


def _settings(draw: random.Random) -> dict:
    """Return random settings of a run, as the page and a recipe call them."""
    log = lambda low, high: 10 ** draw.uniform(low, high)
    whole = lambda low, high: round(log(low, high))
    steps = whole(1, 6)
    return {
        "learning_rate": log(-6, 1),
        "warmup_steps": draw.choice([0, whole(0, 4), steps, 2 * steps]),
        "max_steps": steps,
        "batch_size": whole(0, 4),
        "sequence_length": whole(1, 4),
        "optimizer": draw.choice([s.name for s in OPTIMIZERS if s.labelled == "lab"]),
        "schedule": draw.choice(get_args(Schedule)),
        "min_lr_ratio": draw.choice([0.0, 0.1, draw.random()]),
        "adam_beta1": draw.choice([0.0, 0.9, draw.uniform(0.5, 0.999)]),
        "adam_beta2": draw.choice([0.95, 0.999, draw.uniform(0.5, 0.9999)]),
        "decay_steps": draw.choice([None, whole(0, 4)]),
        "decay_shape": draw.choice(["linear", "cosine", "sqrt", "exponential"]),
        "decay_power": draw.choice([1.0, 2.5]),
        "decay_milestones": sorted(whole(0, 5) for _ in range(draw.randrange(3))),
        "decay_factor": 0.3,
        "muon_scale": draw.choice(get_args(MuonScale)),
        "width": whole(1.3, 4.3),
        "depth": whole(0, 2.3),
        "vocabulary": whole(1, 5.3),
        "norm": draw.choice(["pre", "post", "none"]),
        "family": draw.choice(["", "gpt2", "olmo2", "vit"]),
        "is_parallel": draw.random() < 0.3,
        "normalizes_branches": draw.random() < 0.3,
        "normalizes_qk": draw.random() < 0.3,
        "predicts_next": draw.random() < 0.7,
        "masks": draw.random() < 0.2,
        "init_std": draw.choice([None, 0.02, log(-4, 0)]),
    }


_OF_PAGES = ("reasons", "verdict")  # words, which the formulas alone do not say


def _python(run: dict) -> dict:
    """Return Python's answer to settings, by the names of the page's."""
    fields = {name: value for name, value in run.items() if name in Recipe.model_fields}
    shape = {name: run[name] for name in ("width", "depth", "vocabulary", "norm", *KIND)}
    inputs = edge_inputs(Recipe(**fields), **shape)
    said = load_edge_model().predict(inputs)
    rate, start, ceiling = run["learning_rate"], said.start_here, said.rate_at(DEFAULT_RISK)
    failed, (low, high) = said.failed(rate), said.interval(rate)
    reasons = beyond(said, inputs) or open_at(*said.interval(rate), said.likely_edge)
    return {
        "startHere": start,
        "likelyEdge": said.likely_edge,
        "doNotExceed": ceiling,
        "chance": failed,
        "low": low,
        "high": high,
        "excess": said.expected_excess(rate),
        "least": said.expected_excess(start),
        "contributions": [[n, d] for n, d in sorted(said.contributions.items())],
        "reasons": reasons,
        "verdict": "cannot tell"
        if reasons
        else word_at(rate, rounded_down(ceiling), is_risk=failed >= DEFAULT_BAR).value,
    }


def _differing(ours: dict, theirs: dict) -> list[str]:
    near = lambda a, b: math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    names = [n for n in ours if isinstance(ours[n], float) and not near(ours[n], theirs[n])]
    if near(ours["least"], theirs["least"]):  # two rates that are expected to lose the same
        names = [name for name in names if name != "startHere"]
    names += [name for name in _OF_PAGES if name in ours and ours[name] != theirs[name]]
    pairs = zip(ours["contributions"], sorted(theirs["contributions"]), strict=True)
    return names + [a[0] for a, b in pairs if a[0] != b[0] or not near(a[1], b[1])]


_ASK = """JSON.stringify(%s.map((run) => {
  const said = answerOf(run);
  const least = said.expectedExcess(said.startHere);
  return {...said, least, failed: null, interval: null, expectedExcess: null};
}))"""


def test_the_page_answers_as_python_does(page):
    draw = random.Random(27)
    runs = [_settings(draw) for _ in range(SETTINGS)]
    theirs = json.loads(page.evaluate(_ASK % json.dumps(runs)))
    wrong = {
        i: found for i, run in enumerate(runs) if (found := _differing(_python(run), theirs[i]))
    }
    assert wrong == {}
    verdicts = {answer["verdict"] for answer in theirs}
    assert verdicts == {"ok", "caution", "risk", "cannot tell"}


_NODE = """
const fs = require("fs");
const [script, page, runs] = process.argv.slice(1).map((path) => fs.readFileSync(path, "utf8"));
const { model, facts } = JSON.parse(page);
const predict = new Function(`${script}; return predict;`)();
console.log(JSON.stringify(JSON.parse(runs).map((run) => {
  const said = predict(model, run, facts);
  const [low, high] = said.interval(run.learning_rate);
  const [chance, excess] = [said.failed, said.expectedExcess].map((of) => of(run.learning_rate));
  return {...said, chance, low, high, excess, least: said.expectedExcess(said.startHere)};
})));
"""


def _in_node(file, folder, runs: list[dict]) -> list[dict]:
    script, document, asked = (folder / name for name in ("page.js", "document.json", "runs.json"))
    script.write_text(formulas(), "utf-8")
    document.write_text(embedded(file.read_text("utf-8")), "utf-8")
    asked.write_text(json.dumps(runs), "utf-8")
    command = ["node", "-e", _NODE, *map(str, (script, document, asked))]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return list(json.loads(told))


@pytest.mark.skipif(not shutil.which("node"), reason="no Node")
def test_the_formulas_of_the_page_are_pythons(file, tmp_path):
    draw = random.Random(58)
    runs = [_settings(draw) for _ in range(SETTINGS)]
    ours = [{n: v for n, v in _python(run).items() if n not in _OF_PAGES} for run in runs]
    theirs = _in_node(file, tmp_path, runs)
    found = {i: w for i in range(SETTINGS) if (w := _differing(ours[i], theirs[i]))}
    assert found == {}
    bent = _in_node(file, tmp_path, [runs[0] | {"depth": runs[0]["depth"] * 2}])
    assert "likelyEdge" in _differing(ours[0], bent[0])  # the control: it can fail


def test_that_check_can_fail(page):
    run = _settings(random.Random(1))
    (theirs,) = json.loads(page.evaluate(_ASK % json.dumps([run | {"width": run["width"] + 1}])))
    assert "likelyEdge" in _differing(_python(run), theirs)


def test_the_page_shows_the_answer_in_words(page):
    ours = _python(json.loads(embedded_of(page))["settings"])
    assert page.evaluate("at('badge').textContent") == ours["verdict"].upper()
    assert page.evaluate("document.querySelector('#odds [data-of]').textContent") == percent(
        ours["chance"]
    )


def embedded_of(page) -> str:
    return str(page.evaluate("document.getElementById('report').textContent"))


@pytest.mark.parametrize("value", [6e-4, 1e-9, 0.004, 0.0123, 0.05, 1.72, 12.3, 999, 3740, 1e6])
def test_the_page_writes_numbers_as_every_page_does(page, value):
    from rksp.ground.text import short

    for digits in (2, 3, 6):
        assert page.evaluate(f"short({value!r}, {digits})") == short(value, digits)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_and_asks_for_nothing(chromium, file, width, dark):
    chromium.open(file, width=width, dark=dark)
    assert chromium.complaints() == [] and chromium.requests() == []
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width


def test_keys_move_a_slider_the_answer_and_the_address(page):
    before = page.evaluate("document.querySelector('#figures [data-of=edge]').textContent")
    page.evaluate("at('width').focus()")
    for kind in ("keyDown", "keyUp"):
        page.ask("Input.dispatchKeyEvent", type=kind, key="ArrowRight", windowsVirtualKeyCode=39)
    assert page.evaluate("run.width") == 1024
    assert page.evaluate("at('width').getAttribute('aria-valuetext')") == "1,024"
    assert page.evaluate("document.querySelector('#figures [data-of=edge]').textContent") != before
    later = "new Promise((done) => setTimeout(() => done([location.hash, {}]), 700))"
    said = "document.getElementById('spoken').textContent"
    answer = page.ask(
        "Runtime.evaluate",
        expression=later.replace("{}", said),
        awaitPromise=True,
        returnByValue=True,
    )
    address, spoken = answer["result"]["value"]
    assert address == "#width=1024"
    assert "Start here" in spoken and "do not exceed" in spoken


def test_the_address_brings_the_settings_back(page):
    page.evaluate("location.hash = 'width=2048&optimizer=muon&depth=no&learning_rate=-1'")
    page.evaluate("new Promise((done) => setTimeout(done, 50))")
    page.ask(
        "Runtime.evaluate", expression="new Promise((d) => setTimeout(d, 100))", awaitPromise=True
    )
    assert page.evaluate("[run.width, run.optimizer, run.depth, run.learning_rate].join()") == (
        "2048,muon,12,0.0006"
    )
    assert page.evaluate("at('width').getAttribute('aria-valuetext')") == "2,048"


def test_a_wrong_number_is_marked_and_changes_nothing(page):
    # In one turn of the page: an earlier change may still be drawn in the next.
    marked = page.evaluate(
        "at('typed-depth').value = '-3', at('typed-depth').dispatchEvent(new Event('input')), "
        "at('typed-depth').getAttribute('aria-invalid')"
    )
    assert marked == "true"
    assert page.evaluate("run.depth") == 12


def test_every_control_has_a_name(page):
    nameless = """[...document.querySelectorAll('input, select, button, summary')].filter((e) =>
      !(e.labels && e.labels.length) && !e.ariaLabel && !e.textContent.trim()).map((e) => e.id)"""
    assert page.evaluate(nameless) == []
    assert page.evaluate("at('spoken').getAttribute('aria-live')") == "polite"


def test_the_command_of_the_page_gives_its_answer(page, capsys):
    page.evaluate("set('width', 1024); set('learning_rate', 0.01)")
    words = str(page.evaluate("at('command').textContent")).split()
    assert words[:3] == ["rksp", "score", "gpt2"]
    assert left_with([*words[1:], "--format", "json", "--exit-zero"]) == 0
    risk = json.loads(capsys.readouterr().out)["seeds"][0]["risk"]
    assert risk["probability_failed"] == pytest.approx(page.evaluate("answerOf(run).chance"))


def test_the_page_holds_the_model_and_refers_to_nothing(file):
    text = file.read_text()
    page = Page(text)
    assert page.addresses == ["data:,"]
    embeds = json.loads(embedded(text))["model"]
    assert embeds.items() < json.loads(artifact_json(load_edge_model())).items()  # no schema
    assert not re.search(r"https?://|@import|url\(|fetch|XMLHttp", text.replace(embedded(text), ""))
    assert "script-src 'sha256-" in text and "unsafe-inline'; img-src" in text


def test_a_hostile_name_stays_a_name(tmp_path, capsys):
    folder = tmp_path / "<script>alert(1)<"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    assert left_with(["report", str(folder / "config.json"), "--sliders"]) == 0
    assert "<script>alert" not in capsys.readouterr().out


def test_an_image_is_a_sequence_of_its_patches_unless_a_length_is_given(capsys):
    for more, tokens in ([], 196), (["--sequence-length", "64"], 64):
        assert left_with(["report", "vit", "--sliders", "--lr", "1e-3", *more]) == 0
        settings = json.loads(embedded(capsys.readouterr().out))["settings"]
        assert settings["sequence_length"] == tokens


@pytest.mark.parametrize(
    ("more", "why"),
    [(("--optimizer", "lamb"), "no optimizer lamb"), (("--set", "peft=lora"), "trained weights")],
)
def test_a_run_that_the_model_does_not_cover_has_no_playground(capsys, tmp_path, more, why):
    page = tmp_path / "page.html"
    assert left_with(["report", "gpt2", "--sliders", *more, "-o", str(page)]) == 2
    assert why in capsys.readouterr().err and not page.exists()


def test_only_covered_optimizers_are_offered(file):
    offered = re.search(r'<select id="optimizer">(.*?)</select>', file.read_text())[1]
    names = re.findall(r'value="(\w+)"', offered)
    assert "muon" in names and "lamb" not in names
    assert not any(uncovered(Recipe(optimizer=name)) for name in names)
