// SPDX-License-Identifier: BSD-3-Clause

// Everything that users of remat include.
#pragma once

#include <remat/backend/checkpoint.h>
#include <remat/backend/checkpoint_options.h>
#include <remat/backend/checkpoint_sequential.h>
#include <remat/backend/name_scope.h>
#include <remat/backend/native_op.h>
#include <remat/backend/register_device.h>
#include <remat/backend/remat_handle.h>
#include <remat/backend/saved_tensors_hooks_guard.h>
#include <remat/backend/tensor_tree.h>
#include <remat/backend/tiled.h>
#include <remat/budget/auto_checkpoint.h>
#include <remat/engine/blocking_wait.h>
#include <remat/engine/cuts.h>
#include <remat/engine/determinism.h>
#include <remat/engine/is_recomputing.h>
#include <remat/engine/offload_store.h>
#include <remat/engine/op_call.h>
#include <remat/engine/region_policy.h>
#include <remat/engine/replay_mismatch.h>
#include <remat/engine/saved_tensors_pair.h>
#include <remat/engine/state_hook.h>
#include <remat/inspect/call_trace.h>
#include <remat/inspect/memory_meter.h>
#include <remat/inspect/memory_report.h>
#include <remat/inspect/recorder.h>
#include <remat/inspect/region_saves.h>
#include <remat/inspect/region_tapes.h>
#include <remat/inspect/saved_tensors_report.h>
#include <remat/offload/disk_memory.h>
#include <remat/offload/mask_store.h>
#include <remat/offload/offload_engine.h>
#include <remat/offload/rounding_store.h>
#include <remat/offload/sim_link.h>
#include <remat/placeholder/placeholder.h>
#include <remat/policy/policy.h>
#include <remat/policy/policy_table.h>
