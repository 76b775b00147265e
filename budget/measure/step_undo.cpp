// SPDX-License-Identifier: BSD-3-Clause

#include "step_undo.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include <remat/tape/hidden_scopes.h>
#include <remat/tape/tensor_layout.h>

namespace remat {
namespace {

/// Hides remat's own ops and memory from interception and the log.
class Unseen {
 public:
  explicit Unseen(StepListener& listener) : listener_(listener) { listener_.mute(true); }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
  ~Unseen() { listener_.mute(false); }

 private:
  StepListener& listener_;
  const SuspendScopes suspend_;
};

TensorLayout flat(const c10::Storage& storage) {
  return TensorLayout::flat(storage.nbytes(), c10::kByte);
}

}  // namespace

StepUndo::~StepUndo() {
  const Unseen unseen(listener_);
  for (const Written& written : written_) {
    const at::AutoDispatchBelowADInplaceOrView below;
    lay_out(written.storage, flat(written.storage)).copy_(written.bytes);
  }
  const c10::AutoGradMode grad_mode(true);  // a view of a written tensor may be viewed again
  for (const auto& [tensor, edge] : graphs_) {
    if (tensor.grad_fn() != edge.function) torch::autograd::impl::set_gradient_edge(tensor, edge);
  }
  for (const GeneratorState& state : generators_) state.restore();
}

void StepUndo::before_op(const OpCall& call) {
  for (const OpTensor& given : call.tensors()) {
    if (!call.writes_argument(given.argument)) continue;
    if (is_of_python_class(*given.tensor)) {
      // Its parts' writes restore the memory.
      if (!is_made_in_step(*given.tensor)) keep_graph(*given.tensor);
    } else if (has_layout(*given.tensor)) {
      keep(*given.tensor);
    }
  }
}

bool StepUndo::is_made_in_step(const at::Tensor& wrapper) const {
  const std::vector<at::Tensor> parts = inner_tensors(wrapper);
  return std::any_of(parts.begin(), parts.end(), [&](const at::Tensor& part) {
    return has_layout(part) && listener_.has_block_at(part.storage().data());
  });
}

void StepUndo::keep(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  if (storage.nbytes() == 0 || listener_.has_block_at(storage.data())) return;
  keep_graph(tensor);
  if (tensor.is_view()) keep_graph(at::Tensor(tensor._base()));
  const bool is_known = std::any_of(written_.begin(), written_.end(), [&](const Written& written) {
    return written.storage.is_alias_of(storage);
  });
  if (is_known) return;
  const Unseen unseen(listener_);
  const at::AutoDispatchBelowADInplaceOrView below;
  written_.push_back({storage, lay_out(storage, flat(storage)).clone()});
}

void StepUndo::keep_graph(const at::Tensor& tensor) {
  const bool is_known = std::any_of(graphs_.begin(), graphs_.end(), [&](const Graph& graph) {
    return graph.tensor.is_same(tensor);
  });
  if (is_known) return;
  const auto& made_by = tensor.grad_fn();
  graphs_.push_back({tensor, made_by ? torch::autograd::Edge(made_by, tensor.output_nr())
                                     : torch::autograd::Edge()});
}

}  // namespace remat
