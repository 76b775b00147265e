// SPDX-License-Identifier: BSD-3-Clause

// A region need not see views of memory that it knows, and sees all others.
#include <remat/engine/op_observer.h>

#include "support/catch.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <filesystem>

#include <remat/engine/is_recomputing.h>
#include <remat/inspect/recorder.h>

#include "support/cut_step.h"
#include "support/named_step.h"

namespace remat {
namespace {

bool skips(const at::Tensor& viewed) {
  return OpObserver::all_skip_view(viewed);
}

/// Runs a step whose function is `fn`, in a region.
void run(const TensorFn& fn, ReplayEngine replay = ReplayEngine::kFunction) {
  step(checkpoint({.name = "r", .replay = replay})(fn));
}

}  // namespace

TEST_CASE("A view of a result is skipped, in the forward and in a replay", "[forward][views]") {
  for (const ReplayEngine replay : {ReplayEngine::kFunction, ReplayEngine::kTape}) {
    bool in_forward = false;
    bool in_replay = false;
    run(
        [&](const at::Tensor& x) {
          const at::Tensor y = x.sin();
          (is_recomputing() ? in_replay : in_forward) = skips(y) && skips(y.t());
          return y.t().exp();
        },
        replay);
    CHECK(in_forward);
    CHECK(in_replay == (replay == ReplayEngine::kFunction));
  }
}

TEST_CASE("A view of an outside tensor is skipped only in the forward, if the tensor is known",
          "[forward][views]") {
  const at::Tensor weight = torch::rand({4, 8}).requires_grad_();
  const at::Tensor view = weight.view({4, 8});
  run([&](const at::Tensor& x) {
    CHECK_FALSE(skips(weight));
    const at::Tensor y = x * weight;
    CHECK(skips(weight) == !is_recomputing());
    CHECK_FALSE(skips(view));
    return y;
  });
}

TEST_CASE("All views are seen after the region has written memory from outside",
          "[forward][views]") {
  const at::Tensor weight = torch::rand({4, 8}).requires_grad_();
  const at::Tensor buffer = torch::rand({4, 8});
  run([&](const at::Tensor& x) {
    const at::Tensor y = x * weight;
    buffer.add_(1);
    CHECK_FALSE(skips(weight));
    CHECK(skips(y));
    return y;
  });
}

TEST_CASE("Views are seen in a SAVE call and, in the forward, after it", "[forward][views]") {
  run([&](const at::Tensor& x) {
    const at::Tensor y = x.sin();
    const at::Tensor z = save("z", [](const at::Tensor& t) {
      const at::Tensor u = t.exp();
      CHECK_FALSE(skips(u));
      return u;
    })(y);
    CHECK(skips(y) == is_recomputing());
    CHECK_FALSE(skips(z));
    return z * y;
  });
}

TEST_CASE("A view of a cast weight is seen, because the cast may be stale", "[forward][views]") {
  const at::Tensor weight = torch::rand({8, 8}).requires_grad_();
  const c10::DeviceType device = weight.device().type();
  run([&](const at::Tensor& x) {
    at::autocast::set_autocast_enabled(device, true);
    const at::Tensor cast = at::autocast::cached_cast(at::kBFloat16, weight, device);
    CHECK_FALSE(skips(cast));
    const at::Tensor y = x.matmul(weight);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device, false);
    return y.to(at::kFloat);
  });
}

TEST_CASE("Views of tensors without strides or bytes are seen", "[forward][views]") {
  run([&](const at::Tensor& x) {
    CHECK_FALSE(skips(x.detach().to_sparse()));
    CHECK_FALSE(skips(x.new_zeros({0}).sin()));
    return x.sin();
  });
}

TEST_CASE("A tape with cuts sees all views", "[forward][views]") {
  const auto fn = [](const at::Tensor& x) {
    const at::Tensor y = x.sin();
    CHECK_FALSE(skips(y));
    return y.exp();
  };
  step(checkpoint(with_cuts(Cuts{.positions = {1}}))(fn));
}

TEST_CASE("A recorder sees all views", "[forward][views]") {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / "skipped_views.remat";
  {
    const Recorder recorder(path);
    run([&](const at::Tensor& x) {
      const at::Tensor y = x.sin();
      CHECK_FALSE(skips(y));
      return y;
    });
  }
  std::filesystem::remove(path);
}

}  // namespace remat
