// SPDX-License-Identifier: BSD-3-Clause

// Stores and hooks that give back other tensors than they were given.
#include <torch/torch.h>

#include <any>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/engine/region.h>
#include <remat/remat.h>

#include "support/named_step.h"
#include "support/unwound.h"

namespace remat {
namespace {

/// A change that a store or hook makes to the tensor that it gives back.
struct Change {
  std::string got;  ///< text that the error contains
  TensorFn apply;
};

const std::vector<Change>& changes() {
  static const std::vector<Change> all{
      {"expected float32 [4, 8] on cpu, got float32 [4, 7] on cpu",
       [](const at::Tensor& t) { return t.narrow(1, 0, 7); }},
      {"expected float32 [4, 8] on cpu, got float32 [32] on cpu",
       [](const at::Tensor& t) { return t.reshape({32}); }},
      {"expected float32 [4, 8] on cpu, got float64 [4, 8] on cpu",
       [](const at::Tensor& t) { return t.to(at::kDouble); }},
      {"expected float32 [4, 8] on cpu, got float32 [4, 8] on meta",
       [](const at::Tensor& t) { return t.to(at::kMeta); }},
      {"expected a float32 [4, 8] on cpu tensor, got an undefined one",
       [](const at::Tensor& /*t*/) { return at::Tensor(); }},
  };
  return all;
}

struct ChangingStore final : OffloadStore {
  explicit ChangingStore(TensorFn change) : change_(std::move(change)) {}

  struct Place final : Ticket {
    Place(at::Tensor tensor, TensorFn change)
        : tensor_(std::move(tensor)), change_(std::move(change)) {}
    at::Tensor get() override { return change_(tensor_); }

   private:
    at::Tensor tensor_;
    TensorFn change_;
  };
  std::shared_ptr<Ticket> put(const at::Tensor& tensor) override {
    return std::make_shared<Place>(tensor.clone(), change_);
  }

 private:
  TensorFn change_;
};

SavedTensorsHooks changing_hooks(TensorFn change) {
  return {.pack = [](const at::Tensor& t) -> std::any { return t.clone(); },
          .unpack = [change = std::move(change)](
                        const std::any& t) { return change(std::any_cast<const at::Tensor&>(t)); }};
}

/// The call's node needs the tensor that the call saves, and sin, which runs again, needs the
/// call's result.
at::Tensor offloads(const at::Tensor& x) {
  const auto exp = [](const at::Tensor& t) { return t.exp(); };
  return native_op(exp, "a", Policy::kOffload)(x.cos()).sin();
}

/// Returns the error of the backward of a region with these options.
std::string thrown_by(const CheckpointOptions& options, const TensorFn& fn) {
  const at::Tensor y = checkpoint(options)(fn)(step_input() * 2);
  return error_text([&] { y.sum().backward(); });
}

}  // namespace

TEST_CASE("A store that gives back another tensor raises in backward", "[faults][offload]") {
  for (const Change& change : changes()) {
    INFO(change.got);
    for (const ReplayEngine engine : {ReplayEngine::kFunction, ReplayEngine::kTape}) {
      const auto store = std::make_shared<ChangingStore>(change.apply);
      const std::string text =
          thrown_by({.name = "r", .replay = engine, .offload_store = store}, offloads);
      CHECK_THAT(text, ContainsSubstring(change.got));
    }
  }
  CHECK(live_regions().empty());
}

TEST_CASE("Hooks of a region that give back another tensor raise in backward",
          "[faults][offload]") {
  const auto bare = [](const at::Tensor& x) { return x.cos().exp(); };
  for (const Change& change : changes()) {
    INFO(change.got);
    for (const ReplayEngine engine : {ReplayEngine::kFunction, ReplayEngine::kTape}) {
      for (const TensorFn& fn : {TensorFn(offloads), TensorFn(bare)}) {
        const CheckpointOptions options{
            .name = "r", .replay = engine, .saved_tensors_hooks = changing_hooks(change.apply)};
        const std::string text = thrown_by(options, fn);
        CHECK_THAT(text, ContainsSubstring(change.got));
      }
    }
  }
  CHECK(live_regions().empty());
}

}  // namespace remat
