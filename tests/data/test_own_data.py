"""The user's own examples: what is read, how it is encoded, and what is measured and trained on."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
import torch
from support.commands import left_with
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from rksp.datasets.own_data import fit_head, own_probe, read_own_rows
from rksp.grid.cell import Cell, ask
from rksp.grid.group import CellGroup, Options
from rksp.ground.errors import ArtifactError, InputError
from rksp.kernels.cross_entropy import IGNORED
from rksp.models.resolve import resolve
from rksp.recipe import Recipe

TEXTS = [f"line {number} says nothing of note" for number in range(40)]
CHAT = [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "reply"}]
SIZES = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 256, "n_positions": 32}
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def saved(folder: Path, template: str | None = None) -> str:
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(**SIZES, bos_token_id=0, eos_token_id=0)).save_pretrained(folder)
    if template is not None:
        words = sorted(set(map(chr, range(32, 127))))
        core = Tokenizer(
            models.WordLevel({c: i + 1 for i, c in enumerate(words)} | {"[e]": 0}, "[e]")
        )
        core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="[e]")
        tokenizer.chat_template = template
        tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    return saved(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def with_template(tmp_path_factory) -> str:
    return saved(tmp_path_factory.mktemp("chat"), TEMPLATE)


def lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("form", ["a[1].jsonl", "b.csv", "c.parquet", "d.txt", "folder"])
def test_every_form_of_a_file_gives_the_same_rows(form, tmp_path):
    rows, path = [{"text": text} for text in TEXTS], tmp_path / form
    if form.endswith(("csv", "parquet")):
        pytest.importorskip("pyarrow")
    if form.endswith("jsonl"):
        lines(path, rows)
    elif form.endswith("csv"):
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["text"])
            writer.writeheader()
            writer.writerows(rows)
    elif form.endswith("parquet"):
        from pyarrow import Table, parquet

        parquet.write_table(Table.from_pylist(rows), path)
    elif form.endswith("txt"):
        path.write_text("\n".join(TEXTS))
    else:
        path.mkdir()
        lines(path / "1.jsonl", rows[:20])
        lines(path / "2.jsonl", rows[20:])
    found = read_own_rows(path)
    assert [first for first, _ in found.rows] == TEXTS and found.form == "text"
    assert not found.labels and not found.is_cut


@pytest.mark.parametrize(
    ("row", "form", "expected"),
    [
        ({"messages": CHAT}, "chat", (CHAT, None)),
        ({"prompt": "p", "completion": "c"}, "completion", ("p", "c")),
        ({"instruction": "do", "input": "it", "output": "done"}, "completion", ("do\nit", "done")),
        ({"premise": "p", "hypothesis": "h", "label": 1}, "text", ("p", "h")),
        ({"content": "c"}, "text", ("c", None)),
    ],
)
def test_columns_say_how_a_row_is_learned(row, form, expected, tmp_path):
    found = read_own_rows(lines(tmp_path / "rows.jsonl", [row, row]))
    assert found.form == form and found.rows[0] == expected
    assert bool(found.labels) == ("label" in row)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("absent.jsonl", None, "no file or folder"),
        ("rows.xml", "x", "ends in none of"),
        ("rows.jsonl", '{"a": 1, "b": 2}\n', "has the columns a, b"),
        ("rows.jsonl", '{"text": "x", "label": -1}\n', "a label is a name or a number"),
        ("rows.jsonl", '{"text": ""}\n', "is empty"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_sentence(name, content, said, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=said):
        read_own_rows(tmp_path / name)


def test_a_broken_file_is_an_artifact_and_a_mixed_folder_is_refused(tmp_path):
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 not")
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_own_rows(tmp_path / "rows.parquet")
    (tmp_path / "rows.csv").write_text("text\nx\n")
    with pytest.raises(InputError, match="several kinds"):
        read_own_rows(tmp_path)


@pytest.mark.parametrize("parts", [[], ["test", "train"]])
def test_a_folder_of_hugging_face_is_read_without_its_library(parts, tmp_path):
    """As `Dataset.save_to_disk` and `DatasetDict.save_to_disk` write it: Arrow, in two shards."""
    pyarrow = pytest.importorskip("pyarrow")
    for part in parts or [""]:
        home = tmp_path / "data" / part
        home.mkdir(parents=True)
        (home / "dataset_info.json").write_text("{}")
        for shard in range(2):
            table = pyarrow.Table.from_pylist([{"text": f"{part} {shard}", "label": shard}])
            with pyarrow.ipc.new_stream(home / f"data-{shard}.arrow", table.schema) as stream:
                stream.write_table(table)
    if parts:
        (tmp_path / "data" / "dataset_dict.json").write_text("{}")
    found = read_own_rows(tmp_path / "data")
    name = "train" if parts else ""
    assert [first for first, _ in found.rows] == [f"{name} 0", f"{name} 1"]
    assert found.labels == (0, 1)


def test_text_is_cut_into_sequences_whose_labels_are_the_next_tokens(checkpoint, tmp_path):
    data = read_own_rows(lines(tmp_path / "rows.jsonl", [{"text": text} for text in TEXTS]))
    probe = own_probe(resolve(checkpoint), data, num_sequences=4, sequence_length=16)
    tokens = probe.inputs["input_ids"]
    assert tokens.shape == probe.labels.shape == (4, 16)
    assert torch.equal(tokens[:, 1:], probe.labels[:, :-1])
    assert "rows.jsonl, 40 examples, each byte a token, 4 × 16 tokens" in probe.description


def test_of_a_completion_only_the_answer_is_learned(checkpoint, tmp_path):
    rows = [{"prompt": "pp", "completion": "cccc"}] * 20
    data = read_own_rows(lines(tmp_path / "rows.jsonl", rows))
    probe = own_probe(resolve(checkpoint), data, num_sequences=2, sequence_length=12)
    joined = torch.cat([probe.inputs["input_ids"][0, :1], probe.labels[0]])
    hidden, seen = int((probe.labels == IGNORED).sum()), int((probe.labels != IGNORED).sum())
    assert (hidden, seen) == (2 * 4, 2 * 8) and "only the answer" in probe.description
    assert len(set(joined[joined != IGNORED][1:].tolist())) <= 2


def test_a_chat_goes_through_the_template_of_the_checkpoint(checkpoint, with_template, tmp_path):
    data = read_own_rows(lines(tmp_path / "rows.jsonl", [{"messages": CHAT}] * 3))
    source = resolve(with_template)
    probe = own_probe(source, data, num_sequences=1, sequence_length=20)
    words = PreTrainedTokenizerFast.from_pretrained(with_template).decode(
        probe.inputs["input_ids"][0]
    )
    assert words.replace(" ", "").startswith("<user>ask<assistant>")
    with pytest.raises(InputError, match="no chat template"):
        own_probe(resolve(checkpoint), data)


def test_a_fresh_head_has_the_classes_of_the_data(checkpoint, tmp_path):
    rows = [{"text": text, "label": "abcd"[i % 4]} for i, text in enumerate(TEXTS)]
    data = read_own_rows(lines(tmp_path / "rows.jsonl", rows))
    source = resolve(checkpoint, task="text-classification")
    fit_head(source, data)
    probe = own_probe(source, data, num_sequences=8)
    with torch.no_grad():
        logits = source.build()(**probe.inputs).logits
    assert logits.shape == (8, 4) and set(probe.labels.tolist()) <= set(range(4))
    plain = read_own_rows(lines(tmp_path / "plain.jsonl", [{"text": "x"}, {"text": "y"}]))
    with pytest.raises(InputError, match="has no labels"):
        fit_head(source, plain)


def test_a_classifier_with_a_decoder_reads_the_end_of_each_text(tmp_path):
    rows = [{"text": "x" * (9 + i), "label": i % 2} for i in range(8)]
    data = read_own_rows(lines(tmp_path / "rows.jsonl", rows))
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    source = resolve("t5", overrides=sizes | {"vocab_size": 300}, task="text-classification")
    tokens = own_probe(source, data, num_sequences=8, sequence_length=12).inputs["input_ids"]
    assert tokens.shape == (8, 12) and ((tokens == source.config.eos_token_id).sum(1) == 1).all()


def test_a_trained_head_keeps_its_classes(checkpoint, tmp_path):
    source = resolve(checkpoint, task="text-classification")
    source.build().save_pretrained(tmp_path / "head")
    own = resolve(str(tmp_path / "head"), task="text-classification")
    rows = [{"text": text, "label": i % 5} for i, text in enumerate(TEXTS)]
    data = read_own_rows(lines(tmp_path / "rows.jsonl", rows))
    assert own.start.is_stored and not own.has_fresh_head
    with pytest.raises(InputError, match="5 classes and the head"):
        fit_head(own, data)


def test_a_score_is_measured_on_the_data_and_says_so_where_it_is_not(checkpoint, tmp_path, capsys):
    path = lines(tmp_path / "rows.jsonl", [{"text": text} for text in TEXTS])
    given = ["score", checkpoint, "--lr", "1e-5", "--evidence", "forward", "--format", "json"]
    left_with([*given, "--data", str(path), "--exit-zero"])
    own = json.loads(capsys.readouterr().out)["target"]
    left_with([*given, "--exit-zero"])
    bundled = json.loads(capsys.readouterr().out)["target"]
    assert "rows.jsonl, 40 examples" in own["probe"]
    assert any("other text than yours" in note for note in bundled["notes"])
    assert not any("other text than yours" in note for note in own["notes"])
    assert left_with([*given, "--data", str(path), "--probe", str(path)]) == 2
    assert "not both" in capsys.readouterr().err


def test_a_grid_measures_on_own_data_and_sees_when_they_change(checkpoint, tmp_path):
    path = lines(tmp_path / "rows.jsonl", [{"text": text} for text in TEXTS])
    options = Options(data=path, evidence="forward")
    group = CellGroup(target=checkpoint)
    measurement = ask(group, options, Recipe())[1].measurement
    assert measurement is not None and "rows.jsonl, 40 examples" in measurement.probe
    cell = Cell(target=checkpoint, recipe=Recipe())
    before = cell.key(options)
    assert cell.key(Options(evidence="forward")) != before == cell.key(options)
    lines(path, [{"text": text} for text in TEXTS[:-1]])
    assert cell.key(options) != before
    given = ["grid", checkpoint, "lr=1e-5,1e-4", "--evidence", "config", "--format", "json"]
    given += ["-o", str(tmp_path / "grid.db")]
    assert left_with([*given, "--data", str(path), "--exit-zero"]) == 0
    assert left_with([*given, "--data", str(tmp_path / "none.jsonl")]) == 2


def test_a_classifier_is_confirmed_on_labelled_data(checkpoint, tmp_path, capsys):
    rows = [{"text": "xy"[i % 2] * 8, "label": i % 2} for i in range(60)]
    path = lines(tmp_path / "rows.jsonl", rows)
    command = ["confirm", checkpoint, "--task", "text-classification", "--data", str(path)]
    command += [
        "--lr",
        "1e-2",
        "--steps",
        "20",
        "--seeds",
        "1",
        "--evidence",
        "config",
        "--monitor",
        "loss",
    ]
    command += [
        "--batch-size",
        "8",
        "--sequence-length",
        "16",
        "--arm",
        "baseline",
        "--format",
        "json",
    ]
    assert left_with(command) == 0
    report = json.loads(capsys.readouterr().out)
    (trial,) = report["trials"]
    assert not any("data of rksp" in said for said in report["conclusions"])
    assert trial["held_out_loss"] < trial["untrained_loss"]
    assert trial["trivial_loss"] == pytest.approx(0.693, abs=0.01)


def test_without_pyarrow_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert len(read_own_rows(lines(tmp_path / "rows.jsonl", [{"text": "x"}])).rows) == 1
    (tmp_path / "rows.csv").write_text("text\nx\n")
    with pytest.raises(InputError, match=r"pip install 'rksp\[data\]'"):
        read_own_rows(tmp_path / "rows.csv")
