// SPDX-License-Identifier: BSD-3-Clause

// A region knows which bytes from outside it has read, and keeps them before they are overwritten.
#include <remat/engine/outside_log.h>

#include "support/catch.h"

#include <remat/engine/gathered_memory.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/error_text.h"
#include "support/same_bits.h"

namespace remat {
namespace {

std::string in_region() {
  return "[replay] region 'r'";
}

/// A storage of ten floats from outside, 0 to 9.
struct Ten {
  at::Tensor tensor = at::arange(10, at::kFloat);
  OutsideStorage outside{tensor};

  void keep(const std::optional<TensorLayout>& part) { outside.keep(tensor.storage(), *part); }
  /// The bytes that a replay begins with.
  at::Tensor kept() const { return outside.unpack_kept().view(at::kFloat); }
  std::string complaint() const {
    return error_text([&] { outside.check_unchanged(tensor, &in_region); });
  }
};

ByteRange range_of(const std::optional<TensorLayout>& part) {
  return part ? span_of(*part) : ByteRange{};
}

}  // namespace

TEST_CASE("The part read before a write spans all that was read", "[engine][log]") {
  Ten ten;
  CHECK_FALSE(ten.outside.is_read());
  CHECK_FALSE(ten.outside.part_read());
  ten.outside.mark_read(ten.tensor.narrow(0, 6, 1));
  ten.outside.mark_read(ten.tensor.narrow(0, 2, 2));
  CHECK(ten.outside.is_read());
  CHECK(range_of(ten.outside.part_read()).begin == 8);
  CHECK(range_of(ten.outside.part_read()).end == 28);
  ten.outside.begin_write(ten.tensor);
  ten.outside.mark_read(ten.tensor);
  CHECK(range_of(ten.outside.part_read()).end == 28);
}

TEST_CASE("A strided read counts with the gaps in it", "[engine][log]") {
  Ten ten;
  ten.outside.mark_read(ten.tensor.slice(0, 1, 8, 3));  // Elements 1, 4 and 7.
  CHECK(range_of(ten.outside.part_read()).begin == 4);
  CHECK(range_of(ten.outside.part_read()).end == 32);
}

TEST_CASE("Bytes of a written storage are kept once", "[engine][log]") {
  Ten ten;
  ten.outside.begin_write(ten.tensor);
  const at::Tensor middle = ten.tensor.narrow(0, 3, 4);
  const auto part = ten.outside.part_to_keep(middle);
  CHECK(range_of(part).begin == 12);
  CHECK(range_of(part).end == 28);
  ten.keep(part);
  CHECK_FALSE(ten.outside.part_to_keep(middle));
  CHECK_FALSE(ten.outside.part_to_keep(ten.tensor.narrow(0, 4, 2)));
  CHECK(ten.outside.part_to_keep(ten.tensor.narrow(0, 4, 4)));
}

TEST_CASE("Of a column only its elements are kept", "[engine][log]") {
  Ten ten;
  ten.outside.begin_write(ten.tensor);
  const at::Tensor column = ten.tensor.view({5, 2}).select(1, 1);
  const auto part = ten.outside.part_to_keep(column);
  REQUIRE(part);
  CHECK(part->sizes == TensorLayout(column).sizes);
  ten.keep(part);
  ten.tensor.zero_();
  CHECK(same_bits(ten.kept().view({5, 2}).select(1, 1), at::arange(1, 10, 2, at::kFloat)));
  CHECK(ten.outside.part_to_keep(ten.tensor.view({5, 2}).select(1, 0)));
}

TEST_CASE("Elements that share memory are kept as the bytes that they span", "[engine][log]") {
  Ten ten;
  ten.outside.begin_write(ten.tensor);
  const auto part = ten.outside.part_to_keep(ten.tensor.as_strided({3, 4}, {2, 1}));
  REQUIRE(part);
  CHECK(part->dtype == at::kByte);
  CHECK(range_of(part).end == 32);
  const auto row = ten.outside.part_to_keep(ten.tensor[3].expand({100}));
  CHECK(range_of(row).begin == 12);
  CHECK(range_of(row).end == 16);
}

TEST_CASE("Bytes that the region has made itself are not kept", "[engine][log]") {
  Ten ten;
  ten.outside.begin_write(ten.tensor);
  ten.outside.cover(ten.tensor.narrow(0, 0, 5));
  CHECK_FALSE(ten.outside.part_to_keep(ten.tensor.narrow(0, 1, 3)));
  CHECK(ten.outside.part_to_keep(ten.tensor));
  REQUIRE(ten.outside.known());
  CHECK(ten.outside.known()->contains({0, 20}));
  CHECK_FALSE(ten.outside.known()->contains({0, 21}));
  ten.outside.cover(ten.tensor.narrow(0, 5, 5));
  CHECK_FALSE(ten.outside.part_to_keep(ten.tensor));
  CHECK(ten.outside.known() == nullptr);
}

TEST_CASE("A replay begins with the oldest bytes of each part", "[engine][log]") {
  Ten ten;
  ten.outside.mark_read(ten.tensor.narrow(0, 2, 3));
  ten.outside.begin_write(ten.tensor);
  ten.keep(ten.outside.part_read());
  ten.tensor.narrow(0, 2, 3).fill_(-1);
  ten.keep(ten.outside.part_to_keep(ten.tensor));
  ten.tensor.fill_(-2);
  CHECK(ten.outside.unpacks_afresh());
  CHECK(same_bits(ten.kept(), at::arange(10, at::kFloat)));
}

TEST_CASE("A storage that was kept whole in one part is unpacked as that copy", "[engine][log]") {
  Ten ten;
  ten.outside.begin_write(ten.tensor);
  ten.keep(ten.outside.whole());
  ten.tensor.zero_();
  CHECK_FALSE(ten.outside.unpacks_afresh());
  CHECK(ten.outside.is_kept_copy(ten.outside.unpack_kept()));
  CHECK(same_bits(ten.kept(), at::arange(10, at::kFloat)));
  ten.outside.drop_kept();
  CHECK(ten.outside.unpacks_afresh());
}

TEST_CASE("Nothing is unpacked of a storage that was only read", "[engine][log]") {
  Ten ten;
  ten.outside.mark_read(ten.tensor);
  CHECK_FALSE(ten.outside.unpack_kept().defined());
  ten.outside.hand_over(std::make_shared<const at::Tensor>(at::zeros({10}).view(at::kByte)));
  CHECK(same_bits(ten.kept(), at::zeros({10})));
}

TEST_CASE("A tensor from outside that was written since raises", "[engine][log]") {
  Ten ten;
  CHECK(ten.complaint() == "no error");
  SECTION("by an op") {
    ten.tensor[4].fill_(1);
    CHECK(ten.outside.changed());
  }
  SECTION("without a version") {
    ten.tensor.data_ptr<float>()[4] = 1;
    CHECK_FALSE(ten.outside.changed());
  }
  SECTION("by an alias with versions of its own") {
    ten.outside.mark_written_by_alias();
  }
  CHECK_THAT(ten.complaint(),
             ContainsSubstring("[replay] region 'r': expected the tensor from outside the region"));
}

TEST_CASE("Foreign memory that the host has written raises", "[engine][log]") {
  std::vector<float> host(10, 1.0F);
  const at::Tensor tensor = at::from_blob(host.data(), {10});
  const OutsideStorage outside(tensor);
  CHECK(outside.is_foreign());
  CHECK_FALSE(Ten().outside.is_foreign());
  CHECK(outside.has_bytes_of(tensor.storage()));
  host[9] = 2;
  CHECK_FALSE(outside.has_bytes_of(tensor.storage()));
  CHECK_THAT(error_text([&] { outside.check_unchanged(tensor, &in_region); }),
             ContainsSubstring("got other bytes: the host has written it"));
}

TEST_CASE("A weight whose shard was written since raises", "[engine][log]") {
  const at::Tensor whole = at::ones({4});
  const at::Tensor shard = at::ones({2});
  note_gathered(whole, shard, [] {});
  const OutsideStorage outside(whole);
  CHECK_NOTHROW(outside.check_unchanged(whole, &in_region));
  shard.add_(1);
  CHECK_THAT(error_text([&] { outside.check_unchanged(whole, &in_region); }),
             ContainsSubstring("a weight that is gathered from shards"));
}

TEST_CASE("Memory from outside keeps its size in the region, unless it is gathered",
          "[engine][log]") {
  Ten ten;
  at::Tensor gathered = at::ones({4});
  int calls = 0;
  note_gathered(gathered, at::ones({2}), [&] { ++calls; });
  const OutsideStorage outside(gathered);
  CHECK_NOTHROW(ten.outside.check_size(&in_region));
  outside.gather_again();
  CHECK(calls == 0);
  ten.tensor.storage().unsafeGetStorageImpl()->set_nbytes(8);
  gathered.storage().unsafeGetStorageImpl()->set_nbytes(0);
  CHECK_THAT(error_text([&] { ten.outside.check_size(&in_region); }),
             ContainsSubstring("got a storage of 40 bytes that has 8"));
  CHECK_NOTHROW(outside.check_size(&in_region));
  outside.gather_again();
  CHECK(calls == 1);
}

TEST_CASE("What a custom function saved of unread memory is known by its bytes", "[engine][log]") {
  Ten ten;
  CHECK(ten.outside.may_be_saved(at::zeros({10}).storage()));
  ten.outside.note_saved(ten.tensor.storage());
  CHECK(ten.outside.may_be_saved(at::arange(10, at::kFloat).storage()));
  CHECK_FALSE(ten.outside.may_be_saved(at::zeros({10}).storage()));
}

TEST_CASE("The log finds storages by address, and the arguments that cover them", "[engine][log]") {
  OutsideLog log;
  const at::Tensor a = at::ones({4});
  const at::Tensor b = at::ones({4});
  const Origin first = log.add(a);
  log.add_argument(first, /*is_whole=*/false);
  log.add_argument(Origin::inside(), /*is_whole=*/true);
  log.add_argument(first, /*is_whole=*/true);
  const Origin second = log.add(b);
  CHECK(log.find(memory_of(b)).value() == second.value());
  CHECK(log.find(memory_of(at::ones({4}))).is_unknown());
  CHECK(log[0].whole_argument() == std::optional<size_t>(2));
  CHECK(log.arguments().size() == 3);
  CHECK_FALSE(log[1].is_argument());
  CHECK(log.logged(Origin::unwritten()).value() == Origin::inside().value());
  CHECK(log.logged(second).value() == second.value());
  log[1].mark_cast(Origin::cast_of(first, 1));
  CHECK(log.logged(second).is_cast());
}

TEST_CASE("Captured tensors are those that live and require grad", "[engine][log]") {
  OutsideLog log;
  const at::Tensor weight = at::ones({4}).requires_grad_();
  const at::Tensor view = weight.detach().requires_grad_();
  const at::Tensor plain = at::ones({4});
  log.add(weight);
  log.add(plain);
  {
    const at::Tensor dies = at::ones({4}).requires_grad_();
    log.add_captured(dies);
  }
  log.add_captured(view);
  log.add_captured(view);
  const std::vector<at::Tensor> captured = log.captured();
  REQUIRE(captured.size() == 2);
  CHECK(captured[0].is_same(weight));
  CHECK(captured[1].is_same(view));
}

TEST_CASE("The log knows whether the function has set a gradient", "[engine][log]") {
  OutsideLog log;
  const at::Tensor weight = at::ones({4}).requires_grad_();
  weight.mutable_grad() = at::zeros({4});
  log.add(weight);
  log.finish();
  CHECK_FALSE(log.sets_grads());
  weight.mutable_grad() = at::ones({4});
  log.finish();
  CHECK(log.sets_grads());
}

TEST_CASE("A tensor that was given other memory is exchanged", "[engine][log]") {
  Ten ten;
  CHECK_FALSE(ten.outside.is_exchanged());
  ten.tensor.set_data(at::ones({10}));
  CHECK(ten.outside.is_exchanged());
  CHECK(ten.outside.is_gone());
}

}  // namespace remat
