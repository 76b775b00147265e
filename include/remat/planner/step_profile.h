// SPDX-License-Identifier: BSD-3-Clause

// Profile of one training step for memory planning: its ops, the values between them, the saved
// tensors and the nodes of backward, with times and bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <remat/policy/export.h>

namespace remat {

/// The content of a storage between two writes.
struct StepValue {
  /// The record that makes the value, as a result or by a write; -1 if it comes from outside the
  /// step (argument, weight, constant).
  int32_t maker = -1;
  int32_t storage = 0;  ///< Index of the storage's first value, maybe this one
  /// Bytes of the storage. For a value from outside, only the bytes that are copied for replays
  /// because the step overwrites the value later.
  int64_t bytes = 0;
  /// The last record during which the program itself holds the storage if remat keeps nothing;
  /// equal for all values of a storage. The number of records if the storage is still held when the
  /// forward has ended.
  int32_t held_until = 0;
  /// For a storage that the program still holds when the forward has ended: how many nodes of
  /// backward have begun when the program lets go, if remat keeps nothing; equal for all values of
  /// a storage. 0: before backward begins; -1: never, or the storage is not held that long.
  int32_t released = -1;
  /// For a value from outside: bytes that the replay of a unit allocates to restore the value
  /// before reading it. 0 if the replay reads the outside memory itself, or the kept copy as a
  /// whole.
  int64_t unpacked_bytes = 0;
};

struct StepWrite {
  int32_t before = 0;  ///< The overwritten value
  int32_t after = 0;   ///< The new value of the same storage
};

/// An op of the forward that made or wrote memory. Views have no record.
struct StepRecord {
  std::string op;         ///< "aten::mm"
  std::string where;      ///< Module path or named call, for explain(); "": unknown
  uint64_t kind = 0;      ///< Equal for the same op, arguments and layouts; 0: like no other record
  double forward_us = 0;  ///< Time of the op and of views after it
  double replay_us = 0;   ///< Time when the op is recomputed
  double backward_us = 0;  ///< Time of all autograd nodes that the op made
  /// Most bytes alive while the op runs, without its results and without memory from before the op.
  int64_t workspace_bytes = 0;
  /// Most bytes alive from the op's start to the next record's start, in a forward for which remat
  /// keeps nothing.
  int64_t forward_bytes = 0;
  /// Part of forward_bytes: copies of outside memory that the step overwrites. A tape always makes
  /// them; a step without remat does not.
  int64_t copied_bytes = 0;
  bool reads_data = true;      ///< False: reads only the shapes of its arguments (zeros_like)
  std::vector<int32_t> reads;  ///< Values, each once, including the old value of a written argument
  std::vector<int32_t> makes;  ///< Results that are new memory, in order
  std::vector<StepWrite> writes;
};

/// A tensor that autograd saved.
struct StepSlot {
  int32_t value = -1;  ///< Value of the tensor; -1: the tape holds the tensor under every plan
  int32_t record = 0;  ///< The newest record when the tensor was saved
  /// Index of the node that frees the tensor; -1 if it is held to the end; kDropped if nothing
  /// holds the tensor any more when the function has returned, so that no replay makes it.
  int32_t node = -1;

  static constexpr int32_t kDropped = -2;
  bool is_dropped() const { return node == kDropped; }
};

/// A node of backward. Bytes are those allocated outside of replays: gradients and workspaces.
struct StepNode {
  std::string name;
  int32_t record = 0;
  double us = 0;
  /// Most bytes at the node's start and while it fetches its saved tensors.
  int64_t before_bytes = 0;
  int64_t inside_bytes = 0;  ///< Most bytes while the node runs
  int64_t after_bytes = 0;   ///< Most bytes from the node's end to the next node's start
};

/// Copies are independent, and threads may read one profile at the same time.
struct REMAT_API StepProfile {
  std::string name;
  std::vector<StepValue> values;
  std::vector<StepRecord> records;
  std::vector<StepSlot> slots;
  std::vector<StepNode> nodes;  ///< In the order in which they run
  /// Bytes alive when the forward has ended, if remat keeps nothing (loss, held outputs).
  int64_t end_bytes = 0;
  int64_t gap_bytes = 0;  ///< Most bytes made after the forward's end and alive before backward's
                          ///< first node (a loss that is computed outside)
  /// The accelerator whose memory is counted; "": the CPU. Times on an accelerator are those of the
  /// launching thread, so plans have the right memory, but not the right overheads.
  std::string device{};
  /// Other accelerators on which the step allocates memory (not counted); "": none.
  std::string other_devices{};
  double other_us = 0;  ///< Time of the step outside its records, such as Python between ops
  int64_t plain_peak_bytes = 0;  ///< Peak of a step that keeps everything; 0: unknown

  /// A sentence or two on how far bytes and times can be trusted; "" for a step on the CPU.
  std::string caution() const;

  /// JSON that from_json reads back to an equal profile.
  std::string to_json() const;

  /// @param source names the text in errors, usually its path.
  /// @throws std::invalid_argument `[memory plan] source:line: place: expected ..., got .... What
  /// to do.`
  static StepProfile from_json(std::string_view text, const std::string& source = "profile");

  /// Writes the file. An existing file is replaced only after all is written.
  /// @throws std::runtime_error `[memory plan] path: ...` on failure.
  void save(const std::string& path) const;

  /// Throws as from_json, and as save if the file cannot be read.
  static StepProfile load(const std::string& path);

  /// Checks everything that planning relies on: indices, order, ranges.
  /// @throws std::invalid_argument as from_json, but the message has no line after `source`.
  void validate(const std::string& source = "profile") const;

  /// 16 hex digits over the ops, their reads, results and writes, and the sizes of values, which
  /// decide whether a plan can run. Times and peaks are left out.
  std::string digest() const;
};

}  // namespace remat
