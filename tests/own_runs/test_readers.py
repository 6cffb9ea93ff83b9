"""Each reader of past runs, on a file that its own library has written."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest
from support.past_runs import LOSSES, RATES, write_table

from rksp.ground.errors import InputError
from rksp.own_runs.interpret import Words
from rksp.own_runs.registry import read_raw_runs
from rksp.own_runs.run import RawRun


def read(path: Path) -> list[RawRun]:
    return read_raw_runs([path])


def test_tables_are_read_row_by_row(tmp_path):
    runs = read(write_table(tmp_path / "runs.csv"))
    assert [run.said["learning_rate"] for run in runs] == list(RATES)
    assert [run.finals["train/loss"] for run in runs] == list(LOSSES)
    assert {run.state for run in runs} == {"finished"}
    lines = "\n".join(json.dumps({"lr": rate, "loss": 3.0}) for rate in RATES)
    (tmp_path / "runs.jsonl").write_text(lines)
    assert [run.said["lr"] for run in read(tmp_path / "runs.jsonl")] == list(RATES)


def test_a_table_of_semicolons_has_decimal_commas(tmp_path):
    lines = ["learning_rate;loss;name", "0,001;3,25;a,1", "1e-2;7,5e0;b"]
    (tmp_path / "runs.csv").write_text("\ufeff" + "\r\n".join(lines), "utf-8")
    runs = read(tmp_path / "runs.csv")
    assert [run.said["learning_rate"] for run in runs] == [1e-3, 1e-2]
    assert [run.finals["loss"] for run in runs] == [3.25, 7.5]
    assert [run.name for run in runs] == ["a,1", "b"]
    (tmp_path / "runs.csv").write_text("lr\tloss\n1e-3\t3,25\n", "utf-8")
    assert read(tmp_path / "runs.csv")[0].finals == {"lr": 1e-3, "loss": 3.25}


def test_parquet_is_a_table_too(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"lr": RATES, "loss": LOSSES}), tmp_path / "runs.parquet")
    assert [run.finals["loss"] for run in read(tmp_path / "runs.parquet")] == list(LOSSES)


def trainer_state(folder: Path, *, steps: int = 100, planned: int = 100) -> Path:
    from transformers.trainer_callback import TrainerState

    history = [
        {"loss": 5.0 - step / 100, "learning_rate": 1e-3, "grad_norm": 1.0, "step": step}
        for step in range(10, steps + 1, 10)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    state = TrainerState(global_step=steps, max_steps=planned, log_history=history)
    state.save_to_json(str(folder / "trainer_state.json"))
    return folder / "trainer_state.json"


def test_a_trainers_state_with_its_arguments(tmp_path):
    from transformers import TrainingArguments

    path = trainer_state(tmp_path / "checkpoint-100")
    arguments = TrainingArguments(
        output_dir=str(tmp_path), learning_rate=2e-3, warmup_steps=10, use_cpu=True
    )
    (tmp_path / "args.json").write_text(arguments.to_json_string())
    (run,) = read(path)
    assert run.said["learning_rate"] == 2e-3 and run.said["warmup_steps"] == 10
    assert run.said["max_steps"] == 100 and run.state == "finished"
    assert run.curves["loss"].values[-1] == 4.0 and run.curves["loss"].steps[-1] == 100


def test_only_the_last_checkpoint_of_a_run_counts(tmp_path):
    for steps in (20, 100, 60):
        trainer_state(tmp_path / "run" / f"checkpoint-{steps}", steps=steps)
    (run,) = read(tmp_path)
    assert (run.name, run.curves["loss"].steps[-1]) == ("run", 100)
    trainer_state(tmp_path / "other" / "checkpoint-50", steps=50)
    assert [run.state for run in read(tmp_path)] == ["unfinished", "finished"]


def test_events_of_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for name, rate in (("one", 1e-3), ("two", 1e-2)):
        with SummaryWriter(tmp_path / name) as writer:
            writer.add_text("args", json.dumps({"weight_decay": 0.1, "warmup_steps": 7}))
            for step in range(30):
                writer.add_scalar("train/loss", 5 - step / 10, step)
                writer.add_scalar("train/learning_rate", rate * (step + 1) / 30, step)
    runs = read(tmp_path)
    assert [run.name for run in runs] == ["one", "two"]
    assert runs[1].curves["train/learning_rate"].values.max() == pytest.approx(1e-2)
    assert runs[0].curves["train/loss"].values[-1] == pytest.approx(2.1)
    assert runs[0].said == {"weight_decay": 0.1, "warmup_steps": 7}


def test_metrics_of_lightning(tmp_path):
    pytest.importorskip("lightning")
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path, name="gpt")
    logger.log_hyperparams({"learning_rate": 1e-3, "max_steps": 30})
    for step in range(30):
        logger.log_metrics({"train_loss": 5 - step / 10, "lr-AdamW": 1e-3, "epoch": 0}, step)
    logger.save()
    (run,) = read(tmp_path)
    assert run.said == {"learning_rate": 1e-3, "max_steps": 30}
    assert run.curves["train_loss"].values[-1] == pytest.approx(2.1)
    assert set(run.curves["learning_rate"].values) == {1e-3}


def test_tables_as_optuna_ray_tune_and_mlflow_export_them(tmp_path):
    """`study.trials_dataframe()` with its value renamed, `get_dataframe()`, `search_runs()`."""
    (tmp_path / "m.csv").write_text(
        "run_id,status,tags.mlflow.user,metrics.loss,params.lr\n1,FINISHED,a,3.6,0.01\n"
    )
    (tmp_path / "o.csv").write_text(
        "number,loss,params_learning_rate,user_attrs_a,state\n0,3.5,0.001,1,COMPLETE\n"
    )
    (tmp_path / "r.csv").write_text("loss,training_iteration,trial_id,config/lr\n3.4,5,ab,0.003\n")
    found, left_out = Words(target=None).read(read(tmp_path))
    assert [(run.rate, run.final) for run in found] == [(0.01, 3.6), (0.001, 3.5), (0.003, 3.4)]
    assert left_out == []


MEGATRON = """\
using world size: 8, data-parallel size: 8
------------------------ arguments ------------------------
  lr ................................ 0.0006
  hidden_size ....................... 256
  lr_warmup_iters ................... 10
  save .............................. None
