// SPDX-License-Identifier: BSD-3-Clause

// What a forward notes of its ops.
#include <remat/tape/forward_scope.h>

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include <remat/tape/autocast_cache.h>
#include <remat/tape/current_node.h>
#include <remat/tape/data_hooks.h>
#include <remat/tape/op_call.h>
#include <remat/tape/saved_tensors_hooks.h>
#include <remat/tape/tensor_meta.h>

#include "drawn_generator.h"
#include "forward_calls.h"
#include "host_values.h"
#include "saved_memory.h"
#include "storage_bytes.h"
#include "tape_recorder.h"
#include "write_kind.h"

namespace remat {
namespace {

/// True while a backward inside the region adds to the .grad of a leaf. A replay gives the leaf
/// another one for that time (LeafGrads), so it needs no old value.
bool accumulates_grad() {
  const auto node = torch::autograd::get_current_node();
  return node && dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get()) != nullptr;
}

/// Throws if `tensor` is differentiated by torch.func: its graph is no part of the region's.
void check_no_transform(const OpCall& call, const at::Tensor& tensor, const Region& region) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !tensor.key_set().has(c10::DispatchKey::FuncTorchGradWrapper), "[checkpoint] ",
      region.label(), ", op ", call.info().name(),
      ": expected no gradient transform of torch.func in the function, got a tensor of one (grad, "
      "vjp, jvp, jacrev, ...). Put the transform into a SAVE call, or use torch.autograd.grad.");
}

/// Throws if an op is given a generator that a replay would not find as it is now.
void check_generators(const OpCall& call, c10::ArrayRef<at::Generator> named,
                      const Region& region) {
  for (size_t i = 0; i < call.info().argument_count(); ++i) {
    if (!call.argument(i).isGenerator()) continue;
    const at::Generator generator = call.argument(i).toGenerator();
    const bool is_known = !generator.defined() ||
                          std::find(named.begin(), named.end(), generator) != named.end() ||
                          generator == at::globalContext().defaultGenerator(generator.device());
    TORCH_CHECK_NOT_IMPLEMENTED(
        is_known, "[checkpoint] ", region.label(), ", op ", call.info().name(),
        ": expected a default generator or one of CheckpointOptions::generators, got another one, "
        "from which the replay would draw other numbers. Add it to generators, or set "
        "preserve_rng = false (preserve_rng_state=False in Python).");
  }
}

}  // namespace

Origin ForwardScope::origin_of(const at::Tensor& tensor) {
  const void* const memory = memory_of(tensor);
  if (!memory) return Origin::inside();
  Origin origin = storages_.find(memory);
  // A cast that a SAVE call left in autocast's cache is made again by a replay, like any other.
  const bool may_be_cached = origin.is_unknown() || (origin.is_in_call() && !calls_->saving() &&
                                                     autocast_source(tensor).defined());
  if (!may_be_cached) return origin;
  if (const at::Tensor parameter = autocast_source(tensor); parameter.defined()) {
    const Origin source = origin_of(parameter);
    if (source.is_outside()) read_outside(parameter, region_->outside()[source.number()]);
    origin = region_->outside().add(tensor);
    region_->outside()[origin.number()].mark_cast(Origin::cast_of(source, layout_hash(parameter)));
    region_->mark_casts_weights();
    if (is_stale_cast(tensor, parameter)) refuse_stale_cast(parameter);
  } else {
    origin = region_->outside().add(tensor);
  }
  storages_.enter(memory, origin);
  return origin;
}

void ForwardScope::note_cast(const at::Tensor& leaf, Origin origin) {
  made_ = Origin::cast_of(origin, layout_hash(leaf));
  cast_leaf_ = leaf;
}

// The leaf may have been written by the region since: Note [Stale casts].
void ForwardScope::check_cast(const at::Tensor& tensor, Origin origin) {
  if (!region_->outside().logged(origin).is_cast()) return;
  const at::Tensor leaf = autocast_source(tensor);
  if (leaf.defined() && is_known_cast(tensor) && is_stale_cast(tensor, leaf))
    refuse_stale_cast(leaf);
}

