// SPDX-License-Identifier: BSD-3-Clause

// Observing the ops of a region's forward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <memory>
#include <string>
#include <vector>

#include <remat/engine/generator_state.h>
#include <remat/engine/named_call.h>
#include <remat/engine/op_observer.h>

#include "forward_calls.h"
#include "forward_state.h"
#include "outside_watch.h"

namespace remat {

/// Logs a forward's ops, and passes them to the OutsideWatch, the named calls and the recorder.
class ForwardOps final : public OpObserver {
 public:
  /// `calls` points to null until the first named call.
  ForwardOps(ForwardState& state, OutsideWatch& outside, const std::unique_ptr<ForwardCalls>& calls)
      : state_(state), region_(*state.region), outside_(outside), calls_(calls) {}

  void before_op(OpCall& call, bool logged) override;
  void after_op(OpCall& call) override;
  bool skips_view(const at::Tensor& viewed) const override;
  void before_part(const OpCall& call) override;
  void after_part(const OpCall& call) override;
  void op_threw(const OpCall& call) override;
  void after_data(const at::Tensor& tensor) override;
  void before_set_data(const at::Tensor& tensor) override;
  void adopt(const at::Tensor& tensor) override;
  void adopt_part(const at::Tensor& tensor) override;
  void check_handler_write(const OpInfo& info, const std::string& op,
                           const c10::Storage& storage) const override;
  void phase_was_asked() override;

  /// True if the function has called is_recomputing().
  bool calls_is_recomputing() const { return calls_is_recomputing_; }

 private:
  Origin look(const OpCall& call, size_t argument, const at::Tensor& tensor);
  void write_down(const OpCall& call, uint64_t settings);
  void record(const OpCall& call, uint64_t settings);
  void end_handled(const OpCall& call);
  void adopt_unknown(const OpCall& call, const OpTensor& written);
  void note_streams(const OpCall& call);
  void before_draw(const OpCall& call);
  void after_draw();
  void after_cast(const OpCall& call);
  void after_cast_threw();
  void note_saved_writes(const OpCall& call);
  void note_other_versions_of(const OpCall& call);

  ForwardState& state_;
  Region& region_;
  OutsideWatch& outside_;
  const std::unique_ptr<ForwardCalls>& calls_;
  bool calls_is_recomputing_ = false;
  const OpCall* handled_ = nullptr;  // The running op, if a tensor subclass handles it.
  // For the running op:
  bool is_written_down_ = false;
  bool casts_weight_ = false;                 // Is a cast that autocast's cache could replace.
  Origin made_ = Origin::inside();            // Origin of the op's results if it is not logged.
  at::Tensor cast_leaf_;                      // The leaf that is cast, if casts_weight_.
  std::vector<GeneratorMark> marks_;          // Generators before the op, if it may draw.
  std::vector<const void*> made_by_handler_;  // Memory that the op's handler may have made.
};

}  // namespace remat
