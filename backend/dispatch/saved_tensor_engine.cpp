// SPDX-License-Identifier: BSD-3-Clause

// Delegation to the inner engine, and the additions to it.
#include "saved_tensor_engine.h"

#include <ATen/SavedTensorHooks.h>
#include <c10/core/AutogradState.h>
#include <c10/core/SafePyObject.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <remat/backend/first_use.h>
#include <remat/backend/inner_backward.h>
#include <remat/engine/backward_observer.h>
#include <remat/engine/data_hooks.h>
#include <remat/engine/hook_count.h>
#include <remat/engine/op_observer.h>
#include <remat/engine/replayed_nodes.h>
#include <remat/engine/saved_tensors_hooks.h>
#include <remat/engine/scope.h>

namespace remat {
namespace {

using torch::autograd::Engine;
using torch::autograd::SavedVariableHooks;

// Leaked, because threads may use an engine until the process ends.
std::atomic<SavedTensorEngine*> installed{nullptr};

Engine& installed_engine() {
  return *installed.load(std::memory_order_acquire);
}

bool starts_dry(const torch::autograd::edge_list& roots) {
  return std::any_of(roots.begin(), roots.end(), [](const torch::autograd::Edge& root) {
    return root.function && root.function->device().type() == c10::DeviceType::PrivateUse1;
  });
}

/// In a replay, replaces the edges where a backward starts or ends by those of the stand-ins, the
/// tensors that the replay hands to ops.
EdgeList stand_ins(const EdgeList& edges) {
  EdgeList exchanged = edges;
  for (torch::autograd::Edge& edge : exchanged) {
    if (edge.is_valid()) edge = OpObserver::current_stand_in(edge);
  }
  return exchanged;
}

/// Wraps hooks, to tell the trace sink when they pack a tensor.
class TracedHooks final : public SavedVariableHooks {
 public:
  explicit TracedHooks(std::unique_ptr<SavedVariableHooks> hooks) : hooks_(std::move(hooks)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    TraceSink* const sink = trace_sink.load(std::memory_order_acquire);
    if (!sink) return hooks_->call_pack_hook(tensor);
    sink->before_save(Scope::current_trace_scope(), tensor);
    try {
      hooks_->call_pack_hook(tensor);
    } catch (...) {
      sink->after_save(Scope::current_trace_scope(), /*threw=*/true);
      throw;
    }
    sink->after_save(Scope::current_trace_scope(), /*threw=*/false);
  }
  at::Tensor call_unpack_hook() override { return hooks_->call_unpack_hook(); }
  std::optional<std::pair<c10::SafePyObject, c10::SafePyObject>> retrieve_unpack_hook_data()
      const override {
    return hooks_->retrieve_unpack_hook_data();
  }
  // Overrides a method that LibTorch has since 2.15; `override` would not compile before.
  virtual std::optional<c10::SafePyObject> retrieve_unpack_hook() const {
    return unpack_hook_of(*hooks_);
  }

 private:
  template <class Hooks>
  static std::optional<c10::SafePyObject> unpack_hook_of(const Hooks& hooks) {
    if constexpr (requires { hooks.retrieve_unpack_hook(); }) {
      return hooks.retrieve_unpack_hook();
    } else {
      return std::nullopt;
    }
  }

