// SPDX-License-Identifier: BSD-3-Clause

// Tables of ops whose schemas lack alias marks.
#include "unmarked_writes.h"

#include <algorithm>
#include <array>

namespace remat {
namespace {

struct Entry {
  std::string_view op;
  UnmarkedWrites writes;
};

// Statistics of normalisation, written in training. Found by running LibTorch's op database on the
// CPU and comparing versions and bytes of unmarked arguments; for other devices, by reading the
// sources.
constexpr std::array kOfTensorLibrary{
    Entry{"aten::native_batch_norm", {.in_training = 0b11000}},
    Entry{"aten::cudnn_batch_norm", {.in_training = 0b11000}},
    Entry{"aten::miopen_batch_norm", {.in_training = 0b11000}},
    Entry{"aten::batch_norm_update_stats", {.in_training = 0b110}},
    Entry{"aten::batch_norm_gather_stats", {.in_training = 0b11000}},
    Entry{"aten::batch_norm_gather_stats_with_counts", {.in_training = 0b11000}},
};

// Ops of c10d that write their first argument: a Tensor, a list of them, or a list of such lists.
// They may go on writing it after they have returned: see Note [Writes that go on].
constexpr std::array<std::string_view, 17> kCollectives{
    "allreduce_",
    "allreduce_coalesced_",
    "broadcast_",
    "reduce_",
    "allgather_",
    "_allgather_base_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "reduce_scatter_",
    "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_",
    "gather_",
    "scatter_",
    "alltoall_",
    "alltoall_base_",
    "recv_",
    "recv_any_source_",
};

constexpr std::array<std::string_view, 4> kCommunication{
    "c10d::",
    "_c10d_functional::",
    "_c10d_functional_autograd::",
    "_dtensor::shard_dim_alltoall",
};

}  // namespace

UnmarkedWrites unmarked_writes(std::string_view op) {
  constexpr std::string_view kC10d = "c10d::";
  if (op.starts_with(kC10d)) {
    const bool writes = std::find(kCollectives.begin(), kCollectives.end(),
                                  op.substr(kC10d.size())) != kCollectives.end();
    return {.always = writes ? uint64_t{1} : 0};
  }
  const auto* const entry = std::find_if(kOfTensorLibrary.begin(), kOfTensorLibrary.end(),
                                         [&](const Entry& known) { return known.op == op; });
  return entry == kOfTensorLibrary.end() ? UnmarkedWrites{} : entry->writes;
}

bool wraps_collective(std::string_view op) {
  return op == "_c10d_functional::_wrap_tensor_autograd";
}

bool is_communication(std::string_view op) {
  if (wraps_collective(op)) return false;
  return std::any_of(kCommunication.begin(), kCommunication.end(),
                     [&](std::string_view prefix) { return op.starts_with(prefix); });
}

}  // namespace remat
