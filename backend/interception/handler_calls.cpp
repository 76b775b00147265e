// SPDX-License-Identifier: BSD-3-Clause

// Watching results and writes of handlers.
#include "handler_calls.h"

#include <algorithm>
#include <utility>

#include <remat/engine/held_storage.h>
#include <remat/engine/op_observer.h>
#include <remat/engine/scope.h>

namespace remat {
namespace {

[[gnu::tls_model("initial-exec")]] thread_local HandlerWrites* current = nullptr;

bool contains(const std::vector<const void*>& memories, const void* memory) {
  return std::find(memories.begin(), memories.end(), memory) != memories.end();
}

}  // namespace

std::vector<const void*> inner_memory(const OpCall& call, c10::DispatchKeySet below) {
  std::vector<const void*> memory;
  if (C10_LIKELY(!below.has(c10::DispatchKey::Python))) return memory;
  for_each_argument_tensor(call, [&](size_t, const at::Tensor& tensor) {
    for (const at::Tensor& part : inner_tensors(tensor)) memory.push_back(memory_of(part));
  });
  return memory;
}

void adopt_inner_results(const OpCall& call, c10::DispatchKeySet below,
                         const std::vector<const void*>& given) {
  if (C10_LIKELY(!below.has(c10::DispatchKey::Python))) return;
  for_each_result_tensor(call, [&](const at::Tensor& tensor) {
    for (const at::Tensor& part : inner_tensors(tensor)) {
      if (!contains(given, memory_of(part))) OpObserver::all_adopt_part(part);
    }
  });
}

HandlerWrites::HandlerWrites(const OpCall& call, c10::DispatchKeySet below)
    : call_(call), may_be_(below.has(c10::DispatchKey::Python)) {
  if (C10_LIKELY(!may_be_)) return;
  outer_ = std::exchange(current, this);
  for_each_argument_tensor(call, [&](size_t i, const at::Tensor& tensor) {
    if (!call.writes_argument(i)) return;
    own_.push_back(memory_of(tensor));
    for (const at::Tensor& part : inner_tensors(tensor)) own_.push_back(memory_of(part));
  });
}

HandlerWrites::~HandlerWrites() {
  if (may_be_) current = outer_;
}

void HandlerWrites::note(const OpCall& call) {
  for_each_argument_tensor(call, [&](size_t i, const at::Tensor& tensor) {
    if (call.writes_argument(i) && tensor.has_storage() && !contains(own_, memory_of(tensor)))
      writes_.push_back({weak_storage(tensor), call.info().name(), Scope::modes_here()});
  });
}

void HandlerWrites::check() const {
  if (C10_LIKELY(writes_.empty())) return;
  std::vector<const void*> results;
  for_each_result_tensor(call_, [&](const at::Tensor& tensor) {
    results.push_back(memory_of(tensor));
    for (const at::Tensor& part : inner_tensors(tensor)) results.push_back(memory_of(part));
  });
  for (const Write& write : writes_) {
    const c10::Storage storage(write.storage.lock());
    if (storage && !contains(results, storage.unsafeGetStorageImpl()))
      OpObserver::all_check_handler_write(call_.info(), write.op, storage, write.modes);
  }
}

void note_handler_writes(const OpCall& call) {
  if (current && call.info().writes()) current->note(call);
}

}  // namespace remat
