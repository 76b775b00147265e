// SPDX-License-Identifier: BSD-3-Clause

// Sets of ops that random programs may leave out.
#pragma once

#include "fuzz/ops.h"

namespace remat::fuzz {

enum class Words {
  kAlways,
  kComplex,
  kLibrary,       // ops that write arguments that their schema does not mark
  kUnseenWrites,  // ops that write such arguments through a pointer, so that no version changes
  kWriteSaved,    // ops that write a tensor that they save
  kBank,          // a buffer that is read and written in parts
  kFreedStorages,
  kLaterWrites,       // writes to buffers that an inner or another region has read
  kWritingBackwards,  // backwards of custom functions that write their saved tensors
  kDevices,           // on CUDA: other devices, the host, streams
  kCount,
};

Words words_of(Op op);

/// True for ops that regions refuse: one program in fifty is enough.
bool is_rare(Op op);

/// False for ops whose CUDA kernels have no computation on the host.
bool runs_on_cuda(Op op);

/// True if REMAT_FUZZ_WORDS, which is "all", "none" or names separated by commas, has these.
bool has_words(Words words);

}  // namespace remat::fuzz
