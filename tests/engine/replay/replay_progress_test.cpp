// SPDX-License-Identifier: BSD-3-Clause

// Tensors that autograd saves in a replay fill the forward's slots in order, and the last one that
// is needed ends the replay.
#include "engine/replay/replay_progress.h"

#include "support/catch.h"

#include <remat/engine/replay_mismatch.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "support/error_text.h"
#include "support/made_call.h"
#include "support/same_bits.h"

namespace remat {
namespace {

class NoBody final : public RegionBody {
 public:
  std::shared_ptr<const void> run(c10::ArrayRef<at::Tensor> /*inputs*/) const override {
    return nullptr;
  }
};

/// A replay of a region whose forward has saved these tensors and then has run one more op.
class SavedReplay {
 public:
  explicit SavedReplay(std::vector<at::Tensor> saved, Region::Options options = {.name = "r"},
                       bool ends_with_op = true)
      : saved_(std::move(saved)), region_(Region::make(std::move(options))) {
    for (const at::Tensor& tensor : saved_) region_->add_slot(tensor);
    if (ends_with_op) {
      OpWords& words = region_->ops().writer();
      words.begin(reader_.info());
      words.end();
    }
  }

  Region& region() { return *region_; }
  ReplayProgress& begin() {
    region_->close();
    slots_.resize(saved_.size());
    memory_ = std::make_unique<ReplayMemory>(*region_);
    comparison_ = std::make_unique<ReplayComparison>(*region_, *memory_);
    progress_ = std::make_unique<ReplayProgress>(*region_, body_, slots_, *comparison_);
    return *progress_;
  }
  const ReplayedSlots& slots() const { return slots_; }

  /// An op saves `tensor`. True if that stops the replay.
  bool stops_at(const at::Tensor& tensor) {
    progress_->begin_op(reader_.get());
    const bool stops = throws_stop([&] { progress_->receive(tensor, tensor); });
    progress_->end_op();
    return stops;
  }
  template <class Fn>
  static bool throws_stop(Fn&& fn) {
    try {
      fn();
    } catch (const StopReplay&) {
      return true;
    }
    return false;
  }

