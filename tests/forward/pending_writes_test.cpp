// SPDX-License-Identifier: BSD-3-Clause

// Memory that a collective may still write is copied only after the collective has been waited for.
#include "forward/pending_writes.h"

#include "support/catch.h"

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <string>

#include "support/error_text.h"

namespace remat {
namespace {

/// A Work that is done once it has been waited for.
class CountedWork final : public c10d::Work {
 public:
  bool isCompleted() override { return waits_ > 0; }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    ++waits_;
    return true;
  }
  int waits() const { return waits_; }

 private:
  int waits_ = 0;
};

/// A collective that writes a tensor.
struct Writing {
  at::Tensor tensor = torch::ones({4});
  c10::intrusive_ptr<CountedWork> work = c10::make_intrusive<CountedWork>();

  c10::IValue value() const { return c10::IValue(c10::intrusive_ptr<c10d::Work>(work)); }
  void add_to(PendingWrites& pending, bool is_receive = false) const {
    pending.add(value(), is_receive, {memory_of(tensor)});
  }
};

}  // namespace

TEST_CASE("A copy waits for the collective that writes there, once", "[forward]") {
  const std::shared_ptr<Region> region = Region::make({.name = "r"});
  PendingWrites pending(*region);
  const Writing first;
  const Writing second;
  first.add_to(pending);
  second.add_to(pending);
  pending.settle(torch::ones({4}));
  CHECK(first.work->waits() == 0);
  pending.settle(first.tensor.view({2, 2}));
  CHECK(first.work->waits() == 1);
  CHECK(second.work->waits() == 0);
  pending.settle(first.tensor);
  CHECK(first.work->waits() == 1);
}

TEST_CASE("A collective that has ended is not waited for", "[forward]") {
  const std::shared_ptr<Region> region = Region::make({.name = "r"});
  PendingWrites pending(*region);
  const Writing writing;
  writing.add_to(pending);
  writing.work->wait(std::chrono::milliseconds(0));
  pending.settle(writing.tensor);
  writing.add_to(pending);
  pending.add(c10::IValue(), /*is_receive=*/false, {memory_of(writing.tensor)});
  pending.settle(writing.tensor);
  CHECK(writing.work->waits() == 1);
}

TEST_CASE("A tensor on the CPU that is received is not read before its wait", "[forward]") {
  const std::shared_ptr<Region> region = Region::make({.name = "r"});
  PendingWrites pending(*region);
  const Writing receive;
  receive.add_to(pending, /*is_receive=*/true);
  CHECK_THAT(error_text([&] { pending.settle(receive.tensor); }),
             ContainsSubstring("[checkpoint] region 'r': expected a tensor that is received to be "
                               "read after its Work has been waited for"));
  CHECK(receive.work->waits() == 0);
}

TEST_CASE("Keeping one result of a functional collective waits for all of them", "[forward]") {
  const std::shared_ptr<Region> region = Region::make({.name = "r"});
  PendingWrites pending(*region);
  const Writing first;
  const Writing second;
  const Writing other;
  for (const Writing* const writing : {&first, &second, &other})
    c10d::register_work(writing->tensor, writing->work);
  pending.add_functional({first.tensor, second.tensor});
  pending.add_functional({other.tensor});
  pending.settle(torch::ones({4}));
  CHECK(first.work->waits() == 0);
  pending.settle(second.tensor);
  CHECK(first.work->waits() == 1);
  CHECK(second.work->waits() == 1);
  CHECK(other.work->waits() == 0);
  pending.settle(other.tensor);
  CHECK(other.work->waits() == 1);
}

}  // namespace remat
