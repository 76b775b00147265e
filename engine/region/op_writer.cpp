// SPDX-License-Identifier: BSD-3-Clause

// Writing the words of an op and of a named call.
#include <remat/engine/op_writer.h>

#include <c10/util/ScopeExit.h>

#include <algorithm>

#include <remat/engine/flattened_tensor.h>
#include <remat/engine/generator_state.h>
#include <remat/engine/hash_mix.h>
#include <remat/engine/tensor_layout.h>
#include <remat/engine/unseen.h>
#include <remat/engine/write_kind.h>
#include <remat/placeholder/placeholder_impl.h>

namespace remat {
namespace {

/// Discards unfinished words when an exception ends the scope, since the function may catch it.
auto drop_unless_released(OpWords& words) {
  return c10::make_scope_exit([&words] { words.drop_open(); });
}

/// Notes arguments whose memory may have values that no op wrote: given tensors, and storages.
void note_host_memory(OpWords* words, const OpCall& call, c10::ArrayRef<SeenTensor> seen,
                      StorageTable& storages) {
  const c10::ArrayRef<OpTensor> tensors = call.tensors();
  for (size_t k = 0; k < seen.size(); ++k) {
    if (C10_UNLIKELY(seen[k].origin.is_given()))
      note_given(call, tensors[k].argument, *seen[k].tensor, storages, words);
  }
  for (size_t i = 0; i < call.info().argument_count(); ++i) {
    const c10::IValue& value = call.argument(i);
    if (C10_UNLIKELY(value.isStorage())) storages.note_storage(value.toStorage());
  }
}

}  // namespace

void write_op(OpWords* words, const OpCall& call, c10::ArrayRef<SeenTensor> seen, uint64_t settings,
              const Region& region, StorageTable& storages) {
  if (!words) return note_host_memory(nullptr, call, seen, storages);
  words->begin(call.info());
  auto open = drop_unless_released(*words);
  words->add_settings(settings);
  if (call.may_draw() && region.preserve_rng()) words->add_draw(draw_position(call));
  const OutsideLog& outside = region.outside();
  const SeenTensor* next = seen.begin();
  visit_arguments(
      call,
      [&](size_t i, const at::Tensor& tensor) {
        const SeenTensor& given = *next++;
        if (shows_host_value(call, i, tensor, given.origin, outside))
          words->add_value(host_value(*given.tensor));
        if (C10_UNLIKELY(is_of_python_class(tensor))) words->add_class(tensor_class(tensor));
        words->add_tensor(*given.tensor, outside.logged(given.origin), given.moved);
      },
      [&](size_t, const c10::IValue& value) { words->add_value(value); });
  note_host_memory(words, call, seen, storages);
  open.release();
  words->end();
}

void write_call(OpWords& words, uint64_t call, c10::ArrayRef<SeenTensor> seen,
                const Region& region) {
  words.begin_call(call);
  auto open = drop_unless_released(words);
  for (const SeenTensor& given : seen)
    words.add_tensor(*given.tensor, region.outside().logged(given.origin), given.moved);
  open.release();
  words.end();
}

void note_given(const OpCall& call, size_t i, const at::Tensor& tensor, StorageTable& storages,
                OpWords* words) {
  if (!call.info().reads_data()) return;
  const c10::Storage& storage = tensor.storage();
  const bool overwrites = call.writes_argument(i) && write_kind(call, i) != WriteKind::kReads;
  if (overwrites && tensor.nbytes() != storage.nbytes()) return;  // The rest may be read later.
  if (!overwrites && !words) return;
  storages.enter(memory_of(tensor), Origin::inside());
  if (overwrites || !storage.device().is_cpu() || PlaceholderStorage::is(storage)) return;
  const auto* const bytes = static_cast<const char*>(storage.data());
  const size_t size = bytes ? std::min(storage.nbytes(), OutsideStorage::kMaxCompared) : 0;
  words->add_value(static_cast<int64_t>(hash_of_bytes(bytes, size)));
}

uint16_t given_hash(const at::Tensor& tensor) {
  uint64_t hash = 0;
  if (tensor.is_cpu()) {
    const UnseenBelowAutograd unseen;
    const auto most = static_cast<int64_t>(OutsideStorage::kMaxCompared / tensor.itemsize());
    hash = hash_of(tensor.numel() <= most ? tensor : tensor.flatten().narrow(0, 0, most));
  }
  return static_cast<uint16_t>(hash_mix(0, hash) >> 48U | 1U);
}

bool has_values(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  const auto* const bytes = static_cast<const char*>(storage.data());
  return bytes && std::any_of(bytes, bytes + storage.nbytes(), [](char byte) { return byte != 0; });
}

}  // namespace remat