 private:
  MadeCall reader_{"aten::sin", "", {at::ones({1})}};
  std::vector<at::Tensor> saved_;
  std::shared_ptr<Region> region_;
  NoBody body_;
  ReplayedSlots slots_;
  std::unique_ptr<ReplayMemory> memory_;
  std::unique_ptr<ReplayComparison> comparison_;
  std::unique_ptr<ReplayProgress> progress_;
};

}  // namespace

TEST_CASE("Saved tensors fill the live slots in order", "[engine][replay]") {
  SavedReplay replay({torch::zeros({1}), torch::zeros({2}), torch::zeros({3})});
  replay.region().release(replay.region().slot(1));
  ReplayProgress& progress = replay.begin();
  CHECK_FALSE(replay.stops_at(torch::ones({1})));
  CHECK_FALSE(replay.stops_at(torch::ones({2})));
  CHECK(progress.slot_count() == 2);
  CHECK(replay.stops_at(torch::ones({3})));
  CHECK(same_bits(replay.slots()[0], torch::ones({1})));
  CHECK_FALSE(replay.slots()[1].defined());
  CHECK(same_bits(replay.slots()[2], torch::ones({3})));
}

TEST_CASE("A replay ends at the last live slot, and again if the function goes on",
          "[engine][replay]") {
  SavedReplay replay({torch::zeros({1}), torch::zeros({2}), torch::zeros({3})});
  replay.region().release(replay.region().slot(2));
  ReplayProgress& progress = replay.begin();
  CHECK_FALSE(replay.stops_at(torch::ones({1})));
  CHECK_FALSE(progress.stopped());
  CHECK(replay.stops_at(torch::ones({2})));
  CHECK(progress.stopped());
  CHECK(replay.stops_at(torch::ones({3})));
  CHECK_NOTHROW(progress.check_all_slots());
}

TEST_CASE("A replay that may not stop early goes on to the end", "[engine][replay]") {
  SavedReplay replay({torch::zeros({1})}, {.name = "r", .early_stop = false});
  const ReplayProgress& progress = replay.begin();
  CHECK_FALSE(replay.stops_at(torch::ones({1})));
  CHECK_FALSE(progress.stopped());
}

TEST_CASE("A replay that has compared the last op ends without an exception", "[engine][replay]") {
  SavedReplay replay({torch::zeros({1})}, {.name = "r"}, /*ends_with_op=*/false);
  const ReplayProgress& progress = replay.begin();
  CHECK_FALSE(replay.stops_at(torch::ones({1})));
  CHECK(progress.stopped());
}

TEST_CASE("A stop waits until an op has run that saved what it writes", "[engine][replay]") {
  SavedReplay replay({torch::zeros({1})});
  ReplayProgress& progress = replay.begin();
  const at::Tensor written = torch::ones({1});
  MadeCall writes("aten::zero_", "", {written});
  progress.begin_op(writes.get());
  progress.note_written(writes.get());
  CHECK_NOTHROW(progress.receive(written, written));
  CHECK_FALSE(progress.stopped());
  CHECK(SavedReplay::throws_stop([&] { progress.end_op(); }));
}

TEST_CASE("A stop at what a custom function saves waits for the next op", "[engine][replay]") {
  SavedReplay replay({torch::zeros({1})});
  ReplayProgress& progress = replay.begin();
  CHECK_NOTHROW(progress.receive(torch::ones({1}), torch::ones({1})));
  MadeCall next("aten::sin", "", {torch::ones({1})});
  CHECK(SavedReplay::throws_stop([&] { progress.begin_op(next.get()); }));
}

TEST_CASE("A stop does not leave a destructor that runs while an exception passes",
          "[engine][replay]") {
  SavedReplay replay({torch::zeros({1})});
  ReplayProgress& progress = replay.begin();
  struct Saves {
    SavedReplay& replay;
    bool& stopped;
    ~Saves() { stopped = replay.stops_at(torch::ones({1})); }
  };
  bool stopped_there = true;
  try {
    const Saves saves{replay, stopped_there};
    throw std::runtime_error("passes");
  } catch (const std::runtime_error&) {
    CHECK_FALSE(stopped_there);
  }
  CHECK(progress.stopped());
}

TEST_CASE("A saved tensor of another shape is the replay's error", "[engine][replay]") {
  SavedReplay replay({torch::zeros({2}), torch::zeros({2})});
  ReplayProgress& progress = replay.begin();
  const std::string error = error_text([&] { replay.stops_at(torch::ones({3})); });
  CHECK_THAT(error, ContainsSubstring("[replay] region 'r', slot 0: expected float32 [2] on cpu as "
                                      "in the forward, got float32 [3] on cpu."));
  CHECK(progress.failed());
  CHECK_THROWS_AS(progress.check_no_error(), ReplayMismatch);
}

TEST_CASE("More saved tensors than in the forward raise, and so do fewer", "[engine][replay]") {
  SavedReplay replay({torch::zeros({1}), torch::zeros({2})}, {.name = "r", .early_stop = false});
  ReplayProgress& progress = replay.begin();
  replay.stops_at(torch::ones({1}));
  CHECK_THAT(error_text([&] { progress.check_all_slots(); }),
             ContainsSubstring("got the end of the function. The forward saved 2 tensors, the "
                               "replay 1."));
  replay.stops_at(torch::ones({2}));
  CHECK_THAT(error_text([&] { replay.stops_at(torch::ones({2})); }),
             ContainsSubstring("slot 2: expected the end of the function") &&
                 ContainsSubstring("The replay saved more tensors."));
}

TEST_CASE("A tensor that is saved between other ops raises", "[engine][replay]") {
  SavedReplay replay({torch::zeros({1})});
  replay.region().slot(0).log_position = 1;
  replay.begin();
  CHECK_THAT(error_text([&] { replay.stops_at(torch::ones({1})); }),
             ContainsSubstring("It was saved between other ops."));
}

TEST_CASE("The forward's own tensor raises if it was written since", "[engine][replay]") {
  const at::Tensor saved = torch::zeros({1});
  SavedReplay replay({saved});
  replay.begin();
  saved.add_(1);
  CHECK_THAT(error_text([&] { replay.stops_at(saved); }),
             ContainsSubstring("has been modified by an inplace operation"));
}

TEST_CASE("A call that does not run fills its slots in order", "[engine][replay]") {
  SavedReplay replay({torch::zeros({1}), torch::zeros({2}), torch::zeros({3})});
  ReplayProgress& progress = replay.begin();
  progress.pass_slots(1);
  progress.fill(1, torch::ones({2}));
  CHECK(progress.slot_count() == 2);
  CHECK_FALSE(replay.slots()[0].defined());
  CHECK(same_bits(replay.slots()[1], torch::ones({2})));
  CHECK_THROWS_AS(progress.fill(1, torch::ones({2})), ReplayMismatch);
  CHECK_THROWS_AS(progress.fill(2, torch::ones({4})), ReplayMismatch);
}

TEST_CASE("Code that is not watched is not compared, to any depth", "[engine][replay]") {
  SavedReplay replay({torch::zeros({1})});
  ReplayProgress& progress = replay.begin();
  CHECK(progress.compares());
  progress.look_away();
  progress.look_away();
  progress.watch_again();
  CHECK_FALSE(progress.compares());
  progress.watch_again();
  CHECK(progress.compares());
}

TEST_CASE("The replay's first error is the one that it ends with", "[engine][replay]") {
  SavedReplay replay({torch::zeros({1})});
  ReplayProgress& progress = replay.begin();
  const auto fails = [&](const char* text) {
    CHECK_THROWS(progress.or_fail([&] { TORCH_CHECK(false, text); }));
  };
  CHECK_THROWS(progress.or_fail_unless_users([] { throw std::runtime_error("of the user"); }));
  CHECK_FALSE(progress.failed());
  fails("first");
  fails("second");
  CHECK_THAT(error_text([&] { progress.check_no_error(); }), ContainsSubstring("first"));
}

}  // namespace remat
