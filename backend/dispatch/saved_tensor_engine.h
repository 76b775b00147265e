// SPDX-License-Identifier: BSD-3-Clause

// The autograd engine that lets this thread's scopes handle saved tensors.
#pragma once

#include <torch/csrc/autograd/engine.h>

#include <memory>
#include <vector>

#include <remat/engine/torch_compat.h>

namespace remat {

/// Stands in front of the previous default engine and delegates to it. It adds three things:
/// default hooks for saved tensors come from Scope::current(), a backward inside a region or replay
/// is reported to its scopes, and a backward of dry tensors stays on its thread.
class SavedTensorEngine final : public torch::autograd::Engine {
 public:
  /// Puts an instance in front of the default engine, unless an instance is the default engine
  /// already. Usable from any thread.
  static void install();

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override;
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& graph_task, NodePtr graph_root,
      torch::autograd::InputBuffer&& input_buffer) override;
  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override;
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override;
  void thread_on_exception(const std::shared_ptr<torch::autograd::GraphTask>& graph_task,
                           const NodePtr& node, std::exception& error) override;
  void thread_init(int device, const std::shared_ptr<torch::autograd::ReadyQueue>& ready_queue,
                   bool should_increment) override;
#if __has_include(<torch/csrc/autograd/node_creation_hook.h>)  // Since 2.14.
  std::vector<std::unique_ptr<torch::autograd::NodeCreationHook>> get_node_creation_hooks()
      override {
    return inner_.get_node_creation_hooks();
  }
#endif

 private:
  explicit SavedTensorEngine(torch::autograd::Engine& inner) : inner_(inner) {}
  ~SavedTensorEngine() override {
    stop();
  }
  torch::autograd::variable_list execute_numbered(const torch::autograd::edge_list& roots,
                                                  const torch::autograd::variable_list& inputs,
                                                  bool keep_graph, bool accumulate_grad,
                                                  const torch::autograd::edge_list& outputs);

  torch::autograd::Engine& inner_;
};

}  // namespace remat
