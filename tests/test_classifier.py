"""The additive classifier: exactness, monotonicity, calibration, persistence."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from rksp.classifiers.additive import AdditiveModel, fit_additive
from rksp.classifiers.challengers import CHALLENGERS
from rksp.classifiers.classifier import DivergenceClassifier
from rksp.classifiers.evaluate import predict_held_out
from rksp.classifiers.figure import reliability_diagram
from rksp.classifiers.fit import calibrate, fit_classifier, rate_shift
from rksp.classifiers.metrics import auroc, bootstrap, ece
from rksp.classifiers.table import Table
from rksp.errors import ArtifactError, InputError
from rksp.features import FEATURE_NAMES, FEATURES, FeatureVector, Tier

RATE = FEATURE_NAMES.index("rate")
CRITICAL = FEATURE_NAMES.index("critical_rate")


def planted_table(*, ladders: int = 60, seed: int = 0) -> Table:
    """Ladders whose edge is known: a run fails with probability σ(4 (log rate − log edge)).

    The edge shows in `critical_rate` up to noise, and the other features say nothing.
    """
    rng = np.random.default_rng(seed)
    edges = rng.uniform(-3, -1, ladders)
    decades = np.arange(-4, 0.01, 0.5)
    ladder = np.repeat(np.arange(ladders), len(decades))
    log_rate = np.tile(decades, ladders)
    x = rng.normal(size=(len(ladder), len(FEATURES)))
    unused = (Tier.FORWARD, Tier.MICRO)
    x[:, [i for i, f in enumerate(FEATURES) if f.tier in unused]] = np.nan
    x[:, RATE] = log_rate
    x[:, CRITICAL] = log_rate - (edges + rng.normal(scale=0.1, size=ladders))[ladder]
    x[:: len(decades), CRITICAL] = np.nan  # not always measured
    failed = rng.random(len(ladder)) < expit(4 * (log_rate - edges[ladder]))
    family = np.array([f"family{k % 4}" for k in ladder])
    return Table(
        x=x,
        failed=failed,
        diverged=failed & (log_rate > -0.75),
        rate=10**log_rate,
        ladder=np.array([f"ladder{k:03}" for k in ladder]),
        family=family,
        task=np.array([f"task{k % 3}" for k in ladder]),
        width=np.full(len(ladder), 64.0),
        depth=np.full(len(ladder), 4.0),
        parameters=np.full(len(ladder), 1e5),
        edge_low=10 ** (edges[ladder] - 0.1),
        edge_high=10 ** (edges[ladder] + 0.1),
        one_step_change=np.zeros(len(ladder)),
        learned=np.ones(len(ladder), dtype=bool),
    )


@pytest.fixture(scope="module")
def table() -> Table:
    return planted_table()


@pytest.fixture(scope="module")
def classifier(table) -> DivergenceClassifier:
    return fit_classifier(table, {"name": "planted"})


def _vector(table: Table, row: int) -> FeatureVector:
    return FeatureVector(values=table.x[row], tier=Tier.RESPONSE)


def test_the_fit_is_the_optimum_of_the_penalized_likelihood():
    """The stored curves against a float64 minimization that shares no code with the fit."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 3))
    x[:, 2] += x[:, 0]  # follows the rate
    x[rng.random(400) < 0.1, 1] = np.nan
    y = (rng.random(400) < expit(2 * x[:, 0] + np.nan_to_num(x[:, 1]) ** 2 - 1)).astype(int)
    model = fit_additive(x, y, names=["rate", "a", "b"], follows=[True, False, True])
    rate = x[:, 0] - x[:, 0].mean()
    seen = {"a": np.nan_to_num(x[:, 1], nan=np.nanmedian(x[:, 1])), "b": x[:, 2] - x[:, 0]}
    design = [np.ones(400), 3 * rate]
    for name, curve in zip(model.names[1:], model.curves[1:], strict=True):
        measured = seen[name][np.isfinite(x[:, model.names.index(name)])]
        assert np.allclose(curve.knots, np.linspace(*np.percentile(measured, [1, 99]), 4))
        design += [np.interp(seen[name], curve.knots, row) for row in np.eye(4)]
    design = np.stack(design, axis=1)

    def objective(beta):
        z = design @ beta
        return np.logaddexp(0, z).sum() - y @ z + 0.5 / 0.3 * (beta[1:] ** 2).sum()

    best = minimize(objective, np.zeros(design.shape[1]), method="BFGS", options={"gtol": 1e-8})
    assert np.abs(design @ best.x - model.log_odds(x)).max() < 1e-3
    assert model.slope > 1


