// SPDX-License-Identifier: BSD-3-Clause

// The errors by which remat refuses programs by design: type and words of each, and its row of
// docs/reference/limits.md.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "fuzz/run.h"
#include "fuzz/words.h"

namespace remat::fuzz {
namespace {

using Type = Outcome::Error::Type;

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

/// True if a program's body has the construct that causes the refusal.
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

/// A write and a backward inside a region that is inside a region.
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
  return any_step(body, [](const Step& step) { return writes_in_backward(step.op); });
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

/// A region without gradients is plain code.
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

/// Code outside all regions writes a buffer.
bool plain_write(const Block& body) {
  return writes_plainly(body, /*no_grad=*/false);
}

/// A backward in a named call of a region inside a region.
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

/// Matches an error of that type with a clause that begins with `words`, raised by a program that
/// has `part`.
struct Refusal {
  const char* rows;  // rows of docs/reference/limits.md
  Type type;
  std::string_view words;  // as written at one place in remat's source
  Part part;
  std::string_view several{};  // further words, if several places in the source have `words`
  Freed freed = Freed::kNone;  // how the program must free its buffers

  bool fits(const Outcome::Error& error, const Program& program) const {
    const std::string& message = error.message;
    const bool frees = freed == Freed::kNone || freed == program.freed;
    return error.type == type && frees && begins_clause(message) &&
           message.find(several) != message.npos && part(program.body);
  }

 private:
  bool begins_clause(const std::string& message) const {
    for (size_t at = message.find(words); at != message.npos; at = message.find(words, at + 1)) {
      if (at == 0 || message[at - 1] == ' ' || message[at - 1] == '(') return true;
    }
    return false;
  }
};

// clang-format off
constexpr std::array kRefusals = {
    Refusal{"B16", Type::kRefused, "expected a backward inside the region's function that passes no SAVE call", &backward},
    Refusal{"B17", Type::kRefused, "expected what a tape can replay, got ", &cut_and_backward, "got a backward in the function"},
    Refusal{"N13", Type::kRefused, "into which a SAVE call has written a value with a gradient", &kept},
    Refusal{"B11", Type::kRefused, "expected tensors that the function makes or that SAVE calls return", &backward_into_leaves},
    Refusal{"B11", Type::kRefused, "expected to write strided arguments of the call or tensors from outside", &backward_into_leaves},
    Refusal{"B4", Type::kMismatch, "It reads another tensor than the forward did", &nested_write_and_backward},
    Refusal{"T2", Type::kError, "as in the forward, got ", &nested_tape_and_hooks, "expected uint8 ["},
    Refusal{"T2", Type::kMismatch, "as in the forward, got ", &nested_tape_and_hooks, "expected uint8 ["},
    Refusal{"T2", Type::kError, "as in the forward, got ", &nested_tape_and_hooks, "got uint8 ["},
    Refusal{"T2", Type::kMismatch, "as in the forward, got ", &nested_tape_and_hooks, "got uint8 ["},
    Refusal{"T2", Type::kError, "as in the forward, got ", &nested_tape_and_hooks, "; now requires_grad off, a leaf"},
    Refusal{"T2", Type::kMismatch, "as in the forward, got ", &nested_tape_and_hooks, "; now requires_grad off, a leaf"},
    Refusal{"W6", Type::kMismatch, "as in the forward, got the end of the function", &write_and_argument},
    Refusal{"W6", Type::kError, "as in the forward, got the end of the function", &write_and_argument},
    Refusal{"W6", Type::kMismatch, "requires_grad differs: a parameter has been frozen or unfrozen", &write_and_argument},
    Refusal{"T1", Type::kError, "as in the forward, got ", &nested_tape_and_autocast, ": expected bfloat16 ["},
    Refusal{"T1", Type::kMismatch, "as in the forward, got ", &nested_tape_and_autocast, ": expected bfloat16 ["},
    Refusal{"T9", Type::kError, "expected its result as it left it, got it modified in-place", &cut_and_write, "made before the cut"},
    Refusal{"W11", Type::kError, "expected the tensor from outside the region as the forward ", &plain_write, "the forward read it"},
    Refusal{"W11", Type::kError, "expected the tensor from outside the region as the forward ", &plain_write, "the forward saved it"},
    Refusal{"H3", Type::kError, "modified by an inplace operation", &write_and_hooks, "expected "},
    Refusal{"H8", Type::kRefused, "expected that nobody writes in backward what the region has saved", &writing_backward_and_hooks},
    Refusal{"N8", Type::kError, "expected its result as it left it, got it modified in-place", &writing_backward_and_kept},
    Refusal{"H2", Type::kMismatch, "expected the gradients that it gave in the forward", &gradient_hook_and_backward},
    Refusal{"H2", Type::kRefused, "expected a backward inside the function that passes no hook which the function has set", &gradient_hook_and_backward},
    Refusal{"H2", Type::kMismatch, "hooks on gradients as in the forward, got ", &gradient_hook_and_backward},
    Refusal{"B5", Type::kRefused, "expected a backward inside the function that stays in what runs again", &write_and_backward},
    Refusal{"M17", Type::kError, "expected its memory as the forward left it, got a storage that was freed", &anything, {}, Freed::kForGood},
    Refusal{"W7", Type::kError, "It was saved between other ops", &write_and_function},
    Refusal{"W7", Type::kMismatch, "It was saved between other ops", &write_and_function},
    Refusal{"B6", Type::kMismatch, "The function branches on state", &write_and_backward},
    Refusal{"M12", Type::kRefused, "expected ops that mark in their schema what they write", &library},
    Refusal{"B9", Type::kMismatch, "as in the forward, got ", &backward_in_nested_call, " as in the forward, got "},
    Refusal{"T2", Type::kError, "It was saved between other ops", &nested_tape_and_hooks},
    Refusal{"T2", Type::kMismatch, "It was saved between other ops", &nested_tape_and_hooks},
    Refusal{"T2", Type::kError, "as in the forward, got ", &nested_tape_and_hooks, "got float32 [4, 4] on cpu. The function did"},
    Refusal{"T2", Type::kMismatch, "as in the forward, got ", &nested_tape_and_hooks, "got float32 [4, 4] on cpu. The function did"},
    Refusal{"B8", Type::kMismatch, "from elsewhere", &backward},
};
// clang-format on

}  // namespace

const char* refusal_of(const Outcome::Error& error, const Program& program) {
  for (const Refusal& refusal : kRefusals) {
    if (refusal.fits(error, program)) return refusal.rows;
  }
  return nullptr;
}

}  // namespace remat::fuzz
