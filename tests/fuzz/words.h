// SPDX-License-Identifier: BSD-3-Clause

// Sets of words that random programs may do without.
#pragma once

#include "fuzz/ops.h"

namespace remat::fuzz {

enum class Words {
  kAlways,
  kComplex,
  kLibrary,       // ops that write what their schema does not mark
  kUnseenWrites,  // the same by a pointer, so that no version tells
  kWriteSaved,    // ops that write what they save
  kBank,          // a buffer that is read and written in parts
  kFreedStorages,
  kLaterWrites,       // of buffers that an inner or another region has read
  kWritingBackwards,  // of custom functions, of what they have saved
  kDevices,           // on CUDA: other devices, the host, streams
  kCount,
};

/// The set of which the op is one.
Words words_of(Op op);

/// True of ops that regions refuse: a program in fifty says enough.
bool is_rare(Op op);

/// False for ops whose kernels for CUDA have nothing on the host that computes them.
bool runs_on_cuda(Op op);

/// REMAT_FUZZ_WORDS is "all", "none", or their names with commas.
bool has_words(Words words);

}  // namespace remat::fuzz