[before the start of training step] datetime: 2025-01-01 00:00:00
 [2025-01-01 00:00:09] iteration       50/     100 | consumed samples:  3200 | elapsed time per \
iteration (ms): 98.7 | learning rate: 6.000000E-04 | global batch size:    64 | lm loss: \
5.100000E+00 | loss scale: 1.0 | grad norm: 1.500 | number of skipped iterations:   0 |
 [2025-01-01 00:00:19] iteration      100/     100 | consumed samples:  6400 | elapsed time per \
iteration (ms): 98.7 | learning rate: 6.000000E-05 | global batch size:    64 | lm loss: \
4.100000E+00 | loss scale: 1.0 | grad norm: 1.200 | number of skipped iterations:   0 |
"""
DEEPSPEED = """\
[2025-01-01 00:00:00,000] [INFO] [logging.py:107:log_dist] [Rank 0] step=10, skipped=0, \
lr=[0.0003, 0.0003], mom=[(0.9, 0.95), (0.9, 0.95)]
step 10 loss: 5.0
step 20 loss: nan
"""


def test_text_logs_of_megatron_and_deepspeed(tmp_path):
    """In the words of both trainers, whose own machines cannot run here."""
    (tmp_path / "a.log").write_text(MEGATRON)
    (tmp_path / "b.log").write_text(DEEPSPEED)
    one, two = read(tmp_path)
    assert one.curves["loss"].values.tolist() == [5.1, 4.1]
    assert one.said["max_steps"] == 100 and one.said["batch_size"] == 64
    assert one.said["hidden_size"] == "256" and "save" not in one.said
    assert one.state == "finished"
    assert two.curves["learning_rate"].values[0] == 3e-4
    assert math.isnan(two.curves["loss"].values[-1])


def read_both(path: Path) -> None:
    runs = read(path)
    assert sorted(float(run.said["learning_rate"]) for run in runs) == [1e-3, 1e-2]
    assert all(int(run.said["warmup_steps"]) == 7 for run in runs)
    assert all(run.curves["train/loss"].values[-1] == pytest.approx(2.1) for run in runs)
    assert all(run.state == "finished" for run in runs)


def test_offline_runs_of_wandb(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for rate in (1e-3, 1e-2):
        config = {"learning_rate": rate, "warmup_steps": 7}
        run = wandb.init(project="rates", config=config, mode="offline", dir=tmp_path)
        for step in range(30):
            run.log({"train/loss": 5 - step / 10})
        run.finish()
    read_both(tmp_path)


def field(number: int, value: object) -> bytes:
    """A field of a message in protobuf's encoding: an integer, a double or bytes."""
    if isinstance(value, int):
        return bytes([number << 3 & 127 | 128, number >> 4]) + bytes([value])
    kind, content = (1, struct.pack("<d", value)) if isinstance(value, float) else (2, b"")
    if isinstance(value, bytes):
        content = bytes([len(value) & 127 | 128, len(value) >> 7]) + value
    return bytes([(number << 3 | kind) & 127 | 128, number >> 4]) + content


