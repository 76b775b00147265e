// SPDX-License-Identifier: BSD-3-Clause

// The ready-made hook for buffers. Tests of how regions call hooks are in
// backend/checkpoint/misuse_test.cpp and backend/checkpoint/replay_state_test.cpp.
#include <remat/engine/state_hook.h>

#include "support/catch.h"

#include <torch/torch.h>

#include <any>

#include "support/same_bits.h"

namespace {

TEST_CASE("A buffer hook brings values back into the same tensors", "[tape][state_hook]") {
  const at::Tensor mean = torch::rand({4});
  const at::Tensor count = torch::tensor(int64_t{3});
  const auto hook = remat::buffer_hook({mean, count});
  const std::any state = hook->snapshot();
  const at::Tensor before = mean.clone();
  mean.add_(1);
  count.add_(1);
  hook->restore(state);
  CHECK(same_bits(mean, before));
  CHECK(count.item<int64_t>() == 3);
}

TEST_CASE("A snapshot is a copy, which later writes and restores do not touch",
          "[tape][state_hook]") {
  const at::Tensor buffer = torch::zeros({2});
  const auto hook = remat::buffer_hook({buffer});
  const std::any zero = hook->snapshot();
  buffer.fill_(1);
  const std::any one = hook->snapshot();
  hook->restore(zero);
  CHECK(same_bits(buffer, torch::zeros({2})));
  hook->restore(one);
  CHECK(same_bits(buffer, torch::ones({2})));
}

TEST_CASE("A restored buffer keeps its version, so that autograd still takes it for the saved one",
          "[tape][state_hook]") {
  const at::Tensor buffer = torch::ones({2});
  const auto hook = remat::buffer_hook({buffer});
  const at::Tensor x = torch::ones({2}).requires_grad_();
  const at::Tensor loss = (x * buffer).sum();
  hook->restore(hook->snapshot());
  CHECK(buffer._version() == 0);
  CHECK_NOTHROW(loss.backward());
}

TEST_CASE("A hook without buffers does nothing", "[tape][state_hook]") {
  const auto hook = remat::buffer_hook({});
  CHECK_NOTHROW(hook->restore(hook->snapshot()));
}

}  // namespace
