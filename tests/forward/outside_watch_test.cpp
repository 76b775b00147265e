// SPDX-License-Identifier: BSD-3-Clause

// A forward notes the memory from outside that its ops read and write.
#include <remat/engine/outside_log.h>

#include "support/catch.h"

#include <remat/engine/byte_ranges.h>
#include <remat/engine/region.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/error_text.h"
#include "support/named_step.h"
#include "support/same_bits.h"

namespace remat {
namespace {

/// A region whose function was called once.
class WatchedRegion {
 public:
  explicit WatchedRegion(const TensorFn& fn) : x_(step_input()) {
    const uint64_t before = youngest_region();
    y_ = checkpoint({.name = "r"})(fn)(x_);
    region_ = find_region(before + 1);
    REQUIRE(region_);
  }

  const at::Tensor& x() const { return x_; }
  const OutsideLog& log() const { return region_->outside(); }
  bool has_met(const at::Tensor& tensor) const {
    return log().find(memory_of(tensor)).is_outside();
  }
  const OutsideStorage& of(const at::Tensor& tensor) const {
    return log()[log().find(memory_of(tensor)).number()];
  }
  /// The number of bytes that the region keeps of `tensor`.
  size_t kept_bytes(const at::Tensor& tensor) const {
    size_t bytes = 0;
    of(tensor).visit_kept(
        [&](const TensorLayout&, const HeldStorage& part) { bytes += part.size_bytes(); });
    return bytes;
  }