void ForwardScope::refuse_stale_cast(const at::Tensor& leaf) {
  if (!stale_cast_) stale_cast_.emplace(leaf);
  if (!recorder_ || recorder_->gave_up()) check_no_stale_cast();
}

void ForwardScope::check_no_stale_cast() const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !stale_cast_, "[checkpoint] ", region_->label(),
      ": expected casts in autocast's cache that have the values of their weights, got one of a "
      "weight (",
      stale_cast_->str(),
      ") that was written after it was cast, which the replay would cast anew. Leave the autocast "
      "block before the weight is written, call torch.clear_autocast_cache() after it, or use "
      "replay = kTape (\"tape\").");
}

bool ForwardScope::logs() const {
  return region_->intercept() && !region_->ops().broken_off() &&
         region_->determinism() != Determinism::kNone &&
         torch::autograd::get_current_graph_task_id() == graph_task_;
}

void ForwardScope::log_call(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments) {
  if (!logs()) return;
  OpWords& words = region_->ops().writer();
  words.begin_call(call.hash());
  for (const at::Tensor& argument : arguments) {
    if (argument.defined())
      words.add_tensor(argument, region_->outside().logged(origin_of(argument)));
  }
  words.end();
  ++written_down_;
  if (region_->op_sites()) region_->op_sites()->add();
}

void ForwardScope::before_op(OpCall& call, bool logged) {
  if (!region_->intercept()) return;
  op_ = &call.info();
  if (C10_UNLIKELY(!writes_whole_.empty())) writes_whole_.clear();  // the op before it has thrown
  if (C10_UNLIKELY(call.info().is_unshard())) refuse_unshard(call.info());
  const bool casts_weight = is_cacheable_cast(call);
  if (casts_weight) region_->mark_casts_weights();
  if (C10_UNLIKELY(call.info().gives_other_versions())) note_other_versions_of(call);
  if (call.info().writes()) note_saved_writes(call);
  if (calls_ && calls_->saving()) return calls_->before_saved_op(call);
  if (calls_) calls_->go_on();
  if (call.info().may_draw()) before_draw(call);
  if (C10_UNLIKELY(call.info().is_communication())) region_->mark_communicates();
  made_ = origin_of_results(call.info());
  cast_leaf_.reset();  // of a cast that has thrown
  is_written_down_ = logged = logged && logs() && !casts_weight && is_written_down(call);
  writes_outside_ = false;
  views_memory_outside_ = views_wrapper_outside_ = false;
  OpWords& words = region_->ops().writer();
  // Views compute nothing.
  const bool is_compared = (logged || recorder_) && !call.info().is_plain_view();
  const uint64_t settings = is_compared ? region_->settings().changed(call.info()) : 0;
  if (logged) {
    words.begin(call.info());
    words.add_settings(settings);
  }
  if (logged && call.info().may_draw() && region_->preserve_rng())
    words.add_draw(draw_position(call));
  visit_arguments(
      call,
      [&](size_t i, const at::Tensor& tensor) {
        check_no_transform(call, tensor, *region_);
        const Origin origin = origin_of(tensor);
        if (calls_) calls_->before_use(call, i, tensor, origin);
        if (is_of_python_class(tensor)) watch_wrapper(call, i, tensor, origin);
        if (origin.is_outside()) watch(call, i, tensor, origin);
        storages_.note_write(call, i, tensor, origin);
        if (casts_weight && i == 0) note_cast(tensor, origin);
        if (C10_UNLIKELY(writes_any_outside_)) check_cast(tensor, origin);
        if (C10_UNLIKELY(origin.is_given()))
          note_given(call, i, tensor, storages_, logged ? &words : nullptr);
        if (!logged) return;
        if (shows_host_value(call, i, tensor, origin, region_->outside()))
          words.add_value(host_value(tensor));
        words.add_tensor(tensor, region_->outside().logged(origin));
      },
      [&](size_t, const c10::IValue& value) {
        if (C10_UNLIKELY(value.isStorage())) storages_.note_storage(value.toStorage());
        if (logged) words.add_value(value);
      });
  if (logged) words.end();
  written_down_ += logged;
  if (logged && region_->op_sites()) region_->op_sites()->add();
  if (writes_outside_) write_outside(call);
  if (!recorder_) return;
  if (C10_UNLIKELY(opens_mode())) recorder_->note_mode();
  if (C10_UNLIKELY(settings != 0)) recorder_->note_settings(call);
  recorder_->before_op(call);
}

