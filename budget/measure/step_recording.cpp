// SPDX-License-Identifier: BSD-3-Clause

// Who tells of ops, nodes, memory and replays, and the log that they are written to.
#include <remat/budget/step_recording.h>

#include <ATen/SequenceNumber.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <remat/inspect/allocation_listener.h>
#include <remat/inspect/trace_sinks.h>
#include <remat/tape/generator_state.h>
#include <remat/tape/hidden_scopes.h>
#include <remat/tape/op_call.h>
#include <remat/tape/region.h>
#include <remat/tape/tape.h>
#include <remat/tape/tensor_layout.h>
#include <remat/tape/trace_sink.h>

namespace remat {
namespace {

int64_t thread_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// Bit i: the i-th of the tensors that it is given requires a gradient.
uint64_t gradients_of(const OpCall& call) {
  uint64_t bits = 0;
  unsigned next = 0;
  for (const OpTensor& given : call.tensors()) {
    if (next < 64 && given.tensor->requires_grad()) bits |= uint64_t{1} << next;
    ++next;
  }
  return bits;
}

const void* address_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().data() : nullptr;
}

}  // namespace

/// Has the log, and hears of memory. Backward's threads may tell of nodes and memory at once.
class StepRecording::Listener final : public AllocationListener {
 public:
  template <class Write>
  void write(Write&& write) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!is_done_) write(log_, next_);
  }

  /// The block that is alive at that address.
  uint32_t block_at(const void* address) const {
    const auto known = alive_.find(address);
    return known == alive_.end() ? StepLog::kNone : known->second;
  }

  bool has_block_at(const void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return block_at(address) != StepLog::kNone;
  }

  /// Numbers of nodes count for each thread.
  bool is_of_this_thread() const { return std::this_thread::get_id() == thread_; }

  /// The calling thread runs nodes of the step. Under the lock of write().
  void add_thread() {
    if (!runs_nodes_here()) node_threads_.push_back(std::this_thread::get_id());
  }
  bool runs_nodes_here() const {
    return is_of_this_thread() || std::find(node_threads_.begin(), node_threads_.end(),
                                            std::this_thread::get_id()) != node_threads_.end();
  }

  /// What is allocated meanwhile is not written down.
  void mute(bool muted) {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_muted_ = muted;
  }

  StepLog take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_done_ = true;
    log_.end = next_;
    return std::move(log_);
  }

  static std::atomic<Listener*> current;

 private:
  // A free that was not seen, or of a block from before: see Note [A table of live blocks].
  void on_report(void* address, int64_t bytes, c10::Device /*device*/) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_done_) return;
    const StepLog::Moment now = next_++;
    if (const auto known = alive_.find(address); known != alive_.end()) {
      log_.blocks[known->second].died = now;
      alive_.erase(known);
    }
    if (bytes <= 0 || is_muted_) return;
    alive_.emplace(address, static_cast<uint32_t>(log_.blocks.size()));
    log_.blocks.push_back({.bytes = bytes, .born = now});
  }

  const std::thread::id thread_ = std::this_thread::get_id();
  std::mutex mutex_;
  StepLog log_;
  StepLog::Moment next_ = 0;
  std::vector<std::thread::id> node_threads_;  // beside thread_
  bool is_muted_ = false;
  bool is_done_ = false;
  std::unordered_map<const void*, uint32_t> alive_;  // blocks by address
};

std::atomic<StepRecording::Listener*> StepRecording::Listener::current{nullptr};

/// What ops have written that was there before, and how to bring it back.
class StepRecording::Undo {
 public:
  explicit Undo(Listener& listener) : listener_(listener), generators_(read_generators({})) {}
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;

  void dismiss() { is_dismissed_ = true; }

  ~Undo() {
    if (is_dismissed_) return;
    const Unseen unseen(listener_);
    for (const Written& written : written_)
      lay_out(written.storage, flat(written.storage)).copy_(written.bytes);
    for (const Graph& graph : graphs_) graph.restore();
    for (const GeneratorState& state : generators_) state.restore();
  }

