// SPDX-License-Identifier: BSD-3-Clause

// Recordings of small programs, written op by op.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <remat/recording/recording.h>

namespace remat::test {

/// Adds events of one thread, each later than the one before. Addresses depend on `base`.
class RecordedProgram {
 public:
  using Tensors = std::vector<RecordedTensor>;
  using Values = std::vector<RecordedValue>;

  explicit RecordedProgram(uint64_t base = 1000)
      : next_address_(base), now_(static_cast<TimeNs>(base)) {
    recording.strings = {""};
    recording.layouts = {{}};
    recording.threads = {{{now_, 9, text("python3")}, 0}};
  }

  StringId text(const std::string& words) {
    const auto known = std::find(recording.strings.begin(), recording.strings.end(), words);
    if (known != recording.strings.end())
      return static_cast<StringId>(known - recording.strings.begin());
    recording.strings.push_back(words);
    return static_cast<StringId>(recording.strings.size() - 1);
  }

  /// A tensor with memory of its own, which no op has made.
  RecordedTensor tensor(std::vector<int64_t> sizes = {4, 4}, const std::string& dtype = "float32",
                        bool requires_grad = false, const std::string& device = "cpu") {
    return viewed({0, next_address_ += 64, 0},
                  {text(dtype), text(device), std::move(sizes), {}, requires_grad});
  }

  RecordedTensor viewed(RecordedTensor tensor, const RecordedLayout& layout, int64_t offset = 0) {
    auto known = std::find(recording.layouts.begin() + 1, recording.layouts.end(), layout);
    if (known == recording.layouts.end()) known = recording.layouts.insert(known, layout);
    tensor.layout = static_cast<LayoutId>(known - recording.layouts.begin());
    tensor.offset = offset;
    return tensor;
  }

  const RecordedLayout& layout_of(const RecordedTensor& tensor) const {
    return recording.layouts[tensor.layout];
  }

  /// Returns a new tensor like the first argument.
  RecordedTensor op(const std::string& name, const Tensors& arguments, const Values& values = {}) {
    const RecordedLayout like = arguments.empty() || arguments[0].layout == 0
                                    ? layout_of(tensor())
                                    : layout_of(arguments[0]);
    const RecordedTensor result =
        viewed({0, next_address_ += 64, 0}, {like.dtype, like.device, like.sizes, {}, false});
    add(name, arguments, values, {result});
    return result;
  }

  OnThread<OpEvent>& add(const std::string& name, const Tensors& arguments, const Values& values,
                         const Tensors& results) {
    OpEvent op;
    op.begin_ns = ++now_;
    op.end_ns = now_ += 10;
    op.number = recording.ops.size() + 1;
    op.name = text(name);
    op.phase = phase;
    op.region = region;
    op.is_seen = region != 0;
    op.line = text("model.py:" + std::to_string(++line_) + " forward");
    op.arguments = arguments;
    op.values = values;
    op.results = results;
    recording.ops.push_back({op, 0});
    return recording.ops.back();
  }

  void begin_region(uint64_t number, uint64_t parent = 0) {
    recording.regions.push_back(
        {{++now_, number, number, parent, parent == 0 ? 0U : 1U, text("region 'block'")}, 0});
    region = number;
    if (phase == OpPhase::kOutside) phase = OpPhase::kForward;
    line_ = 10;
  }
  void end_region(uint64_t outer = 0) {
    region = outer;
    if (outer == 0 && phase == OpPhase::kForward) phase = OpPhase::kOutside;
  }

  void begin_backward() { phase = OpPhase::kBackward; }

  void begin_replay(uint64_t number) {
    recording.replays.push_back({{++now_, 0, number, true, false}, 0});
    region = number;
    phase = OpPhase::kReplay;
    line_ = 110;
  }
  /// `threw`: the replay threw; with `in_op`, in its last op, which therefore has no results.
  void end_replay(bool threw = false, bool in_op = true) {
    recording.replays.back().end_ns = ++now_;
    recording.replays.back().threw = threw;
    if (threw && in_op) {
      recording.ops.back().threw = true;
      recording.ops.back().results.clear();
    }
    region = 0;
    phase = OpPhase::kBackward;
  }

  void memory(const RecordedTensor& tensor, int64_t bytes) {
    recording.memory.push_back({{++now_, tensor.address, bytes, text("cpu"), 0}, 0});
  }

  RecordedValue number(int64_t n) const { return {ValueKind::kInt, static_cast<uint64_t>(n)}; }
  RecordedValue number(double x) const { return {ValueKind::kDouble, std::bit_cast<uint64_t>(x)}; }
  RecordedValue flag(bool is_set) const { return {ValueKind::kBool, is_set ? 1U : 0U}; }
  RecordedValue mode(const std::string& words) { return {ValueKind::kText, text(words)}; }
  RecordedValue list(uint64_t n) const { return {ValueKind::kList, n}; }
  RecordedValue none() const { return {}; }

  Recording recording;
  OpPhase phase = OpPhase::kOutside;
  uint64_t region = 0;

 private:
  uint64_t next_address_;
  TimeNs now_;
  int line_ = 0;
};

}  // namespace remat::test