// A generator may be put back after the draw (torch.random.fork_rng): the end of the region is too
// late to look.
void ForwardScope::before_draw(const OpCall& call) {
  const FunctionReplayer::Options& state = call_settings_.state;
  if (!state.preserve_rng) return;
  check_generators(call, state.generators, *region_);
  if (!region_->draws()) marks_ = mark_generators(state.generators);
}

void ForwardScope::after_draw() {
  const bool drew = std::any_of(marks_.begin(), marks_.end(),
                                [](const GeneratorMark& mark) { return mark.has_moved(); });
  if (drew) region_->mark_draws();
  marks_.clear();
}

// A view that the region has made has a node of its own there; after a write, one from outside has
// too.
void ForwardScope::note_captured(const at::Tensor& tensor, Origin origin) {
  if (!tensor.requires_grad()) return;
  if (origin.is_outside()) {
    const OutsideStorage& outside = region_->outside()[origin.number()];
    if (outside.first_tensor()._unsafe_get_target() == tensor.unsafeGetTensorImpl()) return;
    const torch::autograd::Node* const node = current_node(tensor);
    if (!outside.is_written() && node && region_->nodes().contains(*node)) return;
  }
  region_->outside().add_captured(tensor);
}

// A view of a tensor of a Python class of its own has a storage of its own, and writes memory that
// only the class knows.
void ForwardScope::watch_wrapper(const OpCall& call, size_t argument, const at::Tensor& tensor,
                                 Origin origin) {
  if (calls_ && call.info().reads_data()) calls_->read_inside(tensor, &call.info());
  const void* const memory = memory_of(tensor);
  const bool is_outside = origin.is_outside() || (memory && wrapper_views_.contains(memory));
  if (!is_outside) return;
  if (!call.info().reads_data()) views_wrapper_outside_ = true;
  if (call.writes_argument(argument) && !accumulates_grad()) check_plain(call.info(), tensor);
}

void ForwardScope::watch(const OpCall& call, size_t argument, const at::Tensor& tensor,
                         Origin origin) {
  const OpInfo& info = call.info();
  OutsideStorage& outside = region_->outside()[origin.number()];
  if (!outside.has_storage() && !info.reads_data()) views_memory_outside_ = true;
  const bool writes = call.writes_argument(argument);
  const bool is_written = writes && !accumulates_grad();  // then write_outside() follows
  if (reads_data(info, tensor) && !is_written) read_outside(tensor, outside);
  if (C10_UNLIKELY(outside.is_received()) && is_parameter(tensor)) refuse_unshard(info);
  note_captured(tensor, origin);
  if (!writes) return;
  check_writable(info, tensor, origin);
  writes_outside_ = writes_outside_ || is_written;
}

void ForwardScope::read_outside(const at::Tensor& tensor, OutsideStorage& outside) {
  outside.mark_read(tensor);
  if (!outside.is_written()) return;
  if (const auto part = outside.part_to_keep(tensor)) keep_part(tensor, outside, *part);
}

/// The op that is about to run writes tensors from outside; what it reads of them has been noted.
/// What it writes without reading counts as made when it has run: a region inside may keep it as it
/// was until then.
void ForwardScope::write_outside(const OpCall& call) {
  for_each_argument_tensor(call, [&](size_t i, const at::Tensor& tensor) {
    const Origin origin = call.writes_argument(i) ? origin_of(tensor) : Origin::inside();
    if (!origin.is_outside()) return;
    OutsideStorage& outside = region_->outside()[origin.number()];
    if (!outside.is_written()) begin_write(tensor, outside);
    const WriteKind kind = write_kind(call, i);
    if (kind == WriteKind::kReads) read_outside(tensor, outside);
    if (kind == WriteKind::kWhole)
      writes_whole_.push_back({origin.number(), tensor, SavedVersion(tensor)});
  });
}

