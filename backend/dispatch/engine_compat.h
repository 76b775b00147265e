// SPDX-License-Identifier: BSD-3-Clause

// Members that LibTorch's base classes have in some versions only.
#pragma once

#include <c10/core/SafePyObject.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace remat {

/// An engine in front of `inner`, with the methods that LibTorch's engines have since 2.14.
class EngineInFront : public torch::autograd::Engine {
 public:
#if __has_include(<torch/csrc/autograd/node_creation_hook.h>)
  std::vector<std::unique_ptr<torch::autograd::NodeCreationHook>> get_node_creation_hooks()
      override {
    return inner_.get_node_creation_hooks();
  }
#endif

 protected:
  explicit EngineInFront(torch::autograd::Engine& inner) : inner_(inner) {}

  torch::autograd::Engine& inner_;
};

/// Hooks in front of other hooks, with the methods that LibTorch's hooks have since 2.15.
class HooksInFront : public torch::autograd::SavedVariableHooks {
 public:
  // Overrides LibTorch's method if there is one; with `override` it would not compile elsewhere.
  virtual std::optional<c10::SafePyObject> retrieve_unpack_hook() const {
    return unpack_hook_of(*hooks_);
  }

 protected:
  explicit HooksInFront(std::unique_ptr<torch::autograd::SavedVariableHooks> hooks)
      : hooks_(std::move(hooks)) {}

  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks_;

 private:
  template <class Hooks>
  static std::optional<c10::SafePyObject> unpack_hook_of(const Hooks& hooks) {
    if constexpr (requires { hooks.retrieve_unpack_hook(); }) {
      return hooks.retrieve_unpack_hook();
    } else {
      return std::nullopt;
    }
  }
};

}  // namespace remat
