"""Each promise of SECURITY.md has tests, and so has each attack of the two reviews."""

from __future__ import annotations

import ast
import re

import pytest
from support.file_powers import FROM_FILE
from support.places import ROOT, TESTS

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
# Heading of a promise → the tests that hold it.
PROMISES = {
    "No file runs code": (
        "test_attacks.py::test_a_file_runs_no_code",
        "test_attacks.py::test_a_store_runs_no_code",
        "test_attacks.py::test_a_store_cannot_allow_what_was_not_typed",
        "test_attacks.py::test_workers_import_nothing_from_the_working_folder",
        "test_attacks.py::test_a_grid_runs_beside_a_file_that_is_named_like_a_dependency",
        "test_attacks_of_files.py::test_it_is_refused",
        "test_resolve_checkpoint.py::test_pickles_and_quantized_weights_are_refused",
        "test_resolve.py::test_what_could_act_is_dropped_at_every_depth",
    ),
    "A file of defaults cannot change the answer": (
        "test_file_powers.py::test_every_other_option_is_refused_and_nothing_is_written",
        "test_file_powers.py::test_an_allowed_option_lowers_no_exit_code_and_hides_no_finding",
        "test_file_powers.py::test_a_new_option_is_refused_until_someone_decides",
        "test_attacks.py::test_a_file_of_defaults_neither_writes_nor_opens_the_gate",
        "test_defaults.py::test_a_file_of_another_user_is_not_read",
        "test_defaults.py::test_outside_of_a_repository_only_the_working_folder_counts",
        "test_defaults.py::test_no_config_ignores_the_file",
        "test_run_file_words.py::test_a_comment_hides_no_error",
        "test_run_file_words.py::test_a_comment_hides_nothing_that_fails_the_gate",
    ),
    "A name means what was typed": (
        "test_names.py::test_a_folder_does_not_stand_in_for_a_model_type",
        "test_names.py::test_a_folder_does_not_stand_in_for_a_hub_model",
        "test_names.py::test_a_file_does_not_stand_in_for_a_factory",
        "test_injection.py::test_a_record_that_nobody_typed_is_neither_read_nor_added_to",
    ),
    "Exit codes are reliable": (
        "test_attacks.py::test_foreign_code_cannot_choose_the_exit_code",
        "test_attacks.py::test_an_exit_at_import_is_a_failure",
        "test_attacks.py::test_a_closed_pipe_is_not_a_risk",
        "test_exit_codes.py::test_bad_input_is_two_with_one_sentence_and_nothing_on_stdout",
        "test_found_faults.py::test_it_does_not_come_back",
        "test_harness.py::test_damaged_input_is_refused_or_read",
        "test_streams.py::test_a_stream_that_fails_changes_no_code_and_the_other_says_why",
        "test_streams.py::test_a_panic_of_compiled_code_is_no_risk",
        "test_streams.py::test_a_locale_without_the_letters_is_no_failure",
        "test_streams.py::test_odd_variables_are_no_failure",
        "test_exit_codes.py::test_what_cannot_be_told_fails_only_where_it_was_asked_for",
    ),
    "Reading is bounded": (
        "test_hostile_input.py::test_a_recipe_that_unfolds_is_refused_in_a_sentence",
        "test_hostile_input.py::test_a_configuration_beyond_any_model_is_refused",
        "test_hostile_input.py::test_a_probe_beyond_the_memory_is_refused_before_the_model_is_built",
        "test_hostile_input.py::test_a_device_is_not_read",
        "test_hostile_input.py::test_a_pipe_is_not_waited_for",
        "test_files.py::test_what_is_no_regular_file_or_too_large_is_not_read",
        "test_reading_budget.py::test_what_reads_too_long_is_refused_and_names_itself",
        "test_bombs.py::test_it_is_refused_before_the_work",
        "test_bombs.py::test_it_is_read_or_refused_in_time",
        "test_bombs.py::test_a_tokenizer_takes_only_so_much",
        "test_bombs.py::test_memory_that_runs_out_is_said_with_what_was_read",
    ),
    "Text is inert": (
        "test_hostile_input.py::test_a_file_name_writes_no_line_of_its_own",
        "test_hostile_input.py::test_an_option_writes_no_line_of_its_own",
        "test_hostile_input.py::test_a_value_of_a_file_is_printed_escaped",
        "test_hostile_input.py::test_a_stored_report_prints_no_control_character",
        "test_injection.py::test_commands_in_the_middle_of_a_line_are_broken",
        "test_injection.py::test_a_stored_code_is_a_code",
        "test_injection.py::test_a_cell_of_a_table_is_no_formula",
    ),
    "Nothing else is opened or written": (
        "test_injection.py::test_the_name_of_a_database_opens_no_other_file",
        "test_injection.py::test_a_link_of_the_repository_leads_no_writer_outside",
    ),
    "Files are written whole": (
        "test_files.py::test_kills_while_writing_leave_a_whole_file",
        "test_files.py::test_a_full_disk_leaves_the_old_file",
        "test_files.py::test_a_place_is_checked_before_the_work",
        "test_full_disks.py::test_a_checkpoint_without_room_is_said_and_leaves_nothing",
        "test_full_disks.py::test_a_grid_without_room_is_said_and_goes_on_when_there_is_some",
        "test_two_at_once.py::test_two_grids_share_a_store_and_judge_each_cell_once",
        "test_two_at_once.py::test_two_labs_share_a_folder",
        "test_two_at_once.py::test_a_second_confirmation_in_a_folder_is_refused_and_harms_nothing",
        "test_harness_kills.py::test_kills_of_a_grid_with_results_in_flight_change_nothing",
        "test_processes.py::test_a_worker_that_lets_no_thread_run_ends_with_its_coordinator",
    ),
    "Numbers are honest": (
        "test_numerical_faults.py::test_weights_that_are_not_finite_are_refused_by_name",
        "test_numerical_faults.py::test_a_forward_pass_that_overflows_is_a_certain_risk",
        "test_numerical_faults.py::test_states_that_do_not_differ_have_no_spectrum",
        "test_numerical_faults.py::test_the_reader_of_strict_json_refuses_what_is_not",
    ),
    "Errors in Python are rksp's own": (
        "test_python_surface.py::test_it_is_an_input_error_on_one_short_line",
        "test_python_surface.py::test_a_target_of_any_kind_is_an_input_error",
    ),
    "Packages have known content": (
        "test_supply_chain.py::test_every_pin_has_a_hash",
        "test_supply_chain.py::test_all_that_a_score_needs_is_hashed_but_torch",
        "test_supply_chain.py::test_actions_are_named_by_digest",
        "test_supply_chain.py::test_a_release_is_signed_and_says_what_it_is_made_of",
        "test_supply_chain.py::test_a_release_is_built_with_pinned_tools_after_the_tests",
        "test_supply_chain.py::test_an_image_takes_in_the_package_and_what_installs_it_alone",
    ),
    "The Action runs no code of the tree that it checks": (
        "test_ci_snippets.py::test_the_action_installs_without_running_or_obeying_the_checked_out_tree",
        "test_ci_snippets.py::test_the_action_scores_without_running_the_checked_out_tree",
        "test_ci_snippets.py::test_that_tree_can_be_executed",
    ),
}

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
    # The second review (0.10.0).
    "G2 runs": "test_file_powers.py::test_every_other_option_is_refused_and_nothing_is_written",
    "G3 apply": "test_file_powers.py::test_every_other_option_is_refused_and_nothing_is_written",
    "G4 cells, steps, text": "test_file_powers.py::"
    "test_every_other_option_is_refused_and_nothing_is_written",
    "G5 a folder named like a type": "test_names.py::test_a_folder_turns_no_risk_into_a_pass",
    "G6 fields of the recipe, as": "test_file_powers.py::"
    "test_every_other_option_is_refused_and_nothing_is_written",
    "G6 no gate on cannot tell": "test_exit_codes.py::"
    "test_what_cannot_be_told_fails_only_where_it_was_asked_for",
    "G7 a comment": "test_run_file_words.py::test_a_comment_hides_nothing_that_fails_the_gate",
    "G8 names of databases": "test_injection.py::test_the_name_of_a_database_opens_no_other_file",
    "G9 links": "test_injection.py::test_a_link_of_the_repository_leads_no_writer_outside",
    "G9 a record": "test_injection.py::"
    "test_a_record_that_nobody_typed_is_neither_read_nor_added_to",
    "G10 codes": "test_injection.py::test_a_stored_code_is_a_code",
    "G11 commands": "test_injection.py::test_commands_in_the_middle_of_a_line_are_broken",
    "G11 letters without width": "test_injection.py::test_letters_without_width_are_shown",
    "G12 formulas": "test_injection.py::test_a_cell_of_a_table_is_no_formula",
    "G13 the search": "test_defaults.py::"
    "test_outside_of_a_repository_only_the_working_folder_counts",
    "E1 a panic": "test_streams.py::test_a_tokenizer_that_panics_is_bad_input",
    "E2 stderr": "test_streams.py::test_a_stream_that_fails_changes_no_code_and_the_other_says_why",
    "E3 locales": "test_streams.py::test_a_locale_without_the_letters_is_no_failure",
    "E4 damaged files": "test_streams.py::test_a_damaged_file_is_two",
    "E5 columns": "test_streams.py::test_odd_variables_are_no_failure",
    "E5 a pipe": "test_streams.py::test_a_pipe_without_a_reader_is_not_waited_for",
}


