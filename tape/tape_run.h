// SPDX-License-Identifier: BSD-3-Clause

// One replay of a tape.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <remat/tape/region.h>
#include <remat/tape/region_input.h>
#include <remat/tape/replayer.h>
#include <remat/tape/tape.h>

namespace remat {

class CutValue;

/// What a TapeRun is to make.
struct TapeRunPart {
  const Region& root;    ///< Has the log of outside storages and of named calls.
  const Region& region;  ///< Has the slots.
  size_t unit = 0;       ///< Of Tape::parts().
  c10::ArrayRef<std::shared_ptr<const CutValue>> inputs{};  ///< What it starts from in the tape.
};

/// Makes the values of the live slots of a region. On one thread.
class TapeRun {
 public:
  TapeRun(const Tape& tape, const TapeRunPart& part);

  /// Fetches what the records start from. May replay outer regions.
  void fetch(const Replayer& inputs);

  /// Runs the records and fills `slots`. No scope may be open; see fetch().
  void run();
  void fill(ReplayedSlots& slots);

 private:
  struct Live {
    at::Tensor tensor;   // on the value's memory
    bool owned = false;  // the run may write there
    bool given = false;  // one of the part's inputs
  };

  void mark();
  bool runs(const TapeRecord& record) const;
  at::Tensor fetch_outside(const TapeValue& value) const;
  at::Tensor fetch_product(const TapeValue& value);
  at::Tensor make_memory(const TapeValue& value) const;
  void execute(const TapeRecord& record, uint32_t step);
  void prepare_writes(const TapeRecord& record, uint32_t step);
  void push_arguments(const TapeRecord& record);
  void take_outputs(const TapeRecord& record);
  bool is_new(uint32_t number) const;
  void drop_used(const TapeRecord& record, uint32_t step);
  at::Tensor get(const TapeRecord& record, const TapeRef& ref) const;
  at::Tensor get(const TapeRef& ref) const;
  at::Tensor fetch_argument(size_t outside) const;
  [[noreturn]] void fail(const TapeRecord& record, const char* what) const;

  const Tape& tape_;
  const TapePart& part_;
  const Region& root_;
  const Region& region_;
  const c10::ArrayRef<std::shared_ptr<const CutValue>> given_;
  size_t end_;                      // of the records
  std::vector<uint32_t> last_use_;  // per value: a step, 0 if never
  std::vector<Live> live_;          // per value
  std::vector<bool> slot_wanted_;
  std::vector<const RegionInput*> inputs_;  // the region's arguments
  std::vector<CallProduct::Held> products_;
  torch::jit::Stack stack_;
  torch::jit::Stack written_arguments_;  // of the op that runs
};

}  // namespace remat