def test_data_in_which_the_rate_heals_are_refused():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(200, 2))
    y = (x[:, 0] < 0).astype(int)
    with pytest.raises(ArtifactError, match="fails less often"):
        fit_additive(x, y, names=["rate", "a"], follows=[True, False])
    assert fit_additive(x, 1 - y, names=["rate", "a"], follows=[True, False]).slope > 0


def test_contributions_sum_to_the_log_odds_and_average_to_zero(table, classifier):
    model = classifier.heads["failed", Tier.RESPONSE].model
    x = table.x[:, [FEATURE_NAMES.index(name) for name in model.names]]
    parts = model.contributions(x)
    assert np.allclose(model.intercept + parts.sum(1), model.log_odds(x), atol=1e-12)
    assert np.abs(np.average(parts, axis=0, weights=table.weights)).max() < 1e-7


def test_risk_never_falls_with_the_learning_rate(table, classifier):
    for row in range(0, len(table), 37):
        features = _vector(table, row)
        for question in ("failed", "diverged"):
            p = [classifier.predict(features.at(10**d), question) for d in np.arange(-6, 1, 0.1)]
            assert (np.diff([q.probability for q in p]) >= 0).all()
            assert (np.diff([q.low for q in p]) >= 0).all()
    assert p[-1].probability > p[0].probability  # and somewhere it rises


def test_many_rates_at_once_are_each_of_them_alone(table, classifier):
    decades = np.array([-2.0, 0.0, 0.3, 1.7])
    features = _vector(table, 3)
    for question in ("failed", "diverged"):
        together = classifier.predict_at(features, decades, question)
        alone = [classifier.predict(features.moved(d), question) for d in decades]
        for one, other in zip(together, alone, strict=True):
            assert one.probability == pytest.approx(other.probability, rel=1e-9)
            assert (one.low, one.high) == pytest.approx((other.low, other.high), rel=1e-9)


def test_the_planted_edge_is_found(table, classifier):
    """Held out by seed: probabilities of new ladders rank and calibrate."""
    new = planted_table(seed=1)
    p = np.array([classifier.predict(_vector(new, i)).probability for i in range(len(new))])
    assert auroc(new.failed, p) > 0.93
    assert ece(new.failed, p) < 0.06
    # the negative control: shuffled labels must not rank
    assert abs(auroc(np.random.default_rng(0).permutation(new.failed), p) - 0.5) < 0.06


@pytest.mark.parametrize("name", CHALLENGERS)
def test_every_challenger_finds_the_planted_edge_too(table, name):
    """The comparison in the model card compares models that work."""
    p = predict_held_out(
        table, "failed", Tier.RESPONSE, table.ladder, folds=2, fit=CHALLENGERS[name]
    )
    assert auroc(table.failed, p) > 0.9
    assert ece(table.failed, p) < 0.1


def test_the_interval_holds_the_estimate_and_widens_off_the_data(table, classifier):
    inside = _vector(table, 5)
    near = classifier.predict(inside)
    assert near.low < near.probability < near.high
    values = table.x[5].copy()
    values[FEATURE_NAMES.index("grad_norm")] = 40.0
    odd = FeatureVector(values=values, tier=Tier.RESPONSE)
    assert "grad_norm" in classifier.outside(odd)
    assert "grad_norm" not in classifier.outside(inside)
    assert classifier.distance(odd) > classifier.distance(inside)
    far = classifier.predict(odd)
    assert far.high - far.low > near.high - near.low


def test_the_artifact_rebuilds_byte_for_byte(table, classifier):
    text = classifier.to_json()
    back = DivergenceClassifier.from_json(text)
    assert back.to_json() == text
    for row in range(0, len(table), 53):
        assert back.predict(_vector(table, row)) == classifier.predict(_vector(table, row))


