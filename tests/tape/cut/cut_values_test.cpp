// SPDX-License-Identifier: BSD-3-Clause

// Values that cross a cut are kept once, as long as a unit may read them.
#include <remat/tape/cut_values.h>

#include "support/catch.h"

#include <remat/tape/rest_memory.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "support/error_text.h"
#include "support/recorded_tape.h"
#include "support/same_bits.h"

namespace remat {
namespace {

/// Values whose memory is kept as it is, or copied before a write.
struct KeptOnce {
  int calls = 0;
  CutValues values{[this](CallProduct& value, const at::Tensor& tensor, Policy /*policy*/) {
    ++calls;
    if (value.is_kept()) {
      value.keep_copy(tensor);
    } else {
      value.keep(tensor, {}, 0);
    }
  }};
};

at::Tensor read_value(const CutValues& values, uint32_t number) {
  return values.find(number)->fetch("segment 1");
}

ListedValues listed_results(std::vector<Cuts::Kept> kept) {
  return ListedValues(std::optional(std::move(kept)));
}

}  // namespace

TEST_CASE("A value that crosses a cut is kept once", "[tape][cut]") {
  KeptOnce kept;
  const at::Tensor tensor = torch::ones({4});
  CHECK(kept.values.find(3) == nullptr);
  CHECK(kept.values.keep(3, tensor, /*is_outside=*/false, Policy::kSave));
  CHECK_FALSE(kept.values.keep(3, tensor, /*is_outside=*/false, Policy::kSave));
  CHECK(kept.calls == 1);
  CHECK(read_value(kept.values, 3).storage().is_alias_of(tensor.storage()));
  kept.values.end_unit();
  CHECK_FALSE(kept.values.keep(3, tensor, /*is_outside=*/false, Policy::kSave));
  CHECK(kept.calls == 1);
}

TEST_CASE("A kept value lives until the units after its own have their inputs", "[tape][cut]") {
  KeptOnce kept;
  kept.values.keep(3, torch::ones({4}), false, Policy::kSave);
  kept.values.keep(4, torch::ones({4}), false, Policy::kSave);
  kept.values.hold_to_end(4);
  kept.values.end_unit();
  CHECK(kept.values.find(3) != nullptr);
  kept.values.drop_ended();
  CHECK(kept.values.find(3) == nullptr);
  CHECK(kept.values.find(4) != nullptr);
  kept.values.finish();
  CHECK(kept.values.find(4) == nullptr);
}

TEST_CASE("A kept value is copied before its memory is written, once", "[tape][cut]") {
  KeptOnce kept;
  const at::Tensor tensor = torch::ones({4});
  CHECK(kept.values.before_write(3, tensor) == 0);
  kept.values.keep(3, tensor, false, Policy::kSave);
  CHECK(kept.values.before_write(3, tensor) == 16);
  tensor.zero_();
  CHECK(kept.values.before_write(3, tensor) == 0);
  CHECK(same_bits(read_value(kept.values, 3).view(at::kFloat), torch::ones({4})));
}

TEST_CASE("A kept value that was written unseen raises, and a new layout does not", "[tape][cut]") {
  KeptOnce kept;
  const at::Tensor tensor = torch::ones({2, 4});
  kept.values.keep(3, tensor, false, Policy::kSave);
  tensor.t_();
  CHECK_THAT(error_text([&] { read_value(kept.values, 3); }),
             ContainsSubstring("[replay] segment 1, %3, made before the cut"));
  kept.values.laid_out_anew(3, tensor);
  CHECK_NOTHROW(read_value(kept.values, 3));
}

TEST_CASE("Listed values are matched by record and result, in order", "[tape][cut]") {
  ListedValues listed = listed_results(
      {{.record = 2, .result = 0}, {.record = 2, .result = 1, .policy = Policy::kOffload}});
  const at::Tensor tensor = torch::ones({1});
  const auto make = [&](size_t record, size_t result, uint32_t value) {
    listed.note_made(record, result, {.value = value, .layout = 0}, tensor, false);
  };
  CHECK(static_cast<bool>(listed));
  make(1, 0, 4);
  CHECK_FALSE(listed.has_made());
  make(2, 0, 5);
  make(2, 1, 6);
  CHECK(listed.contains(5));
  CHECK_FALSE(listed.contains(4));
  CHECK_FALSE(listed.contains(100));
  const auto made = listed.take_made();
  REQUIRE(made.size() == 2);
  CHECK(made[0].policy == Policy::kSave);
  CHECK(made[1].ref.value == 6);
  CHECK(made[1].policy == Policy::kOffload);
  CHECK_FALSE(listed.has_made());
  CHECK(listed.is_done());
}

TEST_CASE("A listed value that no record makes raises", "[tape][cut]") {
  const ListedValues listed = listed_results({{.record = 9, .result = 1}});
  CHECK_FALSE(listed.is_done());
  CHECK_THAT(error_text([&] { listed.check_done("here", 3); }),
             ContainsSubstring("here: cuts.keep[0]: expected a value that the function makes in "
                               "one of its 3 records, got result 1 of record 9."));
  CHECK_NOTHROW(ListedValues(std::nullopt).check_done("here", 3));
  CHECK_FALSE(static_cast<bool>(ListedValues(std::nullopt)));
}

TEST_CASE("Bytes that would cross a cut are those that live and nobody holds", "[tape][cut]") {
  RestMemory rest(/*segment_bytes=*/64, /*without_cpu=*/false, /*grows=*/false);
  std::vector<at::Tensor> all;
  for (uint32_t i = 0; i < 3; ++i) {
    all.push_back(torch::ones({4}));
    rest.allocated(i, all.back().storage());
  }
  CHECK(rest.made_bytes() == 48);
  all[0].reset();
  CHECK(rest.bytes_to_cross([](uint32_t value) { return value == 1; }) == 16);
  rest.forget_planned();
  CHECK(rest.bytes_to_cross([](uint32_t) { return false; }) == 0);
  CHECK(rest.made_bytes() == 48);
}

TEST_CASE("A storage that a record writes has the record's value", "[tape][cut]") {
  const RecordedTape written([](const at::Tensor& x) { return x.sin().mul_(x).exp(); });
  const TapeRecord& write = written.tape().records()[1];
  RestMemory rest(64, /*without_cpu=*/false, /*grows=*/false);
  const at::Tensor tensor = torch::ones({4});
  rest.allocated(1, tensor.storage());
  rest.wrote(written.tape(), write);
  CHECK(rest.bytes_to_cross([](uint32_t value) { return value == 2; }) == 0);
}

TEST_CASE("Memory of the CPU may count for nothing", "[tape][cut]") {
  RestMemory rest(64, /*without_cpu=*/true, /*grows=*/false);
  const at::Tensor tensor = torch::ones({4});
  rest.allocated(0, tensor.storage());
  CHECK(rest.made_bytes() == 0);
  CHECK(rest.bytes_to_cross([](uint32_t) { return false; }) == 0);
}

TEST_CASE("A look for a cut is due after a segment's bytes, then after an eighth of them",
          "[tape][cut]") {
  RestMemory rest(64, /*without_cpu=*/false, /*grows=*/false);
  rest.begin_segment();
  const at::Tensor eight_bytes = torch::ones({2});
  for (int i = 0; i < 7; ++i) rest.allocated(0, eight_bytes.storage());
  CHECK_FALSE(rest.is_look_due());
  rest.allocated(0, eight_bytes.storage());
  CHECK(rest.is_look_due());
  rest.bytes_to_cross([](uint32_t) { return true; });
  CHECK_FALSE(rest.is_look_due());
  rest.allocated(0, eight_bytes.storage());
  CHECK(rest.is_look_due());
  rest.copied(100);
  CHECK(rest.max_at_first_cut() == 164);
}

}  // namespace remat