def _exists(file: str, name: str) -> bool:
    path = next(TESTS.rglob(file), None)
    if path is None:
        return False
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body)


def test_every_heading_of_a_promise_has_tests_and_the_page_names_none():
    section = PAGE.partition("## What rksp promises")[2].partition("\n## ")[0]
    assert re.findall(r"^### (.+)$", section, re.M) == list(PROMISES)
    assert "test_" not in PAGE.replace("tests/security/test_security.py", "")


@pytest.mark.parametrize("heading", PROMISES)
def test_the_tests_of_a_promise_exist(heading):
    assert [test for test in PROMISES[heading] if not _exists(*test.split("::"))] == []
    assert PROMISES[heading]


def test_the_page_names_the_options_that_a_file_may_set():
    told = PAGE.partition("### A file of defaults")[2].partition("###")[0]
    for name in set().union(*FROM_FILE.values()):
        assert f"`{name}`" in told


@pytest.mark.parametrize("attack", ATTACKS)
def test_each_attack_of_the_review_is_refused_by_a_test(attack):
    assert _exists(*ATTACKS[attack].split("::"))


def test_every_finding_of_the_reviews_has_attacks():
    found = {attack.split()[0] for attack in ATTACKS}
    first = {"S1", "S2", "S3", "S4", "R1", "R2", "R3", "R4", "R5", "R6", "3", "4", "5"}
    second = {*(f"G{n}" for n in range(2, 14)), *(f"E{n}" for n in range(1, 6))}
    assert found == first | second


def test_a_test_that_is_not_there_is_missed():
    assert not _exists("test_attacks.py", "test_of_nothing")
    assert not _exists("test_of_nothing.py", "test_a_file_runs_no_code")
