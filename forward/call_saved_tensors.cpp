// SPDX-License-Identifier: BSD-3-Clause

// Keeping tensors that autograd saves in SAVE calls.
#include "call_saved_tensors.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <optional>
#include <utility>

#include <remat/engine/hidden_scopes.h>
#include <remat/engine/op_observer.h>
#include <remat/engine/result_aliases.h>
#include <remat/engine/saved_original.h>
#include <remat/engine/saved_tensors_hooks.h>
#include <remat/engine/taken_gradients.h>
#include <remat/engine/unseen.h>

namespace remat {
namespace {

constexpr const char* kWrittenByWayOfData =
    "Write it after backward, or with gradients off (`with torch.no_grad(): w.mul_(2)`), which "
    "autograd notices, or pass a clone.";

}  // namespace

/// Stands in autograd's graph for a tensor that autograd may save for a SAVE call. Has a slot if
/// other code saves the tensor, or if a replay can fill the slot from the call's arguments;
/// otherwise has the tensor itself, which the scopes around the region keep.
class CallSavedTensors::Hook final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hook(CallSavedTensors& calls) : calls_(&calls), region_(calls.state_.region) {}
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;
  ~Hook() override {
    if (slot_) region_->release(*slot_);
    if (kept_) kept_->live = false;
    if (waiting_) std::replace(calls_->pending_.begin(), calls_->pending_.end(), this, {});
  }

  void call_pack_hook(const at::Tensor& tensor) override {
    SavedCall* const call = calls_->call_that_saves(tensor);
    if (!call) calls_->before_slot_(tensor);
    if (!call || calls_->add_refill(*call, tensor)) {
      region_ = calls_->state_.slot_region();
      slot_ = &calls_->slots_.add(tensor);
      return;
    }
    const size_t number = call->index;
    calls_->expected_.begin_pack(*call);
    try {
      pack(*call, tensor);
    } catch (...) {
      calls_->expected_.end_pack(number, /*has_failed=*/true);
      throw;
    }
    calls_->expected_.end_pack(number, /*has_failed=*/false);
  }

  /// `call` may be destroyed once user code has run.
  void pack(SavedCall& call, const at::Tensor& tensor) {
    kept_ = &region_->calls().add_kept(call.index, calls_->next_name(call, tensor), tensor);
    const void* const memory = memory_of(tensor);
    const Origin origin = memory ? calls_->state_.storages.find(memory) : Origin::unknown();
    if (origin.is_product()) kept_->maker = region_->calls().product(origin.number()).call();
    const CallRecord& record = *call.record;
    if (record.ended) region_->calls().find_results(*kept_);
    UserPair pair = calls_->pair_for(record, tensor);
    const bool is_with_user = calls_->slots_.gives_to_user(record.call.keep, pair);
    is_of_options_ = calls_->slots_.is_of_options(pair);
    is_of_outer_region_ = !is_with_user && calls_->state_.scope.previous();
    // If a region inside the call saves an alias, that region tracks writes, so do not compare
    // here.
    is_compared_ = is_with_user && saved_original(tensor).is_same(tensor);
    if (is_with_user || calls_->state_.scope.previous()) note_others(tensor);
    sample(tensor);
    const bool may_be_written =
        calls_->running_.op_has_argument(tensor) || !calls_->pending_.empty();
    if (may_be_written && is_with_user) {
      waiting_.emplace(tensor, std::move(pair));
      calls_->pending_.push_back(this);
    } else {
      keep(tensor, pair);
    }
  }

  /// Call it when the op that saved the tensor has run.
  void pack_pending() {
    const auto [tensor, pair] = *std::exchange(waiting_, std::nullopt);
    try {
      const bool is_settled = !kept_->version->changed() && !kept_->version->is_written_by_op();
      if (is_settled) sample(tensor);
      keep(tensor, pair);
    } catch (...) {
      keep_itself(tensor);  // An in-place op already has its node, which needs the tensor.
      throw;
    }
  }

  /// Call it if the op has thrown. A node may own this hook all the same, and need the tensor.
  void drop_pending() { keep_itself(std::exchange(waiting_, std::nullopt)->first); }

  at::Tensor call_unpack_hook() override {
    if (slot_) return region_->load(*slot_);
    if (waiting_) return tensor_data(waiting_->first);
    TORCH_CHECK(
        !kept_->version->changed(), modified_in_place(kept_->meta, *kept_->version),
        region_->label(), ", ", region_->calls().records()[kept_->call].call.str(), ", tensor '",
        kept_->name,
        "': expected it as the call left it, got it modified in-place. Do not write it before "
        "backward, or save a "
        "clone. Hint: anomaly detection finds the operation that failed to compute its "
        "gradient.");
    const at::Tensor original(original_ ? original_->lock() : nullptr);
    TORCH_CHECK(!is_grad_changed(original, kept_->meta.requires_grad()), where(), kGradChanged);
    const auto now = memory_now(*kept_->version);
    TORCH_CHECK(now != MemoryNow::kElsewhere, where(), kMemoryExchanged);
    const at::Tensor tensor = given_back(now == MemoryNow::kThere);
    note_given_to_node(tensor);
    note_written_by_node(tensor);
    return tensor;
  }

