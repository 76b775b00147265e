// SPDX-License-Identifier: BSD-3-Clause

// The device whose memory counts, and backward passes that cannot be profiled.
#include <remat/budget/step_log.h>

#include <map>
#include <unordered_set>

namespace remat {
namespace {

/// For each accelerator, in the order of their names, the bytes of results of the forward's ops.
std::map<std::string, std::pair<c10::Device, int64_t>> accelerator_bytes(const StepLog& step) {
  std::map<std::string, std::pair<c10::Device, int64_t>> bytes;
  for (const StepLog::Block& block : step.blocks) {
    if (block.device.is_cpu() || !block.is_result || block.born > step.forward_end) continue;
    bytes.try_emplace(block.device.str(), block.device, 0).first->second.second += block.bytes;
  }
  return bytes;
}

}  // namespace

c10::Device StepLog::main_device() const {
  c10::Device main = c10::kCPU;
  int64_t most = -1;
  for (const auto& [name, made] : accelerator_bytes(*this)) {
    if (made.second <= most) continue;
    main = made.first;
    most = made.second;
  }
  return main;
}

std::string StepLog::other_accelerators(c10::Device device) const {
  std::string names;
  for (const auto& [name, made] : accelerator_bytes(*this)) {
    if (made.first != device) names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

void StepLog::count_only(c10::Device device) {
  for (Block& block : blocks) {
    if (!counts_on(device, block.device)) block.bytes = 0;
  }
}

std::string StepLog::Backward::fault() const {
  std::unordered_set<uint64_t> seen;
  for (const Node& node : nodes) {
    if (node.sequence == kNoSequence || seen.insert(node.sequence).second) continue;
    return "expected backward to run each node once, got " + node.name +
           " twice (retain_graph). Run one backward from the sum of the losses.";
  }
  if (!goes_on) return "";
  return "expected backward to run what the forward has made, got " + later_node +
         " in between, which a backward has made (create_graph), or another step. Run one backward "
         "for each forward.";
}

}  // namespace remat