  /// The op is about to write some of its arguments.
  void before_op(const OpCall& call) {
    for (const OpTensor& given : call.tensors()) {
      if (call.writes_argument(given.argument) && has_layout(*given.tensor)) keep(*given.tensor);
    }
  }

 private:
  struct Written {
    c10::Storage storage;
    at::Tensor bytes;
  };

  /// Where a tensor came from, as autograd sees it: a write makes it a result of the write.
  struct Graph {
    explicit Graph(const at::Tensor& of)
        : tensor(of), edge(of.grad_fn() ? Edge(of.grad_fn(), of.output_nr()) : Edge()) {}

    void restore() const {
      if (tensor.grad_fn() != edge.function) torch::autograd::impl::set_gradient_edge(tensor, edge);
    }

    using Edge = torch::autograd::Edge;
    at::Tensor tensor;
    Edge edge;
  };

  /// Its own ops and memory are nobody's.
  class Unseen {
   public:
    explicit Unseen(Listener& listener) : listener_(listener) { listener_.mute(true); }
    Unseen(const Unseen&) = delete;
    Unseen& operator=(const Unseen&) = delete;
    ~Unseen() { listener_.mute(false); }

   private:
    Listener& listener_;
    const SuspendScopes suspend_;
    const at::AutoDispatchBelowADInplaceOrView below_;
  };

  static TensorLayout flat(const c10::Storage& storage) {
    return TensorLayout::flat(storage.nbytes(), c10::kByte);
  }

  void keep(const at::Tensor& tensor) {
    const c10::Storage& storage = tensor.storage();
    if (storage.nbytes() == 0 || listener_.has_block_at(storage.data())) return;
    keep_graph(tensor);
    if (tensor.is_view()) keep_graph(at::Tensor(tensor._base()));
    const bool is_known =
        std::any_of(written_.begin(), written_.end(),
                    [&](const Written& written) { return written.storage.is_alias_of(storage); });
    if (is_known) return;
    const Unseen unseen(listener_);
    written_.push_back({storage, lay_out(storage, flat(storage)).clone()});
  }

  void keep_graph(const at::Tensor& tensor) {
    const bool is_known = std::any_of(graphs_.begin(), graphs_.end(), [&](const Graph& graph) {
      return graph.tensor.is_same(tensor);
    });
    if (!is_known) graphs_.emplace_back(tensor);
  }

  Listener& listener_;
  std::vector<Written> written_;
  std::vector<Graph> graphs_;
  bool is_dismissed_ = false;
  std::vector<GeneratorState> generators_;
};

/// Hears of ops, saved tensors and replays.
class StepRecording::Ops final : public TraceSink {
 public:
  Ops(std::shared_ptr<Listener> listener, Undo* undo)
      : listener_(std::move(listener)), undo_(undo) {}

  void before_op(const TraceScope& scope, const OpCall& call) override {
    if (!is_of_step(scope)) return;
    if (undo_ && call.info().writes()) undo_->before_op(call);
    listener_->write([&](StepLog& log, StepLog::Moment& next) {
      log.ops.push_back({.op = &call.info(),
                         .place = place_,
                         .record = records(),
                         .begin = next++,
                         .gradients = gradients_of(call),
                         .first_node = at::sequence_number::peek(),
                         .first_result = static_cast<uint32_t>(log.results.size())});
      if (scope.depth > 0 && log.inner_region.empty()) log.inner_region = scope.region->label();
      log.ops.back().begin_ns = thread_ns();
    });
  }

  void after_op(const TraceScope& scope, const OpCall& call) override {
    if (!is_of_step(scope)) return;
    const int64_t now = thread_ns();
    listener_->write([&](StepLog& log, StepLog::Moment& next) {
      if (log.ops.empty()) return;
      StepLog::Op& op = log.ops.back();
      op.end_ns = now;
      op.end_node = at::sequence_number::peek();
      op.end = next++;
      for (size_t i = 0; i < call.info().return_count(); ++i) add_results(log, call.result(i), i);
    });
  }

