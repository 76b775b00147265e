// SPDX-License-Identifier: BSD-3-Clause

// Where OFFLOAD calls keep what backward needs.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include <remat/policy/offload_terms.h>
#include <remat/tape/export.h>

namespace remat {

/// A place for tensors outside of the device's memory. Several regions and threads may use one at
/// once.
class REMAT_API OffloadStore {
 public:
  /// A tensor that was put away. Owned by the graph; its destructor, on any thread, gives the place
  /// free.
  class REMAT_API Ticket {
   public:
    Ticket() = default;
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    virtual ~Ticket() = default;

    /// A tensor equal to the one that was put (see is_exact()), on its device, with the same sizes,
    /// strides and dtype. Called by backward, on any thread, more than once if the graph is kept.
    /// What it throws passes through backward().
    virtual at::Tensor get() = 0;
  };

  OffloadStore() = default;
  OffloadStore(const OffloadStore&) = delete;
  OffloadStore& operator=(const OffloadStore&) = delete;
  virtual ~OffloadStore() = default;

  /// Puts `tensor` away, which is detached; the caller drops it then. Called in the forward, on its
  /// thread. What it throws passes through checkpoint().
  virtual std::shared_ptr<Ticket> put(const at::Tensor& tensor) = 0;

  /// False if what comes back may differ from what was put: then regions take it with determinism =
  /// kNone only, and gradients are approximations.
  virtual bool is_exact() const { return true; }

  /// How much may be on its way at once, and away, for plans; speeds are left out. None: nothing is
  /// on its way, as each copy is done when put() or get() returns, and there is room for all.
  virtual std::optional<OffloadTerms> limits() const { return std::nullopt; }
};

/// A store that copies to host memory (pinned, if the tensor is on CUDA) and back, and waits for
/// both copies.
REMAT_API std::shared_ptr<OffloadStore> host_memory_store();

}  // namespace remat
