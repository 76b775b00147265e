// SPDX-License-Identifier: BSD-3-Clause

// A ready-made state hook that undoes what a replay writes into buffers.
#include <remat/engine/state_hook.h>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

namespace remat {
namespace {

class BufferHook final : public StateHook {
 public:
  explicit BufferHook(std::vector<at::Tensor> buffers) : buffers_(std::move(buffers)) {}

  std::any snapshot() override {
    c10::NoGradGuard no_grad;
    std::vector<at::Tensor> values;
    values.reserve(buffers_.size());
    for (const at::Tensor& buffer : buffers_) values.push_back(buffer.clone());
    return values;
  }

  void restore(const std::any& state) override {
    c10::NoGradGuard no_grad;
    const auto& values = std::any_cast<const std::vector<at::Tensor>&>(state);
    // variable_data() has a version counter of its own, so autograd sees no write.
    for (const auto i : c10::irange(buffers_.size())) buffers_[i].variable_data().copy_(values[i]);
  }

 private:
  std::vector<at::Tensor> buffers_;
};

}  // namespace

std::shared_ptr<StateHook> buffer_hook(std::vector<at::Tensor> buffers) {
  for (const auto i : c10::irange(buffers.size())) {
    TORCH_CHECK_VALUE(buffers[i].defined(), "[buffer_hook] buffer ", i,
                      ": expected a tensor, got an undefined one.");
    TORCH_CHECK_VALUE(!buffers[i].requires_grad(), "[buffer_hook] buffer ", i,
                      ": expected a tensor without gradient, got one that requires grad. Pass "
                      "buffers, not parameters.");
  }
  return std::make_shared<BufferHook>(std::move(buffers));
}

}  // namespace remat