def event(step: int, tag: str, summary: bytes) -> bytes:
    data = field(2, step) + field(5, field(1, field(1, tag.encode()) + summary))
    return struct.pack("<QI", len(data), 0) + data + b"\0" * 4


def test_events_are_read_without_tensorboard(tmp_path):
    """A number as torch writes it, one as TensorFlow does, text, and an end within an event."""
    arguments = field(8, field(1, 7) + field(8, b'{"learning_rate": 0.01}'))
    events = [event(0, "args/text_summary", arguments)]
    for step in range(1, 30):
        number = bytes([0x15]) + struct.pack("<f", 5 - step / 10)  # field 2, of four bytes
        tensor = field(8, field(1, 1) + field(4, struct.pack("<f", 0.5 * step)))
        events += [event(step, "train/loss", number), event(step, "grad_norm", tensor)]
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(b"".join(events)[:-6])
    (run,) = read(path)
    assert run.said == {"learning_rate": 0.01}
    assert run.curves["train/loss"].values[-1] == pytest.approx(2.1)
    assert run.curves["grad_norm"].values.tolist() == [0.5 * n for n in range(1, 29)]


def test_offline_runs_are_read_without_wandb(tmp_path):
    def item(key: str, **value: object) -> bytes:
        content = field(16, json.dumps(value["json"]).encode()) if "json" in value else b""
        return field(1, field(1, key.encode()) + (content or field(6, value["number"])))

    records = [field(17, field(1, b"ab") + field(8, b"warm") + field(4, item("lr", json=0.01)))]
    for n in range(9):
        row = item("loss", json=4 - n / 4) if n % 2 else item("loss", number=4 - n / 4)
        records.append(field(2, row + item("_step", json=n)))
    blocks = b"".join(struct.pack("<IHB", 0, len(r), 1) + r for r in [*records, field(18, b"")])
    path = tmp_path / "run-ab.wandb"
    path.write_bytes(b":W&B\0\0\0" + blocks)
    (run,) = read(path)
    assert (run.name, run.state, run.said) == ("warm", "finished", {"lr": 0.01})
    assert run.curves["loss"].values.tolist() == [4 - n / 4 for n in range(9)]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", b'{"kind": "confirm"}', "nothing in a format of runs"),
        ("a.json", b"[" * 100_000, "nothing in a format of runs"),
        ("trainer_state.json", b"[" * 100_000, "nothing in a format of runs"),
        ("trainer_state.json", b'{"log_history": 3}', "nothing in a format of runs"),
        ("trainer_state.json", b'{"log_history": [3, {"step": NaN}]}', "nothing in a format"),
        ("run-1.wandb", b"x", "no run that W&B has written"),
        ("a.csv", b"", "holds no rows"),
        ("a.csv", b"\xff\xfe\x00", "not UTF-8"),
        ("a.jsonl", b"3\n", "must be a JSON object"),
        ("a.parquet", b"PAR1 and nothing", "not valid Parquet"),
        ("a.log", b"nothing of the kind", "nothing in a format of runs"),
        ("runs.db", b"SQLite format 3\x00" + b"\x07" * 500, "nothing in a format of runs"),
        ("events.out.tfevents.9", b"\x07" * 500, "holds no scalar"),
    ],
)
def test_hostile_files_get_one_sentence(name, content, said, tmp_path):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read(path)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_what_is_no_run_is_said(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "nothing")
    with pytest.raises(InputError, match="holds nothing in a format of runs"):
        read(tmp_path)
