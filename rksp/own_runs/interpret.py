"""What a run's words mean: its recipe, its model, its rate, its loss."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from rksp.documents.own_runs import LeftOutReport
from rksp.ground.errors import InputError
from rksp.models.configuration import ModelSettings
from rksp.models.resolve import settings_of
from rksp.own_runs.metrics import in_nats, is_gain, is_metric, is_norm, is_rate, loss_among
from rksp.own_runs.outcome import Trained, ended, final_loss
from rksp.own_runs.record import PREFIX, UNSEEN, Shape, is_of_old_watch
from rksp.own_runs.run import Curve, RawRun, number_of
from rksp.recipe_files.columns import canonical, in_our_words
from rksp.recipe_files.parse.document import Document
from rksp.recipe_files.parse.values import Section
from rksp.recipe_files.registry import matches_any, read_document
from rksp.recipe_files.said.origin import OriginKind

# The recipe's fields that a run states, its model, and settings of that.
_Setup = tuple[Mapping[str, object], str | None, Mapping[str, object]]
_READ = (OriginKind.FILE, OriginKind.COMPUTED, OriginKind.TRAINER)
# Text that differs from run to run and says nothing of how it was trained.
_BOOKKEEPING = frozenset(
    {
        *("name", "id", "run_id", "run_name", "state", "status", "user", "notes", "tags", "group"),
        *("created", "host", "hostname", "entity", "project", "sweep", "job_type", "commit"),
        *("git_commit", "path", "output_dir", "logging_dir", "date", "time", "description", "url"),
        *("experiment", "experiment_name", "outcome", "trial_id"),
    }
)
_STEPS = ("_step", "global_step", "train/global_step", "trainer/global_step", "step")
_NAMED = 8  # columns, where none of them is known
_FEW = 0.5  # of the runs: a text with more values than this share is a name, not a setting


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """One run in rksp's words.

    Attributes:
        raw: As its tracker has it.
        rate: Peak learning rate.
        fields: Of the recipe, besides the rate, that the run states.
        target: The model that it names; None for the one in question.
        overrides: Settings of the model that it states.
        shape: What a record of rksp says of the model; None in other files.
        apart: Texts that differ from run to run, such as the data set.
        loss_name: The metric that counts.
        loss: Its curve, in nats.
        final: Its end, in nats; NaN without one.
        grad_norm: The curve of the gradient's norm.
        last_step: The last step that was logged; None if nobody says.
    """

    raw: RawRun
    rate: float
    fields: Mapping[str, object]
    target: str | None
    overrides: Mapping[str, object]
    shape: Shape | None
    apart: tuple[tuple[str, str], ...]
    loss_name: str
    loss: Curve | None
    final: float
    grad_norm: Curve | None
    last_step: int | None

    def trained(self, planned: int | None) -> Trained:
        """Return what its label depends on; `planned` counts its steps, if they are known."""
        over = final_loss(self.loss, planned)
        return Trained(
            rate=self.rate,
            final=self.final if math.isnan(over) else over,
            loss=self.loss,
            grad_norm=self.grad_norm,
            ended=ended(self.raw.state, self.final, self.loss, planned),
            outcome=self.raw.outcome,
        )


@dataclass(slots=True)
class Words:
    """Reads the words of many runs; what they share is read once.

    Attributes:
        target: The model in question, which a run that names none is of.
        metric: The metric that counts; None lets the names decide.
    """

    target: str | None
    metric: str | None = None
    ignored: set[str] = field(default_factory=set)
    _setups: dict[object, _Setup | InputError] = field(default_factory=dict)
    _settings: dict[str | None, ModelSettings | None] = field(default_factory=dict)

    def read(self, raws: Sequence[RawRun]) -> tuple[list[PastRun], list[LeftOutReport]]:
        """Return the runs that can be used, and the others."""
        kept, others = [], []
        texts = _settings_in_text(raws)
        for raw in raws:
            try:
                kept.append(self._run(raw, texts))
            except InputError as error:
                others.append(left_out(raw, error))
        return kept, others

    def _run(self, raw: RawRun, texts: frozenset[str]) -> PastRun:
        if self.metric is not None and is_gain(self.metric):
            raise InputError(f"{self.metric} is no loss: more of it is better; name a loss")
        name = self.metric or loss_among((*raw.curves, *raw.finals))
        names = ", ".join(sorted({*raw.curves, *raw.finals})[:_NAMED]) or "none"
        if name is None:
            raise InputError(f"it has no loss among its columns ({names}); name it with --metric")
        if name not in raw.curves and name not in raw.finals:
            raise InputError(f"it has no metric {name!r} among its columns ({names})")
        fields, target, overrides = self.settings(raw, texts)
        rate = _rate_of(raw, fields)
        if rate is None or not 0 < rate < math.inf:
            raise InputError("it has no learning rate")
        loss = _curve(raw, name)
        is_told = bool(raw.outcome) or ended(raw.state, math.nan, None, None) == "diverged"
        last = number_of(raw.finals.get(name))
        final = in_nats(name, last) if last is not None else math.nan
        if last is not None and math.isnan(last):  # written down, and not just missing
            final = math.inf
        if loss is not None:
            final = float(loss.values[-1])
        elif last is None and not is_told:
            raise InputError(f"its {name} is no number")
        if final < 0:
            raise InputError(f"its {name} is below zero, so it is no cross-entropy")
        norm = next((c for n, c in raw.curves.items() if is_norm(n)), None)
        return PastRun(
            raw=raw,
            rate=rate,
            fields={k: v for k, v in fields.items() if k != "learning_rate"},
            target=target,
            overrides=overrides,
            shape=Shape.read(raw.said),
            apart=tuple((n, str(raw.said[n])[:200]) for n in sorted(texts) if n in raw.said),
            loss_name=name,
            loss=loss,
            final=final,
            grad_norm=norm,
            last_step=_last_step(raw, loss),
        )

    def settings(self, raw: RawRun, texts: frozenset[str] = frozenset()) -> _Setup:
        """Return the recipe's fields, the model and its settings; alike runs share the reading."""
        said = {
            name: value
            for name, value in raw.said.items()
            if not (
                is_metric(name)
                or name == self.metric
                or is_bookkeeping(name)
                or name in texts
                or name in _STEPS
            )
            and isinstance(value, int | float | str | bool | list)
            and not (name in UNSEEN and is_of_old_watch(raw.said))
        }
        rates = {name for name in said if canonical(name) == ("recipe", "learning_rate")}
        kept = {n: v for n, v in said.items() if n not in rates and self._counts(n, said)}
        key = tuple(sorted((name, repr(value)) for name, value in kept.items()))
        if key not in self._setups:
            try:
                self._setups[key] = self._read_setup(raw, kept | {n: said[n] for n in rates})
            except InputError as error:
                self._setups[key] = error
        found = self._setups[key]
        if isinstance(found, InputError):
            raise found
        fields, target, overrides = found
        fields = {name: value for name, value in fields.items() if name != "learning_rate"}
        rate = {"learning_rate": said[min(rates)]} if rates else {}
        return fields | rate, target, overrides

    def _counts(self, name: str, said: Mapping[str, object]) -> bool:
        kind, setting = canonical(name)
        if kind == "seed" or name.startswith(PREFIX):
            return False
        is_known = kind != "set" or name.startswith("set.") or self._knows(setting, said)
        if is_known or _is_argument(name):
            return True
        self.ignored.add(name)
        return False

    def _knows(self, setting: str, said: Mapping[str, object]) -> bool:
        target = next((str(said[n]) for n in said if canonical(n)[0] == "target"), self.target)
        if target not in self._settings:
            self._settings[target] = None if target is None else settings_of(target)
        return setting in (self._settings[target] or ())

    def _read_setup(self, raw: RawRun, said: Section) -> _Setup:
        fields: dict[str, object] = {}
        target: str | None = None
        overrides: dict[str, object] = {}
        document = Document(path=raw.file, syntax="json", data=said)
        if any(_is_argument(name) for name in said) and matches_any(document):
            read = read_document(document)
            fields |= {
                f.name: f.value
                for f in read.fields
                if f.origin.kind in _READ or "devices" in f.origin.assumes  # one, unless it says so
            }
            fields |= {} if "max_steps" not in said else {"max_steps": said["max_steps"]}
        for name, value in said.items():
            kind, key = canonical(name)
            if kind == "target":
                target = str(value)
            elif kind == "recipe":
                fields[key] = in_our_words(key, value)
            elif not _is_argument(name):
                overrides[key] = value
        steps = number_of(fields.get("max_steps"))
        if steps is not None and steps < 1:
            fields.pop("max_steps")  # Hugging Face's -1
        if fields.get("max_grad_norm") == 0:
            fields["max_grad_norm"] = None
        return fields, target, overrides


