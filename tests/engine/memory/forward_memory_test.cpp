// SPDX-License-Identifier: BSD-3-Clause

// Backward gets the forward's own memory while somebody has it, and nothing once it is gone.
#include <remat/engine/forward_memory.h>

#include "support/catch.h"

#include <remat/engine/gathered_memory.h>
#include <remat/engine/tensor_hash.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "support/error_text.h"
#include "support/same_bits.h"

namespace remat {
namespace {

std::string here() {
  return "here";
}

at::Tensor locked(const ForwardMemory& memory, const at::Tensor& like, const at::Tensor& value) {
  return memory.lock(TensorMeta(like), value, &here);
}

}  // namespace

TEST_CASE("The saved tensor comes back on its memory with its layout", "[engine][memory]") {
  const at::Tensor whole = torch::rand({4, 6});
  const std::vector<at::Tensor> parts = {whole, whole.t(), whole.narrow(1, 2, 3), whole[1],
                                         whole._neg_view()};
  for (const at::Tensor& part : parts) {
    const at::Tensor got = locked(ForwardMemory(part, false), part, part.clone());
    CHECK(got.storage().is_alias_of(whole.storage()));
    CHECK(got.strides() == part.strides());
    CHECK(got.is_neg() == part.is_neg());
    CHECK(same_bits(got, part));
  }
}

TEST_CASE("Memory that holds other values than were saved raises", "[engine][memory]") {
  const at::Tensor saved = torch::rand({3});
  const ForwardMemory memory(saved, false);
  const at::Tensor value = saved.clone();
  saved.data_ptr<float>()[1] += 1;
  CHECK_THAT(
      error_text([&] { locked(memory, saved, value); }),
      ContainsSubstring("here (float32 [3] on cpu): expected memory that somebody else has"));
  CHECK_NOTHROW(locked(memory, saved, at::Tensor()));
}

TEST_CASE("Memory that is freed or too small gives no tensor", "[engine][memory]") {
  at::Tensor saved = torch::rand({4});
  const at::Tensor like = saved.clone();
  const ForwardMemory memory(saved, true);
  CHECK(memory.is_hooked());
  CHECK_FALSE(memory.is_gone());
  saved.storage().unsafeGetStorageImpl()->set_nbytes(12);
  CHECK_FALSE(locked(memory, like, {}).defined());
  saved.reset();
  CHECK(memory.is_gone());
  CHECK_FALSE(locked(memory, like, {}).defined());
}

TEST_CASE("Gathered memory knows its gatherer and its shard's version", "[engine][memory]") {
  const at::Tensor whole = torch::zeros({4});
  const at::Tensor shard = torch::zeros({2});
  const c10::StorageImpl& storage = *whole.storage().unsafeGetStorageImpl();
  CHECK(gatherer_of(storage) == nullptr);
  CHECK(shard_version(storage) == 0);
  int calls = 0;
  shard.add_(1);
  note_gathered(whole, shard, [&] { ++calls; });
  gatherer_of(storage)();
  CHECK(calls == 1);
  CHECK(shard_version(storage) == 1);
  shard.add_(1);
  CHECK(shard_version(storage) == 2);
  CHECK(gatherer_of(*shard.storage().unsafeGetStorageImpl()) == nullptr);
}

TEST_CASE("The hash of a list of tensors depends on their order and on those without values",
          "[engine][memory]") {
  const at::Tensor a = torch::zeros({3});
  const at::Tensor b = torch::ones({3});
  const auto hash = [](const std::vector<at::Tensor>& tensors) { return hash_of(tensors); };
  CHECK(hash({a, b}) == hash({a.clone(), b.clone()}));
  CHECK(hash({a, b}) != hash({b, a}));
  CHECK(hash({a, at::Tensor()}) != hash({a}));
  CHECK(hash({a, at::Tensor()}) != hash({at::Tensor(), a}));
  CHECK(hash({at::empty({3}, at::kMeta), b}) == hash({at::Tensor(), b}));
}

}  // namespace remat
