// SPDX-License-Identifier: BSD-3-Clause

// Prints random programs as Python.
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/device.h"
#include "fuzz/print.h"
#include "fuzz/printer.h"

namespace remat::fuzz {
namespace {

constexpr const char* kPythonHead = R"(import concurrent.futures
import functools
import sys
import threading

import torch
import torch.nn.functional as F
from torch.autograd import grad

import remat_meta as remat

)";

constexpr const char* kPythonMain = R"(

def same(a, b):
    if a is None or b is None:
        return a is b
    return torch.equal(a.cpu().contiguous().view(torch.int32), b.cpu().contiguous().view(torch.int32))


plain, ours = run(True), run(False)
different = [i for i, (a, b) in enumerate(zip(plain, ours, strict=True)) if not same(a, b)]
sys.exit(f"results {different} differ" if different else 0)
)";

std::string listed(const Names& names) {
  return "[" + joined(names) + "]";
}

std::string python_policy(Policy policy) {
  return std::string("remat.CheckpointPolicy.") + policy_name(policy);
}

constexpr OptionWords kPythonOptions = {.name = "region_name=",
                                        .uncompared = "determinism_check=\"none\"",
                                        .runs_to_end = "early_stop=False",
                                        .automatic = "replay=\"auto\"",
                                        .tape = "replay=\"tape\"",
                                        .cuts = "cuts=",
                                        .policy = "policy=",
                                        .hooks = "saved_tensors_hooks=(torch.clone, torch.clone)",
                                        .store = "offload_store=store"};

class PythonPrinter final : public Printer {
 public:
  using Printer::Printer;

  std::string print() {
    const std::string run = this->run();
    const std::string helpers = helpers_for(run, &Helper::python);
    return kPythonHead + helpers + "\n" + run + kPythonMain;
  }

 private:
  std::string run() {
    std::ostringstream text;
    text << "def run(plain):\n    torch.manual_seed(" << program().seed << ")\n";
    Names wanted;
    for (size_t i = 0; i < kWeights; ++i) {
      wanted.push_back("w" + std::to_string(i));
      text << "    " << wanted.back() << " = (torch.randn(4, 4) * 0.5)" << placed(i)
           << ".requires_grad_()\n";
    }
    for (size_t i = 0; i < kBuffers; ++i)
      text << "    buffer" << i << " = torch.rand(4, 4)" << placed(0) << "\n";
    text << "    bank = torch.rand(6, 4, 4)" << placed(2) << "\n";
    text << "    results, store = [], remat."
         << (moves_storages(program()) ? "offload(min_bytes=0)" : "host_memory_store()") << "\n\n"
         << "    def make_inputs():\n        return " << inputs() << "\n\n"
         << forward() << "    inputs = make_inputs()\n"
         << "    wanted = " << listed(wanted) << " + [x for x in inputs if x.requires_grad]\n"
         << (program().use == Use::kForwardThread
                 ? "    loss = on_thread(lambda: forward(*inputs))\n"
                 : "    loss = forward(*inputs)\n")
         << "    results.append(torch.tensor(float(loss.requires_grad)))\n"
         << (program().freed == Freed::kForGood ? "    free_storages([buffer0, bank])\n" : "")
         << "    if loss.requires_grad:\n"
         << (program().freed == Freed::kUntilBackward
                 ? "        for tensors in (inputs, [w0, w1, w2], [buffer0, bank]):\n"
                   "            free_for_a_while(tensors)\n"
                 : "")
         << indented(use(), 8) << "        results += [leaf.grad for leaf in wanted]\n"
         << "        results += [x.detach() for x in inputs]\n";
    if (program().freed != Freed::kForGood) text << "    results += [buffer0, bank]\n";
    text << "    return [*results, torch.rand(2)]\n";
    return text.str();
  }

  std::string inputs() const {
    Names inputs;
    for (size_t i = 0; i < program().body.inputs; ++i)
      inputs.push_back("torch.randn(4, 4)" + placed(i) + (i == 1 ? "" : ".requires_grad_()"));
    return listed(inputs);
  }

  std::string forward() {
    Names names;
    for (size_t i = 0; i < program().body.inputs; ++i) names.push_back("x" + std::to_string(i));
    const std::string parameters = joined(names);
    const std::string text = steps(program().body, names);
    return "    def forward(" + parameters + "):\n" + indented(text, 8) +
           "        outputs = " + listed(picked(names, program().body.results)) +
           "\n        results.extend(t.detach().clone() for t in outputs)\n"
           "        return sum(((t * t).sum()" +
           placed(0) + " for t in outputs), torch.zeros(())" + placed(0) + ")\n\n";
  }

  std::string use() const {
    const std::string text(info(program().use).python);
    std::string before;
    if (has_word(text, "again")) before += "def again():\n    return forward(*inputs)\n\n";
    if (has_word(text, "fresh")) before += "def fresh():\n    return forward(*make_inputs())\n\n";
    return before + text + "\n";
  }

