// SPDX-License-Identifier: BSD-3-Clause

// Strides and lazy bits of tensors that hooks and stores give back.
#include <any>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/named_step.h"

namespace remat {
namespace {

/// A store that gives back contiguous copies.
struct ContiguousStore final : OffloadStore {
  struct Place final : Ticket {
    explicit Place(at::Tensor tensor) : tensor_(std::move(tensor)) {}
    at::Tensor get() override { return tensor_; }

   private:
    at::Tensor tensor_;
  };
  std::shared_ptr<Ticket> put(const at::Tensor& tensor) override {
    return std::make_shared<Place>(tensor.resolve_neg().contiguous().clone());
  }
};

/// Notes the memory layout of its saved tensor, in the forward and in the backward.
struct NotesLayout : torch::autograd::Function<NotesLayout> {
  static inline std::vector<std::string> notes;

  static void note(const at::Tensor& t) {
    notes.push_back(c10::str(t.strides(), t.is_conj() ? " conj" : "", t.is_neg() ? " neg" : ""));
  }
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x) {
    note(x);
    ctx->save_for_backward({x});
    return x.sum();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    note(ctx->get_saved_variables()[0]);
    return {grads[0] * ctx->get_saved_variables()[0]};
  }
};

// Strides may change the order in which a kernel sums, and so the gradients.
TEST_CASE("Hooks and stores give tensors back with their strides and offset",
          "[backend][native_op][offload]") {
  const std::vector<std::pair<std::string, TensorFn>> views{
      {"transposed", [](const at::Tensor& t) { return t.t(); }},
      {"sliced", [](const at::Tensor& t) { return t.slice(1, 1, 8, 2); }},
      {"expanded",
       [](const at::Tensor& t) {
         return t.select(0, 1).expand({3, 8});
       }},
      {"double", [](const at::Tensor& t) { return t.to(at::kDouble); }},
      {"negated", [](const at::Tensor& t) { return at::imag(at::complex(t, t).conj()); }},
  };
  const SavedTensorsHooks copying{
      .pack = [](const at::Tensor& t) -> std::any { return t.resolve_neg().contiguous().clone(); },
      .unpack = [](const std::any& t) { return std::any_cast<at::Tensor>(t); }};
  CheckpointOptions with_store{.offload_store = std::make_shared<ContiguousStore>()};
  for (const CheckpointOptions& options :
       {with_store, CheckpointOptions{.offload_store = host_memory_store()},
        CheckpointOptions{.saved_tensors_hooks = copying}}) {
    for (const auto& [name, view] : views) {
      INFO(name);
      NotesLayout::notes.clear();
      check_as_plain(
          [&](const at::Tensor& x) {
            const auto in_call = [&](const at::Tensor& t) {
              return NotesLayout::apply(view(t * 2));
            };
            return native_op(in_call, "a", Policy::kOffload)(x.sin());
          },
          {}, options);
      REQUIRE(NotesLayout::notes.size() == 4);
      CHECK(NotesLayout::notes == std::vector<std::string>(4, NotesLayout::notes[0]));
    }
  }
}

}  // namespace
}  // namespace remat
