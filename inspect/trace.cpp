// SPDX-License-Identifier: BSD-3-Clause

// Writes a line for each op and named call, from several threads.
#include <remat/inspect/trace.h>

#include <c10/core/DispatchKeySet.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <remat/engine/named_call.h>
#include <remat/engine/op_call.h>
#include <remat/engine/op_log.h>
#include <remat/engine/region.h>
#include <remat/engine/tensor_meta.h>
#include <remat/engine/trace_sink.h>
#include <remat/inspect/trace_sinks.h>
#include <remat/recording/printable.h>

namespace remat {
namespace {

/// A text such as "aten::mul.Tensor(float32 [2, 3] on cpu, 2)".
std::string describe(const OpCall& call) {
  OpWords words;
  words.begin(call.info());
  visit_arguments(
      call, [&](size_t, const at::Tensor& tensor) { words.add_tensor(tensor, Origin::inside()); },
      [&](size_t, const c10::IValue& value) { words.add_value(value); });
  words.end();
  return OpLog::describe(words.get());
}

/// The dispatch keys of the tensors among the arguments, such as "[CPU, AutogradCPU]", without the
/// keys that all plain tensors have.
std::string keys_of(const OpCall& call) {
  c10::DispatchKeySet keys;
  for_each_argument_tensor(
      call, [&](size_t, const at::Tensor& tensor) { keys = keys | tensor.key_set(); });
  keys = keys.remove(c10::DispatchKey::ADInplaceOrView) - c10::autocast_dispatch_keyset;
  std::string text;
  for (const c10::DispatchKey key : keys)
    text += c10::str(text.empty() ? " [" : ", ", c10::toString(key));
  return text.empty() ? text : text + "]";
}

std::string count(const char* what, size_t from, size_t to) {
  if (from == to) return "";
  if (to == from + 1) return c10::str("; ", what, " ", from);
  return c10::str("; ", what, "s ", from, " to ", to - 1);
}

/// Says what became of the tensors that autograd saved. `in_call`: in a SAVE or OFFLOAD call.
std::string decision(const TraceScope& before, const TraceScope& after, bool in_call) {
  std::string slots = count("slot", before.slot, after.slot);
  if (!slots.empty()) {
    slots += after.is_replay ? " filled" : in_call ? " left to the call's arguments" : " dropped";
  }
  const std::string kept = count("tensor", before.kept, after.kept);
  return slots + (kept.empty() ? "" : kept + " kept");
}

std::string line_start(const TraceScope& scope) {
  return std::string(2 * scope.depth, ' ') + (scope.is_replay ? "replay " : "forward ") +
         (scope.region ? scope.region->label() : "outside of regions") + ": ";
}

}  // namespace

class Trace::Writer final : public TraceSink {
 public:
  explicit Writer(std::ostream& out) : out_(out) {}

  void before_op(const TraceScope& scope, const OpCall& call) override {
    op_.emplace(scope, line_start(scope) + describe(call) + keys_of(call));
  }

  void after_op(const TraceScope& scope, const OpCall& /*call*/) override {
    if (op_) end_op(scope);
  }

  void named_call(const TraceScope& before, const TraceScope& after, const NamedCall& call,
                  std::string_view what) override {
    op_.reset();  // if there is one, the op threw
    if (what == "begins") calls_.emplace_back(after, call);
    write(c10::str(line_start(after), call.str(), " ", what,
                   decision(before, after, call.is_saved())));
  }

  void call_ended(const TraceScope& scope, bool threw) override {
    op_.reset();
    if (calls_.empty()) return;  // the call began before the trace
    const auto [before, call] = std::move(calls_.back());
    calls_.pop_back();
    if (threw && scope.is_replay) return;  // most often the stop exception of the replay
    write(c10::str(line_start(scope), call.str(), threw ? " throws" : " ends",
                   decision(before, scope, call.is_saved())));
  }

  void before_save(const TraceScope& scope, const at::Tensor& tensor) override {
    saves_.emplace_back(scope, TensorMeta(tensor).str());
  }

  void after_save(const TraceScope& scope, bool threw) override {
    if (saves_.empty()) return;
    if (!threw) end_save(scope);
    saves_.pop_back();
  }

  void replay_stops(const TraceScope& scope) override {
    if (!saves_.empty()) end_save(scope);
    if (op_) end_op(scope);
    write(line_start(scope) + "stops");
  }

 private:
  /// A text such as "; for call 'square' (SAVE)": the call for which the last tensor was kept.
  static std::string kept_for(const Region& region) {
    const CallLog& calls = region.calls();
    return "; for " + calls.records()[calls.kept().back().call].call.str();
  }

  // Tensors saved by an op have no line of their own: end_op() writes them in the op's line.
  void end_save(const TraceScope& scope) {
    const auto& [before, tensor] = saves_.back();
    if (before.region != scope.region) return;
    if (op_ && op_->first.region == scope.region) return;
    const std::string what = decision(before, scope, scope.saved_call != nullptr);
    if (what.empty()) return;
    write(c10::str(line_start(scope), "saved outside of ops: ", tensor,
                   scope.kept > before.kept ? kept_for(*scope.region) : "", what));
  }

  void end_op(const TraceScope& scope) {
    const NamedCall* const call = scope.saved_call;
    write(op_->second + (call ? "; in " + call->str() : "") +
          decision(op_->first, scope, call != nullptr));
    op_.reset();
  }

  void write(const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    out_ << printable(text) << std::endl;
  }

  using Line = std::pair<TraceScope, std::string>;

  std::mutex mutex_;
  std::ostream& out_;
  static inline thread_local std::optional<Line> op_;  // the running op
  static inline thread_local std::vector<Line>
      saves_;  // the innermost last; an outer region may save too
  static inline thread_local std::vector<std::pair<TraceScope, NamedCall>>
      calls_;  // running, the innermost last
};

namespace {

std::atomic<bool> is_writing{false};

}  // namespace

Trace::Trace(std::ostream& out) : writer_(std::make_shared<Writer>(out)) {
  TORCH_CHECK(!is_writing.exchange(true),
              "[Trace] expected no other trace in the process, got a second one. End the first, or "
              "unset REMAT_TRACE.");
  add_trace_sink(writer_);
}

Trace::~Trace() {
  remove_trace_sink(*writer_);
  is_writing = false;
}

}  // namespace remat