 private:
  /// See Note [Writes in a backward]: copies that came back do not alias as the saved tensors did.
  void note_written_by_node(const at::Tensor& tensor) const {
    const bool is_hooked = others_ && others_->is_hooked();
    const bool is_noted = is_of_options_ ? is_hooked || !is_on_kept_storage(tensor)
                                         : is_of_outer_region_ && is_hooked;
    if (is_noted) region_->note_kept(*kept_, tensor, is_hooked);
  }

  void note_others(const at::Tensor& tensor) {
    if (auto memory = calls_->slots_.memory_for_others(tensor))
      others_ = std::make_unique<const ForwardMemory>(*std::move(memory));
  }

  /// Returns the tensor that hooks or a store bring back or, if it is a copy and somebody still has
  /// the saved memory, a tensor on that memory: see Note [Memory that others hold].
  at::Tensor given_back(bool is_there) const {
    at::Tensor tensor = value_->unpack();
    const bool is_kept = is_on_kept_storage(tensor);
    TORCH_CHECK(!is_kept || is_there, where(), kMemoryExchanged);
    TORCH_CHECK(!is_freed(tensor), where(), kMemoryFreed, kGiveMemoryBack);
    if (is_kept) return tensor;
    check_original(has_layout(tensor));
    const bool is_shared = others_ && !others_->is_hooked() && !kept_->version->is_written_by_op();
    const auto place = [&] { return where_kept(); };
    const at::Tensor expected = region_->is_exact() ? tensor : at::Tensor();
    if (at::Tensor saved = is_shared ? others_->lock(kept_->meta, expected, place) : at::Tensor();
        saved.defined()) {
      kept_->version->give_to(saved);
      return saved;
    }
    OpObserver::all_adopt(tensor);
    return tensor;
  }

  /// Notes the present version, because later writes count as changes: hooks that copy keep the
  /// present values, while plain autograd would use the values after a write.
  void sample(const at::Tensor& tensor) {
    kept_->version.emplace(tensor, is_compared_ && calls_->is_from_outside(tensor));
  }

  void keep(const at::Tensor& tensor, const UserPair& pair) {
    const bool is_unmade = is_parameter(tensor) || calls_->is_from_outside(tensor);
    if (is_unmade && tensor.is_leaf()) original_.emplace(tensor.getIntrusivePtr());
    const CallRecord& record = region_->calls().records()[kept_->call];
    const SavedTensorInfo info{.kind = SavedTensorKind::kBackward,
                               .region = region_->name(),
                               .call = record.call.name,
                               .context = {}};
    calls_->slots_.keep_through(pair, info, tensor, record.call.keep,
                                [&] { value_.emplace(tensor_data(tensor), false); });
  }

  void keep_itself(const at::Tensor& tensor) {
    const PairScope nobody({}, /*in_replay=*/true);
    value_.emplace(tensor_data(tensor), /*is_output=*/false);
  }

  /// Throws if the tensor was written without a new version after hooks may have copied it.
  void check_original(bool is_strided) const {
    TORCH_CHECK(!changed_by_alias(*kept_->version), where(), kResultChanged);
    const bool is_comparable = is_strided && !kept_->version->is_written_by_op();
    TORCH_CHECK(!is_comparable || !kept_->version->has_other_bytes(kept_->storage.lock()), where(),
                modified_in_place(kept_->meta, *kept_->version), kWrittenByWayOfData);
  }

  std::string where() const { return c10::str(where_kept(), " (", kept_->meta.str(), "): "); }

  std::string where_kept() const {
    return c10::str("[replay] ", region_->label(), ", ",
                    region_->calls().records()[kept_->call].call.str(), ", tensor '", kept_->name,
                    "'");
  }

  // A tensor on the saved memory may be a weight, which ops outside the call use later; so the
  // tensor is not adopted.
  bool is_on_kept_storage(const at::Tensor& tensor) const {
    return kept_->storage.address() && kept_->storage.address() == memory_of(tensor);
  }

  CallSavedTensors* calls_;  // Dangling after the forward; used only in pack.
  std::shared_ptr<Region> region_;
  Slot* slot_ = nullptr;
  KeptTensor* kept_ = nullptr;
  bool is_of_options_ = false;                   // The options' store or hooks have the tensor.
  bool is_of_outer_region_ = false;              // The tensor is a slot of an outer region.
  bool is_compared_ = false;                     // Bytes of a tensor from outside are compared.
  std::unique_ptr<const ForwardMemory> others_;  // Set if hooks may bring back a copy.
  std::optional<OutsideStorage::WeakTensor> original_;  // Set for a parameter or leaf from outside.
  std::optional<torch::autograd::SavedVariable> value_;
  // The tensor and the pair that gets it, while this hook is in pending_.
  std::optional<std::pair<at::Tensor, UserPair>> waiting_;
};

