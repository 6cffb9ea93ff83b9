"""A confirmation and a grid, written by hand, for the tests of their renderings."""

from __future__ import annotations

from support.reports import HOSTILE

from rksp.documents.base import TargetReport
from rksp.documents.confirm import (
    ArmReport,
    ConfirmReport,
    MonitorReport,
    PredictionReport,
    TrialReport,
)
from rksp.documents.grid import GridReport, RiskMap
from rksp.recipe import Recipe
from rksp.recipe.start import SCRATCH


def confirmation_report() -> ConfirmReport:
    """Two arms of two runs; one diverges, with an alarm before."""

    def trial(arm: str, seed: int, loss: list[float | None], **more: object) -> TrialReport:
        nothing = {"alarms": {}, "silent": {}, "actions": {}, "undone": 0, "seconds": 1.0}
        nothing |= {"action_seconds": 0.0, "monitor_seconds": 0.1, "grad_norm": []}
        nothing |= {"onset": None, "first_alarms": {}, "leads": {}, "outcome": "converged"}
        named = {"arm": arm, "seed": seed, "steps": len(loss), "final_loss": loss[-1]}
        return TrialReport(**(nothing | named | {"loss": list(enumerate(loss))} | more))

    calm, wild = [4.0, 3.0, 2.5, 2.25], [4.0, 3.5, 9.0, None]
    saw = {"outcome": "diverged", "onset": 2, "first_alarms": {"loss": 1}, "leads": {"loss": 1}}
    monitor = MonitorReport(monitor="loss", runs=2, first_alarm=1.0, lead=1.0, silent=None)
    common = {"runs": 2, "diverged": 0, "learned": 0, "lost": 0}
    arms = [
        {"arm": "baseline", "failed": 2, "p_value": None, "final_loss": None, "saved": 0}
        | {"overhead": None, "monitors": [monitor]},
        {"arm": f"rate=0.3{HOSTILE}", "failed": 0, "p_value": 0.33, "final_loss": 2.25, "saved": 2}
        | {"overhead": 0.015, "monitors": []},
    ]
    return ConfirmReport(
        target=TargetReport(
            name=HOSTILE,
            kind="config",
            task="causal-lm",
            model_type="gpt2",
            parameters=1000,
            start=SCRATCH,
            config_hash=None,
            notes=["Model type mimo is read as qwen2."],
        ),
        asked=Recipe(learning_rate=3.0),
        trained=Recipe(learning_rate=3.0, max_steps=4),
        faults=[],
        prediction=PredictionReport(
            probability_failed=0.97,
            low=0.9,
            high=0.99,
            verdict="risk",
            reasons=[],
            start_here=5e-4,
            do_not_exceed=1e-3,
            threshold=0.5,
        ),
        prediction_held=True,
        verdict="failed",
        conclusions=["The prediction held."],
        arms=[ArmReport(**(common | arm)) for arm in arms],
        trials=[
            *(trial("baseline", seed, wild, **saw) for seed in (0, 1)),
            *(trial(arms[1]["arm"], seed, calm) for seed in (0, 1)),
        ],
        provenance={"rksp": "0", "command": "rksp confirm"},
        timings={"trials": 4.0},
    )


def grid_report(*, broken: bool = True, failing: list[int] | None = None) -> GridReport:
    """Two depths and three rates; the last depth cannot be built."""
    cells = []
    for position, (depth, rate) in enumerate((d, r) for d in (2, 4) for r in (1e-4, 3e-3, 0.3)):
        probability = min(0.99, 3 * rate + 0.001 * depth)
        cell = {"position": position, "model": f"gpt2 n_layer={depth}", "n_layer": depth}
        cell["target"] = ""
        cell |= {
            "learning_rate": rate,
            "lr": rate,
            "optimizer": "adamw",
            "start_here": 1e-3 / depth,
            "do_not_exceed": 2e-3 / depth,
            "expected_excess": 0.1 + rate,
        }
        cell |= {"probability_failed": probability, "probability_failed_low": probability / 2}
        cell |= {"probability_failed_high": min(1.0, probability * 1.5), "reasons": ""}
        cell |= {"verdict": "risk" if probability >= 0.5 else "ok", "seed": 0}
        levels = {"RKSP503": "warning", "RKSP501": "error", "RKSP504": "warning"}
        cell |= {"findings": [{"code": c, "level": level} for c, level in levels.items()]}
        cells.append(cell | {"failure": None, "message": None})
    if broken:
        lost = dict.fromkeys(cells[0], None)
        lost |= {"position": 6, "model": HOSTILE, "n_layer": HOSTILE, "learning_rate": 1e-4}
        lost |= {"verdict": "could not run", "failure": "invalid", "message": HOSTILE, "lr": 1e-4}
        lost |= {"findings": [], "reasons": "", "seed": 0, "target": ""}
        cells.append(lost)
    if failing is None:
        failing = [c["position"] for c in cells if c["verdict"] == "risk"]
    shares = [c["probability_failed"] for c in cells[:6]]
    rows = [{"name": f"{d}", "probabilities": shares[n : n + 3]} for d, n in ((2, 0), (4, 3))]
    rates = [1e-4, 3e-3, 0.3]
    heat = RiskMap.model_validate(
        {"axes": ["n_layer"], "rates": rates, "is_binned": False, "rows": rows}
    )
    return GridReport(
        risk_map=heat,
        verdict="incomplete" if broken else "risk" if failing else "ok",
        cells_in_grid=len(cells),
        axes=["lr", "n_layer"],
        profiles_made=2,
        cells=sorted(cells, key=lambda c: c["probability_failed"] or 2.0),
        best_safe={"gpt2 n_layer=2": cells[0], "gpt2 n_layer=4": cells[3], HOSTILE: None},
        pareto={},
        failing=failing,
        made_by={"rksp": "0"},
    )
