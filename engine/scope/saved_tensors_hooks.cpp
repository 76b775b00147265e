// SPDX-License-Identifier: BSD-3-Clause

// User hooks on saved tensors, as a scope of the thread's stack or as the thread's only pair.
#include <remat/engine/saved_tensors_hooks.h>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <atomic>
#include <exception>
#include <optional>
#include <utility>

#include <remat/engine/held_storage.h>
#include <remat/engine/hidden_scopes.h>
#include <remat/engine/op_call.h>
#include <remat/engine/op_observer.h>
#include <remat/engine/saved_original.h>
#include <remat/engine/storage_bytes.h>
#include <remat/engine/tensor_layout.h>
#include <remat/engine/tensor_meta.h>
#include <remat/engine/unseen.h>
#include <remat/engine/user_pair.h>
#include <remat/placeholder/placeholder_impl.h>

namespace remat {
namespace {

[[gnu::tls_model("initial-exec")]] thread_local const SavedTensorInfo* info_of_next =
    nullptr;  // Set by SavedTensorInfoGuard.
[[gnu::tls_model("initial-exec")]] thread_local const SavedTensorInfo* info_in_pack = nullptr;
[[gnu::tls_model("initial-exec")]] thread_local const at::Tensor* original_of_next =
    nullptr;  // Set by SavedOriginalGuard.
[[gnu::tls_model("initial-exec")]] thread_local bool original_is_after_op = false;

class UserHook final : public torch::autograd::SavedVariableHooks {
 public:
  explicit UserHook(std::shared_ptr<const SavedTensorsHooks> hooks) : hooks_(std::move(hooks)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    if (tensor.has_storage() && PlaceholderStorage::is(tensor.storage())) {
      placeholder_ = tensor_data(tensor);
      return;
    }
    SuspendScopes suspend;
    c10::NoGradGuard no_grad;
    meta_.emplace(tensor_data(tensor));
    if (has_layout(tensor)) layout_.emplace(tensor);
    alignment_ = alignment_of(tensor);
    version_.emplace(tensor);
    original_ = HeldStorage(tensor);
    SavedTensorInfo info = info_of_next ? *info_of_next : SavedTensorInfo();
    const at::Tensor* const original = std::exchange(original_of_next, nullptr);
    info.original = original ? original : &tensor;
    if (info_of_next && !info.context.has_value()) info.context = UserHooksScope::capture(*hooks_);
    const auto ends = c10::make_scope_exit(
        [outer = std::exchange(info_in_pack, &info)] { info_in_pack = outer; });
    packed_ = hooks_->pack(tensor_data(tensor));
  }

  at::Tensor call_unpack_hook() override {
    if (placeholder_.defined()) return placeholder_;
    at::Tensor tensor = unpack();
    TORCH_CHECK_VALUE(tensor.defined(), "[saved_tensors_hooks] unpack: expected a ", meta_->str(),
                      " tensor, got an undefined one. Return what pack was given.");
    TORCH_CHECK_VALUE(meta_->matches_data(tensor), "[saved_tensors_hooks] unpack: expected ",
                      meta_->str(), ", got ", TensorMeta(tensor).str(),
                      ". Return a tensor equal to the one that pack was given.");
    // Autograd checks no version under hooks, so a write goes unnoticed if the hooks have kept the
    // tensor itself. A copy passes, because it has another version counter.
    TORCH_CHECK(!version_->changed_in(tensor), modified_in_place(*meta_, *version_),
                "[saved_tensors_hooks] pack kept the tensor itself: return a copy, or do not "
                "write it before backward.");
    if (layout_) tensor = with_layout(tensor, *layout_, alignment_);
    // Hooks may have kept the tensor itself, which needs no adoption.
    if (original_.address() != memory_of(tensor)) OpObserver::all_adopt(tensor);
    return tensor;
  }

 private:
  at::Tensor unpack() const {
    SuspendScopes suspend;
    try {
      return hooks_->unpack(packed_);
    } catch (const std::exception&) {
      throw;
    } catch (...) {
      // Autograd's engine handles only exceptions derived from std::exception.
      TORCH_CHECK(false, "[saved_tensors_hooks] unpack: expected a ", meta_->str(),
                  " or a std::exception, got something else thrown. Throw a std::exception.");
    }
  }

