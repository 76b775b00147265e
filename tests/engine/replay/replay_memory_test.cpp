// SPDX-License-Identifier: BSD-3-Clause

// A replay writes shadows of what the forward wrote, which begin with the old bytes.
#include "engine/replay/replay_memory.h"

#include "support/catch.h"

#include <remat/engine/replay_mismatch.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/error_text.h"
#include "support/made_call.h"
#include "support/same_bits.h"

namespace remat {
namespace {

at::Tensor six_floats() {
  return at::arange(6, at::kFloat);
}

/// A region whose forward has met a tensor from outside, number 0, and may have written it.
struct MetOutside {
  at::Tensor tensor = six_floats();
  std::shared_ptr<Region> region = Region::make({.name = "r"});

  MetOutside() { region->outside().add(tensor); }

  OutsideStorage& outside() { return region->outside()[0]; }
  /// The forward wrote zeros after it had read these elements.
  MetOutside& writes_after_reading(int64_t begin, int64_t count) {
    outside().begin_write(tensor);
    if (const auto part = outside().part_to_keep(tensor.narrow(0, begin, count)))
      outside().keep(tensor.storage(), *part);
    tensor.zero_();
    return *this;
  }
  const Region& closed() {
    region->close();
    return *region;
  }
};

std::string check_error(ReplayMemory& memory, MadeCall& call) {
  return error_text([&] { memory.check_outside(call.get(), 0); });
}

}  // namespace

TEST_CASE("What the forward wrote has a shadow with the old bytes", "[engine][replay]") {
  MetOutside met;
  ReplayMemory memory(met.writes_after_reading(0, 6).closed());
  const at::Tensor shadow = memory.stand_in(met.tensor);
  CHECK(same_bits(shadow, six_floats()));
  CHECK_FALSE(shadow.storage().is_alias_of(met.tensor.storage()));
  CHECK(memory.stand_in(met.tensor).is_same(shadow));
  CHECK(memory.stand_in(shadow).is_same(shadow));
  CHECK(memory.original_of(shadow).is_same(met.tensor));
  CHECK(memory.origin_of(shadow).is_outside());
  const at::Tensor other = six_floats();
  CHECK(memory.stand_in(other).is_same(other));
  CHECK(memory.original_of(other).is_same(other));
}

TEST_CASE("Each replay begins with the old bytes", "[engine][replay]") {
  MetOutside met;
  const Region& region = met.writes_after_reading(0, 6).closed();
  ReplayMemory first(region);
  first.stand_in(met.tensor).add_(1);
  ReplayMemory second(region);
  CHECK(same_bits(second.stand_in(met.tensor), six_floats()));
}

TEST_CASE("A shadow has the tensor's place in the graph before the write", "[engine][replay]") {
  const at::Tensor leaf = torch::ones({6}).requires_grad_();
  const at::Tensor written = leaf * 2;
  const auto node = written.grad_fn();
  const std::shared_ptr<Region> region = Region::make({.name = "r"});
  region->outside().add(written);
  OutsideStorage& outside = region->outside()[0];
  outside.begin_write(written);
  outside.keep(written.storage(), outside.whole());
  written.mul_(3);
  REQUIRE(written.grad_fn() != node);
  region->close();
  ReplayMemory memory(*region);
  CHECK(memory.stand_in(written).grad_fn() == node);
}

TEST_CASE("What the forward only read has no shadow", "[engine][replay]") {
  MetOutside met;
  met.outside().mark_read(met.tensor);
  ReplayMemory memory(met.closed());
  CHECK(memory.stand_in(met.tensor).is_same(met.tensor));
  CHECK_FALSE(memory.outside_bytes(0).defined());
  CHECK(memory.origin_of(met.tensor).is_outside());
}

TEST_CASE("A view's shadow shares memory with its base's", "[engine][replay]") {
  MetOutside met;
  ReplayMemory memory(met.writes_after_reading(0, 6).closed());
  const at::Tensor view = met.tensor.view({2, 3})[1];
  const at::Tensor shadow = memory.stand_in(view);
  CHECK(same_bits(shadow, at::tensor({3.0F, 4.0F, 5.0F})));
  CHECK(shadow._base().is_same(memory.stand_in(met.tensor)));
  shadow.add_(10);
  CHECK(same_bits(memory.stand_in(met.tensor).narrow(0, 3, 3), shadow));
  CHECK(same_bits(met.tensor, at::zeros({6})));
}

TEST_CASE("An op gets the shadow in place of its argument", "[engine][replay]") {
  MetOutside met;
  ReplayMemory memory(met.writes_after_reading(0, 6).closed());
  MadeCall call("aten::add_", "Tensor", {met.tensor, at::ones({6}), 1});
  CHECK(memory.exchange(call.get()));
  CHECK(call.get().tensors()[0].tensor->is_same(memory.stand_in(met.tensor)));
  call.run();
  CHECK(same_bits(met.tensor, at::zeros({6})));
  CHECK(same_bits(memory.stand_in(met.tensor), six_floats() + 1));
  MadeCall other("aten::add_", "Tensor", {at::ones({6}), at::ones({6}), 1});
  CHECK_FALSE(memory.exchange(other.get()));
}

TEST_CASE("A part of a written tensor that the forward did not read raises", "[engine][replay]") {
  MetOutside met;
  ReplayMemory memory(met.writes_after_reading(0, 2).closed());
  const at::Tensor shadow = memory.stand_in(met.tensor);
  MadeCall known("aten::sin", "", {shadow.narrow(0, 0, 2)});
  CHECK(check_error(memory, known) == "no error");
  MadeCall unknown("aten::sin", "", {shadow.narrow(0, 2, 2)});
  CHECK_THROWS_AS(memory.check_outside(unknown.get(), 0), ReplayMismatch);
  CHECK_THAT(check_error(memory, unknown),
             ContainsSubstring("of which nothing is kept, since the region writes the tensor"));
  MadeCall fills("aten::fill_", "Scalar", {shadow.narrow(0, 2, 2), 1.0});
  CHECK(check_error(memory, fills) == "no error");
  CHECK(check_error(memory, unknown) == "no error");
}

TEST_CASE("A write to a tensor that the forward did not write raises", "[engine][replay]") {
  MetOutside met;
  ReplayMemory memory(met.closed());
  const at::Tensor made = six_floats();
  memory.storages().enter_result(made);
  MadeCall own("aten::zero_", "", {made});
  CHECK(check_error(memory, own) == "no error");
  MadeCall read_only("aten::zero_", "", {met.tensor});
  CHECK_THAT(check_error(memory, read_only),
             ContainsSubstring("expected to write what the forward wrote"));
  MadeCall strange("aten::zero_", "", {six_floats()});
  CHECK_THAT(check_error(memory, strange),
             ContainsSubstring("expected to write what the forward wrote"));
}

TEST_CASE("A tensor from outside that was written after the forward raises where it is read",
          "[engine][replay]") {
  MetOutside met;
  met.outside().mark_read(met.tensor);
  ReplayMemory memory(met.closed());
  met.tensor.add_(1);
  MadeCall shape_only("aten::zeros_like", "", {met.tensor, {}, {}, {}, {}, {}});
  CHECK(check_error(memory, shape_only) == "no error");
  MadeCall reads("aten::sin", "", {met.tensor});
  CHECK_THAT(check_error(memory, reads),
             ContainsSubstring("has been modified by an inplace operation") &&
                 ContainsSubstring("[replay] region 'r', slot 0, op aten::sin"));
}

TEST_CASE("A skipped call puts its value into the shadow", "[engine][replay]") {
  MetOutside met;
  ReplayMemory memory(met.writes_after_reading(0, 2).closed());
  memory.put_outside(0, at::full({6}, 7.0));
  CHECK(same_bits(memory.outside_bytes(0).view(at::kFloat), at::full({6}, 7.0)));
  MadeCall reads("aten::sin", "", {memory.stand_in(met.tensor)});
  CHECK(check_error(memory, reads) == "no error");
}

TEST_CASE("Memory from outside that was freed raises where its values are needed",
          "[engine][replay]") {
  MetOutside met;
  ReplayMemory memory(met.closed());
  const auto error = [&](MadeCall& call) {
    return error_text([&] { memory.check_not_freed(call.get(), 0, met.tensor, 0); });
  };
  MadeCall reads("aten::sin", "", {met.tensor});
  CHECK(error(reads) == "no error");
  met.tensor.storage().unsafeGetStorageImpl()->set_nbytes(0);
  CHECK_THAT(error(reads), ContainsSubstring("op aten::sin (float32 [6] on cpu)"));
  MadeCall writes("aten::zero_", "", {met.tensor});
  CHECK(error(writes) == "no error");
}

TEST_CASE("An argument that hooks brought back elsewhere has the argument's origin",
          "[engine][replay]") {
  MetOutside met;
  met.region->outside().add_argument(Origin::outside(0), /*is_whole=*/true);
  ReplayMemory memory(met.closed());
  const at::Tensor copy = six_floats();
  CHECK(memory.origin_of(copy).is_unknown());
  memory.enter_argument(0, copy, /*moved=*/8);
  CHECK(memory.origin_of(copy).value() == Origin::outside(0).value());
  CHECK(memory.moved(copy) == 8);
  CHECK(memory.moved(met.tensor) == 0);
  CHECK_FALSE(memory.shadow_of_argument(0));
}

TEST_CASE("An argument that the forward wrote is replayed on its shadow", "[engine][replay]") {
  MetOutside met;
  met.region->outside().add_argument(Origin::outside(0), /*is_whole=*/true);
  ReplayMemory memory(met.writes_after_reading(0, 6).closed());
  const c10::Storage shadow = memory.shadow_of_argument(0);
  REQUIRE(shadow);
  CHECK(same_bits(lay_out(shadow, TensorLayout(met.tensor)), six_floats()));
  CHECK_FALSE(memory.shadow_of_argument(1));
}

TEST_CASE("Foreign memory that is wrapped again counts as the same if its bytes are",
          "[engine][replay]") {
  std::vector<float> host(4, 1.0F);
  const auto wrap = [&] { return at::from_blob(host.data(), {4}); };
  const std::shared_ptr<Region> region = Region::make({.name = "r"});
  std::optional<at::Tensor> first = wrap();
  region->outside().add(*first);
  region->close();
  ReplayMemory memory(*region);
  CHECK_FALSE(memory.is_same_foreign_memory(0, wrap()));
  first.reset();
  const at::Tensor again = wrap();
  CHECK(memory.is_same_foreign_memory(0, again));
  CHECK(memory.origin_of(again).value() == Origin::outside(0).value());
  host[2] = 5;
  CHECK_FALSE(memory.is_same_foreign_memory(0, wrap()));
}

TEST_CASE("A saved tensor has the origin that it had, as far as that is known",
          "[engine][replay]") {
  MetOutside met;
  const at::Tensor second = six_floats();
  met.region->outside().add(second);
  ReplayMemory memory(met.closed());
  const at::Tensor made = six_floats();
  memory.storages().enter_result(made, Origin::made(4, 0));
  const auto has = [&](const at::Tensor& tensor, Origin logged) {
    return memory.has_origin(tensor, logged, /*is_saved_by_user=*/true);
  };
  CHECK(has(met.tensor, Origin::outside(0)));
  CHECK_FALSE(has(second, Origin::outside(0)));
  CHECK(has(second, Origin::inside()));
  CHECK(has(made, Origin::made(4, 0)));
  CHECK_FALSE(has(made, Origin::made(5, 0)));
  CHECK_FALSE(has(made, Origin::outside(0)));
}

TEST_CASE("A shadow is not made of a tensor that has grown", "[engine][replay]") {
  MetOutside met;
  ReplayMemory memory(met.writes_after_reading(0, 6).closed());
  met.tensor.resize_({8});
  CHECK_THAT(error_text([&] { memory.stand_in(met.tensor); }),
             ContainsSubstring("Do not resize it."));
}

}  // namespace remat
