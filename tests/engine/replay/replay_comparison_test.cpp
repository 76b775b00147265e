// SPDX-License-Identifier: BSD-3-Clause

// A replay steps through the forward's log, and the first entry that differs raises.
#include "engine/replay/replay_comparison.h"

#include "support/catch.h"

#include <remat/engine/replay_mismatch.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>

#include "support/error_text.h"
#include "support/made_call.h"

namespace remat {
namespace {

/// A region whose forward has logged calls of aten::sin with these numbers.
class LoggedRegion {
 public:
  explicit LoggedRegion(std::initializer_list<int64_t> numbers, const OpSite& site = {})
      : region_(Region::make({.name = "r", .op_site = site})) {
    for (const int64_t number : numbers) write(region_->ops().writer(), number);
  }

  Region& region() { return *region_; }

  static void write(OpWords& words, int64_t number) {
    static const OpInfo sin(c10::Dispatcher::singleton().findSchemaOrThrow("aten::sin", ""));
    words.begin(sin);
    words.add_value(number);
    words.end();
  }

 private:
  std::shared_ptr<Region> region_;
};

/// A replay of the region of a LoggedRegion.
class LoggedReplay {
 public:
  explicit LoggedReplay(const Region& region) : memory_(region), comparison_(region, memory_) {}

  ReplayComparison& comparison() { return comparison_; }
  void calls(int64_t number) {
    LoggedRegion::write(comparison_.words(), number);
    comparison_.compare({}, /*slot=*/3);
  }
  std::string error_of(int64_t number) {
    return error_text([&] { calls(number); });
  }

 private:
  ReplayMemory memory_;
  ReplayComparison comparison_;
};

std::string call_error(const ReplayComparison& comparison, const NamedCall* expected,
                       const NamedCall& got) {
  return error_text([&] { comparison.call_mismatch(expected, got, 2); });
}

}  // namespace

TEST_CASE("A replay that calls the same ops gets to the end of the log", "[engine][replay]") {
  LoggedRegion logged({1, 2});
  logged.region().close();
  LoggedReplay replay(logged.region());
  replay.calls(1);
  CHECK(replay.comparison().count() == 1);
  CHECK(replay.comparison().position() > 0);
  CHECK_FALSE(replay.comparison().is_past_last_op());
  replay.calls(2);
  CHECK(replay.comparison().count() == 2);
  CHECK(replay.comparison().is_past_last_op());
}

TEST_CASE("The first op that differs raises with both", "[engine][replay]") {
  LoggedRegion logged({1, 2});
  logged.region().close();
  LoggedReplay replay(logged.region());
  replay.calls(1);
  CHECK_THROWS_AS(replay.calls(5), ReplayMismatch);
  CHECK_THAT(replay.error_of(5),
             ContainsSubstring("[replay] region 'r', slot 3, op 1: expected aten::sin(2) as in the "
                               "forward, got aten::sin(5). A number differs"));
}

TEST_CASE("An op more than in the forward raises", "[engine][replay]") {
  LoggedRegion logged({1});
  logged.region().close();
  LoggedReplay replay(logged.region());
  replay.calls(1);
  CHECK_THAT(replay.error_of(1), ContainsSubstring("expected the end of the function"));
}

TEST_CASE("Nothing is compared after the forward stopped logging", "[engine][replay]") {
  LoggedRegion logged({1});
  logged.region().ops().break_off();
  logged.region().close();
  LoggedReplay replay(logged.region());
  CHECK(replay.error_of(2) != "no error");
  replay.calls(1);
  CHECK(replay.error_of(2) == "no error");
  CHECK(replay.comparison().count() == 1);
  CHECK_FALSE(replay.comparison().is_past_last_op());
}

TEST_CASE("A replay may get further than a forward that still runs", "[engine][replay]") {
  LoggedRegion logged({1});
  LoggedReplay replay(logged.region());
  replay.calls(1);
  CHECK(replay.error_of(7) == "no error");
}

TEST_CASE("Positions of generators are compared if the region has drawn", "[engine][replay]") {
  const bool draws = GENERATE(false, true);
  const auto write = [](OpWords& words, uint64_t position) {
    static const OpInfo op(c10::Dispatcher::singleton().findSchemaOrThrow("aten::sin", ""));
    words.begin(op);
    words.add_draw(position);
    words.end();
  };
  LoggedRegion logged({});
  write(logged.region().ops().writer(), 1);
  if (draws) logged.region().mark_draws();
  logged.region().close();
  LoggedReplay replay(logged.region());
  write(replay.comparison().words(), 2);
  const std::string error = error_text([&] { replay.comparison().compare({}, 0); });
  CHECK((error != "no error") == draws);
}

TEST_CASE("Errors of named calls say what differs", "[engine][replay]") {
  LoggedRegion logged({});
  LoggedReplay replay(logged.region());
  const ReplayComparison& comparison = replay.comparison();
  const NamedCall a{.name = "a", .policy = Policy::kSave};
  const NamedCall other_policy{.name = "a", .policy = Policy::kRecompute};
  const NamedCall b{.name = "b", .policy = Policy::kSave};
  CHECK_THAT(call_error(comparison, &a, other_policy),
             ContainsSubstring("[replay] region 'r', slot 2: expected call 'a' (SAVE)") &&
                 ContainsSubstring("Conflicting recompute settings"));
  CHECK_THAT(call_error(comparison, &a, b), ContainsSubstring("missing, new or renamed"));
  CHECK_THAT(call_error(comparison, nullptr, b),
             ContainsSubstring("expected no further named call") &&
                 ContainsSubstring("that the forward did not make here"));
  CHECK_THAT(error_text([&] { comparison.call_missing(a, 0); }),
             ContainsSubstring("got the end of the function. A named call is missing"));
}

TEST_CASE("The ops of both runs are listed if the region has their sites", "[engine][replay]") {
  LoggedRegion silent({1});
  CHECK(LoggedReplay(silent.region()).comparison().op_lists().empty());
  LoggedRegion logged({1}, [] { return std::string("model.py:7"); });
  logged.region().op_sites()->add();
  logged.region().close();
  LoggedReplay replay(logged.region());
  CHECK_FALSE(replay.error_of(4) == "no error");
  const std::string lists = replay.comparison().op_lists();
  CHECK_THAT(lists, ContainsSubstring("Ops of the forward:\n") &&
                        ContainsSubstring("aten::sin(1)") && ContainsSubstring("aten::sin(4)") &&
                        ContainsSubstring("model.py:7"));
}

TEST_CASE("A saved tensor is known by its origin and its layout", "[engine][replay]") {
  LoggedRegion logged({});
  const at::Tensor a = torch::ones({4, 4});
  const at::Tensor b = torch::ones({4, 4});
  Region& region = logged.region();
  Slot& slot = region.add_slot(a);
  slot.origin = region.outside().add(a);
  region.outside().add(b);
  region.close();
  LoggedReplay replay(region);
  CHECK(replay.comparison().is_same_part(slot, a));
  CHECK_FALSE(replay.comparison().is_same_part(slot, b));
  CHECK_FALSE(replay.comparison().is_same_part(slot, a.t()));
  slot.origin = Origin::inside();
  CHECK(replay.comparison().is_same_part(slot, b));
}

}  // namespace remat
