// SPDX-License-Identifier: BSD-3-Clause

// Decides which storage leaves, comes and goes, and when.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "moved_storage.h"
#include "step_order.h"
#include "wait_mutex.h"

#include <remat/offload/offload_engine.h>

namespace remat::detail {

/// Note [Moving]
/// A storage may have work of three queues on it: what is computed, the copy out, the copy in. What
/// keeps each from the memory of another:
///   1. the copy out waits for what was computed when the storage was put;
///   2. its memory here goes when the copy out is done, as the host sees it;
///   3. the copy in waits for what was computed when its memory was allocated, which may be memory
///      that was freed a moment ago;
///   4. the copy in begins when the copy out is done;
///   5. what is computed waits for the copy in, on every stream that asks for the storage;
///   6. a block is used again when all copies from and to it are done;
///   7. memory that a copy in fills stays until that is done, although nobody asks for it any more.
///   8. memory that a copy uses when nobody needs it any more goes back to its allocator at once,
///      if that can be told of the copy (CopyEvent::may_go); else it stays until the copy is done
///      and somebody asks the mover for something.
/// Copies in are first in, first out: the last one of a block says that all are done.
class Mover {
 public:
  explicit Mover(OffloadOptions options);
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;
  ~Mover();

  /// With a ticket more; a storage is there once, for all that share it. Throws as put().
  std::shared_ptr<MovedStorage> take(const at::Tensor& tensor);
  /// The storage that was put, or a copy of it.
  struct Given {
    at::Storage storage;
    std::optional<c10::VariableVersion> version;  // Of the copy, for all who have it
  };
  /// For the stream of the calling thread.
  Given give(MovedStorage& moved);
  /// A ticket less.
  void drop(MovedStorage& moved);

  /// Storages and blocks of copies that are done are gone when it returns.
  OffloadStats stats();

 private:
  using Lock = std::lock_guard<WaitMutex>;

  // Adds what its scope takes to the time that threads have waited.
  class WaitClock {
   public:
    explicit WaitClock(Mover& mover) : mover_(mover) {}
    WaitClock(const WaitClock&) = delete;
    WaitClock& operator=(const WaitClock&) = delete;
    ~WaitClock() {
      const std::chrono::duration<double, std::micro> time =
          std::chrono::steady_clock::now() - begin_;
      const Lock lock(mover_.mutex_);
      mover_.stats_.waited_us += time.count();
    }

   private:
    Mover& mover_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  };

  /// What goes when the mutex is free again: destructors may run anything.
  struct Garbage {
    std::vector<at::Storage> storages;
    std::vector<std::unique_ptr<OffloadMemory::Block>> blocks;
  };

  /// The storage and block that a copy still uses; no storage where its allocator knows of the
  /// copy.
  struct Retired {
    CopyEventPtr until;
    at::Storage storage;
    std::unique_ptr<OffloadMemory::Block> block;
  };

  std::shared_ptr<MovedStorage> find(const at::Tensor& tensor) const;
  std::shared_ptr<MovedStorage> add(const at::Tensor& tensor);
  void send_waiting();
  bool send(MovedStorage& moved, size_t first_memory);
  void note_full(const MovedStorage& moved);
  void tell(const std::string& full);
  void wait_for_leaving();

  void settle();
  void settle(Garbage& garbage);
  void settle_leaving(Garbage& garbage);
  bool settle_left(MovedStorage& moved, Garbage& garbage);
  void settle_failed(MovedStorage& moved, const std::exception& error, Garbage& garbage);
  void settle_retired(Garbage& garbage);
  at::Storage hand_over(MovedStorage& moved);

  at::Storage give_or_fetch(MovedStorage& moved);
  at::Storage give_coming(MovedStorage& moved);
  at::Storage fetch(MovedStorage& moved);
  at::Storage fetch_with_room(MovedStorage& moved);
  void prefetch();
  void set_next(MovedStorage& moved, bool is_next);
  void free_coming();
  void forget_coming(Garbage& garbage);
  void hold_compute(MovedStorage& moved, const CopyEventPtr& back, const at::Storage& storage);

  void forget_here(const MovedStorage& moved);
  void retire(CopyEventPtr until, at::Storage storage, std::unique_ptr<OffloadMemory::Block> block,
              Garbage& garbage);
  void end_number(const MovedStorage& moved);

  OffloadOptions options_;
  mutable WaitMutex mutex_;
  // Of what is on the device and may leave
  std::unordered_map<const c10::StorageImpl*, std::shared_ptr<MovedStorage>> here_;
  std::map<uint64_t, MovedStorage*> waiting_;  // By sequence
  uint64_t next_looked_at_ = 0;
  std::deque<MovedStorage*> leaving_;
  std::vector<MovedStorage*> coming_;
  std::vector<Retired> retired_;
  StepOrder order_;
  std::vector<MovedStorage*> numbered_;  // Of this step; null: gone
  uint64_t first_of_step_ = 0;           // Sequence
  size_t live_ = 0;
  uint64_t next_sequence_ = 0;
  int64_t coming_bytes_ = 0;
  std::string full_;  // What the next put() says
  bool is_full_told_ = false;
  OffloadStats stats_;
};

}  // namespace remat::detail
