# SPDX-License-Identifier: BSD-3-Clause

"""Tests that are left out when the suites run on CUDA tensors, each with its reason.

A key is FILE::TEST, or FILE::TEST[IDS], where IDS may have the wildcards * and ?. A key that names no test of a file
that was collected whole is an error.
"""

import fnmatch

_ADDRESS = "the host reads the memory (NumPy, dlpack, a buffer)"
_BOUND_TO_HOST = "the values are the host's: they are compared on the CPU only (S4, S9 and M15 of docs/reference/limits.md)"
_ASSERTS = "an index or a probability out of range is a device assert, after which a process is lost"
_FILE = "on CUDA it is a copy from the host into a storage, which is refused or named as an op"
_FORK = "no process may use CUDA, or go backward once autograd has threads for devices, after a fork"
_TEXT = "the text names the CPU"
_LINK = "a link of a set speed copies by the CPU"

LEFT_OUT = {
    "test_aliases.py::test_a_write_through_data_is_noticed[*-buffer-*]": _BOUND_TO_HOST,
    "test_aliases.py::test_a_write_through_data_is_noticed[*-not a leaf-*]": _BOUND_TO_HOST,
    "test_aliases.py::test_an_alias_that_is_captured_and_changes_by_way_of_the_original_is_noticed": _BOUND_TO_HOST,
    "test_aliases.py::test_one_byte_of_a_small_buffer_is_noticed": _BOUND_TO_HOST,
    "test_aliases.py::test_what_a_region_has_read_and_another_writes_by_way_of_data_raises_in_backward[outside-*]":
        _BOUND_TO_HOST,
    "test_aliases.py::test_what_hooks_have_copied_and_is_written_by_way_of_data_raises": _BOUND_TO_HOST,
    "test_auto_measuring.py::test_steps_after_the_first_are_measured_within_the_budget":
        "the least peak is higher: a device's allocator rounds each tensor up",
    "test_auto_plans.py::test_a_step_within_a_budget_is_a_graph_break": "compilers have their own suites",
    "test_auto_plans.py::test_under_torch_compile_the_budget_holds": "compilers have their own suites",
    "test_cuts.py::test_memory_that_nobody_has_written_is_kept_by_the_segment_that_fills_it": "dropout is one op on CUDA",
    "test_divergence.py::test_a_number_that_changes_raises[*storage*]": _BOUND_TO_HOST,
    "test_divergence.py::test_a_number_that_changes_raises[from*]": _ADDRESS,
    "test_divergence.py::test_a_number_that_changes_raises[pickle]": _FILE,
    "test_divergence.py::test_a_number_that_stays_does_not[from*]": _ADDRESS,
    "test_divergence.py::test_a_number_that_stays_does_not[pickle]": _FILE,
    "test_divergence.py::test_an_object_that_the_function_makes_anew_is_no_difference": "quantized layers are the CPU's",
    "test_divergence.py::test_another_file_that_is_mapped_raises": _ADDRESS,
    "test_divergence.py::test_another_object_with_weights_raises": "quantized layers are the CPU's",
    "test_divergence.py::test_memory_of_the_host_that_an_op_writes_later_raises_as_other_memory": _ADDRESS,
    "test_divergence.py::test_memory_of_the_host_that_is_written_later_raises": _ADDRESS,
    "test_divergence.py::test_scales_of_a_captured_quantized_tensor_that_are_written_are_noticed": _BOUND_TO_HOST,
    "test_divergence.py::test_values_of_a_captured_sparse_tensor_that_are_written_by_way_of_data": _BOUND_TO_HOST,
    "test_divergence.py::test_values_that_are_saved_and_that_only_a_part_left_out_reads_are_compared[*-pickle]": _FILE,
    "test_divergence.py::test_values_that_are_saved_and_that_only_a_part_left_out_reads_are_compared[True-*load]": _FILE,
    "test_divergence.py::test_values_that_are_saved_and_that_only_a_part_left_out_reads_are_compared[True-*storage]":
        _BOUND_TO_HOST,
    "test_divergence.py::test_what_the_host_fills_after_it_is_wrapped_is_compared": _ADDRESS,
    "test_exchanged_memory.py::test_a_part_of_an_inference_tensor_that_is_written_raises": _BOUND_TO_HOST,
    "test_given_up_tapes.py::test_what_a_tape_knows_of_memory_is_not_compared[*from_the_host]": _ADDRESS,
    "test_memory_changes.py::test_changes_name_rules_calls_and_readers": _TEXT,
    "test_memory_changes.py::test_the_report_for_no_memory_says_what_is_enough": _TEXT,
    "test_memory_of_others.py::test_autograd_adds_to_memory_that_a_context_has_given_away": _BOUND_TO_HOST,
    "test_memory_of_others.py::test_what_is_written_without_a_version_raises_while_somebody_has_the_memory[by_numpy-*]": _ADDRESS,
    "test_named_calls.py::test_a_read_past_the_dispatcher_raises_unless_it_was_announced": _ADDRESS,
    "test_offload.py::test_a_store_of_ones_own_may_round": _BOUND_TO_HOST,
    "test_offload_engine.py::test_a_forked_process_is_right_or_says_that_it_was_forked": _FORK,
    "test_offload_engine.py::test_a_graph_that_is_kept_gives_its_tensors_again[slow-*]": _LINK,
    "test_offload_engine.py::test_steps_are_bitwise_as_plain[slow-*]": _LINK,
    "test_offload_engine.py::test_what_is_never_asked_for_goes": _LINK,
    "test_offload_engine.py::test_what_others_write_without_a_version_is_what_plain_code_reads[True-*]": _ADDRESS,
    "test_offload_plans.py::test_a_model_within_a_budget_moves_what_it_keeps":
        "whether moving pays depends on times, which are those of the host",
    "test_outside_writes.py::test_a_save_call_that_writes_outside_and_throws_is_refused": _ASSERTS,
    "test_outside_writes.py::test_memory_of_the_host_is_read_and_then_written": _ADDRESS,
    "test_outside_writes.py::test_the_bytes_for_readers_are_kept_once_and_die_with_them": "the heap of the host is measured",
    "test_outside_writes.py::test_the_copy_of_memory_of_the_host_begins_where_that_began": _ADDRESS,
    "test_pains.py::test_a_saved_region_keeps_a_kernel_that_the_dispatcher_cannot_see": _ADDRESS,
    "test_record.py::test_a_child_leaves_the_recording_to_its_parent": _FORK,
    "test_replays.py::test_the_option_saved_tensors_hooks_gets_the_arguments": _ADDRESS,
    "test_shared_memory.py::test_a_write_by_way_of_another_tensor_on_what_the_region_made_raises[*-buffer-*]": _ADDRESS,
    "test_shared_memory.py::test_a_write_by_way_of_another_tensor_on_what_the_region_made_raises[*-numpy-*]": _ADDRESS,
    "test_shared_memory.py::test_a_write_by_way_of_another_tensor_on_what_the_region_made_raises[*array*]": _ADDRESS,
    "test_shared_memory.py::test_reads_by_way_of_another_tensor_are_right[*array*]": _ADDRESS,
    "test_shared_memory.py::test_reads_by_way_of_another_tensor_are_right[buffer-*]": _ADDRESS,
    "test_shared_memory.py::test_reads_by_way_of_another_tensor_are_right[numpy*]": _ADDRESS,
    "test_tape.py::test_a_write_that_nobody_sees_is_found_the_first_time": _ADDRESS,
    "test_tape.py::test_auto_calls_the_function_after_a_tape_with_other_values": _ADDRESS,
    "test_tape.py::test_other_ops_after_the_tape_is_trusted_are_compared_at_once": _ADDRESS,
    "test_unwinding.py::test_an_op_that_throws_when_it_has_begun_is_over[draws-*]": _ASSERTS,
    "test_unwinding.py::test_an_op_that_throws_when_it_has_begun_is_over[index-*]": _ASSERTS,
    "test_weight_casts.py::test_a_stale_cast_in_the_cache_raises[*-weight_written_by_way_of_data]": _BOUND_TO_HOST,
}

