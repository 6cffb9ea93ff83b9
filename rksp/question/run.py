"""A run: what is trained and how, and where each field of that comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rksp.ground.errors import InputError, UnknownModel
from rksp.ground.factory import refuse_factory
from rksp.ground.files import is_file
from rksp.ground.flags import field_of
from rksp.recipe import Recipe
from rksp.recipe.start import Start, decide_start
from rksp.recipe_files.said.origin import (
    Origin,
    OriginKind,
    assumptions,
    left_out,
    line_of,
    phrase,
    used_in,
)

if TYPE_CHECKING:  # a run is read without what measures a model
    from rksp.documents.finding import Edit, Finding
    from rksp.documents.score import ScoreReport
    from rksp.models.source import ModelSource
    from rksp.recipe_files.said.origin import RecipeFile

RUN_SUFFIXES = (".yaml", ".yml", ".toml", ".py", ".ipynb", ".sh", ".bash", ".slurm", ".sbatch")
_UNASKED = OriginKind.UNASKED
_UNUSED = Origin(kind=_UNASKED, text="no effect: the model reads images")
_DEVICES = (1, 8, 64, 1024)
_LONG_PHRASES = {"max_steps": "a run of {}"}  # where no list says what the steps are of
_COMPARED = ("precision", "peft")  # a batch of another size is no contradiction


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A target, its recipe, and where each field of the recipe comes from.

    Attributes:
        target: See `rksp.resolve`.
        recipe: How it is to be trained.
        origins: Field of the recipe -> where it comes from.
        overrides: Settings of the model that the run file changes.
        file: The run file.
        named: The run file as it was named, `FILE.py::NAME` for one of several configurations.
        trainer: Its reader, where it was named.
        devices: Number of devices, where it was given.
        is_typed: A person typed the target; it does not stand in the file.
        keys: Field -> the key of the file's trainer that takes it in rksp's units.
        said: How it starts, as a person typed or else the file says; None leaves it to the target.
        read_file: All that was read of the file.
        notes: What is to be known about the file, a sentence each.
        missing: Why the file describes no model, a sentence; empty where it does.
    """

    target: str
    recipe: Recipe
    origins: Mapping[str, Origin] = field(default_factory=dict)
    overrides: Mapping[str, object] = field(default_factory=dict)
    file: Path | None = None
    named: str = ""
    trainer: str | None = None
    devices: int | None = None
    is_typed: bool = True
    keys: Mapping[str, str] = field(default_factory=dict)
    said: Start | None = None
    read_file: RecipeFile | None = None
    notes: tuple[str, ...] = ()
    missing: str = ""

    @classmethod
    def typed(
        cls, target: str, fields: Mapping[str, object], flags: Mapping[str, str] | None = None
    ) -> Run:
        """Return a run without a file.

        Args:
            target: See `rksp.resolve`.
            fields: What was typed of the recipe; other fields have rksp's defaults.
            flags: Field -> the option that sets it, where options were typed.

        Raises:
            InputError: A field is unknown or out of range.
        """
        recipe = Recipe.parse(fields, flags)
        names, named = (field_of(Recipe, name) for name in fields), flags or {}
        said = {name: named.get(name, "given") for name in names}
        return cls(target=target, recipe=recipe, origins=origins_of_flags(recipe, said))

    @classmethod
    def read(
        cls,
        target: str,
        fields: Mapping[str, object],
        *,
        file: Path | None = None,
        devices: int | None = None,
        trainer: str | None = None,
        strict: bool = False,
        flags: Mapping[str, str] | None = None,
        needs_model: bool = True,
    ) -> Run:
        """Return the run of a file, if the target is one or comes with one; else as `typed`.

        Typed fields override the file, and the file overrides rksp's defaults.

        Args:
            target: See `typed`; or a trainer's file that describes its model.
            fields: See `typed`.
            file: The file of the recipe, if it is not the target.
            devices: Number of devices, where the file gives the batch per device.
            trainer: Whose file it is; by default the trainer is recognized.
            strict: Refuse a file with a setting that is not known.
            flags: See `typed`.
            needs_model: Refuse a file that describes no model, which else has no answer.

        Raises:
            InputError: The file cannot be read, describes no model where one is needed, or a value
                cannot be used.
        """
        is_target = file is None and (
            is_run_file(target) or (trainer is not None and Path(target).is_file())
        )
        if file is None and not is_target:
            run = cls.typed(target, fields, flags)
            for given, why in (
                (devices, "--devices needs a run file"),
                (trainer, "--as needs a run file"),
                (run.recipe.rows, "--rows makes steps of a run file's epochs"),
            ):
                if given is not None:
                    raise InputError(f"{why}; give --recipe FILE.")
            return run
        from rksp.recipe_files.registry import read_recipe_file

        typed = {field_of(Recipe, name): value for name, value in fields.items()}
        path = file or Path(target)
        read = read_recipe_file(path, trainer=trainer, devices=devices, given=typed)
        unknown = [str(one) for one in read.unread if not (one.why or one.value)]
        if strict and unknown:
            raise InputError(f"{read.path}: {'; '.join(unknown)} (--strict).")
        named = Start(kind="elsewhere", because=f"{read.path.name} names weights")
        run = cls(
            target=target,
            recipe=read.recipe(),
            origins=read.origins(),
            file=read.path,
            named=str(file or target),
            trainer=trainer,
            devices=devices,
            keys=read.keys,
            said=named if read.names_weights else None,
            read_file=read,
            notes=read.notes,
        )
        if file is not None:
            return run
        if read.target is None:
            missing = f"{read.target_missing} For example: rksp score gpt2 --recipe {target}"
            if needs_model:
                raise InputError(f"{target}: {missing}")
            return replace(run, target=read.path.name, is_typed=False, missing=missing)
        refuse_factory(read.target.name, target)
        return replace(
            run,
            target=read.target.name,
            overrides=read.target.overrides,
            is_typed=False,
            notes=(*read.notes, *read.target.notes),
        )

    def sourced(self, resolve: Callable[[], ModelSource]) -> ModelSource:
        """Return the source of the target; one without an answer for what only a file names."""
        from rksp.models.source import unfound

        if self.missing:
            return unfound(self.target, self.missing)
        try:
            return resolve()
        except UnknownModel as error:
            if self.is_typed:
                raise
            return unfound(self.target, str(error))

    @property
    def assumed(self) -> str:
        """All assumptions in one line."""
        return line_of(assumptions(dict(self.recipe), self.origins))

    def alternatives(self) -> list[tuple[str, Recipe]]:
        """Return other recipes that the same input could mean, each with its assumption.

        They leave out the rate. Only assumed fields vary, one assumption at a time: 1 to 1024
        devices, batches of 8 to 2048,
        sequences of 256 to 8192 tokens, runs of 100 to 100,000 steps that outlast the warm-up, and
        a warm-up of none to a tenth of the run. The assumption decides a verdict that differs among
        these.
        """
        found, recipe = [], self.recipe.model_copy(update={"learning_rate": None})
        roots = {root for origin in self.origins.values() for root in origin.assumes}
        if "devices" in roots:
            for count in _DEVICES[1:]:
                changed = recipe.model_copy(update={"batch_size": recipe.batch_size * count})
                found.append(
                    (f"{count} devices, so {phrase('batch_size', changed.batch_size)}", changed)
                )
        steps = recipe.max_steps
        for name, values in (
            ("batch_size", (8, 256, 2048)),
            ("sequence_length", (256, 2048, 8192)),
            ("max_steps", [n for n in (100, 10_000, 100_000) if n > recipe.warmup_steps]),
            ("warmup_steps", (0, steps // 100, steps // 10)),
        ):
            if name in roots:
                found += [
                    (
                        _LONG_PHRASES.get(name, "{}").format(phrase(name, value)),
                        recipe.model_copy(update={name: value}),
                    )
                    for value in dict.fromkeys(values)
                    if value != getattr(recipe, name)
                ]
        return found

    @property
    def unread_lines(self) -> list[str]:
        """The settings of the file that may matter and were not read, a line each."""
        unread = () if self.read_file is None else self.read_file.unread
        return [f"{self.file}: {one}." for one in unread]

    def starting(self, *, is_pretrained: bool) -> Run:
        """Return the run that starts as a person typed, whatever file and target say."""
        typed = ("scratch", "--from-scratch"), ("elsewhere", "--pretrained")
        kind, because = typed[is_pretrained]
        return replace(self, said=Start(kind=kind, because=because))

    def started(self, source: ModelSource) -> ModelSource:
        """Return the source of the target with the start of the run.

        Raises:
            InputError: The run is to start from random weights, and the target holds trained ones.
        """
        start = decide_start(source.start, said=self.said, name=self.target)
        return replace(source, start=start)

    def with_model(self, source: ModelSource) -> tuple[Run, ModelSource]:
        """Return the run with what its model shows of the recipe, and the source with its start.

        Where the model shows other than the recipe says, the recipe counts, and the source has a
        note.

        Raises:
            InputError: The run is to start from random weights, and the target holds trained ones.
        """
        source, shown = self.started(source), source.shown
        # Fields with a default of their own; a batch per device is half decided.
        own = [n for n, x in self.origins.items() if x.kind is _UNASKED or x.assumes == (n,)]
        found = {name: value for name, value in shown.items() if name in own}
        notes = [
            f"The module shows {name} {shown[name]}, but the recipe says "
            f"{getattr(self.recipe, name)}; the recipe was judged."
            for name in _COMPARED
            if name in shown and name not in found and getattr(self.recipe, name) != shown[name]
        ]
        source = replace(source, notes=(*source.notes, *notes))
        if not found:
            return self, source
        by_model = Origin(kind=OriginKind.FLAG, text=source.shown_by)
        told = {n: _UNUSED if value is None else by_model for n, value in found.items()}
        known = {name: value for name, value in found.items() if value is not None}
        recipe = Recipe.parse(self.recipe.model_dump(exclude_unset=True) | known)
        return replace(self, recipe=recipe, origins={**self.origins, **told}), source

    def written_in(self, report: ScoreReport) -> ScoreReport:
        """Return a report with where each field comes from, and with fixes in the file's words."""
        from rksp.documents.answer import FromEdge
        from rksp.documents.score import OriginReport, UnreadReport
        from rksp.recipe_files.said.edits import RunText
        from rksp.recipe_files.said.origin import in_full, in_own_words, settings_in

        known: dict[str, Any] = {"recipe": self.recipe, "origins": self.origins}
        text = RunText(path="", **known)
        if self.named:
            document = None if self.read_file is None else self.read_file.document
            known |= {"keys": self.keys, "trainer": self.trainer, "devices": self.devices}
            text = RunText.of(self.named, "" if document is None else document.text, **known)
        edit = cache(text.edit)

        def edits(finding: Finding) -> list[Edit]:
            found = [edit(*one) for one in settings_in(finding.fix).items()]
            if finding.code.startswith("RKSA"):
                from rksp.checks.advisories import settings_of  # 0.1 s that others spare

                asked = [text.key_edit(*one) for one in settings_of(finding.code).items()]
                found += [one for one in asked if one] if all(asked) else []
            return found

        worded = partial(in_own_words, origins=self.origins, keys=self.keys)
        seeds = list(report.seeds)
        for place, seed in enumerate(seeds):
            if isinstance(seed.risk, FromEdge):
                levers = [
                    lever.model_copy(update={"change": worded(lever.change)})
                    for lever in seed.risk.levers
                ]
                risk = seed.risk.model_copy(update={"levers": levers})
                seeds[place] = seed.model_copy(update={"risk": risk})
        return report.model_copy(
            update={
                "findings": [
                    finding.model_copy(update={"fix": worded(finding.fix), "edit": edits(finding)})
                    for finding in report.findings
                ],
                "seeds": seeds,
                "recipe_places": {
                    name: (origin.file, origin.line)
                    for name, origin in self.origins.items()
                    if origin.file is not None and origin.line is not None and not origin.assumes
                },
                "recipe_origins": {
                    name: OriginReport.of(in_full(origin)) for name, origin in self.origins.items()
                },
                "unread": [
                    UnreadReport(
                        **asdict(one), file=self.file and self.file.as_posix(), text=str(one)
                    )
                    for one in (() if self.read_file is None else self.read_file.unread)
                ],
                "assumed": self.assumed,
            }
        )


def origins_of_flags(recipe: Recipe, typed: Mapping[str, str]) -> dict[str, Origin]:
    """Return the origins of all fields if no file was read.

    Args:
        recipe: The recipe of the options.
        typed: Field → its source (`--lr`); the other fields are rksp's defaults.
    """
    used = used_in(dict(recipe))
    return {
        name: Origin(kind=OriginKind.FLAG, text=typed[name])
        if name in typed
        else left_out(name, name in used)
        for name in Recipe.model_fields
    }


def is_run_file(target: str) -> bool:
    """Return True if a target is a trainer's file; JSON may also be a model's configuration.

    A pickle of training arguments counts too, so that the error can say what to do.
    """
    if target == "-":  # standard input
        return True
    path = Path(target.partition("::")[0])
    if not is_file(path):  # or a name that no file system takes: said when it is resolved
        return False
    if path.name == "training_args.bin":
        return True
    if path.suffix != ".json":
        return path.suffix in RUN_SUFFIXES
    from rksp.recipe_files.parse.document import load_document
    from rksp.recipe_files.registry import is_run

    document = load_document(path)
    if document.has("schema_version"):  # a report of ours
        return False
    return not document.has("model_type") and is_run(document)


def holds_a_run(name: str) -> bool:
    """Tell whether a file found in a folder is a run file: it sets a learning rate or a model."""
    from rksp.recipe_files.registry import read_recipe_file

    try:
        read = read_recipe_file(Path(name), devices=1)
    except InputError:
        return False
    rate = next((one for one in read.fields if one.name == "learning_rate"), None)
    is_set = rate is not None and rate.origin.kind in (OriginKind.FILE, OriginKind.COMPUTED)
    return is_set and (read.target is not None or read.understood > 1)
