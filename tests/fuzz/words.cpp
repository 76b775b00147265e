// SPDX-License-Identifier: BSD-3-Clause

// Sets of ops that random programs may leave out.
#include "fuzz/words.h"

#include <array>
#include <bitset>
#include <cstdlib>
#include <sstream>
#include <string>

namespace remat::fuzz {
namespace {

constexpr auto kCount = static_cast<size_t>(Words::kCount);
constexpr std::array<const char*, kCount> kNames = {
    "always", "complex",        "library",      "unseen writes",     "write saved",
    "bank",   "freed storages", "later writes", "writing backwards", "devices"};
using Chosen = std::bitset<kCount>;

Chosen choose() {
  const char* const text = std::getenv("REMAT_FUZZ_WORDS");
  if (!text || std::string(text) == "all") return Chosen().set();
  Chosen chosen;
  std::istringstream names(text);
  for (std::string name; std::getline(names, name, ',');) {
    for (size_t i = 0; i < kCount; ++i) {
      if (name == kNames[i]) chosen.set(i);
    }
  }
  return chosen;
}

}  // namespace

Words words_of(Op op) {
  switch (op) {
    case Op::kComplexScale:
    case Op::kComplexLerp:
    case Op::kComplexAdd:
    case Op::kComplexPad:
    case Op::kComplexFill:
    case Op::kComplexWhere:
    case Op::kComplexMatmul:
    case Op::kComplexConvolution:
    case Op::kComplexFresh:
    case Op::kComplexInPlace:
      return Words::kComplex;
    case Op::kReadLibrary:
    case Op::kLibraryMarked:
    case Op::kLibraryFresh:
    case Op::kLibraryInPlace:
    case Op::kLibraryListInPlace:
    case Op::kLibraryFill:
    case Op::kLibraryBuffer:
    case Op::kLibraryListBuffer:
      return Words::kLibrary;
    case Op::kLibraryUnseenFresh:
    case Op::kLibraryUnseen:
    case Op::kLibraryUnseenBuffer:
      return Words::kUnseenWrites;
    case Op::kRreluTraining:
    case Op::kRreluInPlace:
    case Op::kRenormInPlace:
    case Op::kLogSigmoid:
    case Op::kEmbedding:
      return Words::kWriteSaved;
    case Op::kReadBank:
    case Op::kReadWholeBank:
    case Op::kWriteBank:
    case Op::kWriteBankRow:
    case Op::kWriteBankColumn:
    case Op::kWriteColumn:
      return Words::kBank;
    case Op::kWritesSaved:
    case Op::kWritesShared:
      return Words::kWritingBackwards;
    case Op::kToHost:
    case Op::kToDevice:
    case Op::kToSecond:
    case Op::kPinned:
    case Op::kFromPinned:
    case Op::kRandomHere:
    case Op::kRecordStream:
      return Words::kDevices;
    default:
      return Words::kAlways;
  }
}

bool is_rare(Op op) {
  const Words words = words_of(op);
  return words == Words::kUnseenWrites ||
         (words == Words::kLibrary && op != Op::kLibraryMarked && op != Op::kReadLibrary);
}

bool runs_on_cuda(Op op) {
  // A write that neither its op's schema nor a version shows is noticed on the CPU alone:
  // limits.md, S16.
  if (words_of(op) == Words::kUnseenWrites) return false;
  switch (op) {
    case Op::kLstmCell:    // a fused kernel that is compiled for CUDA alone
    case Op::kLogSigmoid:  // the CPU's kernel returns another buffer
    // LibTorch compiles the complex kernels of these ops when they are first called.
    case Op::kComplexPad:
    case Op::kComplexLerp:
      return false;
    default:
      return true;
  }
}

bool has_words(Words words) {
  static const Chosen chosen = choose();
  return words == Words::kAlways || chosen[static_cast<size_t>(words)];
}

}  // namespace remat::fuzz