  std::shared_ptr<const SavedTensorsHooks> hooks_;
  at::Tensor placeholder_;  // The saved tensor if it has no data to pack (in an outer replay).
  std::optional<TensorMeta> meta_;
  std::optional<TensorLayout> layout_;
  uint8_t alignment_ = 0;
  std::optional<SavedVersion> version_;
  HeldStorage original_;
  std::any packed_;
};

using PythonHooks = at::SavedTensorDefaultHooks;

std::atomic<RecomputingPair> recomputing_pair{nullptr};

}  // namespace

const SavedTensorInfo& current_saved_tensor_info() {
  TORCH_CHECK(info_in_pack,
              "[current_saved_tensor_info] expected to be called by the pack function of "
              "saved-tensor hooks, got a call outside of one. Call it in pack.");
  return *info_in_pack;
}

const SavedTensorInfo* saved_tensor_info_in_pack() {
  return info_in_pack;
}

bool packs_region_input() {
  return info_of_next && info_of_next->kind == SavedTensorKind::kCheckpointInput;
}

bool packs_call_result() {
  return info_of_next && info_of_next->kind == SavedTensorKind::kSaveOutput;
}

SavedTensorInfoGuard::SavedTensorInfoGuard(SavedTensorInfo info)
    : info_(std::move(info)), outer_(std::exchange(info_of_next, &info_)) {}

SavedTensorInfoGuard::~SavedTensorInfoGuard() {
  info_of_next = outer_;
}

SavedOriginalGuard::SavedOriginalGuard(const at::Tensor& original, bool after_op)
    : outer_(std::exchange(original_of_next, &original)),
      outer_after_op_(std::exchange(original_is_after_op, after_op)) {}

SavedOriginalGuard::~SavedOriginalGuard() {
  original_of_next = outer_;
  original_is_after_op = outer_after_op_;
}

const at::Tensor& original_on_storage(const at::Tensor& tensor) {
  const bool is_alias = original_of_next && has_layout(*original_of_next) && has_layout(tensor) &&
                        original_of_next->storage().is_alias_of(tensor.storage());
  return is_alias ? *original_of_next : tensor;
}

const at::Tensor& saved_original(const at::Tensor& tensor) {
  const at::Tensor& original = original_on_storage(tensor);
  const bool is_alike = original.is_same(tensor) || TensorLayout(original) == TensorLayout(tensor);
  return is_alike ? original : tensor;
}

std::optional<CopiedOriginal> copied_original(const at::Tensor& tensor) {
  if (!original_of_next || !has_layout(*original_of_next) || !has_layout(tensor))
    return std::nullopt;
  const c10::Storage& storage = original_of_next->storage();
  if (storage.is_alias_of(tensor.storage())) return std::nullopt;
  const bool of_storage = TensorLayout(tensor) == TensorLayout::flat(storage.nbytes(), c10::kByte);
  const bool of_part = tensor.sizes() == original_of_next->sizes() &&
                       tensor.scalar_type() == original_of_next->scalar_type();
  if (!of_storage && !of_part) return std::nullopt;
  return CopiedOriginal{*original_of_next, original_is_after_op};
}

std::any UserHooksScope::capture(const SavedTensorsHooks& hooks) {
  if (!hooks.capture_context) return {};
  const SuspendScopes suspend;
  return hooks.capture_context();
}

std::any UserHooksScope::capture_context() {
  return region_scope() == this || !region_scope() ? capture(*hooks_) : std::any();
}

std::unique_ptr<torch::autograd::SavedVariableHooks> UserHooksScope::make_hooks() {
  if (Scope* const region = region_scope(); region && region != this) return region->make_hooks();
  if (in_replay()) return nullptr;
  return std::make_unique<UserHook>(hooks_);
}

void check_saved_tensors_hooks(const SavedTensorsHooks& hooks, const char* where) {
  TORCH_CHECK_VALUE(hooks.pack, "[", where,
                    "] saved_tensors_hooks: expected a pack function, got none. Set pack.");
  TORCH_CHECK_VALUE(hooks.unpack, "[", where,
                    "] saved_tensors_hooks: expected an unpack function, got none. Set unpack.");
}

void set_recomputing_pair(RecomputingPair test) {
  recomputing_pair = test;
}

bool is_recomputing_pair(const c10::SafePyObject& pack) {
  const RecomputingPair test = recomputing_pair.load(std::memory_order_relaxed);
  return test && test(pack);
}

ScopePlace ScopePlace::here() {
  return {Scope::current(), PythonHooks::get_tls_state().stack.size()};
}

/// The innermost pair on PyTorch's stack, among those with positions in [begin, end), that keeps
/// tensors; empty if there is none.
UserPair UserPair::of_python(size_t begin, size_t end) {
  UserPair pair;
  if (begin >= end) return pair;
  auto stack = PythonHooks::get_tls_state().stack;
  while (stack.size() > end) stack.pop();
  while (stack.size() > begin && is_recomputing_pair(stack.top().first)) stack.pop();
  if (stack.size() > begin) pair.python_.emplace(stack.top());
  return pair;
}

UserPair UserPair::inside(const ScopePlace& place) {
  size_t depth = PythonHooks::get_tls_state().stack.size();
  for (Scope* scope = Scope::current(); scope && scope != place.scope; scope = scope->previous()) {
    if (UserPair pair = of_python(scope->python_hooks_depth(), depth)) return pair;
    depth = scope->python_hooks_depth();
    const UserHooksScope* const pair = scope->user_hooks();
    if (auto hooks = pair ? pair->opened_hooks() : nullptr) return UserPair(std::move(hooks));
  }
  return of_python(place.python_hooks, depth);
}

UserPair UserPair::inside(const Scope& scope, Keep keep) {
  const Scope* region = &scope;
  for (const Scope* outer = &scope; outer && keep == Keep::kAllRegions; outer = outer->previous()) {
    if (!outer->user_hooks()) region = outer;
  }
  return inside({region, region->python_hooks_depth()});
}

std::any UserPair::capture_context() const {
  return hooks_ ? UserHooksScope::capture(*hooks_) : std::any();
}

PairScope::PairScope(const UserPair& pair, bool in_replay)
    : python_hooks_(PythonHooks::get_tls_state()) {
  at::impl::SavedTensorDefaultHooksTLS alone = python_hooks_;
  alone.stack = {};
  if (pair.python_ && !in_replay) alone.stack.push(*pair.python_);
  PythonHooks::set_tls_state(alone);
  if (pair.hooks_ && !in_replay) hooks_.emplace(pair.hooks_, UserHooksScope::Of::kKeeping);
}

PairScope::~PairScope() {
  hooks_.reset();
  PythonHooks::set_tls_state(python_hooks_);
}

}  // namespace remat
