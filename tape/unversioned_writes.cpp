// SPDX-License-Identifier: BSD-3-Clause

// The writes of the process that have no version.
#include <remat/tape/unversioned_writes.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <remat/tape/tensor_meta.h>

namespace remat {
namespace {

std::atomic<uint64_t> last_number{0};       // of all writes that are seen
std::atomic<uint64_t> last_unversioned{0};  // of those that are in the log
thread_local const UnversionedWrites* running = nullptr;

/// The last one to each memory, by its versions. Leaked: tensors may die after static objects.
class Log {
 public:
  static Log& get() {
    static Log& log = *new Log;
    return log;
  }

  void add(const void* versions, c10::VariableVersion counter, uint64_t number,
           const OpInfo* info) {
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_.insert_or_assign(versions, Entry{std::move(counter), number, info});
    if (entries_.size() <= most_) return;
    std::erase_if(entries_, [](const auto& entry) { return entry.second.counter.unique(); });
    most_ = std::max(kFew, 2 * entries_.size());
  }

  const OpInfo* find_after(uint64_t last, const void* versions) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = entries_.find(versions);
    return entry == entries_.end() || entry->second.number <= last ? nullptr : entry->second.info;
  }

 private:
  static constexpr size_t kFew = 1024;

  struct Entry {
    c10::VariableVersion counter;  // its address stays taken
    uint64_t number;
    const OpInfo* info;
  };

  mutable std::mutex mutex_;
  std::unordered_map<const void*, Entry> entries_;
  size_t most_ = kFew;
};

/// Ranks write what they send each other, and replays do it again. Ops that change metadata write
/// no data, and record_stream() but a note for the allocator.
bool writes_data(const OpInfo& info) {
  return !info.is_communication() && !info.changes_metadata() &&
         info.operator_name().name != "aten::record_stream";
}

}  // namespace

UnversionedWrites::UnversionedWrites(const OpCall& call)
    : info_(&call.info()), number_(0), outer_(std::exchange(running, this)) {
  if (!info_->writes() || !writes_data(*info_)) return;
  for_each_argument_tensor(call, [&](size_t i, const at::Tensor& tensor) {
    if (!call.writes_argument(i) || tensor.is_inference()) return;
    const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
    written_.push_back({counter, counter.current_version(), info_->writes_argument(i, false)});
  });
  if (!written_.empty()) number_ = ++last_number;
}

UnversionedWrites::~UnversionedWrites() {
  running = outer_;
}

void UnversionedWrites::finish() const {
  for (const Written& written : written_) {
    if (written.counter.current_version() != written.version) continue;
    Log::get().add(version_counter_of(written.counter), written.counter, number_, info_);
    last_unversioned = number_;
  }
}

uint64_t UnversionedWrites::last(const at::Tensor& tensor) {
  if (running && !running->written_.empty() && !tensor.is_inference()) {
    const void* const versions = version_counter_of(tensor);
    for (const Written& written : running->written_) {
      if (!written.is_marked && version_counter_of(written.counter) == versions) return kNever;
    }
  }
  return last_number.load(std::memory_order_relaxed);
}

uint64_t UnversionedWrites::next() {
  return ++last_number;
}

const OpInfo* UnversionedWrites::find_after(uint64_t last, const void* versions) {
  if (C10_LIKELY(last >= last_unversioned.load(std::memory_order_acquire))) return nullptr;
  return Log::get().find_after(last, versions);
}

}  // namespace remat
