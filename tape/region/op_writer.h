// SPDX-License-Identifier: BSD-3-Clause

// Writing an op of a region down: its forward and its replays do so alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include <remat/tape/op_call.h>
#include <remat/tape/op_log.h>
#include <remat/tape/region.h>
#include <remat/tape/storage_table.h>

#include "drawn_generator.h"
#include "host_values.h"

namespace remat {

/// The forward writes tensors down as they are.
struct WrittenAsTheyAre {
  static void look_at_values(const OpCall& /*call*/, const at::Tensor& /*tensor*/,
                             Origin /*origin*/) {}
  static const at::Tensor& written_as(const at::Tensor& tensor, Origin /*origin*/) {
    return tensor;
  }
  static int64_t moved(const at::Tensor& /*tensor*/) { return 0; }
};

/// Takes back what is being written down, unless it is closed: what throws meanwhile the function
/// may catch.
class OpenWords {
 public:
  explicit OpenWords(OpWords* words) : words_(words) {}
  OpenWords(const OpenWords&) = delete;
  OpenWords& operator=(const OpenWords&) = delete;
  ~OpenWords() {
    if (words_) words_->drop_open();
  }
  void close() {
    if (words_) std::exchange(words_, nullptr)->end();
  }

 private:
  OpWords* words_;  // null if there are none, or they are closed
};

/// Writes `call` down: which op, the settings that it runs under (0 of a plain view, which computes
/// nothing), where its generator stands, and its arguments, which are shown to `source`; notes in
/// `storages` what the op does to them. `words` is null where nothing is written down.
///
/// The forward and a replay are a source each: look(call, i, tensor) returns where argument `i`
/// comes from, after whatever is to be done about it. Then, of what is written down, once for each
/// tensor: written_as(tensor, origin) returns what the op is given in its place, and moved(tensor)
/// by how many bytes that begins elsewhere in its memory than in the forward; before its values
/// are, look_at_values(call, tensor, origin).
template <class Source>
void write_op(OpWords* words, const OpCall& call, uint64_t settings, const Region& region,
              StorageTable& storages, Source& source) {
  if (words) {
    words->begin(call.info());
    words->add_settings(settings);
    if (call.info().may_draw() && region.preserve_rng()) words->add_draw(draw_position(call));
  }
  OpenWords open(words);
  visit_arguments(
      call,
      [&](size_t i, const at::Tensor& tensor) {
        const Origin origin = source.look(call, i, tensor);
        storages.note_write(call, i, tensor, origin);
        if (C10_UNLIKELY(origin.is_given())) note_given(call, i, tensor, storages, words);
        if (!words) return;
        const bool shows_values = shows_host_value(call, i, tensor, origin, region.outside());
        if (shows_values) source.look_at_values(call, tensor, origin);
        const at::Tensor& written = source.written_as(tensor, origin);
        if (shows_values) words->add_value(host_value(written));
        words->add_tensor(written, region.outside().logged(origin), source.moved(tensor));
      },
      [&](size_t, const c10::IValue& value) {
        if (C10_UNLIKELY(value.isStorage())) storages.note_storage(value.toStorage());
        if (words) words->add_value(value);
      });
  open.close();
}

/// Writes a named call down: itself, and the tensors among its arguments, whose origins
/// source.origin_of(tensor) returns.
template <class Source>
void write_call(OpWords& words, uint64_t call, c10::ArrayRef<at::Tensor> arguments,
                const Region& region, Source& source) {
  words.begin_call(call);
  OpenWords open(&words);
  for (const at::Tensor& argument : arguments) {
    if (!argument.defined()) continue;
    const Origin origin = source.origin_of(argument);
    words.add_tensor(source.written_as(argument, origin), region.outside().logged(origin),
                     source.moved(argument));
  }
  open.close();
}

}  // namespace remat
