// SPDX-License-Identifier: BSD-3-Clause

// What remat refuses by design, by the words of its errors, and where that is documented.
#include <algorithm>
#include <array>
#include <string_view>

#include "fuzz/run.h"
#include "fuzz/words.h"

namespace remat::fuzz {
namespace {

bool goes_back(const Step& step) {
  return step.op == Op::kInnerGrad || step.op == Op::kInnerBackward;
}

bool is_autocast(const Step& step) {
  return step.op == Op::kScope && step.scope.kind == ScopeChoices::Kind::kAutocast;
}

bool is_region(const Step& step) {
  return step.op == Op::kRegion;
}

bool is_cut(const Step& step) {
  return !step.region.cuts.empty();
}

bool may_have_tape(const Step& step) {
  return step.region.tape || is_cut(step);
}

bool writes(const Step& step) {
  return step.block.empty() && step.op != Op::kSame && info(step.op).effect == Effect::kWrites;
}

bool is_of_library(const Step& step) {
  const Words words = words_of(step.op);
  return words == Words::kLibrary || words == Words::kUnseenWrites;
}

/// What a program must have in it.
using Part = bool (*)(const Block& body);

bool library(const Block& body) {
  return any_step(body, &is_of_library);
}

bool anything(const Block&) {
  return true;
}

bool backward(const Block& body) {
  return any_step(body, &goes_back);
}

bool backward_into_leaves(const Block& body) {
  return any_step(body, [](const Step& step) { return step.op == Op::kInnerBackward; });
}

bool cut_and_backward(const Block& body) {
  return any_step(body, &is_cut) && backward(body);
}

bool cut_and_write(const Block& body) {
  const auto writes_itself = [](const Step& step) {
    return writes(step) || step.op == Op::kInPlaceFunction;
  };
  return any_step(body, &is_cut) && any_step(body, writes_itself);
}

bool kept(const Block& body) {
  return any_step(
      body, [](const Step& step) { return step.op == Op::kCall || !step.region.rules.empty(); });
}

bool write_and_backward(const Block& body) {
  return any_step(body, &writes) && backward(body);
}

/// In a region in a region.
bool nested_write_and_backward(const Block& body) {
  return any_step(body, [](const Step& step) {
    return is_region(step) && any_step(step.block[0], [](const Step& inner) {
             return is_region(inner) && write_and_backward(inner.block[0]);
           });
  });
}

bool has_hooks(const Step& step) {
  return step.region.hooks || step.scope.kind == ScopeChoices::Kind::kHooks;
}

bool write_and_hooks(const Block& body) {
  return any_step(body, &writes) && any_step(body, &has_hooks);
}

bool writing_backward(const Block& body) {
  return any_step(body, [](const Step& step) { return step.op == Op::kWritesSaved; });
}

bool writing_backward_and_hooks(const Block& body) {
  return writing_backward(body) && any_step(body, &has_hooks);
}

bool writing_backward_and_kept(const Block& body) {
  return writing_backward(body) && kept(body);
}

bool gradient_hook_and_backward(const Block& body) {
  return backward(body) && any_step(body, [](const Step& step) {
           return step.block.empty() && step.op != Op::kSame &&
                  info(step.op).effect == Effect::kHooksArgument;
         });
}

bool write_and_argument(const Block& body) {
  return any_step(body, [](const Step& step) {
    return is_region(step) && !step.region.arguments.empty() && any_step(step.block[0], &writes);
  });
}

bool write_and_function(const Block& body) {
  return any_step(body, &writes) && any_step(body, [](const Step& step) {
           return step.op == Op::kSavesResult || step.op == Op::kTwoResults;
         });
}

/// Without gradients a region is plain code.
bool writes_plainly(const Block& body, bool no_grad) {
  return std::any_of(body.steps.begin(), body.steps.end(), [&](const Step& step) {
    if (is_region(step) && !no_grad) return false;
    const bool off = no_grad || (step.op == Op::kCall && step.call.no_grad);
    const auto in_block = [&](const Block& block) { return writes_plainly(block, off); };
    if (std::any_of(step.block.begin(), step.block.end(), in_block)) return true;
    if (!step.block.empty() || step.op == Op::kSame) return false;
    const Effect effect = info(step.op).effect;
    return effect == Effect::kWritesBuffer || effect == Effect::kWritesBank;
  });
}

/// Code round all regions writes a buffer.
bool plain_write(const Block& body) {
  return writes_plainly(body, /*no_grad=*/false);
}

/// A backward in a named call of a region in a region.
bool backward_in_nested_call(const Block& body) {
  const auto in_call = [](const Step& step) {
    return step.op == Op::kCall && backward(step.block[0]);
  };
  return any_step(body, [&](const Step& step) {
    return is_region(step) && any_step(step.block[0], [&](const Step& inner) {
             return is_region(inner) && any_step(inner.block[0], in_call);
           });
  });
}

bool nested_tape(const Block& body) {
  return any_step(body, [](const Step& step) {
    return is_region(step) && any_step(step.block[0], &may_have_tape);
  });
}

bool nested_tape_and_autocast(const Block& body) {
  return nested_tape(body) && any_step(body, &is_autocast);
}

bool nested_tape_and_hooks(const Block& body) {
  return nested_tape(body) && any_step(body, &has_hooks);
}

struct Refusal {
  std::string_view error;
  Part part;
  const char* rule;
  Freed freed = Freed::kNone;  // what the program must do with its buffers
};

// clang-format off
constexpr std::array kRefusals = {
    Refusal{"inside the region's function that passes no SAVE call", &backward,
            "errors.md: a backward inside passes a SAVE call"},
    Refusal{"expected what a tape can replay, got a backward in the function", &cut_and_backward,
            "replay.md: a cut region goes backward"},
    Refusal{"into which a SAVE call has written a value with a gradient", &kept,
            "errors.md: a SAVE call writes a tensor from outside that other code reads"},
    Refusal{"op aten::add_.Tensor: expected tensors that the function makes or that SAVE calls return",
            &backward_into_leaves,
            "limits.md, B11: a .grad to which SAVE calls and other code add"},
    Refusal{"op aten::add_.Tensor: expected to write strided arguments of the call or tensors from outside",
            &backward_into_leaves,
            "limits.md, B11: a .grad to which SAVE calls and other code add"},
    Refusal{"It reads another tensor than the forward did", &nested_write_and_backward,
            "limits.md, B4: a gradient in a nested region, by an argument that it wrote"},
    Refusal{": expected uint8 [", &nested_tape_and_hooks,
            "limits.md, T2: a nested tape has an argument that came back from hooks"},
    Refusal{"as in the forward, got uint8 [", &nested_tape_and_hooks,
            "limits.md, T2: a nested tape has an argument that came back from hooks"},
    Refusal{"; now requires_grad off, a leaf", &nested_tape_and_hooks,
            "limits.md, T2: a nested tape has an argument that came back from hooks"},
    Refusal{"as in the forward, got the end of the function", &write_and_argument,
            "limits.md, W6: a tensor is an argument and captured, and written"},
    Refusal{"requires_grad differs: a parameter has been frozen or unfrozen", &write_and_argument,
            "limits.md, W6: a tensor is an argument and captured, and written"},
    Refusal{": expected bfloat16 [", &nested_tape_and_autocast,
            "limits.md, T1: a nested tape under autocast reads a part of a weight"},
    Refusal{"made before the cut: expected its result as it left it", &cut_and_write,
            "replay.md: a tensor that crosses a cut is written"},
    Refusal{"modified by an inplace operation", &write_and_hooks,
            "limits.md, H3: hooks that copy, and a write to what a region has saved"},
    Refusal{"writes in backward what the region has saved under saved-tensor hooks",
            &writing_backward_and_hooks,
            "limits.md, H8: a backward writes what was saved under hooks"},
    Refusal{"expected its result as it left it, got it modified in-place",
            &writing_backward_and_kept,
            "limits.md, N8: a backward writes what a SAVE call keeps for code that runs again"},
    Refusal{"expected the gradients that it gave in the forward", &gradient_hook_and_backward,
            "limits.md, H2: a hook that is set after a gradient inside was taken"},
    Refusal{"passes no hook which the function has set or removed", &gradient_hook_and_backward,
            "errors.md: a backward inside passes a hook that the function has set"},
    Refusal{"reaches the graph of the forward", &write_and_backward,
            "limits.md, B5: a custom function gets a captured tensor that was written"},
    Refusal{"got a storage that was freed or made smaller since", &anything,
            "errors.md: memory that a replay needs was freed after the forward", Freed::kForGood},
    Refusal{"It was saved between other ops", &write_and_function,
            "limits.md, W7: a custom function gets a captured tensor, then it is written"},
    Refusal{"The function branches on state", &write_and_backward,
            "limits.md, B6: a function asks requires_grad of what its write changed"},
    Refusal{"expected ops that mark in their schema what they write", &library,
            "errors.md: an op of a library writes what its schema does not mark"},
    Refusal{" as in the forward, got ", &backward_in_nested_call,
            "limits.md, B9: a backward in a named call of a nested region"},
    Refusal{"expected the tensor from outside the region as the forward read it", &plain_write,
            "errors.md: a tensor that the region read was written before backward"},
    Refusal{"expected the tensor from outside the region as the forward saved it", &plain_write,
            "errors.md: a tensor that the region read was written before backward"},
    Refusal{" hooks on gradients as in the forward, got ", &gradient_hook_and_backward,
            "errors.md: a backward inside passes a hook that was set later"},
    Refusal{"expected float32 [4, 4] on cpu as in the forward, got float32 [4, 4] on cpu. The function did",
            &nested_tape_and_hooks,
            "limits.md, T2: a nested tape has an argument that came back from hooks"},
    Refusal{"It was saved between other ops", &nested_tape_and_hooks,
            "limits.md, T2: a nested tape has an argument that came back from hooks"},
    Refusal{"on cpu from elsewhere", &backward,
            "limits.md, B8: a backward in a nested region uses one of the outer region"},
    Refusal{"requires grad from elsewhere", &backward,
            "limits.md, B8: a backward in a nested region uses one of the outer region"},
};
// clang-format on

}  // namespace

const char* refusal_of(const std::string& message, const Program& program) {
  for (const Refusal& refusal : kRefusals) {
    const bool frees = refusal.freed == Freed::kNone || refusal.freed == program.freed;
    if (message.find(refusal.error) != message.npos && frees && refusal.part(program.body))
      return refusal.rule;
  }
  return nullptr;
}

}  // namespace remat::fuzz
