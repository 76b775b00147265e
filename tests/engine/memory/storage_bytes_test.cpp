// SPDX-License-Identifier: BSD-3-Clause

// Copies of storages have the layout, the size and the alignment that was asked for.
#include <remat/engine/storage_bytes.h>

#include "support/catch.h"

#include <torch/torch.h>

#include <array>

#include "support/error_text.h"
#include "support/same_bits.h"

namespace remat {
namespace {

at::Tensor counted(int64_t count) {
  return at::arange(count, at::kFloat);
}

TensorLayout part_at(int64_t offset, int64_t size, int64_t stride = 1) {
  TensorLayout layout;
  layout.sizes = {size};
  layout.strides = {stride};
  layout.offset = offset;
  return layout;
}

/// Host memory that begins `skipped` floats after a multiple of 64 bytes.
struct HostFloats {
  alignas(64) std::array<float, 32> numbers{};
  at::Tensor from(int64_t skipped, int64_t count) {
    return at::from_blob(numbers.data() + skipped, {count}, at::kFloat);
  }
};

}  // namespace

TEST_CASE("A value is copied into a storage at another layout", "[engine][memory]") {
  const at::Tensor value = counted(6).view({2, 3});
  TensorLayout layout(at::zeros({3, 2}).t());
  layout.offset = 4;
  const c10::Storage storage = copy_into_storage(value, layout, 48);
  CHECK(storage.nbytes() == 48);
  CHECK(same_bits(lay_out(storage, layout), value));
  CHECK(same_bits(lay_out(storage, part_at(4, 6)), value.t().flatten()));
}

TEST_CASE("An expanded dimension is copied as one element", "[engine][memory]") {
  const at::Tensor value = counted(3).unsqueeze(1).expand({3, 4});
  const c10::Storage storage = copy_into_storage(value, TensorLayout(value), 12);
  CHECK(same_bits(lay_out(storage, TensorLayout(value)), value));
}

TEST_CASE("A tensor whose memory was freed is not copied", "[engine][memory]") {
  const at::Tensor value = counted(4);
  const TensorLayout layout(value);
  value.storage().unsafeGetStorageImpl()->set_nbytes(8);
  CHECK_THAT(error_text([&] { copy_into_storage(value, layout, 16); }),
             ContainsSubstring("[remat] storage: expected its memory as the forward left it"));
}

TEST_CASE("A part is put back where it was, and other bytes stay", "[engine][memory]") {
  const at::Tensor whole = counted(8);
  const TensorLayout every_third = part_at(1, 2, 3);
  put_part(whole.storage(), every_third, at::full({2}, -1.0));
  CHECK(same_bits(whole, at::tensor({0.0F, -1.0F, 2.0F, 3.0F, -1.0F, 5.0F, 6.0F, 7.0F})));
}

TEST_CASE("A value gets the strides that it had, and stays itself if it has them",
          "[engine][memory]") {
  const at::Tensor value = counted(6).view({2, 3});
  const uint8_t alignment = alignment_of(value);
  CHECK(with_layout(value, TensorLayout(value), alignment).is_same(value));
  const at::Tensor got = with_layout(value, TensorLayout(at::zeros({3, 2}).t()), alignment);
  CHECK(got.strides() == at::IntArrayRef({1, 2}));
  CHECK(same_bits(got, value));
}

TEST_CASE("A value gets the alignment that it had", "[engine][memory]") {
  const at::Tensor value = counted(6);
  REQUIRE(alignment_of(value) == 0);
  CHECK(alignment_of(value.narrow(0, 3, 2)) == 12);
  const at::Tensor got = with_layout(value, TensorLayout(value), 20);
  CHECK(alignment_of(got) == 20);
  CHECK(same_bits(got, value));
  CHECK(with_layout(value, TensorLayout(value), kNoAlignment).is_same(value));
  // No float can begin at byte 2.
  CHECK(with_layout(value, TensorLayout(value), 2).is_same(value));
}

TEST_CASE("Tensors without an address have no alignment", "[engine][memory]") {
  CHECK(alignment_of(at::empty({0})) == kNoAlignment);
  CHECK(alignment_of(at::empty({4}, at::kMeta)) == kNoAlignment);
  CHECK(alignment_of(at::eye(2).to_sparse()) == kNoAlignment);
}

TEST_CASE("A value is put on a whole storage unless it lies on one", "[engine][memory]") {
  const at::Tensor value = counted(4);
  CHECK(on_whole_storage(value, TensorLayout(value), 16).is_same(value));
  const at::Tensor got = on_whole_storage(value, part_at(2, 4), 64);
  CHECK(got.storage().nbytes() == 64);
  CHECK(got.storage_offset() == 2);
  CHECK(same_bits(got, value));
}

TEST_CASE("A copy of all bytes begins as far from a multiple of 64", "[engine][memory]") {
  HostFloats host;
  const at::Tensor original = host.from(3, 5);
  original.copy_(counted(5));
  const at::Tensor copy = clone_bytes(original.storage());
  CHECK(alignment_of(copy) == 12);
  CHECK(copy.storage().nbytes() == 20);
  CHECK(same_bits(copy.view(at::kFloat), original));
  original.zero_();
  CHECK(same_bits(copy.view(at::kFloat), counted(5)));
}

TEST_CASE("Storages overlap if they share a byte", "[engine][memory]") {
  HostFloats host;
  const at::Tensor first = host.from(0, 4);
  CHECK(overlap(first.storage(), host.from(3, 4).storage()));
  CHECK_FALSE(overlap(first.storage(), host.from(4, 4).storage()));
  CHECK_FALSE(overlap(host.from(4, 4).storage(), first.storage()));
  const at::Tensor meta = at::empty({4}, at::kMeta);
  CHECK_FALSE(overlap(meta.storage(), meta.storage()));
}

TEST_CASE("All bytes are copied to a storage of the same size only", "[engine][memory]") {
  const at::Tensor to = at::zeros({4});
  copy_bytes(counted(4).storage(), to.storage());
  CHECK(same_bits(to, counted(4)));
  CHECK_THAT(error_text([&] { copy_bytes(counted(3).storage(), to.storage()); }),
             ContainsSubstring("got one of 12 bytes that had 16"));
}

TEST_CASE("A lazy clone has no memory of its own until it is written", "[engine][memory]") {
  const at::Tensor tensor = counted(4);
  CHECK(has_own_memory(tensor.storage()));
  const at::Tensor clone = at::_lazy_clone(tensor);
  CHECK_FALSE(has_own_memory(clone.storage()));
  clone.add_(1);
  CHECK(has_own_memory(clone.storage()));
  CHECK_FALSE(has_own_memory(at::empty({4}, at::kMeta).storage()));
}

}  // namespace remat