void ForwardScope::cover_written(bool op_has_ended) {
  std::erase_if(writes_whole_, [&](const WholeWrite& write) {
    const bool has_written = op_has_ended || write.before.changed();
    if (has_written) region_->outside()[write.number].cover(write.tensor);
    return has_written;
  });
}

void ForwardScope::begin_write(const at::Tensor& tensor, OutsideStorage& outside) {
  writes_any_outside_ = true;
  outside.begin_write(tensor);
  if (const auto part = outside.part_read()) keep_part(tensor, outside, *part);
}

/// Of a tensor that a region writes: in the scopes around it, as it is now.
void ForwardScope::keep_part(const at::Tensor& tensor, OutsideStorage& outside,
                             const TensorLayout& part) {
  const OuterScopes outer(*this);
  const at::Tensor original = lay_out(tensor.storage(), part);
  const SavedOriginalGuard guard(original);
  outside.keep(tensor.storage(), part);
}

void ForwardScope::refuse_unshard(const OpInfo& info) const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "[checkpoint] ", region_->label(), ", op ", info.name(),
      ": expected weights that are whole before the region begins, got some that are gathered "
      "inside "
      "it (FSDP's unshard), which a replay in backward would not do again. ",
      kCheckpointInside);
}

// See Note [Writes by way of data].
void ForwardScope::note_saved_writes(const OpCall& call) {
  if (accumulates_grad()) return;
  for_each_argument_tensor(call, [&](size_t i, const at::Tensor& tensor) {
    if (call.writes_argument(i)) saved_->before_write(tensor, call.info());
  });
}

void ForwardScope::note_other_versions_of(const OpCall& call) {
  for (size_t i = 0; i < call.info().argument_count(); ++i) {
    if (call.argument(i).isStorage()) {
      const c10::Storage storage = call.argument(i).toStorage();
      note_other_versions(storage.unsafeGetStorageImpl());
      saved_->after_data(storage);
    }
  }
  for_each_argument_tensor(call, [&](size_t i, const at::Tensor& tensor) {
    if (call.writes_argument(i) || !memory_of(tensor)) return;
    note_other_versions(tensor.storage().unsafeGetStorageImpl());
    saved_->after_data(tensor);
  });
}

void ForwardScope::check_plain(const OpInfo& info, const at::Tensor& tensor) const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !is_of_python_class(tensor), "[checkpoint] ", region_->label(), ", op ", info.name(),
      ": expected in-place ops on plain tensors from outside the region, got one on a tensor of a "
      "Python class of its own with __torch_dispatch__ (",
      TensorMeta(tensor).str(),
      "), of whose memory no copy can be kept. Write it outside of the region, or use the op's "
      "out-of-place form.");
}

void ForwardScope::check_writable(const OpInfo& info, const at::Tensor& tensor,
                                  Origin origin) const {
  if (!origin.is_outside()) return;
  if (is_of_python_class(tensor) && !accumulates_grad()) check_plain(info, tensor);
  const OutsideStorage& outside = region_->outside()[origin.number()];
  TORCH_CHECK_NOT_IMPLEMENTED(
      !info.changes_metadata(), "[checkpoint] ", region_->label(), ", op ", info.name(),
      ": expected in-place ops that write data only, got one that changes the shape or storage of "
      "a tensor from outside the region (",
      outside.meta().str(),
      "); its replay would start from the changed one. Use the op's out-of-place form. What takes "
      "its shape in its first step only (an observer): run the function once before.");
  TORCH_CHECK_NOT_IMPLEMENTED(
      outside.has_storage(), "[checkpoint] ", region_->label(), ", op ", info.name(),
      ": expected in-place ops on strided tensors from outside the region, got one on a sparse or "
      "opaque tensor (",
      TensorMeta(tensor).str(),
      "), of which no copy can be kept. Write it outside of the region, or use the op's "
      "out-of-place form.");
  if (C10_UNLIKELY(outside.is_foreign())) check_unshared(info, tensor);
}

