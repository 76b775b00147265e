// SPDX-License-Identifier: BSD-3-Clause

// What a memory plan knows of one training step: its ops, the values between them, what autograd
// saved, the nodes of backward, with their times and bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <remat/policy/export.h>

namespace remat {

/// What a storage holds between two writes.
struct StepValue {
  /// The record that makes it, as a result or by a write; -1: from outside of the step (argument,
  /// weight, constant).
  int32_t maker = -1;
  int32_t storage = 0;  ///< The first value of its storage; its own index if it is the first.
  /// Of the storage. Of a value from outside what is kept of it for replays, before the step
  /// overwrites it.
  int64_t bytes = 0;
  /// The last record during which the program itself still holds the storage, if remat keeps
  /// nothing; the same for all values of a storage. The number of records: still held when the
  /// forward has ended.
  int32_t held_until = 0;
  /// Of a storage that the program still holds when the forward has ended, the same for all its
  /// values: how many nodes of backward have begun when it lets go, if remat keeps nothing. 0:
  /// before backward begins; -1: never, it holds it to the end, or it did not hold it so long.
  int32_t released = -1;
  /// Of a value from outside: what the replay of a unit that reads it takes to have it as it was; 0
  /// if it reads the memory itself, or the whole of what is kept.
  int64_t unpacked_bytes = 0;
};

struct StepWrite {
  int32_t before = 0;
  int32_t after = 0;
};

/// One op of the forward that made or wrote memory. Views have no record.
struct StepRecord {
  std::string op;               ///< "aten::mm"
  std::string where;            ///< Module path or named call; "": unknown. For explain().
  uint64_t kind = 0;            ///< Equal: the same op, arguments, layouts. 0: like no other.
  double forward_us = 0;        ///< Its own, and of views after it
  double replay_us = 0;         ///< When it runs again
  double backward_us = 0;       ///< Of all its nodes
  int64_t workspace_bytes = 0;  ///< While it runs, above what was there and above its results
  /// Most bytes alive from its start to the next record's, in a forward of which remat keeps
  /// nothing.
  int64_t forward_bytes = 0;
  /// Of these: copies of memory from outside that the step overwrites. A tape makes them in any
  /// case; a step without remat does not.
  int64_t copied_bytes = 0;
  bool reads_data = true;      ///< false: looks only at shapes of what it reads (zeros_like).
  std::vector<int32_t> reads;  ///< Values, each once; a written argument's old value among them.
  std::vector<int32_t> makes;  ///< Its results that are new memory, in order
  std::vector<StepWrite> writes;
};

/// What autograd saved.
struct StepSlot {
  int32_t value = -1;  ///< -1: held by the tape itself whatever the plan.
  int32_t record = 0;  ///< The newest when it was saved
  /// The node that frees it, as an index into nodes; -1: held to the end; kDropped: nothing holds
  /// it any more when the function has returned, so no replay makes it.
  int32_t node = -1;

  static constexpr int32_t kDropped = -2;
  bool is_dropped() const { return node == kDropped; }
};

/// A node of backward, in the order in which they run. Bytes are those that backward made outside
/// of replays: gradients, workspaces.
struct StepNode {
  std::string name;
  int32_t record = 0;
  double us = 0;
  int64_t before_bytes = 0;  ///< When it starts, and most when it asks for what was saved
  int64_t inside_bytes = 0;  ///< Most while it runs
  int64_t after_bytes = 0;   ///< Most from its end to the next one's start
};

/// A plain value: copies are independent, and threads may read one at the same time.
struct REMAT_API StepProfile {
  std::string name;
  std::vector<StepValue> values;
  std::vector<StepRecord> records;
  std::vector<StepSlot> slots;
  std::vector<StepNode> nodes;
  int64_t end_bytes = 0;  ///< Alive when the forward has ended and remat keeps nothing (loss, held
                          ///< outputs)
  int64_t gap_bytes = 0;  ///< Most bytes alive, before backward's first node begins, that were made
                          ///< since the forward's end (a loss that is computed outside)
  /// The accelerator whose memory the bytes are; "": the CPU. With an accelerator, times are those
  /// of the thread that launches: memory of plans is right, and their overheads are not.
  std::string device{};
  /// Other accelerators on which the step makes memory, which is not counted; "" for none.
  std::string other_devices{};
  double other_us = 0;           ///< Of the step, beside its records: what Python does between ops
  int64_t plain_peak_bytes = 0;  ///< Of a step of which everything is kept; 0: unknown.

  /// A sentence or two about its bytes and times; "" for a step of the CPU.
  std::string caution() const;

  /// The text that from_json reads back to an equal profile.
  std::string to_json() const;

  /// @param source names the text in errors, usually its path.
  /// @throws std::invalid_argument `[memory plan] source:line: place: expected ..., got .... What
  /// to do.`
  static StepProfile from_json(std::string_view text, const std::string& source = "profile");

  /// Writes the file; a file that is there is replaced when all is written.
  /// @throws std::runtime_error `[memory plan] path: ...` if that fails.
  void save(const std::string& path) const;

  /// Throws as from_json, and as save if the file cannot be read.
  static StepProfile load(const std::string& path);

  /// Checks all that planning relies on: indices, order, ranges.
  /// @throws std::invalid_argument as from_json, with source for "source:line".
  void validate(const std::string& source = "profile") const;

  /// 16 hex digits over the ops, what they read, make and write, and the sizes of values: what
  /// decides whether a plan can run. Times and peaks are left out.
  std::string digest() const;
};

}  // namespace remat
