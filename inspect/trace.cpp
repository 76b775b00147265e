// SPDX-License-Identifier: BSD-3-Clause

// Writing lines, one op after the other, from several threads.
#include <remat/inspect/trace.h>

#include <c10/core/DispatchKeySet.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <remat/tape/named_call.h>
#include <remat/tape/op_call.h>
#include <remat/tape/op_log.h>
#include <remat/tape/region.h>
#include <remat/tape/trace_sink.h>

namespace remat {
namespace {

/// "aten::mul.Tensor(float32 [2, 3] on cpu, 2)"
std::string describe(const OpCall& call) {
  OpWords words;
  words.begin(call.info());
  for (size_t i = 0; i < call.info().argument_count(); ++i) {
    const c10::IValue& value = call.argument(i);
    bool has_tensors = false;
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      has_tensors = true;
      words.add_tensor(tensor, Origin::inside());
    });
    if (!has_tensors) words.add_value(value);
  }
  words.end();
  return OpLog::describe(words.get());
}

/// The dispatch keys of the tensors among the arguments.
std::string keys_of(const OpCall& call) {
  c10::DispatchKeySet keys;
  for (size_t i = 0; i < call.info().argument_count(); ++i) {
    for_each_tensor(call.argument(i),
                    [&](const at::Tensor& tensor) { keys = keys | tensor.key_set(); });
  }
  return c10::toString(keys);  // "DispatchKeySet(CPU, AutogradCPU)"
}

std::string count(const char* what, size_t from, size_t to) {
  if (from == to) return "";
  if (to == from + 1) return c10::str("; ", what, " ", from);
  return c10::str("; ", what, "s ", from, " to ", to - 1);
}

/// What became of what autograd saved.
std::string decision(const TraceScope& before, const TraceScope& after) {
  std::string slots = count("slot", before.slot, after.slot);
  if (!slots.empty()) {
    slots += after.is_replay       ? " filled"
             : after.in_saved_call ? " left to the call's arguments"
                                   : " dropped";
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
    open_ = Line{scope, line_start(scope) + describe(call) + " " + keys_of(call)};
  }

  void after_op(const TraceScope& scope, const OpCall& /*call*/) override {
    if (open_) after_op_text(scope);
  }

  void named_call(const TraceScope& before, const TraceScope& after, const NamedCall& call,
                  std::string_view what) override {
    write(c10::str(line_start(after), call.str(), " ", what, decision(before, after)));
  }

  void replay_stops(const TraceScope& scope) override {
    if (open_) after_op_text(scope);
    write(line_start(scope) + "stops");
  }

 private:
  struct Line {
    TraceScope scope;
    std::string text;
  };

  void after_op_text(const TraceScope& scope) {
    write(open_->text + (scope.in_saved_call ? "; in a SAVE call" : "") +
          decision(open_->scope, scope));
    open_.reset();
  }

  void write(const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    out_ << text << std::endl;
  }

  std::mutex mutex_;
  std::ostream& out_;
  static thread_local std::optional<Line> open_;  // the op that runs
};

thread_local std::optional<Trace::Writer::Line> Trace::Writer::open_;

Trace::Trace(std::ostream& out) : writer_(std::make_unique<Writer>(out)) {
  TraceSink* none = nullptr;
  TORCH_CHECK(trace_sink.compare_exchange_strong(none, writer_.get()),
              "[Trace] expected no other trace in the process, got a second one. End the first, or "
              "unset REMAT_TRACE.");
}

Trace::~Trace() {
  trace_sink = nullptr;
}

namespace detail {

bool trace_from_environment() {
  // Leaked: regions may run until the process ends.
  static const Trace* const trace = []() -> const Trace* {
    const char* const wanted = std::getenv("REMAT_TRACE");
    const std::string name = wanted ? wanted : "";
    if (name.empty()) return nullptr;
    if (name == "stderr") return new Trace(std::cerr);
    auto* const file = new std::ofstream(name);
    TORCH_CHECK_VALUE(file->good(), "[Trace] REMAT_TRACE: expected stderr or a file to write, got ",
                      name, ", which cannot be opened.");
    return new Trace(*file);
  }();
  return trace != nullptr;
}

}  // namespace detail
}  // namespace remat
