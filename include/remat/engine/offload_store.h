// SPDX-License-Identifier: BSD-3-Clause

// The interface of stores that keep the tensors of OFFLOAD calls for backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include <remat/engine/export.h>
#include <remat/policy/offload_terms.h>

namespace remat {

/// A store for tensors outside of device memory. Several regions and threads may use one at once.
class REMAT_API OffloadStore {
 public:
  /// A stored tensor. Owned by the graph; its destructor, on any thread, frees the space.
  class REMAT_API Ticket {
   public:
    Ticket() = default;
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    virtual ~Ticket() = default;

    /// Returns a tensor equal to the stored one (see is_exact()), on its device, with the same
    /// sizes, strides and dtype. Called by backward on any thread, several times if the graph is
    /// retained. Exceptions pass through backward().
    virtual at::Tensor get() = 0;
  };

  OffloadStore() = default;
  OffloadStore(const OffloadStore&) = delete;
  OffloadStore& operator=(const OffloadStore&) = delete;
  virtual ~OffloadStore() = default;

  /// Stores `tensor`, which is detached; the caller then releases the tensor. Called in the
  /// forward, on the forward's thread. Exceptions pass through checkpoint().
  virtual std::shared_ptr<Ticket> put(const at::Tensor& tensor) = 0;

  /// False if get() may return values that differ from the stored ones. Regions then accept the
  /// store only with determinism = kNone, and gradients are approximations.
  virtual bool is_exact() const { return true; }

  /// Limits that plans respect: on the bytes being copied at one time, and on the bytes stored. The
  /// speeds of copies are not set. nullopt if the store has no size limit, and put() and get()
  /// finish their copies before they return.
  virtual std::optional<OffloadTerms> limits() const { return std::nullopt; }
};

/// A store that copies to host memory (pinned for CUDA tensors) and back, and waits for each copy.
REMAT_API std::shared_ptr<OffloadStore> host_memory_store();

}  // namespace remat
