"""Train base models in the lab, and keep them as checkpoints with what they learned."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from torch import nn

from lab.tasks.domain_tasks import PADDING, START, make_domain_task
from lab.tasks.domains import Part
from lab.tasks.tasks import Task
from lab.zoo import build_member
from rksp.datasets.batch import Batch, mean_loss
from rksp.ground.errors import ArtifactError
from rksp.ground.files import atomic_write, digest, read_text
from rksp.ground.model import Strict
from rksp.models.configuration import quiet
from rksp.recipe import Recipe
from rksp.watch.training import train

# Held-out batches of 16 rows: as few as judge a text, more where a row has one label only.
_JUDGING_SIZE, _JUDGING_BATCHES, _ONE_LABEL = 16, 4, 12
_JUDGING_SEED = 2_000_003  # separates them from the training batches
_REPORT, _MOST_BYTES = "base.json", 2**20
_TOKENS = {
    "pad_token_id": PADDING,
    "bos_token_id": START,
    "eos_token_id": START,
    "decoder_start_token_id": START,
}
# By family, what a base model's configuration has that a model trained from its initialization has
# not: the tokens of the domain tasks, and the gated layers of the T5 that people tune (1.1).
_CHANGES: dict[str, Any] = {"t5": _TOKENS | {"feed_forward_proj": "gated-gelu"}, "bart": _TOKENS}


class BaseSpec(Strict):
    """What decides the weights of a base model."""

    family: str
    shape: dict[str, bool | int | float | str | None]
    task: str
    task_options: dict[str, int | str | None] = {}
    recipe: Recipe
    seed: int = 0

    @property
    def id(self) -> str:
        """Hash of the content, under which the model is stored."""
        content = self.model_dump(mode="json", exclude={"recipe"})
        content["recipe"] = self.recipe.model_dump(mode="json", exclude_defaults=True)
        return digest(json.dumps(content, sort_keys=True))

    def old_task(self, part: Part) -> Task:
        """Return one part of the task that the model learned."""
        return make_domain_task(self.task, part=part, **self.task_options)


class BaseReport(Strict):
    """What a base model learned, in nats on held-out data of its own domain."""

    held_out: float
    trivial: float
    parameters: int
    seconds: float


class BaseModels:
    """A folder of base models, each trained when it is asked for the first time.

    Two processes that want the same model at once train it twice, with the same result.

    Args:
        folder: The folder, which is created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, spec: BaseSpec) -> tuple[Path, BaseReport]:
        """Return the checkpoint of a model, and what it learned."""
        home = self.folder / spec.id
        if not (home / _REPORT).is_file():
            self._train(spec, home)
        try:
            stored = json.loads(read_text(home / _REPORT, _MOST_BYTES))
            return home, BaseReport.model_validate(stored["report"])
        except (ValueError, LookupError, TypeError) as error:
            raise ArtifactError(f"{home} is not a base model: {error!s:.200}.") from error

    def _train(self, spec: BaseSpec, home: Path) -> None:
        started = time.process_time()
        model = base_member(spec)
        task, recipe = spec.old_task("training"), spec.recipe
        train(model, task.batches(recipe.max_steps, recipe.batch_size, seed=spec.seed), recipe)
        report = BaseReport(
            held_out=mean_loss(model, judging_batches(spec.old_task("held_out"))),
            trivial=task.trivial_loss,
            parameters=sum(p.numel() for p in model.parameters()),
            seconds=time.process_time() - started,
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=self.folder, prefix=".partial-") as partial:
            with quiet():
                cast(Any, model).save_pretrained(partial)
            document = {"spec": spec.model_dump(mode="json"), "report": report.model_dump()}
            atomic_write(Path(partial) / _REPORT, json.dumps(document))
            home.mkdir(exist_ok=True)
            # The report comes last: a folder without one is trained again.
            for path in sorted(Path(partial).iterdir(), key=lambda path: path.name == _REPORT):
                shutil.move(path, home / path.name)


def base_member(spec: BaseSpec) -> nn.Module:
    """Build a base model as its training begins."""
    changes = _CHANGES.get(spec.family)
    return build_member(spec.family, spec.shape, seed=spec.seed, changes=changes)


def judging_batches(task: Task) -> list[Batch]:
    """Return the batches that judge every model on a task: always the same."""
    count = _ONE_LABEL if task.head in ("classifier", "image") else _JUDGING_BATCHES
    return task.batches(count, _JUDGING_SIZE, seed=_JUDGING_SEED)


def has_learned(report: BaseReport | Mapping[str, float], margin: float = 0.5) -> bool:
    """Tell whether a base model beats the label frequencies by `margin` nats on held-out data."""
    found = report if isinstance(report, BaseReport) else BaseReport.model_validate(report)
    return found.held_out < found.trivial - margin
