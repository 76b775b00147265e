// SPDX-License-Identifier: BSD-3-Clause

// Runs random programs.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <remat/remat.h>

#include "fuzz/program.h"

namespace remat::fuzz {

enum class Mode {
  kPlain,
  kCheckpointed,
  kRehearsal,  // the forward only, to measure the lengths of tapes
  kBroken,     // like kCheckpointed, but random ops draw other numbers in replays
};

/// Number of records that the tape of each region has, if it can be cut.
using TapeSizes = std::map<const Step*, size_t>;

/// Number of records; 0 if no tape can be written.
size_t records_of(const TapeSizes& sizes, const Step& step);

/// Returns the cuts that `choices` give a tape of `records` records.
Cuts cuts_of(const RegionChoices& choices, size_t records);

/// Returns kTape if there are cuts, otherwise kAuto or kFunction as `choices` say.
ReplayEngine engine_of(const RegionChoices& choices, const Cuts& cuts);

/// Runs a program with its own parameters and buffers. Must outlive every graph that it makes:
/// regions refer to it and to the program.
class Machine {
 public:
  /// `sizes` is filled in Mode::kRehearsal, and read in other modes.
  Machine(const Program& program, Mode mode, TapeSizes& sizes);
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  /// Breaks reference cycles, which LibTorch does not free: an in-place op makes one when an unused
  /// branch of the program saved the tensor that it writes.
  ~Machine();

  /// Returns the inputs; all but the second require grad.
  Tensors make_inputs();

  const Tensors& weights() const { return weights_; }
  const Tensors& buffers() const { return buffers_; }  // the bank is the last

  Tensors forward(const Tensors& inputs) { return call(program_.body, inputs); }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  Tensors call(const Block& block, Tensors values);
  void apply(const Step& step, Tensors& values);
  Tensors apply_block(const Step& step, const Tensors& values);
  void add(at::Tensor value, Tensors& values);
  Tensors region(const Step& step, const Tensors& values);
  static Tensors received(Tensors results);
  at::Device place(size_t i) const;
  CheckpointOptions options_of(const Step& step);
  Tensors scope(const Step& step, const Tensors& values);
  Tensors named_call(const Step& step, const Tensors& values);
  size_t number_of(const Step& step);
  void note_size(const Step& step, const std::string& name);

  const Program& program_;
  const size_t run_;  // number of this run in the process
  Mode mode_;
  TapeSizes& sizes_;
  Tensors weights_;
  Tensors buffers_;
  const std::shared_ptr<OffloadStore> store_;
  std::mutex mutex_;  // replays may run on two threads
  std::map<const Step*, size_t> numbers_;
  std::vector<WeakTensor> made_;
};

}  // namespace remat::fuzz
