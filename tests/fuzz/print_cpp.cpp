// SPDX-License-Identifier: BSD-3-Clause

// Prints random programs as C++.
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/device.h"
#include "fuzz/print.h"
#include "fuzz/printer.h"

namespace remat::fuzz {
namespace {

constexpr const char* kCppHead = R"(#include <ATen/autocast_mode.h>
#include <ATen/native/Resize.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <remat/remat.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <any>
#include <array>
#include <cstring>
#include <exception>
#include <functional>
#include <iostream>
#include <thread>

using at::Tensor;
using Tensors = std::vector<Tensor>;
using torch::autograd::grad;

)";

constexpr const char* kCppMain = R"(
bool same(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.cpu().contiguous().view(at::kInt).equal(b.cpu().contiguous().view(at::kInt));
}

int main() try {
  const Tensors plain = run(true);
  const Tensors ours = run(false);
  bool all_same = plain.size() == ours.size();
  for (size_t i = 0; all_same && i < plain.size(); ++i) {
    all_same = same(plain[i], ours[i]);
    if (!all_same) std::cout << "result " << i << " differs:\n" << plain[i] << "\n" << ours[i] << "\n";
  }
  return all_same ? 0 : 1;
} catch (const c10::Error& error) {
  std::cout << error.what_without_backtrace() << "\n";
  return 1;
}
)";

std::string braced(const Names& names) {
  return "{" + joined(names) + "}";
}

std::string cpp_policy(Policy policy) {
  if (policy == Policy::kRecompute) return "remat::Policy::kRecompute";
  return policy == Policy::kSave ? "remat::Policy::kSave" : "remat::Policy::kOffload";
}

constexpr OptionWords kCppOptions = {.name = ".name = ",
                                     .uncompared = ".determinism = remat::Determinism::kNone",
                                     .runs_to_end = ".early_stop = false",
                                     .automatic = ".replay = remat::ReplayEngine::kAuto",
                                     .tape = ".replay = remat::ReplayEngine::kTape",
                                     .cuts = ".cuts = ",
                                     .policy = ".policy = ",
                                     .hooks = ".saved_tensors_hooks = copying_hooks()",
                                     .store = ".offload_store = store"};

class CppPrinter final : public Printer {
 public:
  using Printer::Printer;

  std::string print() {
    const std::string run = this->run();
    const std::string helpers = helpers_for(run, &Helper::cpp);
    return kCppHead + helpers + run + kCppMain;
  }

 private:
  std::string run() {
    std::ostringstream text;
    text << "Tensors run(bool plain) {\n  at::manual_seed(" << program().seed << ");\n";
    Names wanted;
    for (size_t i = 0; i < kWeights; ++i) {
      wanted.push_back("w" + std::to_string(i));
      text << "  const Tensor " << wanted.back() << " = (at::randn({4, 4}) * 0.5)" << placed(i)
           << ".requires_grad_(true);\n";
    }
    for (size_t i = 0; i < kBuffers; ++i)
      text << "  const Tensor buffer" << i << " = at::rand({4, 4})" << placed(0) << ";\n";
    text << "  const Tensor bank = at::rand({6, 4, 4})" << placed(2) << ";\n";
    text << "  const auto make_inputs = [] { return Tensors" << inputs() << "; };\n"
         << "  [[maybe_unused]] const auto store = remat::"
         << (moves_storages(program()) ? "offload_engine({.min_bytes = 0})" : "host_memory_store()")
         << ";\n"
         << "  Tensors results;\n"
         << "  const auto forward = [&](const Tensors& in) -> Tensor {\n"
         << indented(forward(), 4) << "  };\n"
         << "  const Tensors inputs = make_inputs();\n"
         << "  Tensors wanted = " << braced(wanted) << ";\n"
         << "  for (const Tensor& input : inputs) {\n"
         << "    if (input.requires_grad()) wanted.push_back(input);\n  }\n"
         << "  Tensor loss;\n"
         << (program().use == Use::kForwardThread
                 ? "  on_thread([&] { loss = forward(inputs); });\n"
                 : "  loss = forward(inputs);\n")
         << "  results.push_back(at::scalar_tensor(loss.requires_grad()));\n"
         << (program().freed == Freed::kForGood ? "  free_storages({buffer0, bank});\n" : "")
         << "  if (loss.requires_grad()) {\n"
         << freed() << indented(use(), 4)
         << "    for (const Tensor& leaf : wanted) results.push_back(leaf.grad());\n"
         << "    for (const Tensor& input : inputs) results.push_back(input.detach());\n  }\n";
    if (program().freed != Freed::kForGood)
      text << "  for (const Tensor& buffer : {buffer0, bank}) results.push_back(buffer);\n";
    text << "  results.push_back(at::rand({2}));\n  return results;\n}\n";
    return text.str();
  }

