// SPDX-License-Identifier: BSD-3-Clause

// What SAVE calls return and write, and who reads it.
#include <c10/util/Exception.h>

#include <utility>

#include <remat/tape/current_node.h>

#include "forward_calls.h"
#include "tape_recorder.h"

namespace remat {
namespace {

/// True if autograd knows that a write to the one is a write to the other.
bool is_view_of(const at::Tensor& tensor, const at::Tensor& other) {
  return tensor.is_view() && tensor._base().is_same(other.is_view() ? other._base() : other);
}

}  // namespace

/// What a call has made must be such that a replay can put something else in its place.
void ForwardCalls::check_result(const at::Tensor& tensor, size_t position) const {
  const auto result = [&] {
    return c10::str(where(saved_.record->call), ", result ", position, " (",
                    TensorMeta(tensor).str(), "): ");
  };
  TORCH_CHECK_VALUE(
      !tensor.requires_grad() || !tensor.is_leaf() || tensor.is_view(), result(),
      "expected a tensor that the call computes, got a leaf that requires grad: it returned a "
      "leaf tensor that requires grad. Make it outside of the call, or return a computation on "
      "it.");
  TORCH_CHECK_NOT_IMPLEMENTED(
      !tensor.key_set().has(c10::DispatchKey::Python), result(),
      "expected a plain tensor, got a subclass with __torch_dispatch__, whose data a replay "
      "cannot stand in for. Use the policy RECOMPUTE.");
  TORCH_CHECK_NOT_IMPLEMENTED(
      !tensor.is_inference(), result(),
      "expected a normal tensor, got an inference tensor, which a replay cannot stand in for. "
      "Clone it outside of InferenceMode, or use the policy RECOMPUTE.");
}

CallOutput ForwardCalls::output_of(const at::Tensor& tensor, size_t position) {
  CallOutput output;
  output.same_as = position;
  if (!tensor.defined()) return output;
  const size_t number = saved_.argument_on_storage_of(tensor);
  output.is_argument_itself = number != kNone && saved_.arguments[number].is_same(tensor);
  if (!output.is_argument_itself) check_result(tensor, position);
  output.requires_grad = tensor.requires_grad();
  output.has_node = will_have_node(tensor);
  if (has_layout(tensor)) output.layout = TensorLayout(tensor);
  const void* const memory = memory_of(tensor);
  const Origin origin = memory ? scope_.storages_.find(memory) : Origin::in_call();
  const bool made_here =
      origin.is_in_call() || origin.is_unknown() ||
      (origin.is_product() && !region_->calls().product(origin.number()).is_written() &&
       region_->calls().product(origin.number()).call() + 1 == region_->calls().records().size());
  if (made_here) {
    output.source = CallOutput::Source::kProduct;
    output.product = product_of(tensor);
    return output;
  }
  output.source = CallOutput::Source::kArgument;
  TORCH_CHECK_NOT_IMPLEMENTED(
      number != kNone, where(saved_.record->call), ", result ", position, " (",
      TensorMeta(tensor).str(),
      "): expected a new tensor or a view of an argument, got a view of a tensor that the function "
      "captures, which a replay could not find. Pass that tensor as an argument.");
  output.is_view = is_view_of(tensor, saved_.arguments[number]);
  output.view = ArgumentView(number, saved_.arguments[number], tensor);
  return output;
}

size_t ForwardCalls::product_of(const at::Tensor& tensor) {
  const void* const memory = memory_of(tensor);
  const Origin origin = memory ? scope_.storages_.find(memory) : Origin::unknown();
  if (origin.is_product()) return origin.number();
  CallLog& calls = region_->calls();
  const size_t number = calls.add_product(CallProduct(calls.records().size() - 1, tensor));
  if (memory) scope_.storages_.enter(memory, Origin::product(number));
  CallProduct& product = calls.product(number);
  // What no placeholder can stand for: no bytes to leave out, or more than bytes.
  if (product.is_opaque() || product.size_bytes() == 0 || !placeholders_work)
    keep(product, tensor, {.kind = KeepReason::Kind::kNeeded, .reader = {}});
  return number;
}

void ForwardCalls::add_write(const Written& written) {
  CallLog& calls = region_->calls();
  const size_t number =
      calls.add_product(CallProduct::written(calls.records().size() - 1, written.tensor));
  CallWrite write{.product = number,
                  .is_outside = written.origin.is_outside(),
                  .number = 0,
                  .argument = written.argument,
                  .requires_grad = written.argument != kNone &&
                                   saved_.arguments[written.argument].requires_grad()};
  if (write.is_outside) {
    write.number = written.origin.number();
    const OutsideStorage& outside = region_->outside()[write.number];
    const bool has_joined = written.tensor.requires_grad() && !written.required_grad;
    if (has_joined && (written.argument == kNone || !outside.meta().requires_grad()))
      outside_in_graph_.insert(write.number);
    outside_products_[write.number] = number;
    if (scope_.recorder_) scope_.recorder_->set_outside(write.number, number);
  } else {
    scope_.storages_.enter(memory_of(written.tensor), Origin::product(number));
    if (written.origin.is_product()) base_products_[number] = written.origin.number();
  }
  saved_.record->writes.push_back(write);
}

void ForwardCalls::before_use(const OpCall& call, size_t argument, const at::Tensor& tensor,
                              Origin origin) {
  const OpInfo& info = call.info();
  if (origin.is_product() && is_parameter(tensor) && is_of_collective(origin.number()))
    scope_.refuse_unshard(info);
  if (!info.reads_data()) return;
  if (origin.is_in_call()) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "[checkpoint] ", region_->label(), ", op ", info.name(),
        ": expected tensors that the function makes or that SAVE calls return, got one (",
        TensorMeta(tensor).str(),
        ") that a SAVE call made and handed out in another way, which a replay would not find. "
        "Return it from the call.");
  }
  if (origin.is_outside()) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !outside_in_graph_.contains(origin.number()), "[checkpoint] ", region_->label(), ", op ",
        info.name(),
        ": expected to read tensors that a replay can find in the graph, got one from "
        "outside the region (",
        region_->outside()[origin.number()].meta().str(),
        ") into which a SAVE call has written a value with a gradient. Read it in the call, write "
        "a "
        "detached value, or use the policy RECOMPUTE.");
    return read_outside(tensor, origin, &info);
  }
  if (!origin.is_product()) return;
  read_product(origin.number(), tensor, &info);
  CallProduct& product = region_->calls().product(origin.number());
  if (!product.is_copied() && call.writes_argument(argument)) keep_copy(product, tensor);
}