def test_fitting_twice_gives_the_same_bytes(classifier):
    first, again = (fit_classifier(planted_table(ladders=16), {}).to_json() for _ in range(2))
    assert first == again
    assert first != classifier.to_json()


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.pop("heads"),
        lambda d: d.update(schema="other"),
        lambda d: d.update(features="features-0"),
        lambda d: d["heads"]["failed/response"]["model"].update(intercept="x"),
        lambda d: d["heads"]["failed/response"]["model"].update(slope=-1.0),
        lambda d: d["heads"]["failed/response"]["model"]["features"]["depth"]["knots"].reverse(),
        lambda d: d["heads"]["failed/response"]["model"]["features"]["depth"].update(values=[1.0]),
        lambda d: d["heads"]["failed/response"]["model"]["features"]["depth"].update(missing=1e999),
    ],
)
def test_a_damaged_artifact_is_refused(classifier, damage):
    document = json.loads(classifier.to_json())
    damage(document)
    with pytest.raises(ArtifactError):
        DivergenceClassifier.from_json(json.dumps(document))


def test_features_of_another_schema_are_refused(table, classifier):
    other = FeatureVector(values=table.x[0], tier=Tier.RESPONSE, schema="features-0")
    with pytest.raises(ArtifactError, match="features-0"):
        classifier.predict(other)


def test_calibration_recovers_a_planted_slope():
    rng = np.random.default_rng(0)
    raw = rng.normal(size=4000)
    y = (rng.random(4000) < expit(2 * raw - 1)).astype(int)
    fit = calibrate(raw, y, np.ones(4000))
    assert fit.slope == pytest.approx(2, abs=0.15)
    assert fit.offset == pytest.approx(-1, abs=0.15)


def test_the_shift_of_a_family_is_how_far_its_edge_lies_off():
    """A family whose edge is half a decade lower than predicted; pure families stay finite."""
    x = np.linspace(-4, 0, 4001)[:, None]
    predict = lambda x: expit(4 * (x[:, 0] + 2))
    rng = np.random.default_rng(0)
    failed = rng.random(4001) < expit(4 * (x[:, 0] + 2.5))
    follows = np.ones(1)
    assert rate_shift(predict, x, failed, follows) == pytest.approx(0.5, abs=0.05)
    assert rate_shift(predict, x, rng.random(4001) < predict(x), follows) == pytest.approx(
        0, abs=0.05
    )
    assert rate_shift(predict, x, np.ones(4001), follows) == 3.0
    assert rate_shift(predict, x, np.zeros(4001), follows) == -3.0


def test_ece_of_a_calibrated_and_of_an_overconfident_predictor():
    rng = np.random.default_rng(0)
    p = rng.random(20_000)
    y = rng.random(20_000) < p
    assert ece(y, p) < 0.02
    assert ece(y, (p > 0.5).astype(float)) == pytest.approx(0.25, abs=0.02)


def test_the_reliability_diagram_is_the_same_file_every_time(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is an extra: rksp[plots]")
    rng = np.random.default_rng(0)
    p = rng.random(300)
    y = (rng.random(300) < p).astype(int)
    first, again = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in (first, again):
        reliability_diagram(y, {"honest": p, "bold": (p > 0.5).astype(float)}, path)
    assert first.read_bytes() == again.read_bytes()
    shifted = tmp_path / "c.svg"
    reliability_diagram(y, {"honest": p, "bold": p}, shifted)
    assert shifted.read_bytes() != first.read_bytes()
    with pytest.raises(InputError, match=r"a\.pdf"):
        reliability_diagram(y, {"honest": p}, tmp_path / "a.pdf")


def test_bootstrap_over_ladders_is_wider_than_over_rows():
    """Rows of one group are copies: the honest interval knows it."""
    rng = np.random.default_rng(0)
    value = np.repeat(rng.normal(size=40), 25)
    grouped = bootstrap(lambda rows: value[rows].mean(), np.repeat(np.arange(40), 25))
    single = bootstrap(lambda rows: value[rows].mean(), np.arange(1000))
    assert grouped[1] - grouped[0] > 3 * (single[1] - single[0])


def test_a_curve_is_linear_between_knots_and_constant_beyond():
    parts = {"follows": True, "knots": [0.0, 1.0], "values": [-1.0, 2.0], "missing": 0.5}
    model = AdditiveModel.from_dict(
        {"intercept": 0.0, "slope": 2.0, "mean_rate": -1.0, "features": {"a": parts}}
    )
    rate = -2.0  # a decade below the mean: -2
    x = np.array([[rate, rate + a] for a in (-5.0, 0.0, 0.5, 1.0, 9.0, np.nan)])
    assert model.log_odds(x).tolist() == [-3.0, -3.0, -1.5, 0.0, 0.0, -1.5]