  std::string freed() const {
    if (program().freed != Freed::kUntilBackward) return "";
    return "    for (const Tensors& tensors : {inputs, Tensors{w0, w1, w2}, Tensors{buffer0, "
           "bank}})\n"
           "      free_for_a_while(tensors);\n";
  }

  std::string inputs() const {
    Names inputs;
    for (size_t i = 0; i < program().body.inputs; ++i)
      inputs.push_back("at::randn({4, 4})" + placed(i) + (i == 1 ? "" : ".requires_grad_(true)"));
    return braced(inputs);
  }

  std::string forward() {
    Names names;
    std::string text;
    for (size_t i = 0; i < program().body.inputs; ++i) {
      names.push_back("x" + std::to_string(i));
      text += "const Tensor " + names.back() + " = in[" + std::to_string(i) + "];\n";
    }
    text += steps(program().body, names);
    return text + "Tensor sum = at::zeros({})" + placed(0) +
           ";\nfor (const Tensor& output : Tensors" +
           braced(picked(names, program().body.results)) +
           ") {\n  results.push_back(output.detach().clone());\n  sum = sum + (output * "
           "output).sum()" +
           placed(0) + ";\n}\nreturn sum;\n";
  }

  std::string use() const {
    const std::string text(info(program().use).cpp);
    std::string before;
    if (has_word(text, "again")) before += "const auto again = [&] { return forward(inputs); };\n";
    if (has_word(text, "fresh"))
      before += "const auto fresh = [&] { return forward(make_inputs()); };\n";
    return before + text + ";\n";
  }

  std::string op(const OpInfo& op, const Words& words, const Names& made) override {
    const std::string text = with_words(op.cpp, words) + ";";
    const bool is_one = text.find("; ") == text.npos;
    if (op.results == 1 && is_one) return "const Tensor " + text + "\n";
    const std::string scoped = is_one ? text + "\n" : "{ " + text + " }\n";
    return op.results == 0 ? scoped : "Tensor " + joined(made) + ";\n" + scoped;
  }

  std::string scope(const Step& step, Names& names) override {
    using ScopeKind = ScopeChoices::Kind;
    Names inner = picked(names, block_inputs(step));
    const std::string text = steps(step.block[0], inner);
    const Names found = picked(inner, step.block[0].results);
    if (step.scope.kind == ScopeKind::kNone) {
      names.insert(names.end(), found.begin(), found.end());
      return text;
    }
    const Names made = add_names(names, found.size());
    std::string guard =
        on_cuda() ? "const Autocast scope(at::kCUDA);\n" : "const Autocast scope;\n";
    if (step.scope.kind == ScopeKind::kDevice)
      guard = "const c10::DeviceGuard scope(second_device());\n";
    if (is_stream(step.scope.kind))
      guard = "const SideStream scope(" +
              std::string(step.scope.kind == ScopeKind::kSecondStream ? "second_device()"
                                                                      : "at::Device(\"cuda:0\")") +
              ", " + braced(picked(names, block_inputs(step))) +
              (step.scope.kind == ScopeKind::kLateStream ? ", true" : "") + ");\n";
    if (step.scope.kind == ScopeKind::kHooks)
      guard = "const remat::SavedTensorsHooksGuard scope(copying_hooks());\n";
    if (step.scope.kind == ScopeKind::kNames)
      guard = "const remat::NameScope scope(\"" + step.scope.name + "\");\n";
    std::string assignments;
    for (size_t i = 0; i < made.size(); ++i) assignments += made[i] + " = " + found[i] + ";\n";
    const bool is_waited_for =
        is_stream(step.scope.kind) && step.scope.kind != ScopeKind::kLateStream;
    return "Tensor " + joined(made) + ";\n{\n" + indented(guard + text + assignments, 2) + "}\n" +
           (is_waited_for ? "on_this_stream(" + braced(made) + ");\n" : "");
  }

