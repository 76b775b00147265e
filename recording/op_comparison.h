// SPDX-License-Identifier: BSD-3-Clause

// Writes a recorded op as text, with the origins of its tensors, and compares the op with the same
// op in another run or in a replay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <remat/recording/recording.h>
#include <remat/recording/recording_diff.h>

namespace remat::detail {

enum class OriginKind : uint8_t { kUnknown, kMade, kOutside };

/// The origin of a tensor, without addresses, so that two runs can be compared.
struct TensorOrigin {
  static constexpr size_t kElsewhere = static_cast<size_t>(-1);

  OriginKind kind = OriginKind::kUnknown;
  /// For kMade the op's number in its stream; for kOutside the number of the storage in the order
  /// of first use in its stream, or kElsewhere if a replay's forward did not use the storage.
  size_t number = 0;
  uint32_t stream = 0;   ///< For kMade the op's stream.
  uint64_t storage = 0;  ///< See StorageOrigin.
  /// True if a replay made the tensor. The tensor may be the shadow of outside memory, so an origin
  /// of another kind in the other op is no difference.
  bool is_replayed = false;
};

/// The ops of a run are compared in streams. A stream has the ops of one kind on one thread. The
/// number of a stream is kind + kStreamKinds * thread, with threads in the order in which they
/// began.
enum StreamKind : uint32_t {
  kProgramStream = 0,  ///< Ops outside regions and in their forwards
  kBackwardStream = 1,
  kReplayStream = 2,
};
inline constexpr uint32_t kStreamKinds = 3;

struct ComparedOp {
  const Recording& recording;
  size_t place = 0;  ///< Index into Recording::ops.
  std::vector<TensorOrigin> origins;

  const OpEvent& event() const { return recording.ops[place]; }
  std::string_view name() const { return recording.text(event().name); }
};

/// Pairs the outside storages of two runs.
class OutsidePairs {
 public:
  /// For two runs: storages are paired in the order in which they are met.
  OutsidePairs() = default;
  /// For a replay: an outside storage of the forward (one in `of_forward`) matches only itself.
  explicit OutsidePairs(std::unordered_map<uint64_t, size_t> of_forward)
      : of_forward_(std::move(of_forward)), is_same_run_(true) {}

  /// Two runs: pairs the storage of `a` with that of `b`; false if each already has another
  /// partner. A replay (`a` of the forward, `b` of the replay): true if they are the same storage
  /// or, unless `strictly`, if the forward did not use that of `b`.
  bool match(const TensorOrigin& a, const TensorOrigin& b, bool strictly);

 private:
  std::unordered_map<uint64_t, size_t> of_forward_;
  std::unordered_map<uint64_t, uint64_t> seconds_;  // storages of run 2, by those of run 1
  std::unordered_map<uint64_t, uint64_t> firsts_;   // the inverse of seconds_
  bool is_same_run_ = false;
};

/// The cause of the first difference between two ops of one name; nullopt if there is none.
/// `strictly` is as in OutsidePairs::match().
std::optional<DifferenceCause> cause_of(const ComparedOp& a, const ComparedOp& b,
                                        OutsidePairs& pairs, bool strictly);

/// A text such as "aten::mul.Tensor(float32 [4] on cpu of op 3, float32 [4] on cpu from outside #1,
/// 2)". `origins` are those of the arguments; `stream` is the stream of the op.
std::string op_words(const Recording& recording, size_t op,
                     const std::vector<TensorOrigin>& origins, uint32_t stream);

/// True if the tensor may be a number that the program passed, whose value is not recorded.
bool is_number(const Recording& recording, const RecordedTensor& tensor);

/// True for ops that compute nothing, such as "aten::select.int".
bool is_view(std::string_view op);

/// True for casts, such as "aten::_to_copy".
bool is_cast(std::string_view op);

/// True for dropout, normalisations and some ops that they call: a rough guess from the name.
bool depends_on_training(std::string_view op);

}  // namespace remat::detail