_JITERATOR = "the stand-in has no kernels that CUDA compiles at run time (complex numbers, special functions)"
_LIBRARY = "the stand-in has no cuFFT, cuSPARSE and cuDNN"
_LAYOUT = "the stand-in computes strided tensors only"

LEFT_OUT_ON_STAND_IN = {
    "test_cuts.py::test_models_cut_anywhere_are_bitwise_plain[lstm-*]": _LIBRARY,
    "test_divergence.py::test_another_factory_raises[kaiser-*]": _JITERATOR,
    "test_given_up_tapes.py::test_a_nested_tensor_from_outside_is_as_plain": _LAYOUT,
    "test_lifetime.py::test_a_thousand_steps_are_flat": "queues of the stand-in are counted, too",
    "test_lifetime.py::test_regions_of_scripted_modules_die_with_the_graph": "the stand-in has no fused kernels",
    "test_memory_of_others.py::test_whatever_way_it_lies_there[complex-*]": _JITERATOR,
    "test_memory_of_others.py::test_whatever_way_it_lies_there[conjugated-*]": _JITERATOR,
    "test_op_words.py::test_ops_with_complex_numbers_among_their_arguments_replay": _JITERATOR,
    "test_op_words.py::test_the_same_values_are_the_same[complex]": _JITERATOR,
    "test_outside_writes.py::test_fake_quantization_per_channel": "the stand-in reads back what it has not computed there",
    "test_policies.py::test_views_of_sparse_tensors_run_again_whatever_the_rules_say": _LAYOUT,
    "test_replay_state.py::test_an_argument_that_hooks_bring_back_lies_as_it_did[conjugated-*]": _JITERATOR,
    "test_settings.py::test_a_setting_that_state_of_the_host_chooses_raises[threads-*]": _LIBRARY,
    "test_settings.py::test_a_setting_that_the_function_changes_is_left_to_the_function[threads]": _LIBRARY,
    "test_settings.py::test_libraries_are_those_of_the_forward": "kernels of the stand-in read oneDNN's setting when they run",
    "test_tape.py::test_models_are_bitwise_plain_and_run_once[lstm-*]": _LIBRARY,
    "test_tape.py::test_tape_alone_refuses_in_the_forward_and_auto_says_why_once": _LAYOUT,
    "test_wrappers.py::test_sparse_tensors_are_billed_by_their_indices_and_values": _LIBRARY,
}


def _fits(key, item):
    file, _, test = key.partition("::")
    name, _, ids = test.partition("[")
    if (item.path.name, getattr(item, "originalname", item.name)) != (file, name):
        return False
    return not ids or fnmatch.fnmatchcase(item.name[len(name) + 1 : -1], ids[:-1].replace("[", "[[]"))


def reasons_for(items, on_stand_in):
    """Returns the reason for each of `items` that is left out. Raises ValueError for keys without a test."""
    keys = LEFT_OUT | LEFT_OUT_ON_STAND_IN if on_stand_in else LEFT_OUT
    files, used, reasons = {item.path.name for item in items}, set(), {}
    for key, reason in keys.items():
        for item in items:
            if _fits(key, item):
                reasons[item] = reason
                used.add(key)
    unused = [key for key in keys if key.partition("::")[0] in files and key not in used]
    if unused:
        raise ValueError(f"[cuda_left_out] expected keys that name a test, got {', '.join(unused)}. Mend or remove them.")
    return reasons