// Of two tensors on one memory a replay would write a copy of the one, and read the other.
void ForwardScope::check_unshared(const OpInfo& info, const at::Tensor& tensor) const {
  const c10::Storage& storage = tensor.storage();
  const auto& products = std::as_const(*region_).calls().products();
  const bool is_shared =
      storages_.has_memory_of(storage) ||
      std::any_of(products.begin(), products.end(), [&](const CallProduct& product) {
        return overlap(storage, product.storage().lock());
      });
  TORCH_CHECK_NOT_IMPLEMENTED(
      !is_shared, "[checkpoint] ", region_->label(), ", op ", info.name(),
      ": expected in-place ops on tensors that share memory through ops, got one on a tensor (",
      TensorMeta(tensor).str(),
      ") that was laid on the memory of one that the region has made, without an op "
      "(torch.from_dlpack, from_numpy, from_blob): a replay would not find the write there. Write "
      "that tensor itself, or a clone() of it.");
}

// A SAVE call writes it, or has: all of it.
void ForwardScope::keep_before_write(const at::Tensor& tensor, Origin origin) {
  OutsideStorage& outside = region_->outside()[origin.number()];
  if (!outside.is_written()) outside.begin_write(tensor);
  if (outside.known()) keep_part(tensor, outside, outside.whole());
}

void ForwardScope::after_op(OpCall& call) {
  if (!region_->intercept()) return;
  op_ = nullptr;
  saved_->after_writes();
  if (calls_ && calls_->saving()) return calls_->after_saved_op(call);
  if (C10_UNLIKELY(!writes_whole_.empty())) cover_written(/*op_has_ended=*/true);
  if (!marks_.empty()) after_draw();
  if (recorder_) recorder_->after_op(call);
  if (C10_UNLIKELY(cast_leaf_.defined())) {
    const at::Tensor leaf = std::exchange(cast_leaf_, {});
    if (call.result(0).isTensor()) note_autocast(call.result(0).toTensor(), leaf);
  }
  if (C10_UNLIKELY(call.info().makes_objects())) {
    for (const auto i : c10::irange(call.info().return_count()))
      region_->ops().writer().note_made(call.result(i));
  }
  size_t number = 0;
  for_each_result_tensor(call, [&](const at::Tensor& tensor) {
    // The values of a sparse tensor from outside are from outside.
    if (views_memory_outside_) {
      origin_of(tensor);
    } else {
      storages_.enter_result(tensor,
                             is_written_down_ ? Origin::made(written_down_ - 1, number++) : made_);
    }
    if (views_wrapper_outside_ && memory_of(tensor)) wrapper_views_.insert(memory_of(tensor));
  });
}

void ForwardScope::check_handler_write(const OpInfo& info, const std::string& op,
                                       const c10::Storage& storage) const {
  const Origin origin = storages_.find(storage.unsafeGetStorageImpl());
  const bool is_made_again = origin.is_inside() || origin.is_in_call() || origin.is_product();
  if (!region_->intercept() || (calls_ && calls_->saving()) || is_made_again) return;
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "[checkpoint] ", region_->label(), ", op ", info.name(),
      ": expected a __torch_dispatch__ (of a tensor subclass, or of a mode that the function "
      "opens) "
      "that writes what it makes, got one that writes a tensor from outside by ",
      op, " (", storage.nbytes(),
      " bytes), which the replay in backward would do again. Write it outside of the region, or "
      "put "
      "the op into a SAVE call.");
}

void ForwardScope::adopt_part(const at::Tensor& tensor) {
  if (!recorder_ || !recorder_->in_op()) return adopt(tensor);
  storages_.enter_result(tensor);  // the recorder is told of the whole op
}

void ForwardScope::adopt(const at::Tensor& tensor) {
  if (!region_->intercept()) return;
  if (calls_ && calls_->saving()) return calls_->adopt(tensor);
  if (recorder_) recorder_->adopt(tensor);
  storages_.enter_result(tensor);
}

}  // namespace remat
