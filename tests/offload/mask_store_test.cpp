// SPDX-License-Identifier: BSD-3-Clause

// Masks stored as bits: all come back unchanged.
#include <torch/torch.h>

#include <memory>
#include <vector>

#include <remat/remat.h>

#include "offload/through_store.h"
#include "support/catch.h"

namespace remat {
namespace {

TEST_CASE("Masks of every size come back from their bits", "[offload]") {
  const auto store = mask_store();
  int64_t bytes = 0;
  for (const int64_t size : {1, 7, 8, 9, 64, 1001}) {
    const at::Tensor mask = at::rand({size}) < 0.5;
    CHECK(at::equal(through(*store, mask), mask));
    bytes += (size + 7) / 8;
  }
  CHECK(store->stats().count == 6);
  CHECK(store->stats().mask_bytes == 1 + 7 + 8 + 9 + 64 + 1001);
  CHECK(store->stats().packed_bytes == bytes);
  const at::Tensor bytes_of_others = at::arange(16, at::kByte).view(at::kBool);
  CHECK(at::equal(through(*store, bytes_of_others).view(at::kByte),
                  at::arange(16).ne(0).to(at::kByte)));
  const at::Tensor transposed = (at::rand({5, 7}) < 0.5).t();
  CHECK(at::equal(through(*store, transposed), transposed));
}

TEST_CASE("What is no mask, or a part of one, is kept as it is", "[offload]") {
  const auto store = mask_store();
  const at::Tensor mask = at::rand({8, 8}) < 0.5;
  const std::vector<at::Tensor> others{at::rand({3}),
                                       at::empty({0}, at::kBool),
                                       mask.select(0, 2),
                                       mask.slice(1, 0, 8, 2),
                                       at::ones({1}, at::kBool).expand({4}),
                                       at::arange(4)};
  for (const at::Tensor& tensor : others) CHECK(store->put(tensor)->get().is_same(tensor));
  CHECK(store->stats().count == 0);
}

TEST_CASE("A dropout keeps its mask as bits, there or in another memory", "[offload]") {
  const auto body = [](const at::Tensor& x) {
    return std::get<0>(at::native_dropout(x.sin(), 0.5, true)).cos();
  };
  const auto gradient = [&](const auto& fn) {
    torch::manual_seed(1);
    at::Tensor x = at::linspace(0, 1, 4096).requires_grad_();
    fn(x).sum().backward();
    return x.grad();
  };
  const auto engine = offload_engine({.min_bytes = 0});
  PolicyTable rules;
  rules.op("aten::native_dropout", Policy::kOffload);
  for (const auto& store : {mask_store(), mask_store(engine)}) {
    const auto region =
        checkpoint({.name = "r", .policy = make_policy(rules), .offload_store = store});
    CHECK(at::equal(gradient(region(body)), gradient(body)));
    CHECK(store->stats().mask_bytes == 4096);
    CHECK(store->stats().packed_bytes == 512);
  }
  CHECK(mask_store()->limits()->min_bytes == OffloadPlace::kNoLimit);  // does not offload
  CHECK(mask_store(engine)->limits()->min_bytes == 0);
}

}  // namespace
}  // namespace remat
