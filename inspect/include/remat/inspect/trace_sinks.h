// SPDX-License-Identifier: BSD-3-Clause

// Several trace listeners in the place of the one that tape/ knows.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include <remat/engine/named_call.h>
#include <remat/engine/op_call.h>
#include <remat/engine/trace_sink.h>

namespace remat {

/// Passes each event on to all added sinks, in the order in which they were added. While there is a
/// sink, this object is the process's trace_sink; it is never freed, so sinks may come and go while
/// regions run.
class TraceSinks final : public TraceSink {
 public:
  static TraceSinks& get();

  void add(std::shared_ptr<TraceSink> sink);
  void remove(const TraceSink& sink);

  void before_op(const TraceScope& scope, const OpCall& call) override;
  void after_op(const TraceScope& scope, const OpCall& call) override;
  void before_part(const TraceScope& scope, const OpCall& call) override;
  void after_part(const TraceScope& scope, const OpCall& call) override;
  void op_threw(const TraceScope& scope, const OpCall& call) override;
  void named_call(const TraceScope& before, const TraceScope& after, const NamedCall& call,
                  std::string_view what) override;
  void call_ended(const TraceScope& scope, bool threw) override;
  void before_save(const TraceScope& scope, const at::Tensor& tensor) override;
  void after_save(const TraceScope& scope, bool threw) override;
  void before_load(const Region& region, size_t slot) override;
  void tape_replay(const Region& region, const Region& whole, bool begins) override;
  void function_replay(const Region& region, bool begins) override;
  void tape_record(const Tape& tape, size_t record, bool begins) override;
  void replay_stops(const TraceScope& scope) override;

 private:
  using Sinks = std::vector<std::shared_ptr<TraceSink>>;
  std::shared_ptr<const Sinks> now() const;
  void refresh() const;
  void unlock_after_fork();
  template <class Fn>
  void for_each(Fn&& fn) const;
  void set(Sinks sinks);

  mutable std::mutex mutex_;
  std::mutex changing_;
  std::atomic<uint64_t> changes_{0};
  std::shared_ptr<const Sinks> sinks_ = std::make_shared<const Sinks>();  // guarded by mutex_
};

}  // namespace remat
