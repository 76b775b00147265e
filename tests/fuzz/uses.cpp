// SPDX-License-Identifier: BSD-3-Clause

// The uses of a graph. In their texts, loss, wanted, results, again and fresh stand for variables.
#include "fuzz/uses.h"

#include <algorithm>
#include <array>

#include "fuzz/helpers.h"

namespace remat::fuzz {
namespace {

using at::Tensor;
using torch::autograd::grad;

// Both compiles the code and keeps its text for printed programs.
#define REMAT_FUZZ_USE(use, python, ...)                     \
  UseInfo {                                                  \
    Use::use, #__VA_ARGS__, python, [](const Graph& graph) { \
      [[maybe_unused]] const Tensor& loss = graph.loss;      \
      [[maybe_unused]] const Tensors& wanted = graph.wanted; \
      [[maybe_unused]] const Tensors& inputs = graph.inputs; \
      [[maybe_unused]] Tensors& results = graph.results;     \
      [[maybe_unused]] const auto& again = graph.again;      \
      [[maybe_unused]] const auto& fresh = graph.fresh;      \
      __VA_ARGS__;                                           \
    }                                                        \
  }

// clang-format off
const std::array kUses = {
    REMAT_FUZZ_USE(kBackward, "loss.backward()", loss.backward()),
    REMAT_FUZZ_USE(kRetainGraph, "loss.backward(retain_graph=True)\nloss.backward()",
                   loss.backward({}, true); loss.backward()),
    REMAT_FUZZ_USE(kRetainThenDrop, "loss.backward(retain_graph=True)", loss.backward({}, true)),
    REMAT_FUZZ_USE(kPartialGrads,
                   "for leaf in (wanted[0], wanted[-1]):\n"
                   "    results += grad(loss, leaf, retain_graph=True, allow_unused=True)",
                   for (const Tensor& leaf : {wanted.front(), wanted.back()})
                     results.push_back(grad({loss}, {leaf}, {}, true, false, true)[0])),
    REMAT_FUZZ_USE(kPartialTwice,
                   "for leaves in ([wanted[-1]], [wanted[-1]], wanted):\n"
                   "    results += grad(loss, leaves, retain_graph=leaves is not wanted, allow_unused=True)",
                   const Tensors last({wanted.back()});
                   results.push_back(grad({loss}, last, {}, true, false, true)[0]);
                   results.push_back(grad({loss}, last, {}, true, false, true)[0]);
                   for (const Tensor& gradient : grad({loss}, wanted, {}, false, false, true)) results.push_back(gradient)),
    REMAT_FUZZ_USE(kInputs, "loss.backward(inputs=[wanted[0], wanted[-1]])",
                   const Tensors some({wanted.front(), wanted.back()}); loss.backward({}, false, false, some)),
    REMAT_FUZZ_USE(kDoubleBackward,
                   "penalty = loss * 0\n"
                   "for gradient in grad(loss, wanted, create_graph=True, allow_unused=True):\n"
                   "    if gradient is not None:\n"
                   "        penalty = penalty + gradient.square().sum().to(loss.device)\n"
                   "penalty.backward()",
                   Tensor penalty = loss * 0;
                   for (const Tensor& gradient : grad({loss}, wanted, {}, true, true, true)) {
                     if (gradient.defined()) penalty = penalty + gradient.square().sum().to(loss.device());
                   }
                   penalty.backward()),
    // Either autograd notices the write, or the results do not depend on it.
    REMAT_FUZZ_USE(kWriteBetween,
                   "scale = torch.ones((), device=loss.device, requires_grad=True)\n"
                   "first = [g for g in grad(loss, wanted, scale, create_graph=True, allow_unused=True) if g is not None]\n"
                   "if any(g.requires_grad for g in first):\n"
                   "    total = scale * 0 + sum(g.sum().to(loss.device) for g in first)\n"
                   "    (before,) = grad(total, scale, retain_graph=True)\n"
                   "    is_wrong = False\n"
                   "    try:\n"
                   "        with torch.no_grad():\n"
                   "            inputs[len(first) % len(inputs)].mul_(1.5)\n"
                   "        is_wrong = not torch.equal(grad(total, scale)[0], before)\n"
                   "    except RuntimeError:\n"
                   "        pass\n"
                   "    results.append(torch.tensor(float(is_wrong and not before.isnan().any())))",
                   const Tensor scale = at::ones({}, loss.device()).requires_grad_(true);
                   Tensors first;
                   for (const Tensor& g : grad({loss}, wanted, {scale}, true, true, true)) {
                     if (g.defined()) first.push_back(g);
                   }
                   if (std::any_of(first.begin(), first.end(), [](const Tensor& g) { return g.requires_grad(); })) {
                     Tensor total = scale * 0;
                     for (const Tensor& g : first) total = total + g.sum().to(loss.device());
                     const Tensor before = grad({total}, {scale}, {}, true)[0];
                     bool is_wrong = false;
                     try {
                       const at::NoGradGuard no_grad;
                       inputs[first.size() % inputs.size()].mul_(1.5);
                       is_wrong = !at::equal(grad({total}, {scale})[0], before);
                     } catch (const c10::Error&) {}
                     results.push_back(at::scalar_tensor(is_wrong && !before.isnan().any().item<bool>() ? 1.0F : 0.0F));
                   }),
    REMAT_FUZZ_USE(kTwoInFlight, "again().backward()\nloss.backward()", again().backward(); loss.backward()),
    REMAT_FUZZ_USE(kTwoSteps,
                   "loss.backward()\n"
                   "with torch.no_grad():\n"
                   "    for leaf in wanted:\n"
                   "        if leaf.grad is not None:\n"
                   "            leaf -= leaf.grad * 0.1\n"
                   "again().backward()",
                   loss.backward();
                   for (const Tensor& leaf : wanted) {
                     const at::NoGradGuard no_grad;
                     if (leaf.grad().defined()) leaf.sub_(leaf.grad() * 0.1);
                   }
                   again().backward()),
    REMAT_FUZZ_USE(kForwardThread, "loss.backward()", loss.backward()),
    REMAT_FUZZ_USE(kBackwardThread, "on_thread(loss.backward)", on_thread([&] { loss.backward(); })),
    REMAT_FUZZ_USE(kTwoThreads,
                   "other = fresh()\n"
                   "with concurrent.futures.ThreadPoolExecutor(2) as pool:\n"
                   "    both = [pool.submit(grad, root, wanted, allow_unused=True) for root in (loss, other)]\n"
                   "results += both[0].result() + both[1].result()",
                   const Tensor other = fresh(); Tensors ours; Tensors theirs;
                   on_two_threads([&] { ours = grad({loss}, wanted, {}, {}, false, true); },
                                  [&] { theirs = grad({other}, wanted, {}, {}, false, true); });
                   results.insert(results.end(), ours.begin(), ours.end());
                   results.insert(results.end(), theirs.begin(), theirs.end())),
};
// clang-format on
static_assert(kUses.size() == static_cast<size_t>(Use::kCount));

}  // namespace

const UseInfo& info(Use use) {
  return kUses[static_cast<size_t>(use)];
}

}  // namespace remat::fuzz
