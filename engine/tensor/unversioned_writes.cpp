// SPDX-License-Identifier: BSD-3-Clause

// The process-wide log of writes without a version.
#include <remat/engine/unversioned_writes.h>

#include <atomic>
#include <utility>

#include <remat/engine/tensor_meta.h>

#include "owner_table.h"

namespace remat {
namespace {

std::atomic<uint64_t> last_number{0};       // Number of the last write, with or without a version.
std::atomic<uint64_t> last_unversioned{0};  // Number of the last write in the log.
[[gnu::tls_model("initial-exec")]] thread_local const UnversionedWrites* running = nullptr;

/// The number of the last unversioned write to some memory, and its op.
using LastWrite = std::pair<uint64_t, const OpInfo*>;

OwnerTable<c10::VariableVersion, LastWrite>& last_writes() {
  static auto& table = *new OwnerTable<c10::VariableVersion, LastWrite>(/*few=*/1024);
  return table;
}

/// False for collectives, whose writes replays repeat, and for ops that only change metadata.
bool writes_data(const OpInfo& info) {
  return !info.is_communication() && !info.changes_metadata();
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
    last_writes().change(version_counter_of(written.counter), written.counter,
                         [&](LastWrite& write) {
                           write = {number_, info_};
                         });
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
  const OpInfo* info = nullptr;
  last_writes().read(versions, [&](const LastWrite& write) {
    if (write.first > last) info = write.second;
  });
  return info;
}

}  // namespace remat
