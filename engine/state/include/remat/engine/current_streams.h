// SPDX-License-Identifier: BSD-3-Clause

// The accelerator's current device and streams: read at region entry, set for a replay.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include <remat/engine/export.h>

namespace remat {

/// The current device of a thread, and its current stream on each device of the accelerator.
///
/// Note [Streams of a replay]: autograd starts a replay on the thread and stream of the node that
/// needs it first. Thread and stream may differ from those of the region's entry, because the
/// function may return what it has made on a side stream or on another device. A replay begins
/// where the forward began, so the function switches and waits as it did then, and each saved
/// tensor is recomputed on the stream on which its node reads it. A tape holds ops and no waits, so
/// a region whose ops run on other streams than it began with has no tape.
class REMAT_API CurrentStreams {
 public:
  /// Reads this thread's device and streams. In a process that has not used an accelerator yet,
  /// returns the defaults without initialising one.
  static CurrentStreams read();

  /// True if the process has begun to use an accelerator since read().
  bool began_without_accelerator() const { return !is_used_ && read().is_used_; }

  /// True if the thread's device or streams differ now. False if the process had used no
  /// accelerator.
  bool changed() const { return is_used_ && !read().are_same(*this); }

 private:
  friend class KeptStreams;
  friend class UsedStreams;
  CurrentStreams() = default;
  void set() const;
  bool are_same(const CurrentStreams& other) const {
    return device_ == other.device_ && other_ == other.other_;
  }
  /// The current stream of device number `device`.
  c10::StreamId on(size_t device) const { return device < other_.size() ? other_[device] : 0; }

  bool is_used_ = false;
  c10::DeviceIndex device_ = 0;
  c10::SmallVector<c10::StreamId, 2>
      other_;  ///< By device, up to the last stream that is not the default.
};

/// Restores the thread's current device and streams on destruction, because after a backward the
/// device of its last node is current. The second constructor sets `streams` until destruction.
class REMAT_API KeptStreams {
 public:
  KeptStreams() = default;
  explicit KeptStreams(const CurrentStreams& streams);
  KeptStreams(const KeptStreams&) = delete;
  KeptStreams& operator=(const KeptStreams&) = delete;
  ~KeptStreams();

 private:
  const CurrentStreams present_ = CurrentStreams::read();
};

/// The streams that a replay's ops use, other than `first`, those with which the replay began.
/// On destruction the first streams wait for the others, because memory that the replay frees is
/// reused on the stream that allocated it. After the forward, the region's caller may have done
/// this wait; after a replay nobody else does.
class REMAT_API UsedStreams {
 public:
  explicit UsedStreams(const CurrentStreams& first) : first_(first) {}
  UsedStreams(const UsedStreams&) = delete;
  UsedStreams& operator=(const UsedStreams&) = delete;
  ~UsedStreams();

  /// Call it before an op runs on this thread's current streams.
  void note();

 private:
  const CurrentStreams& first_;
  c10::SmallVector<c10::Stream, 2> used_;
};

}  // namespace remat