  void before_save(const TraceScope& scope, const at::Tensor& /*tensor*/) override {
    if (!is_of_step(scope) || scope.depth > 0) return;
    listener_->write([&](StepLog& log, StepLog::Moment& /*next*/) {
      const uint64_t newest = at::sequence_number::peek() - 1;
      const bool in_op = !log.ops.empty() && log.ops.back().end == StepLog::kNever;
      log.saves.push_back(
          {.op = static_cast<uint32_t>(log.ops.empty() ? 0 : log.ops.size() - 1),
           .first_node = in_op ? std::min(log.ops.back().first_node, newest) : newest,
           .newest_node = newest});
    });
  }

  void tape_replay(const Region& /*region*/, bool begins) override {
    const int64_t now = thread_ns();
    listener_->write([&](StepLog& log, StepLog::Moment& next) {
      if (!listener_->runs_nodes_here()) return;
      if (begins && replays_++ == 0) {
        log.replays.push_back({.begin = next++, .begin_ns = now});
      } else if (!begins && --replays_ == 0) {
        log.replays.back().end = next++;
        log.replays.back().end_ns = now;
      }
    });
  }

  void tape_record(const Tape& tape, size_t record, bool begins) override {
    if (&tape != tape_) return;
    const int64_t now = thread_ns();
    if (begins) {
      rerun_begin_ns = now;
      return;
    }
    listener_->write([&](StepLog& log, StepLog::Moment& /*next*/) {
      log.reruns.push_back({static_cast<uint32_t>(record), now - rerun_begin_ns});
    });
  }

  void named_call(const TraceScope& /*before*/, const TraceScope& /*after*/,
                  const NamedCall& /*call*/, std::string_view /*what*/) override {}
  void call_ended(const TraceScope& /*scope*/, bool /*threw*/) override {}
  void after_save(const TraceScope& /*scope*/, bool /*threw*/) override {}
  void replay_stops(const TraceScope& /*scope*/) override {}

  void enter(uint32_t place) { place_ = place; }

  /// Regions that come now are of other steps.
  void end_forward() { is_over_ = true; }

 private:
  /// True in the forward of the outermost region that this thread has begun, and inside it.
  bool is_of_step(const TraceScope& scope) {
    if (is_over_ || std::this_thread::get_id() != thread_ || scope.is_replay || !scope.whole)
      return false;
    if (scope.depth > 0) return region_ != 0;
    if (region_ == 0) {
      region_ = scope.whole->id();
      const auto replayer = scope.whole->replayer();
      tape_ = replayer ? replayer->tape() : nullptr;
      listener_->write([&](StepLog& log, StepLog::Moment&) { log.region = region_; });
    }
    return scope.whole->id() == region_;
  }

  uint32_t records() const { return tape_ ? static_cast<uint32_t>(tape_->records().size()) : 0; }

  void add_results(StepLog& log, const c10::IValue& value, size_t result) const {
    const auto add = [&](const at::Tensor& tensor, size_t element) {
      log.results.push_back({.result = static_cast<uint16_t>(result),
                             .element = static_cast<uint16_t>(element),
                             .block = listener_->block_at(address_of(tensor))});
    };
    if (value.isTensor()) return add(value.toTensor(), 0);
    if (!value.isTensorList()) return;
    size_t element = 0;
    for (const c10::IValue& item : value.toListRef()) add(item.toTensor(), element++);
  }

  static inline thread_local int64_t rerun_begin_ns = 0;

  const std::shared_ptr<Listener> listener_;
  Undo* const undo_;  // null: writes stay
  const std::thread::id thread_ = std::this_thread::get_id();
  uint64_t region_ = 0;
  const Tape* tape_ = nullptr;  // of that region, which its forward keeps
  uint32_t place_ = 0;
  bool is_over_ = false;
  int replays_ = 0;  // that run; guarded by the listener's lock
};

namespace {

thread_local std::optional<at::CallbackHandle> node_callback;

}  // namespace