def left_out(raw: RawRun, error: InputError) -> LeftOutReport:
    """Return a run that says nothing, and why, as a clause."""
    return LeftOutReport(name=raw.name, file=str(raw.file), reason=str(error).rstrip("."))


def _settings_in_text(raws: Sequence[RawRun]) -> frozenset[str]:
    values: dict[str, Counter[str]] = {}
    for raw in raws:
        for name, value in raw.said.items():
            if isinstance(value, str) and _may_tell_apart(name):
                values.setdefault(name, Counter())[value] += 1
    return frozenset(
        name for name, found in values.items() if 1 < len(found) <= _FEW * sum(found.values())
    )


@lru_cache(maxsize=4096)
def _may_tell_apart(name: str) -> bool:
    is_own = name.startswith(PREFIX) or is_bookkeeping(name) or _is_argument(name)
    return canonical(name)[0] == "set" and not is_own


@lru_cache(maxsize=4096)
def is_bookkeeping(name: str) -> bool:
    """Tell whether a column says nothing of how a run was trained: a name, a path, a date."""
    plain = name.lower().replace("/", "_").replace("-", "_").replace(" ", "_").lstrip("_")
    is_named = plain.endswith(("_dir", "run_name", "_id")) or plain.startswith("tags.mlflow")
    return plain in _BOOKKEEPING or is_named