  std::unique_ptr<SavedVariableHooks> hooks_;
};

}  // namespace

void SavedTensorEngine::install() {
  SavedTensorEngine* const engine = installed.load(std::memory_order_acquire);
  if (engine && &Engine::get_default_engine() == engine) return;
  detail::first_use();
  install_data_hooks();
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  Engine& inner = Engine::get_default_engine();
  if (&inner == installed.load()) return;
  installed.store(new SavedTensorEngine(inner), std::memory_order_release);
  torch::autograd::set_default_engine_stub(&installed_engine);
}

torch::autograd::variable_list SavedTensorEngine::execute(
    const torch::autograd::edge_list& roots, const torch::autograd::variable_list& inputs,
    bool keep_graph, bool create_graph, bool accumulate_grad,
    const torch::autograd::edge_list& outputs) {
  Scope* const scope = Scope::current();
  std::optional<detail::OnThisThread> on_this_thread;
  if (scope || starts_dry(roots)) on_this_thread.emplace();
  if (!scope && create_graph)
    return execute_numbered(roots, inputs, keep_graph, accumulate_grad, outputs);
  if (!scope)
    return inner_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  const EdgeList from = stand_ins(roots);
  const EdgeList to = stand_ins(outputs);
  detail::before_backward_inside(from, to, accumulate_grad);
  auto results = inner_.execute(from, inputs, keep_graph, create_graph, accumulate_grad, to);
  detail::after_backward_inside(results);
  return results;
}

/// Runs a backward with create_graph outside of regions. See Note [Numbers on autograd's threads].
torch::autograd::variable_list SavedTensorEngine::execute_numbered(
    const torch::autograd::edge_list& roots, const torch::autograd::variable_list& inputs,
    bool keep_graph, bool accumulate_grad, const torch::autograd::edge_list& outputs) {
  const NumberedNodes nodes;
  auto results =
      inner_.execute(roots, inputs, keep_graph, /*create_graph=*/true, accumulate_grad, outputs);
  accumulate_grad ? nodes.number_grads(roots) : nodes.number(results);
  return results;
}

detail::OnThisThread::OnThisThread()
    : was_enabled_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

detail::OnThisThread::~OnThisThread() {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(was_enabled_);
}

void detail::before_backward_inside(const EdgeList& roots, const EdgeList& ends, bool accumulates) {
  BackwardObserver* const observer = BackwardObserver::current();
  if (!observer) return;
  observer->before_backward(roots);
  observer->before_hooks(count_hooks(roots, ends));
  if (accumulates) observer->before_accumulate(roots);
}

void detail::after_backward_inside(c10::ArrayRef<at::Tensor> gradients) {
  if (BackwardObserver* const observer = BackwardObserver::current())
    observer->after_backward(gradients);
}

c10::intrusive_ptr<at::ivalue::Future> SavedTensorEngine::execute_with_graph_task(
    const std::shared_ptr<torch::autograd::GraphTask>& graph_task, NodePtr graph_root,
    torch::autograd::InputBuffer&& input_buffer) {
  return inner_.execute_with_graph_task(graph_task, std::move(graph_root), std::move(input_buffer));
}

std::unique_ptr<torch::autograd::AnomalyMetadata> SavedTensorEngine::make_anomaly_metadata() {
  return inner_.make_anomaly_metadata();
}

std::unique_ptr<torch::autograd::SavedVariableHooks>
SavedTensorEngine::get_default_saved_variable_hooks() {
  Scope* const scope = Scope::current();
  if (C10_LIKELY(!scope)) return inner_.get_default_saved_variable_hooks();
  // Python hooks that were pushed inside the scope of remat's hooks come first. But a region takes
  // precedence (Note [Hooks inside a region]), except over torch.utils.checkpoint (Note
  // [Checkpoints of PyTorch inside a region]). Tracers and torch.func want no hooks at all.
  const auto& python = at::SavedTensorDefaultHooks::get_tls_state();
  Scope* const region = scope->region_scope();
  const bool python_is_nearer = scope->has_python_hooks_inside() &&
                                (!region || is_recomputing_pair(python.stack.top().first));
  if (python_is_nearer || python.disabled_error_message || python.is_tracing) {
    return inner_.get_default_saved_variable_hooks();
  }
  std::unique_ptr<SavedVariableHooks> hooks = (region ? region : scope)->make_hooks();
  if (hooks && trace_sink.load(std::memory_order_acquire))
    return std::make_unique<TracedHooks>(std::move(hooks));
  return hooks;
}

void SavedTensorEngine::thread_on_exception(
    const std::shared_ptr<torch::autograd::GraphTask>& graph_task, const NodePtr& node,
    std::exception& error) {
  inner_.thread_on_exception(graph_task, node, error);
}

void SavedTensorEngine::thread_init(int device,
                                    const std::shared_ptr<torch::autograd::ReadyQueue>& ready_queue,
                                    bool should_increment) {
  inner_.thread_init(device, ready_queue, should_increment);
}

}  // namespace remat
