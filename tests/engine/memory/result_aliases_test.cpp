// SPDX-License-Identifier: BSD-3-Clause

// Writes to a region's result by way of `data`, and tensors that get other memory, are noticed.
#include <remat/engine/result_aliases.h>

#include "support/catch.h"

#include <c10/core/InferenceMode.h>
#include <torch/torch.h>

#include "engine/memory/storage_bits.h"

namespace remat {

TEST_CASE("A result written through an alias has changed for those that saved it before",
          "[engine][memory]") {
  const at::Tensor y = torch::ones({4});
  const at::Tensor other = torch::ones({4});
  note_results({y, at::Tensor(), other});
  CHECK(may_be_result(y));
  CHECK(may_be_result(y.view({2, 2})));
  const SavedVersion saved(y);
  const SavedVersion saved_other(other);
  before_result_alias(y);
  const at::Tensor alias = y.variable_data();
  CHECK_FALSE(changed_by_alias(saved));
  alias.mul_(2);
  CHECK(changed_by_alias(saved));
  CHECK_FALSE(changed_by_alias(saved_other));
  CHECK_FALSE(changed_by_alias(SavedVersion(y)));
  alias.mul_(0.5);
  CHECK_FALSE(changed_by_alias(saved));
}

TEST_CASE("The second alias of a result finds what was written through the first",
          "[engine][memory]") {
  const at::Tensor y = torch::ones({4});
  const SavedVersion first(y);
  before_result_alias(y);
  y.variable_data().mul_(2);
  const SavedVersion second(y);
  before_result_alias(y);
  CHECK(changed_by_alias(first));
  CHECK_FALSE(changed_by_alias(second));
  y.variable_data().mul_(2);
  CHECK(changed_by_alias(second));
}

TEST_CASE("An alias of freed memory changes nothing", "[engine][memory]") {
  at::Tensor y = torch::ones({4});
  const at::Tensor view = y.variable_data();
  const SavedVersion saved(y);
  before_result_alias(y);
  view.mul_(2);
  view.storage().unsafeGetStorageImpl()->set_nbytes(0);
  CHECK_FALSE(changed_by_alias(saved));
}

TEST_CASE("Tensors without versions or values are no results to watch", "[engine][memory]") {
  const at::Tensor meta = at::empty({4}, at::kMeta);
  const c10::InferenceMode inference;
  const at::Tensor tensor = at::ones({4});
  note_results({meta, tensor});
  CHECK_FALSE(may_be_result(meta));
  CHECK_FALSE(may_be_result(tensor));
}

TEST_CASE("A tensor that got other memory since it was saved is elsewhere", "[engine][memory]") {
  const at::Tensor w = torch::ones({4});
  const at::Tensor view = w.view({2, 2});
  const SavedVersion before(w);
  const SavedVersion of_view(view);
  CHECK(memory_now(before) == MemoryNow::kThere);
  note_exchange(w);
  CHECK(memory_now(before) == MemoryNow::kElsewhere);
  CHECK(memory_now(of_view) == MemoryNow::kThere);
  const SavedVersion after(w);
  note_exchange(torch::ones({4}));
  CHECK(memory_now(after) == MemoryNow::kThere);
}

TEST_CASE("A tensor that was left without elements has given its memory up", "[engine][memory]") {
  const at::Tensor w = torch::ones({4});
  const SavedVersion before(w);
  w.set_data(at::empty({0}));
  note_exchange(w);
  CHECK(memory_now(before) == MemoryNow::kGivenUp);
}

TEST_CASE("A set of storages has each one that was added", "[engine][memory]") {
  StorageBits bits;
  const auto storage = [](uintptr_t number) {
    return reinterpret_cast<const c10::StorageImpl*>(0x7F0000000000 + 64 * number);
  };
  size_t wrong = 0;
  for (uintptr_t i = 0; i < 300; ++i) bits.add(storage(2 * i));
  for (uintptr_t i = 0; i < 300; ++i) {
    CHECK(bits.may_have(storage(2 * i)));
    if (bits.may_have(storage(2 * i + 1))) ++wrong;
  }
  CHECK(wrong < 30);  // 300 of 65,536 bits are set.
}

}  // namespace remat