/// A tensor from outside is about to be read: what the last SAVE call wrote there is kept.
void ForwardCalls::read_outside(const at::Tensor& tensor, Origin origin, const OpInfo* reader) {
  const auto entry = outside_products_.find(origin.number());
  if (entry == outside_products_.end()) return;
  // The shadow of a replay begins with the kept bytes; if there are older ones, the call's value
  // is kept apart from them and copied there when the call is skipped.
  if (!region_->outside()[origin.number()].is_written()) {
    settle(tensor);
    scope_.keep_before_write(tensor, origin);
    if (scope_.recorder_) scope_.recorder_->reset_outside(origin.number());
  } else {
    read_product(entry->second, tensor, reader);
    region_->outside()[origin.number()].cover_all();  // it has all bytes
  }
  outside_products_.erase(entry);
}

/// The product whose value the tensor has: made by a call, or written outside by one.
std::optional<size_t> ForwardCalls::product_in(const at::Tensor& tensor) const {
  const void* const memory = memory_of(tensor);
  if (!memory) return std::nullopt;
  const Origin origin = scope_.storages_.find(memory);
  if (origin.is_product()) return origin.number();
  if (!origin.is_outside()) return std::nullopt;
  const auto written = outside_products_.find(origin.number());
  return written == outside_products_.end() ? std::nullopt : std::optional(written->second);
}

void ForwardCalls::before_slot(const at::Tensor& tensor) {
  if (C10_UNLIKELY(is_of_python_class(tensor))) read_inside(tensor, /*reader=*/nullptr);
  if (const auto number = product_in(tensor))
    region_->calls().product(*number).mark_in_slot(region_->slots().size());
}

void ForwardCalls::need(const at::Tensor& tensor) {
  if (is_of_python_class(tensor)) read_inside(tensor, /*reader=*/nullptr);
  if (saving() || !memory_of(tensor)) return;
  const Origin origin = scope_.storages_.find(memory_of(tensor));
  if (origin.is_product()) read_product(origin.number(), tensor, /*reader=*/nullptr);
  if (origin.is_outside()) read_outside(tensor, origin, /*reader=*/nullptr);
}

void ForwardCalls::read_product(size_t number, const at::Tensor& tensor, const OpInfo* reader) {
  CallProduct& product = region_->calls().product(number);
  if (product.is_kept()) return;
  KeepReason reason = reason_for(reader);
  if (reason.kind == KeepReason::Kind::kBareRead) report_implicit(product, reason.reader);
  keep(product, tensor, std::move(reason));
  // Its value goes where the products before it were.
  for (auto base = base_products_.find(number); base != base_products_.end();
       base = base_products_.find(base->second)) {
    CallProduct& before = region_->calls().product(base->second);
    if (before.needs_memory()) break;  // and so are all before it
    before.mark_memory_needed();
  }
}

KeepReason ForwardCalls::reason_for(const OpInfo* reader) const {
  if (!reader) return {.kind = KeepReason::Kind::kNeeded, .reader = {}};
  return {.kind = recomputed_ > 0 ? KeepReason::Kind::kCallRead : KeepReason::Kind::kBareRead,
          .reader = reader->name()};
}

void ForwardCalls::report_implicit(const CallProduct& product, const std::string& reader) const {
  const bool is_asked_for = region_->calls().records()[product.call()].call.is_op;
  if (settings_.implicit_keep == ImplicitKeep::kKeep || is_asked_for) return;
  const std::string text = c10::str(
      where(region_->calls().records()[product.call()].call),
      ": expected no bare op to read its "
      "result (",
      product.meta().str(), ", ", product.size_bytes(), " bytes), got ", reader,
      ", for which it has to be kept. Call recompute_needs_tensor() on it before, put the op in a "
      "named call, or set implicit_keep = kKeep (\"keep\" in Python).");
  TORCH_CHECK(settings_.implicit_keep != ImplicitKeep::kError, text);
  TORCH_WARN_ONCE(text);
}

}  // namespace remat
