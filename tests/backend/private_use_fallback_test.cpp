// SPDX-License-Identifier: BSD-3-Clause

// Who gets an op at PrivateUse1: placeholders their handler, ordinary tensors the one that was set.
#include "backend/private_use_fallback.h"

#include "support/slot_probe.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

#include "support/same_bits.h"

namespace {

using at::Tensor;

/// As an interception would: with the thread's bit off, on the keys that are left.
void run_natively(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
  constexpr auto kBit = c10::BackendComponent::PrivateUse1Bit;
  auto local = c10::impl::tls_local_dispatch_key_set();
  local.included_ = local.included_.remove_backend(kBit);
  const c10::impl::ForceDispatchKeyGuard off(local);
  op.redispatchBoxed(keys.remove_backend(kBit), stack);
}

std::vector<Tensor> step() {
  torch::manual_seed(5);
  torch::nn::Sequential net(torch::nn::Conv2d(2, 4, 3), torch::nn::BatchNorm2d(4),
                            torch::nn::ReLU(), torch::nn::Flatten(), torch::nn::Dropout(0.3),
                            torch::nn::Linear(64, 3));
  net->forward(torch::randn({2, 2, 6, 6})).softmax(1).square().sum().backward();
  std::vector<Tensor> grads;
  for (const Tensor& parameter : net->parameters()) grads.push_back(parameter.grad());
  return grads;
}

TEST_CASE("Ordinary training with the thread's bit on goes through the handler, bitwise as without",
          "[private_use_fallback]") {
  remat::install_private_use_fallback();
  const std::vector<Tensor> plain = step();
  static int calls;
  calls = 0;
  remat::set_plain_op_handler(
      [](const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
        ++calls;
        run_natively(op, keys, stack);
      });
  std::vector<Tensor> seen;
  {
    auto local = c10::impl::tls_local_dispatch_key_set();
    local.included_ = local.included_ | c10::DispatchKeySet(c10::BackendComponent::PrivateUse1Bit);
    const c10::impl::ForceDispatchKeyGuard on(local);
    seen = step();
  }
  remat::set_plain_op_handler(nullptr);
  CHECK(calls > 20);
  REQUIRE(seen.size() == plain.size());
  for (size_t i = 0; i < seen.size(); ++i) CHECK(same_bits(seen[i], plain[i]));
}

TEST_CASE("Ordinary tensors at PrivateUse1 go to the handler that was set",
          "[private_use_fallback]") {
  remat::install_private_use_fallback();
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::sin", "");
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  torch::jit::Stack stack = {at::ones({2})};
  CHECK_THROWS_WITH(op.redispatchBoxed(keys, &stack),
                    ContainsSubstring("expected a placeholder among the arguments"));
  remat::set_plain_op_handler(
      [](const c10::OperatorHandle& plain, c10::DispatchKeySet, torch::jit::Stack* arguments) {
        plain.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), arguments);
      });
  stack = {at::ones({2})};
  op.redispatchBoxed(keys, &stack);
  CHECK(stack[0].toTensor().equal(at::ones({2}).sin()));
  remat::set_plain_op_handler(nullptr);
}

}  // namespace
