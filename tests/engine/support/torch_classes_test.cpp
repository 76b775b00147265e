// SPDX-License-Identifier: BSD-3-Clause

// Classes of LibTorch that remat replaces by its own objects: a virtual function with a default
// body that a new version adds must be passed on too, or it would silently do nothing.
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

#include "support/catch.h"

namespace {

using Names = std::set<std::string>;

/// Returns all virtual functions that the header declares.
Names virtual_functions(const std::string& header) {
  std::ifstream file(REMAT_LIBTORCH_INCLUDE "/" + header);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  text = std::regex_replace(text, std::regex("//[^\n]*"), "");
  const std::regex declaration(R"(\bvirtual\b[^;{(]*?(~?\w+)\s*\()");
  Names names;
  for (std::sregex_iterator found(text.begin(), text.end(), declaration), end; found != end;
       ++found) {
    names.insert((*found)[1]);
  }
  return names;
}

/// Returns the virtual functions of `header` that are not in `known`.
Names unknown(const std::string& header, const Names& known) {
  Names names = virtual_functions(header);
  CHECK(names.size() > known.size() / 2);
  for (const std::string& name : known) names.erase(name);
  return names;
}

}  // namespace

// thread_main() runs on the threads of the wrapped engine. SavedTensorEngine passes
// on the other functions.
TEST_CASE("LibTorch's Engine asks for nothing that ours does not pass on",
          "[tape][torch_version]") {
  CHECK(unknown("torch/csrc/autograd/engine.h",
                {"~Engine", "execute", "execute_with_graph_task", "make_anomaly_metadata",
                 "get_default_saved_variable_hooks", "get_node_creation_hooks",
                 "thread_on_exception", "thread_init", "thread_main"}) == Names{});
}

TEST_CASE("LibTorch's saved-tensor hooks are asked for nothing that ours do not pass on",
          "[tape][torch_version]") {
  CHECK(unknown("torch/csrc/autograd/saved_variable_hooks.h",
                {"~SavedVariableHooks", "call_pack_hook", "call_unpack_hook",
                 "retrieve_unpack_hook_data", "retrieve_unpack_hook"}) == Names{});
}

TEST_CASE("LibTorch's variable hooks are asked for nothing that ours do not pass on",
          "[tape][torch_version]") {
  CHECK(unknown("ATen/core/VariableHooksInterface.h", {"~VariableHooksInterface",
                                                       "tensor_data",
                                                       "variable_data",
                                                       "grad_fn",
                                                       "_register_hook",
                                                       "remove_hook",
                                                       "is_view",
                                                       "base",
                                                       "name",
                                                       "is_leaf",
                                                       "output_nr",
                                                       "set_data",
                                                       "data",
                                                       "_version",
                                                       "retain_grad",
                                                       "retains_grad",
                                                       "_backward",
                                                       "requires_grad_",
                                                       "basic_autograd_not_implemented_fallback",
                                                       "grad_dtype",
                                                       "set_grad_dtype"}) == Names{});
}