  std::string op(const OpInfo& op, const Words& words, const Names& /*made*/) override {
    return with_words(op.python, words) + "\n";
  }

  std::string scope(const Step& step, Names& names) override {
    using ScopeKind = ScopeChoices::Kind;
    Names inner = picked(names, block_inputs(step));
    const std::string text = steps(step.block[0], inner);
    const Names before = picked(names, block_inputs(step));
    for (const size_t i : step.block[0].results) names.push_back(inner[i]);
    const std::string body = text.empty() ? "    pass\n" : indented(text, 4);
    switch (step.scope.kind) {
      case ScopeKind::kAutocast:
        return std::string("with torch.autocast(\"") + (on_cuda() ? "cuda" : "cpu") +
               "\", dtype=torch.bfloat16):\n" + body;
      case ScopeKind::kHooks:
        return "with copying_hooks():\n" + body;
      case ScopeKind::kNames:
        return "with remat.name_scope(\"" + step.scope.name + "\"):\n" + body;
      case ScopeKind::kDevice:
        return "with torch.cuda.device(second_device()):\n" + body;
      case ScopeKind::kStream:
      case ScopeKind::kSecondStream:
      case ScopeKind::kLateStream: {
        const bool is_late = step.scope.kind == ScopeKind::kLateStream;
        const char* const device = step.scope.kind == ScopeKind::kSecondStream
                                       ? "second_device()"
                                       : "torch.device(\"cuda:0\")";
        const Names results = picked(inner, step.block[0].results);
        return std::string("with SideStream(") + device + ", " + listed(before) +
               (is_late ? ", True" : "") + "):\n" + body +
               (is_late ? "" : "on_this_stream(" + listed(results) + ")\n");
      }
      default:
        return text;
    }
  }

  std::string region(const Step& step, Names& names) override {
    const Block& block = step.block[0];
    const std::string number = next_region();
    const std::string fn = "region" + number;
    const Names passed = picked(names, step.region.arguments);
    const Names parameters = new_names(passed.size());
    Names inner = names;
    for (size_t i = 0; i < passed.size(); ++i) inner[step.region.arguments[i]] = parameters[i];
    const std::string text = steps(block, inner);
    const std::string made = listed(add_names(names, block.results.size()));
    return function(fn, parameters, text, listed(picked(inner, block.results))) + made + " = (" +
           fn + " if plain else remat.checkpoint(" + joined(options(step, kPythonOptions, number)) +
           ")(" + fn + "))(" + joined(passed) + ")\n" +
           (on_cuda() ? "on_this_stream(" + made + ")\n" : "");
  }

  static std::string function(const std::string& name, const Names& parameters,
                              const std::string& body, const std::string& result) {
    return "\ndef " + name + "(" + joined(parameters) + "):\n" + indented(body, 4) + "    return " +
           result + "\n\n";
  }

  std::string device() const override { return ".device"; }

  std::string text_of(const Cuts& cuts) const override {
    Names positions;
    Names groups;
    for (const size_t position : cuts.positions) positions.push_back(std::to_string(position));
    for (const Cuts::Group& group : cuts.groups)
      groups.push_back("(" + std::to_string(group.begin) + ", " + std::to_string(group.end) + ")");
    return "remat.Cuts(" + listed(positions) + ", groups=" + listed(groups) + ")";
  }

  std::string text_of(const std::vector<OpRule>& rules) const override {
    std::string text = "remat.PolicyTable()";
    for (const OpRule& rule : rules)
      text += rule.is_preset ? ".add(remat." + rule.op + "())"
                             : ".op(\"" + rule.op + "\", " + python_policy(rule.policy) + ")";
    return text;
  }

  std::string call(const Step& step, Names& names) override {
    const CallChoices& choices = step.call;
    const Block& block = step.block[0];
    const size_t count = block.results.size();
    const Names passed = picked(names, choices.arguments);
    const Names parameters = new_names(passed.size());
    Names inner = parameters;
    for (const size_t i : choices.captures) inner.push_back(names[i]);
    std::string text = steps(block, inner);
    const Names found = picked(inner, block.results);
    if (choices.no_grad && !text.empty()) text = "with torch.no_grad():\n" + indented(text, 4);
    const std::string fn = "call" + next_call();
    const bool single = count == 1 && passed.size() == 1;
    const std::string result = count == 0 ? "None" : single ? found[0] : listed(found);
    const std::string made = listed(add_names(names, count));
    return function(fn, parameters, text, result) +
           (count == 0 ? ""
            : single   ? names.back() + " = "
                       : made + " = ") +
           "remat.native_op(" + fn + ", \"" + choices.name + "\", " +
           python_policy(choices.policy) +
           (choices.keep == Keep::kAllRegions ? ", keep=\"all_regions\"" : "") + ")(" +
           joined(passed) + ")\n";
  }
};

}  // namespace

std::string to_python(const Program& program) {
  return PythonPrinter(program).print();
}

}  // namespace remat::fuzz