/// Hears of the nodes of backward.
class StepRecording::Nodes {
  /// Which node it is, from its begin to its end.
  struct Running final : at::ObserverContext {
    explicit Running(uint32_t of_nodes) : number(of_nodes) {}
    uint32_t number;
  };

 public:
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& node) {
    Listener* const listener = Listener::current.load();
    if (!listener) return nullptr;
    std::unique_ptr<at::ObserverContext> running;
    const auto sequence = static_cast<uint64_t>(node.seqNr());
    listener->write([&](StepLog& log, StepLog::Moment& next) {
      listener->add_thread();
      if (log.nodes.empty() && listener->is_of_this_thread())
        log.backward_node = at::sequence_number::peek();
      if (!log.nodes.empty() && log.nodes.back().end == StepLog::kNever) {
        const auto outer = static_cast<uint32_t>(log.nodes.size() - 1);
        log.inner_nodes.push_back({.sequence = sequence, .outer = outer});
        return;
      }
      if (is_later(log, sequence) && log.later_node.empty()) log.later_node = node.name();
      if (!log.later_node.empty()) {
        log.goes_on = log.goes_on || sequence < log.backward_node;
        return;
      }
      running = std::make_unique<Running>(static_cast<uint32_t>(log.nodes.size()));
      log.nodes.push_back(
          {.name = node.name(), .sequence = sequence, .begin = next++, .begin_ns = thread_ns()});
    });
    return running;
  }

  static bool is_later(const StepLog& log, uint64_t sequence) {
    return sequence != StepLog::kNoSequence && sequence >= log.backward_node;
  }

  static void end(const at::RecordFunction& /*node*/, at::ObserverContext* context) {
    const int64_t now = thread_ns();
    Listener* const listener = Listener::current.load();
    const auto* const running = static_cast<Running*>(context);
    if (!listener || !running) return;
    listener->write([&](StepLog& log, StepLog::Moment& next) {
      log.nodes[running->number].end = next++;
      log.nodes[running->number].end_ns = now;
    });
  }
};

StepRecording::StepRecording(bool undoes_writes) : listener_(std::make_shared<Listener>()) {
  Listener* none = nullptr;
  TORCH_CHECK(Listener::current.compare_exchange_strong(none, listener_.get()),
              "[profile] expected no other measurement in the process, got a second one. Let the "
              "first one end.");
  try {
    AllocationListener::start(listener_, "profile");
  } catch (...) {
    Listener::current = nullptr;
    throw;
  }
  if (undoes_writes) undo_ = std::make_unique<Undo>(*listener_);
  ops_ = std::make_shared<Ops>(listener_, undo_.get());
  TraceSinks::get().add(ops_);
  node_callback = at::addThreadLocalCallback(at::RecordFunctionCallback(&Nodes::begin, &Nodes::end)
                                                 .scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

std::unique_ptr<StepRecording> StepRecording::try_make(bool undoes_writes) {
  try {
    return std::make_unique<StepRecording>(undoes_writes);
  } catch (const c10::Error&) {
    return nullptr;
  }
}

StepRecording::~StepRecording() {
  if (node_callback) at::removeCallback(*std::exchange(node_callback, std::nullopt));
  TraceSinks::get().remove(*ops_);
  undo_.reset();
  listener_->stop();
  Listener::current = nullptr;
}

void StepRecording::enter(const std::string& place) {
  listener_->write([&](StepLog& log, StepLog::Moment& /*next*/) {
    const auto known = std::find(log.places.rbegin(), log.places.rend(), place);
    const auto number =
        known == log.places.rend() ? log.places.size() : log.places.rend() - known - 1;
    if (known == log.places.rend()) log.places.push_back(place);
    ops_->enter(static_cast<uint32_t>(number));
  });
}

void StepRecording::keep_writes() {
  if (undo_) undo_->dismiss();
}

void StepRecording::end_forward() {
  ops_->end_forward();
  listener_->write([&](StepLog& log, StepLog::Moment& next) { log.forward_end = next++; });
}

StepLog StepRecording::finish() {
  return listener_->take();
}

}  // namespace remat
