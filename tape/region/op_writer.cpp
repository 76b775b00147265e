// SPDX-License-Identifier: BSD-3-Clause

// Writing the words of an op and of a named call.
#include "op_writer.h"

#include <utility>

#include <remat/tape/flattened_tensor.h>

#include "drawn_generator.h"
#include "host_values.h"

namespace remat {
namespace {

/// Discards the words being written unless they are closed: the function may catch an exception.
class OpenWords {
 public:
  explicit OpenWords(OpWords& words) : words_(&words) {}
  OpenWords(const OpenWords&) = delete;
  OpenWords& operator=(const OpenWords&) = delete;
  ~OpenWords() {
    if (words_) words_->drop_open();
  }
  void close() { std::exchange(words_, nullptr)->end(); }

 private:
  OpWords* words_;  // Null once they are closed.
};

/// Handles an op's arguments in memory that the host has filled.
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
  OpenWords open(*words);
  words->add_settings(settings);
  if (call.info().may_draw() && region.preserve_rng()) words->add_draw(draw_position(call));
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
  open.close();
}

void write_call(OpWords& words, uint64_t call, c10::ArrayRef<SeenTensor> seen,
                const Region& region) {
  words.begin_call(call);
  OpenWords open(words);
  for (const SeenTensor& given : seen)
    words.add_tensor(*given.tensor, region.outside().logged(given.origin), given.moved);
  open.close();
}

}  // namespace remat
