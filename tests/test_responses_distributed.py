"""Back-off in two processes under `torchrun`: DDP in the Trainer of transformers, FSDP2 by hand.

Every rank has its own half of the data. The rate leaps a thousandfold at one step, and all ranks
must roll back together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

STEPS, LEAP, BATCH, LENGTH, RANKS = 100, 25, 4, 8, 2
MONITORS = ["loss", "gradient-norm", "non-finite"]
BACKOFF = ["backoff:every=10,lead=10,hold=10"]

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="this torch was built without gloo",
)


def _rows() -> list[dict[str, torch.Tensor]]:
    """Sequences that count up from a random token."""
    generator = torch.Generator().manual_seed(3)
    first = torch.randint(0, 31, (STEPS * BATCH * RANKS, 1), generator=generator)
    tokens = (first + torch.arange(LENGTH)) % 31
    return [{"input_ids": row, "labels": row} for row in tokens]


def _gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 32, "n_positions": LENGTH}
    dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**shape, **dropout, bos_token_id=0, eos_token_id=0))


def _optimizer(model: torch.nn.Module, factor: float):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    leap = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: factor if s == LEAP else 1.0)
    return optimizer, leap


def _ddp(folder: str, factor: float):
    from transformers import Trainer, TrainingArguments

    from rksp.training.callbacks.hugging_face import WatchCallback

    model = _gpt2()
    callback = WatchCallback(monitors=MONITORS, interventions=BACKOFF)
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        max_grad_norm=0.0,
        use_cpu=True,
        ddp_backend="gloo",
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=_rows(),
        optimizers=_optimizer(model, factor),
        callbacks=[callback],
    )
    trainer.train()
    assert isinstance(trainer.model_wrapped, torch.nn.parallel.DistributedDataParallel)
    return callback.loop


def _fsdp2(folder: str, factor: float):
    from torch.distributed.fsdp import fully_shard
    from torch.utils.data import DataLoader

    from rksp.training.callbacks.plain import LoopWatch

    rank = torch.distributed.get_rank()
    mesh = torch.distributed.init_device_mesh("cpu", (RANKS,))
    model = _gpt2()
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer, schedule = _optimizer(model, factor)
    watch = LoopWatch(model, optimizer, monitors=MONITORS, interventions=[*BACKOFF, "zclip"])
    for batch in DataLoader(_rows()[rank::RANKS], batch_size=BATCH):
        watch.begin_step()
        loss = model(**batch).loss
        watch.penalized(loss).backward()
        watch.after_backward(loss)
        optimizer.step()
        schedule.step()
        watch.after_update()
        optimizer.zero_grad()
    watch.close()
    return watch


def _main(folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    found = {}
    # The Trainer counts the first label of a row, so each has its own healthy twin.
    for kind, trained in (("fsdp2", _fsdp2), ("ddp", _ddp)):
        for name, factor in (("healthy", 1.0), ("leap", 1e3)):
            loop = trained(folder, factor)
            found[f"{kind} {name}"] = {
                "losses": [r.value for r in loop.watch.readings if r.quantity == "loss"],
                "back": [a.step for a in loop.actions if a.what.startswith("rolled back")],
                "silent": dict(loop.watch.silent),
            }
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launch, "--nproc-per-node", str(RANKS), __file__, str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_every_rank_rolls_back_at_the_same_step_and_the_run_is_saved(ranks, kind: str) -> None:
    assert ranks[0][f"{kind} leap"] == ranks[1][f"{kind} leap"]
    healthy, saved = ranks[0][f"{kind} healthy"], ranks[0][f"{kind} leap"]
    assert saved["silent"] == {} and healthy["back"] == []
    assert saved["back"] == [LEAP + 1]
    last = [sum(run["losses"][-5:]) / 5 for run in (healthy, saved)]
    assert last[0] < healthy["losses"][0] - 1  # it learns
    assert abs(last[1] - last[0]) < 0.1


if __name__ == "__main__":
    _main(sys.argv[1])