  std::string region(const Step& step, Names& names) override {
    const Block& block = step.block[0];
    const std::string number = next_region();
    const Names passed = picked(names, step.region.arguments);
    const std::string options = "{" + joined(this->options(step, kCppOptions, number)) + "}";
    Names inner = names;
    std::string text;
    for (size_t i = 0; i < passed.size(); ++i) text += argument(inner[step.region.arguments[i]], i);
    text += steps(block, inner);
    const Names made = add_names(names, block.results.size());
    const std::string fn = "region" + number;
    return lambda(fn, passed.empty() ? "const Tensors&" : "const Tensors& in", "Tensors",
                  text + "return " + braced(picked(inner, block.results)) + ";\n") +
           "const Tensors in_" + fn + " = " + braced(passed) + ";\n" +
           results_of("plain ? " + fn + "(in_" + fn + ") : remat::checkpoint(" + options + ")(" +
                          fn + ")(in_" + fn + ")",
                      fn, made) +
           (on_cuda() ? "on_this_stream(" + braced(made) + ");\n" : "");
  }

  static std::string lambda(const std::string& name, const std::string& parameters,
                            const std::string& result, const std::string& body) {
    return "const auto " + name + " = [=](" + parameters + ") -> " + result + " {\n" +
           indented(body, 2) + "};\n";
  }

  /// Names the i-th argument.
  std::string argument(std::string& name, size_t i) {
    name = new_names(1)[0];
    return "const Tensor " + name + " = in[" + std::to_string(i) + "];\n";
  }

  static std::string results_of(const std::string& expression, const std::string& fn,
                                const Names& made) {
    std::string text = "const Tensors out_" + fn + " = " + expression + ";\n";
    for (size_t i = 0; i < made.size(); ++i)
      text += "const Tensor " + made[i] + " = out_" + fn + "[" + std::to_string(i) + "];\n";
    return text;
  }

  std::string device() const override { return ".device()"; }

  std::string placed(size_t i) const {
    const std::string text = placed_text(program(), i);
    return text.empty() ? text : ".to(at::Device(" + text.substr(4) + ")";
  }

  std::string text_of(const Cuts& cuts) const override {
    Names positions;
    Names groups;
    for (const size_t position : cuts.positions) positions.push_back(std::to_string(position));
    for (const Cuts::Group& group : cuts.groups)
      groups.push_back("{" + std::to_string(group.begin) + ", " + std::to_string(group.end) + "}");
    return "{.positions = " + braced(positions) + ", .groups = " + braced(groups) + "}";
  }

  std::string text_of(const std::vector<OpRule>& rules) const override {
    std::string text = "remat::make_policy(remat::PolicyTable()";
    for (const OpRule& rule : rules)
      text += rule.is_preset ? ".add(remat::preset(\"" + rule.op + "\"))"
                             : ".op(\"" + rule.op + "\", " + cpp_policy(rule.policy) + ")";
    return text + ")";
  }

  std::string call(const Step& step, Names& names) override {
    const CallChoices& choices = step.call;
    const Block& block = step.block[0];
    const size_t count = block.results.size();
    const bool single = count == 1 && choices.arguments.size() == 1;
    const Names passed = picked(names, choices.arguments);
    Names inner(passed.size());
    std::string text = choices.no_grad ? "const at::NoGradGuard no_grad;\n" : "";
    if (single) inner = new_names(1);
    for (size_t i = 0; !single && i < passed.size(); ++i) text += argument(inner[i], i);
    for (const size_t i : choices.captures) inner.push_back(names[i]);
    text += steps(block, inner);
    const Names made = add_names(names, count);
    const std::string fn = "call" + next_call();
    const Names found = picked(inner, block.results);
    if (count > 0) text += "return " + (single ? found[0] : braced(found)) + ";\n";
    const std::string named =
        "remat::native_op(" + fn + ", \"" + choices.name + "\", " + cpp_policy(choices.policy) +
        (choices.keep == Keep::kAllRegions ? ", remat::Keep::kAllRegions" : "") + ")(";
    if (single)
      return lambda(fn, "const Tensor& " + inner[0], "Tensor", text) + "const Tensor " + made[0] +
             " = " + named + passed[0] + ");\n";
    const std::string called = named + "Tensors" + braced(passed) + ")";
    return lambda(fn, "const Tensors& in", count == 0 ? "void" : "Tensors", text) +
           (count == 0 ? called + ";\n" : results_of(called, fn, made));
  }
};

}  // namespace

std::string to_cpp(const Program& program) {
  return CppPrinter(program).print();
}

}  // namespace remat::fuzz
