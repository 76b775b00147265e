// SPDX-License-Identifier: BSD-3-Clause

// Wrappers of c10d::Work.
#include <remat/engine/collective_work.h>
#include <remat/engine/hidden_scopes.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <utility>
#include <vector>

#include <remat/engine/blocking_wait.h>
#include <remat/engine/held_storage.h>

namespace remat {
namespace {

/// A Work whose wait(), result() and getFuture() return at once.
class EndedWork final : public c10d::Work {
 public:
  EndedWork() { finish(); }
  std::vector<at::Tensor> result() override { return {}; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
    future->markCompleted(c10::IValue(std::vector<at::Tensor>()));
    return future;
  }
};

/// Forwards to another Work. Hides the ops of its wait() from the thread's regions, because gloo's
/// wait() copies received data.
class UnseenWork final : public c10d::Work {
 public:
  explicit UnseenWork(c10::intrusive_ptr<c10d::Work> work)
      : Work(-1, work->retrieveOpType()), work_(std::move(work)) {}

  bool isCompleted() override { return waited_ || work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  void synchronize() override {
    const SuspendScopes unseen;
    work_->synchronize();
  }
  bool wait(std::chrono::milliseconds timeout) override {
    if (waited_) return true;
    const SuspendScopes unseen;
    const bool done = work_->wait(timeout);
    waited_ = done;
    return done;
  }
  void blockCurrentStream() override { work_->blockCurrentStream(); }
  void abort() override { work_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return work_->getFuture(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    return work_->getFutureResult();
  }
  float getDuration() const override { return work_->getDuration(); }
  uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::atomic<bool> waited_{false};
};

}  // namespace

bool is_work(const c10::IValue& value) {
  if (!value.isObject()) return false;
  static const c10::ClassTypePtr type = c10::getCustomClassType<c10::intrusive_ptr<c10d::Work>>();
  return value.toObjectRef().type() == type;
}

bool has_ended(const c10::IValue& work) {
  return work.toCustomClass<c10d::Work>()->isCompleted();
}

void wait_for(const c10::IValue& work) {
  blocking_wait([&] { work.toCustomClass<c10d::Work>()->wait(); });
}

void wait_for_functional(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return;
  const SuspendScopes unseen;
  blocking_wait([&] { c10d::wait_tensor(tensor); });
}

// Does not wait if no collective is registered, because c10d leaks about 100 bytes for each thread
// that waits.
void wait_for_functional_in(const at::Tensor& tensor) {
  if (C10_LIKELY(c10d::get_work_registry_size() == 0)) return;
  wait_for_functional(tensor);
  for (const at::Tensor& inner : inner_tensors(tensor)) wait_for_functional(inner);
}

c10::IValue unseen_work(const c10::IValue& work) {
  return c10::IValue(c10::intrusive_ptr<c10d::Work>(
      c10::make_intrusive<UnseenWork>(work.toCustomClass<c10d::Work>())));
}

c10::IValue ended_work() {
  return c10::IValue(c10::intrusive_ptr<c10d::Work>(c10::make_intrusive<EndedWork>()));
}

}  // namespace remat