# Settings of Hugging Face's trainer that `canonical` does not know, and that its reader does.
_MORE_ARGUMENTS = ("bf16", "fp16", "warmup_ratio", "logging_strategy")
_ARGUMENTS = ("per_device", "num_train_epochs", "adam_beta", "lr_scheduler_kwargs", "gradient_acc")


@lru_cache(maxsize=4096)
def _is_argument(name: str) -> bool:
    plain = name.rsplit(".", 1)[-1].removeprefix("params_")
    return plain.startswith(_ARGUMENTS) or plain in _MORE_ARGUMENTS


def _rate_of(raw: RawRun, fields: Mapping[str, object]) -> float | None:
    said = number_of(fields.get("learning_rate"))
    if said is not None:
        return said
    for name, curve in raw.curves.items():
        if is_rate(name) and len(curve.values):
            return float(curve.values.max())
    return next((number_of(v) for n, v in raw.finals.items() if is_rate(n)), None)


def _curve(raw: RawRun, name: str) -> Curve | None:
    found = raw.curves.get(name)
    if found is None or in_nats(name, 2.0) == 2.0:  # it is in nats already
        return found
    return Curve(steps=found.steps, values=np.array([in_nats(name, v) for v in found.values]))


def _last_step(raw: RawRun, loss: Curve | None) -> int | None:
    if loss is not None and len(loss.steps):
        return int(loss.steps[-1]) + 1
    found = next((number_of(raw.finals[n]) for n in _STEPS if n in raw.finals), None)
    return None if found is None or not 0 < found < 2**53 else int(found)