 private:
  at::Tensor x_;
  at::Tensor y_;
  std::shared_ptr<const Region> region_;
};

std::string refused_write(const TensorFn& fn) {
  return error_text([&] { WatchedRegion watched(fn); });
}

at::Tensor buffer_of_ones() {
  return torch::ones({4, 8});
}

}  // namespace

TEST_CASE("Memory from outside is read where an op reads its values", "[forward]") {
  const at::Tensor read = buffer_of_ones();
  const at::Tensor shown = buffer_of_ones();
  const at::Tensor unused = buffer_of_ones();
  const WatchedRegion watched([&](const at::Tensor& x) {
    return (x * read.view({32}).view({4, 8})).exp() + at::zeros_like(shown);
  });
  REQUIRE(watched.has_met(read));
  CHECK(watched.of(read).is_read());
  CHECK(watched.of(watched.x()).is_read());
  CHECK((!watched.has_met(shown) || !watched.of(shown).is_read()));
  CHECK_FALSE(watched.has_met(unused));
}

TEST_CASE("What the function makes is not from outside", "[forward]") {
  at::Tensor made;
  const WatchedRegion watched([&](const at::Tensor& x) {
    made = x.detach().sin();
    return (x * made).exp();
  });
  CHECK_FALSE(watched.has_met(made));
  CHECK(watched.log().size() == 1);
}

TEST_CASE("An argument is known by its position, whole or in part", "[forward]") {
  const at::Tensor whole = torch::ones({6, 8});
  const at::Tensor part = whole.narrow(0, 1, 4);
  const auto two = [](const at::Tensor& x, const at::Tensor& t) { return (x * t).exp(); };
  const uint64_t before = youngest_region();
  const at::Tensor x = step_input();
  const at::Tensor y = checkpoint({.name = "r"})(two)(x, part);
  const auto region = find_region(before + 1);
  REQUIRE(region);
  const OutsideLog& log = region->outside();
  REQUIRE(log.arguments().size() == 2);
  CHECK(log[log.arguments()[0].number()].whole_argument() == std::optional<size_t>(0));
  CHECK(log[log.arguments()[1].number()].is_argument());
  CHECK_FALSE(log[log.arguments()[1].number()].whole_argument());
}

TEST_CASE("A write that reads keeps the old values", "[forward]") {
  const at::Tensor buffer = buffer_of_ones();
  const WatchedRegion watched([&](const at::Tensor& x) {
    buffer.add_(1);
    return (x * buffer).exp();
  });
  CHECK(watched.of(buffer).is_written());
  CHECK(watched.kept_bytes(buffer) == 128);
  CHECK(same_bits(watched.of(buffer).unpack_kept().view(at::kFloat), torch::ones({32})));
}

TEST_CASE("A write of the whole tensor keeps nothing", "[forward]") {
  const at::Tensor buffer = buffer_of_ones();
  const WatchedRegion watched([&](const at::Tensor& x) {
    buffer.copy_(x.detach());
    return (x * buffer).exp();
  });
  CHECK(watched.of(buffer).is_written());
  CHECK(watched.kept_bytes(buffer) == 0);
}

TEST_CASE("A write of a row keeps of the others what is read", "[forward]") {
  const at::Tensor buffer = buffer_of_ones();
  const WatchedRegion watched([&](const at::Tensor& x) {
    buffer[0].fill_(3);
    return (x * buffer[0]).exp() * buffer[2];
  });
  CHECK(watched.kept_bytes(buffer) == 32);
  const ByteRanges* const known = watched.of(buffer).known();
  REQUIRE(known);
  CHECK(known->contains({0, 32}));
  CHECK_FALSE(known->contains({32, 64}));
  CHECK(known->contains({64, 96}));
}

TEST_CASE("What was read before the write is kept before the write", "[forward]") {
  const at::Tensor buffer = buffer_of_ones();
  const WatchedRegion watched([&](const at::Tensor& x) {
    const at::Tensor y = x * buffer[1];
    buffer.fill_(3);
    return y.exp();
  });
  CHECK(watched.kept_bytes(buffer) == 32);
}

TEST_CASE("A weight that the function captures is captured once", "[forward]") {
  const at::Tensor weight = buffer_of_ones().requires_grad_();
  const WatchedRegion watched([&](const at::Tensor& x) { return x.mul(weight).mul(weight).exp(); });
  size_t found = 0;
  for (const at::Tensor& tensor : watched.log().captured()) found += tensor.is_same(weight);
  CHECK(found == 1);
}

TEST_CASE("Another leaf on the memory of one is captured, too", "[forward]") {
  const at::Tensor weight = buffer_of_ones().requires_grad_();
  const at::Tensor other = weight.detach().requires_grad_();
  const WatchedRegion watched([&](const at::Tensor& x) { return x.mul(weight).mul(other).exp(); });
  bool found = false;
  for (const at::Tensor& tensor : watched.log().captured()) found |= tensor.is_same(other);
  CHECK(found);
}

TEST_CASE("A view from outside is captured also after a write that gives it a node of the region",
          "[forward]") {
  const at::Tensor leaf = buffer_of_ones().requires_grad_();
  const at::Tensor base = leaf * 1;
  const at::Tensor view = base.view({8, 4}).t();
  const WatchedRegion watched([&](const at::Tensor& x) {
    base.mul_(2);
    return (x.t().mm(x) * view.mm(view.t())[0][0]).exp();
  });
  bool found = false;
  for (const at::Tensor& tensor : watched.log().captured()) found |= tensor.is_same(view);
  CHECK(found);
}

TEST_CASE("A write that a replay could not repeat raises in the forward", "[forward]") {
  const at::Tensor buffer = buffer_of_ones();
  CHECK_THAT(refused_write([&](const at::Tensor& x) {
               buffer.t_();
               return x.exp();
             }),
             ContainsSubstring("[checkpoint] region 'r', op aten::t_: expected in-place ops that "
                               "write data only"));
  const at::Tensor sparse = torch::eye(4).to_sparse();
  CHECK_THAT(refused_write([&](const at::Tensor& x) {
               sparse.mul_(2);
               return x.exp();
             }),
             ContainsSubstring("expected in-place ops on strided tensors from outside the region"));
  CHECK_THAT(refused_write([&](const at::Tensor& x) {
               const at::Tensor made = x.detach().sin();
               at::from_blob(made.data_ptr(), {4}).add_(1);
               return (x * made).exp();
             }),
             ContainsSubstring("that was laid on the memory of one that the region has made"));
}

TEST_CASE("Memory from outside that the function resizes raises at its end", "[forward]") {
  const at::Tensor buffer = buffer_of_ones();
  CHECK_THAT(refused_write([&](const at::Tensor& x) {
               const at::Tensor y = (x * buffer).exp();
               buffer.storage().unsafeGetStorageImpl()->set_nbytes(0);
               return y;
             }),
             ContainsSubstring("to keep its size, got a storage of 128 bytes that has 0"));
}

}  // namespace remat
