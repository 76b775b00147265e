// SPDX-License-Identifier: BSD-3-Clause

// Writing an op of a region down: its forward and its replays do so alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include <remat/tape/op_call.h>
#include <remat/tape/op_log.h>
#include <remat/tape/region.h>
#include <remat/tape/storage_table.h>

#include "drawn_generator.h"
#include "host_values.h"

namespace remat {

/// Begins `words` with `call`: which op, the settings that it runs under, where its generator
/// stands. Of a plain view, which computes nothing, `settings` are 0.
inline void write_op(OpWords& words, const OpCall& call, const Region& region, uint64_t settings) {
  words.begin(call.info());
  words.add_settings(settings);
  if (call.info().may_draw() && region.preserve_rng()) words.add_draw(draw_position(call));
}

/// The forward writes tensors down as they are.
struct WrittenAsTheyAre {
  static void look_at_values(const OpCall& /*call*/, const at::Tensor& /*tensor*/,
                             Origin /*origin*/) {}
  static const at::Tensor& written_as(const at::Tensor& tensor, Origin /*origin*/) {
    return tensor;
  }
  static int64_t moved(const at::Tensor& /*tensor*/) { return 0; }
};

/// Shows the arguments of `call` to `source`, notes in `storages` what the op does to them, and
/// writes them down; `words` is null where nothing is written down.
///
/// The forward and a replay are a source each: look(call, i, tensor) returns where argument `i`
/// comes from, after whatever is to be done about it. Then, of what is written down, once for each
/// tensor: written_as(tensor, origin) returns what the op is given in its place, and moved(tensor)
/// by how many bytes that begins elsewhere in its memory than in the forward; before its values
/// are, look_at_values(call, tensor, origin).
template <class Source>
void write_arguments(OpWords* words, const OpCall& call, const Region& region,
                     StorageTable& storages, Source& source) {
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
  if (words) words->end();
}

/// Writes a named call down: itself, and the tensors among its arguments, whose origins
/// source.origin_of(tensor) returns.
template <class Source>
void write_call(OpWords& words, uint64_t call, c10::ArrayRef<at::Tensor> arguments,
                const Region& region, Source& source) {
  words.begin_call(call);
  for (const at::Tensor& argument : arguments) {
    if (!argument.defined()) continue;
    const Origin origin = source.origin_of(argument);
    words.add_tensor(source.written_as(argument, origin), region.outside().logged(origin),
                     source.moved(argument));
  }
  words.end();
}

}  // namespace remat
