"""One small training in four trainers: those of transformers and Lightning, Accelerate, a loop.

Order of the data and weights are the same in all of them, so that they can be compared with each
other. Under `torchrun` every trainer runs DDP, and the ranks share the batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import lightning
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Trainer,
    TrainingArguments,
)

import rksp
from rksp.watch.attach.door import Watched
from rksp.watch.interventions.base import Intervention
from rksp.watch.moment import Moment
from rksp.watch.registry import make_fault

STEPS, LEAP, BATCH, LENGTH = 100, 60, 8, 8
MONITORS = ("loss", "gradient-norm", "non-finite")
BACKOFF = ("backoff:every=10,lead=10,hold=10",)


@cache
def rows(length: int = LENGTH) -> list[dict[str, torch.Tensor]]:
    """Sequences that count up from a random token: their loss falls to that of the first one."""
    first = torch.randint(0, 31, (STEPS * BATCH, 1), generator=torch.Generator().manual_seed(3))
    tokens = (first + torch.arange(length)) % 31
    labels = tokens.clone()
    labels[:, 0] = -100  # predicted by nothing; the Trainer of transformers would count it
    pairs = zip(tokens, labels, strict=True)
    return [{"input_ids": row, "labels": label} for row, label in pairs]


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 32, "n_positions": LENGTH}
    dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**shape, **dropout, bos_token_id=0, eos_token_id=0))


def mixture() -> Qwen3MoeForCausalLM:
    """Two experts, and states with a large common part: at first one expert takes all tokens."""
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "moe_intermediate_size": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "norm_topk_prob": False}
    balance = {"output_router_logits": True, "router_aux_loss_coef": 0.1}
    rest = {"vocab_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 32}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **heads, **experts, **balance, **rest))
    with torch.no_grad():
        model.model.embed_tokens.weight += 1.0
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a trainer trains.

    Attributes:
        model: Makes the model.
        length: Tokens of a sequence.
        rate: Learning rate of AdamW.
        leap: Factor on the rate at step `LEAP`.
        monitors, responses: As for the callbacks.
    """

    model: Callable[[], nn.Module] = gpt2
    length: int = LENGTH
    rate: float = 1e-2
    leap: float = 1.0
    monitors: Sequence[str] = MONITORS
    responses: Sequence[str | Intervention] = ()

    def optimizer(self, model: nn.Module) -> tuple[torch.optim.Optimizer, LambdaLR]:
        """Return the optimizer and the schedule that leaps."""
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.rate)
        return optimizer, LambdaLR(optimizer, lambda s: self.leap if s == LEAP else 1.0)

    def data(self) -> DataLoader:
        """Return this rank's batches."""
        rank = torch.distributed.get_rank() if ranks() > 1 else 0
        return DataLoader(rows(self.length)[rank :: ranks()], batch_size=BATCH // ranks())

    def watching(self, path: Path) -> dict[str, object]:
        """Return the options of a watch."""
        log = path / f"{len(list(path.iterdir()))}.jsonl"
        own = {"monitors": self.monitors, "interventions": self.responses}
        return {**own, "log": log, "memory": 0.0}


class Planted(Intervention):
    """A fault at its moments, in the place of an intervention."""

    name = "planted"

    def __init__(self, line: str) -> None:
        super().__init__()
        self.fault = make_fault(line)

    def bind(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.fault.bind(model, seed=0)

    def arm(self, moment: Moment) -> Sequence[RemovableHandle]:
        return self.fault.arm(moment)

    def before_update(self, moment: Moment) -> None:
        self.fault.after_backward(moment)

    def after_update(self, moment: Moment) -> None:
        self.fault.after_update(moment)


def ranks() -> int:
    """Return the number of processes of the run."""
    group = torch.distributed
    return group.get_world_size() if group.is_initialized() else 1


def plain(path: Path, setting: Setting) -> Watched:
    model = setting.model()
    optimizer, schedule = setting.optimizer(model)
    called = DistributedDataParallel(model) if ranks() > 1 else model
    return looped(path, called, optimizer, schedule, setting)


def looped(path: Path, called, optimizer, schedule, setting: Setting) -> Watched:
    """Train in a plain loop; `called` is the model, or what shares it among ranks."""
    with rksp.watch(called, optimizer, **setting.watching(path)) as watched:
        for batch in setting.data():
            called(**batch).loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return watched


def accelerate(path: Path, setting: Setting) -> Watched:
    accelerator = Accelerator(cpu=True)
    model = setting.model()
    optimizer, schedule = setting.optimizer(model)
    data = DataLoader(rows(setting.length), batch_size=BATCH // ranks())
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    assert isinstance(model, DistributedDataParallel) is (ranks() > 1)
    with rksp.watch(model, optimizer, **setting.watching(path)) as watched:
        for batch in data:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    return watched


def of_transformers(path: Path, setting: Setting) -> Watched:
    model = setting.model()
    callback = rksp.watch.Callback(**setting.watching(path))
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(path),
            num_train_epochs=1,
            per_device_train_batch_size=BATCH // ranks(),
            max_grad_norm=0.0,
            train_sampling_strategy="sequential",
            use_cpu=True,
            ddp_backend="gloo" if ranks() > 1 else None,
            report_to=[],
            save_strategy="no",
            logging_steps=25,
            disable_tqdm=True,
        ),
        train_dataset=rows(setting.length),
        optimizers=setting.optimizer(model),
        callbacks=[callback],
    )
    trainer.train()
    assert isinstance(trainer.model_wrapped, DistributedDataParallel) is (ranks() > 1)
    callback.history = trainer.state.log_history
    return callback


class _Module(lightning.LightningModule):
    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.model, self.setting = setting.model(), setting

    def training_step(self, batch: dict, index: int) -> torch.Tensor:
        return self.model(**batch).loss

    def configure_optimizers(self):
        optimizer, schedule = self.setting.optimizer(self.model)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def of_lightning(path: Path, setting: Setting) -> Watched:
    callback = rksp.watch.LightningCallback(**setting.watching(path))
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=ranks(),
        strategy="ddp" if ranks() > 1 else "auto",
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=path,
        callbacks=[callback],
    )
    module = _Module(setting)
    trainer.fit(module, setting.data())
    callback.metrics = dict(trainer.callback_metrics)
    return callback


TRAINERS = {
    "plain": plain,
    "accelerate": accelerate,
    "hugging_face": of_transformers,
    "lightning": of_lightning,
}
