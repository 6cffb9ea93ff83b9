"""SECURITY.md names tests that exist, and every attack of the review of reliability has one."""

from __future__ import annotations

import ast
import re

import pytest
from support.places import ROOT, TESTS

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")

# Attack of the review (commit 443b087, sections 1 to 5) → the test that refuses it.
ATTACKS = {
    "S1 axolotl's base_model names a factory": "test_attacks.py::test_a_file_runs_no_code",
    "S1 Hugging Face's model_name_or_path": "test_attacks.py::test_a_file_runs_no_code",
    "S1 confirm of such a file": "test_attacks.py::test_a_file_runs_no_code",
    "S1 grid of such a target": "test_attacks.py::test_a_file_runs_no_code",
    "S1 rows with such a target": "test_attacks.py::test_a_file_runs_no_code",
    "S2 output in .rksp.toml": "test_attacks.py::test_a_file_of_defaults_neither_writes_nor_opens_"
    "the_gate",
    "S2 exit-zero, baseline, export, keep, engine, address, slurm": "test_file_powers.py::"
    "test_every_other_option_is_refused_and_nothing_is_written",
    "S3 sys:exit, builtins:exit": "test_attacks.py::test_foreign_code_cannot_choose_the_exit_code",
    "S3 exit when imported": "test_attacks.py::test_an_exit_at_import_is_a_failure",
    "S4 ESC and line break in a name": "test_hostile_input.py::test_a_file_name_writes_no_line_of_"
    "its_own",
    "S4 ESC in a value of YAML": "test_hostile_input.py::test_a_value_of_a_file_is_printed_escaped",
    "R1 references, lists": "test_hostile_input.py::test_a_recipe_that_unfolds_is_refused_in_a_"
    "sentence",
    "R2 arithmetic": "test_hostile_input.py::test_a_recipe_that_unfolds_is_refused_in_a_sentence",
    "R3 fifo": "test_hostile_input.py::test_a_pipe_is_not_waited_for",
    "R3 /dev/zero, full, urandom": "test_hostile_input.py::test_a_device_is_not_read",
    "R3 /proc/kmsg": "test_attacks_of_files.py::test_the_log_of_the_kernel_is_not_read",
    "R3 probe": "test_hostile_input.py::test_a_probe_is_a_regular_file_of_bounded_size",
    "R4 labels, heads, patches, image, channels, layers": "test_hostile_input.py::"
    "test_a_configuration_beyond_any_model_is_refused",
    "R4 the probe's memory": "test_hostile_input.py::"
    "test_a_probe_beyond_the_memory_is_refused_before_the_model_is_built",
    "R5 digits, NUL, !!bool": "test_hostile_input.py::"
    "test_a_recipe_that_unfolds_is_refused_in_a_sentence",
    "R5 inf, NaN, zero batch": "test_hostile_input.py::"
    "test_a_number_that_nothing_can_count_with_is_no_crash",
    "R5 names that no system takes": "test_hostile_input.py::"
    "test_a_name_that_no_system_takes_is_said",
    "R6 a table on stdout with exit 2": "test_attacks_of_files.py::test_it_is_refused",
    "R6 an import that prints": "test_attacks_of_files.py::"
    "test_a_module_that_prints_when_it_is_imported_leaves_stdout_empty",
    "R6 150,000 keys": "test_hostile_input.py::test_a_recipe_that_unfolds_is_refused_in_a_sentence",
    "3 alias bomb": "test_recipe_files.py::test_aliases_cannot_unfold_without_end",
    "3 merge bomb, anchors, tags, UTF-16": "test_attacks_of_files.py::test_it_is_refused",
    "3 large files": "test_files.py::test_what_is_no_regular_file_or_too_large_is_not_read",
    "4 kills of a grid": "test_harness_kills.py::"
    "test_kills_of_a_grid_with_results_in_flight_change_nothing",
    "4 a coordinator that dies during imports": "test_attacks.py::"
    "test_a_worker_whose_coordinator_is_gone_ends_at_once",
    "4 a worker that lives on": "test_processes.py::"
    "test_a_worker_that_lets_no_thread_run_ends_with_its_coordinator",
    "5 reports written in place": "test_files.py::test_kills_while_writing_leave_a_whole_file",
    "5 a folder as -o": "test_files.py::test_a_place_is_checked_before_the_work",
    "5 a second lab removes partial files": "test_two_at_once.py::"
    "test_the_start_of_a_lab_leaves_a_file_that_another_writes",
    "5 recursion in checkpoints, settings, rows": "test_attacks_of_files.py::test_it_is_refused",
    "5 damaged CSV and Parquet": "test_attacks_of_files.py::test_it_is_refused",
    "5 tool = 3 in pyproject.toml": "test_attacks.py::test_a_broken_pyproject_is_said",
    "5 a store that is read-only": "test_attacks.py::"
    "test_a_store_that_cannot_be_written_can_be_looked_at",
    "5 shards outside the folder": "test_attacks_of_files.py::test_it_is_refused",
    "5 pickles": "test_resolve_checkpoint.py::test_pickles_and_quantized_weights_are_refused",
}


def _exists(file: str, name: str) -> bool:
    path = next(TESTS.rglob(file), None)
    if path is None:
        return False
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body)


def _promises() -> list[str]:
    """Return each promise with the text up to the next one."""
    section = PAGE.partition("## What rksp promises")[2].partition("\n## ")[0]
    return re.split(r"\n\n(?=\*\*|[A-Z][^\n]*\.\*\*)", section.strip())


def test_the_page_names_tests_that_exist():
    named = NAMED.findall(PAGE)
    assert len(named) > 30
    assert [pair for pair in named if not _exists(*pair)] == []


@pytest.mark.parametrize("promise", _promises(), ids=lambda text: text[2:30])
def test_each_promise_names_a_test(promise):
    assert promise.startswith("**")
    assert NAMED.search(promise)


@pytest.mark.parametrize("attack", ATTACKS)
def test_each_attack_of_the_review_is_refused_by_a_test(attack):
    assert _exists(*ATTACKS[attack].split("::"))


def test_every_finding_of_the_review_has_attacks():
    found = {attack.split()[0] for attack in ATTACKS}
    assert found == {"S1", "S2", "S3", "S4", "R1", "R2", "R3", "R4", "R5", "R6", "3", "4", "5"}


def test_a_test_that_is_not_there_is_missed():
    assert not _exists("test_attacks.py", "test_of_nothing")
    assert not _exists("test_of_nothing.py", "test_a_file_runs_no_code")