// Autograd keeps the saved tensor itself, even if the tensor gets other memory later.
void CallSavedTensors::before_set_data(const at::Tensor& tensor) {
  for (const KeptTensor& kept : std::as_const(*state_.region).calls().kept()) {
    const bool is_it = kept.tensor == tensor.unsafeGetTensorImpl() && kept.storage.address() &&
                       kept.storage.address() == memory_of(tensor);
    if (is_it) exchanged_.push_back(&kept);
  }
}

void CallSavedTensors::check_exchanged() const {
  for (const KeptTensor* const kept : exchanged_) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !kept->live, state_.where(state_.region->calls().records()[kept->call].call), ", tensor '",
        kept->name, "' (", kept->meta.str(), "): ", kMemoryExchangedInRegion);
  }
}

CallSavedTensors::~CallSavedTensors() {
  drop_pending();
}

// Note [Packed when the op has run]: an op may save an argument that its kernel writes afterwards
// (the noise of rrelu_with_noise), and schemas do not always say so. The tensor itself then has the
// new values, but a copy that hooks or a store had made at once would have the old ones. So tensors
// for user hooks are packed when the op has run. Tensors that the op saves after such a tensor
// wait, too, so that all are packed in order.
void CallSavedTensors::pack_pending() {
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (Hook* const hook = std::exchange(pending_[i], nullptr)) hook->pack_pending();
  }
  pending_.clear();
}

void CallSavedTensors::drop_pending() noexcept {
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (Hook* const hook = std::exchange(pending_[i], nullptr)) hook->drop_pending();
  }
  pending_.clear();
}

// A pair opened in the call comes before the store, because the store is for the region's results.
UserPair CallSavedTensors::pair_for(const CallRecord& record, const at::Tensor& tensor) const {
  return products_.pair_for_saved(record, tensor,
                                  [&] { return running_.record && UserPair::inside(place_); });
}

std::unique_ptr<torch::autograd::SavedVariableHooks> CallSavedTensors::make_hooks() {
  return std::make_unique<Hook>(*this);
}

void CallSavedTensors::name(const std::vector<std::string>& names,
                            c10::ArrayRef<at::Tensor> tensors, size_t depth) {
  for (const auto i : c10::irange(tensors.size())) {
    if (tensors[i].defined()) named_.push_back({names[i], tensors[i], depth});
  }
}

void CallSavedTensors::forget_names(size_t depth) noexcept {
  while (!named_.empty() && named_.back().depth >= depth) {
    Named forgotten = std::move(named_.back());
    named_.pop_back();
    drop_unseen(std::move(forgotten));
  }
}

void CallSavedTensors::end_call(std::vector<at::Tensor>& dying) noexcept {
  drop_pending();  // The op may have thrown.
  expected_.end_call(running_);
  running_.clear(dying);
  for (Named& named : named_) dying.push_back(std::move(named.tensor));
  named_.clear();
}

/// The SAVE call for which autograd saves `tensor`; null if it saves for code outside SAVE calls.
SavedCall* CallSavedTensors::call_that_saves(const at::Tensor& tensor) {
  return running_.record ? &running_ : expected_.call_that_saves(tensor);
}

std::string CallSavedTensors::next_name(SavedCall& call, const at::Tensor& tensor) {
  if (expected_.has(call)) return expected_.next_name(call);
  const size_t i = call.count++;
  for (auto named = named_.begin(); named != named_.end(); ++named) {
    if (!named->tensor.is_same(tensor)) continue;
    std::string name = std::move(named->name);
    named_.erase(named);
    return name;
  }
  const std::vector<std::string>& names = call.record->call.saved_names;
  if (names.empty()) return c10::str("saved.", i);
  TORCH_CHECK_VALUE(i < names.size(), state_.where(call.record->call), ": expected ", names.size(),
                    " saved tensors, auto_forward save_for_backward names must match, got more. "
                    "List all of them in saved_names, in their order.");
  return names[i];
}

bool CallSavedTensors::add_refill(SavedCall& call, const at::Tensor& tensor) {
  if (expected_.has(call) && expected_.is_written(call)) return false;
  // A call's refills must be the first slots after its beginning, but a custom function's forward
  // may have added other slots.
  const size_t next_slot = call.record->first_slot + call.record->refills.size();
  if (state_.region->slots().size() != next_slot) return false;
  if (!has_layout(tensor) || !memory_of(tensor) || call.has_written(tensor)) return false;
  // logged() resolves casts: see Note [Casts that a cache answers].
  if (!state_.region->outside().logged(state_.storages.find(memory_of(tensor))).is_inside())
    return false;
  const size_t number = call.argument_on_storage_of(tensor);
  if (number == SavedCall::kNone || call.arguments[number].scalar_type() != tensor.scalar_type())
    return false;
  call.record->refills.emplace_back(number, call.arguments[number], tensor);
  next_name(call, tensor);
  return true;
}

}  // namespace remat
