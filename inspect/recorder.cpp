// SPDX-License-Identifier: BSD-3-Clause

// Records ops, nodes, regions and memory of all threads into a file.
#include <remat/inspect/recorder.h>

#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <pthread.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <remat/engine/region.h>
#include <remat/inspect/allocation_listener.h>
#include <remat/inspect/trace_sinks.h>
#include <remat/recording/difference_text.h>
#include <remat/recording/html_report.h>
#include <remat/recording/recording.h>
#include <remat/recording/recording_writer.h>

#include "thread_recorder.h"

namespace remat {
namespace {

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  for (char& c : text) c = c == '\0' ? ' ' : c;
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

std::shared_ptr<RecordingWriter> open(const std::string& path) {
  try {
    return std::make_shared<RecordingWriter>(path);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

/// The absolute path, so that the file is found after a change of directory.
std::string absolute(const std::string& path) {
  std::error_code fault;
  const std::string found = std::filesystem::absolute(path, fault).string();
  return fault ? path : found;
}

RecorderOptions absolute(RecorderOptions options) {
  if (!options.differences_path.empty())
    options.differences_path = absolute(options.differences_path);
  return options;
}

/// The session to which the thread last added events. Trivially constructed and destroyed, so that
/// access needs no initialization check and stays valid until the thread is gone.
struct Here {
  uint64_t session = 0;
  ThreadRecorder* recorder = nullptr;
  /// True once the thread is ending. Memory that it frees from then on is not recorded.
  bool is_over = false;
};

constinit thread_local Here this_thread;

}  // namespace

/// Listens to what runs in regions, and to LibTorch's callbacks for all ops and nodes.
class Recorder::Session final : public TraceSink,
                                public std::enable_shared_from_this<Recorder::Session> {
 public:
  Session(const std::string& path, const RecorderOptions& options)
      : path_(absolute(path)), writer_(open(path)), options_(absolute(options)) {
    ProcessEvent process;
    process.begin_unix_ns =
        std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
    process.pid = static_cast<uint64_t>(getpid());
    process.program = writer_->string(command_line());
    process.torch_version = writer_->string(TORCH_VERSION);
    detail::ByteWriter bytes;
    bytes.add(process);
    writer_->write_block(0, bytes.bytes());
  }

  void start() {
    {
      const std::lock_guard<std::mutex> lock(open_mutex);
      check(open_session);
      memory_ = std::make_shared<Memory>();
      AllocationListener::start(memory_, "Recorder");
      open_session = shared_from_this();
      open_number = number_;
    }
    [[maybe_unused]] static const int at_exit = std::atexit(&end_with_process);
    [[maybe_unused]] static const int at_fork =
        pthread_atfork([] { open_mutex.lock(); }, [] { open_mutex.unlock(); },
                       [] {
                         leave_to_parent();
                         open_mutex.unlock();
                       });
    add_trace_sink(shared_from_this());
    // LibTorch calls the two functions in pairs, on one thread.
    callbacks_.push_back(at::addGlobalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& op) -> std::unique_ptr<at::ObserverContext> {
              if (auto* const recorder = here()) recorder->begin_op(op);
              return nullptr;
            },
            [](const at::RecordFunction& op, at::ObserverContext* /*context*/) {
              if (auto* const recorder = here()) recorder->end_op(op);
            })
            .needsInputs(true)
            .needsOutputs(true)
            .scopes({at::RecordScope::FUNCTION})));
    callbacks_.push_back(at::addGlobalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& node) -> std::unique_ptr<at::ObserverContext> {
              if (auto* const recorder = here()) recorder->begin_node(node);
              return nullptr;
            },
            [](const at::RecordFunction& /*node*/, at::ObserverContext* /*context*/) {
              if (auto* const recorder = here()) recorder->end_node();
            })
            .scopes({at::RecordScope::BACKWARD_FUNCTION})));
  }

  void stop() {
    if (!take_open(this)) return;
    for (const at::CallbackHandle callback : callbacks_) at::removeCallback(callback);
    remove_trace_sink(*this);
    memory_->stop();
    close_threads();
    if (this_thread.session != number_) return;
    this_thread = {};
    this_thread_owner.recorder = nullptr;
  }

  /// The calling thread's recorder in the open session; null if no session is open.
  static ThreadRecorder* here() {
    const uint64_t open = open_number.load(std::memory_order_acquire);
    if (open == 0) return nullptr;
    return C10_LIKELY(this_thread.session == open) ? this_thread.recorder : find_here();
  }

  static void check_can_start() {
    AllocationListener::check_can_start("Recorder");
    const std::lock_guard<std::mutex> lock(open_mutex);
    check(open_session);
  }

  /// Writes and releases the recorder of a thread that has ended.
  static void end_thread(const std::shared_ptr<ThreadRecorder>& recorder) {
    const std::shared_ptr<Session> session = open_now();
    if (!session) return;
    recorder->close();
    const std::lock_guard<std::mutex> lock(session->threads_mutex_);
    std::erase(session->threads_, recorder);
  }

  std::string fault() const { return writer_->fault(); }
  const std::string& path() const { return path_; }

  void before_op(const TraceScope& scope, const OpCall& call) override {
    if (auto* const recorder = here()) recorder->before_op(scope, call);
  }
  void after_op(const TraceScope& scope, const OpCall& /*call*/) override {
    if (auto* const recorder = here()) recorder->after_op(scope);
  }
  void named_call(const TraceScope& /*before*/, const TraceScope& after, const NamedCall& call,
                  std::string_view what) override {
    auto* const recorder = here();
    if (recorder)
      recorder->call(after, call, what == "begins" ? CallStep::kBegins : CallStep::kLeftOut);
  }
  void call_ended(const TraceScope& scope, bool threw) override {
    if (auto* const recorder = here()) recorder->end_call(scope, threw);
  }
  void before_save(const TraceScope& scope, const at::Tensor& tensor) override {
    if (auto* const recorder = here()) recorder->before_save(scope, tensor);
  }
  void after_save(const TraceScope& scope, bool threw) override {
    if (auto* const recorder = here()) recorder->after_save(scope, threw);
  }
  void before_load(const Region& region, size_t slot) override {
    if (auto* const recorder = here()) recorder->load(region, slot);
  }
  void tape_replay(const Region& region, const Region& whole, bool begins) override {
    if (auto* const recorder = here()) recorder->tape_replay(region, whole, begins);
  }
  void function_replay(const Region& region, bool begins) override {
    auto* const recorder = here();
    if (recorder && recorder->replay(region, begins, /*from_function=*/true)) compare_replays();
  }
  void tape_record(const Tape& /*tape*/, size_t record, bool begins) override {
    if (auto* const recorder = here()) recorder->run_record(record, begins);
  }
  void replay_stops(const TraceScope& /*scope*/) override {
    if (auto* const recorder = here()) recorder->replay_stops();
  }

 private:
  /// Records the memory of the thread that made the recorder, and of that thread's backward passes.
  class Memory final : public AllocationListener {
    void on_report(void* address, int64_t bytes, c10::Device device) override {
      if (ThreadRecorder* const recorder = here()) recorder->memory(address, bytes, device);
    }
  };

  static ThreadRecorder* find_here() {
    if (this_thread.is_over) return nullptr;
    this_thread = {};
    const std::lock_guard<std::mutex> lock(open_mutex);
    if (!open_session) return nullptr;
    auto recorder = open_session->add_thread();
    this_thread = {.session = open_session->number_, .recorder = recorder.get()};
    this_thread_owner.recorder = std::move(recorder);
    return this_thread.recorder;
  }

  std::shared_ptr<ThreadRecorder> add_thread() {
    const std::lock_guard<std::mutex> lock(threads_mutex_);
    threads_.push_back(std::make_shared<ThreadRecorder>(writer_, thread_count_++, begin_ns_,
                                                        options_.source_lines));
    return threads_.back();
  }

  static void check(const std::shared_ptr<Session>& open) {
    TORCH_CHECK(!open,
                "[Recorder] expected no other Recorder in the process, got a second one. Stop the "
                "first, which writes ",
                open->path_, ".");
  }

  // Note [Recorders and forks]: a thread that the forked child does not have may hold a lock of the
  // session. So the child leaks the session without touching it, and has no open session.
  static void leave_to_parent() {
    open_number = 0;
    static auto& left = *new std::vector<std::shared_ptr<Session>>;
    if (open_session) left.push_back(std::move(open_session));
    open_session = nullptr;
  }

  /// Closes and returns the open session if it is `wanted` or `wanted` is null; else returns null.
  static std::shared_ptr<Session> take_open(const Session* wanted) {
    const std::lock_guard<std::mutex> lock(open_mutex);
    if (!open_session || (wanted && open_session.get() != wanted)) return nullptr;
    open_number = 0;
    return std::exchange(open_session, nullptr);
  }

  static std::shared_ptr<Session> open_now() {
    const std::lock_guard<std::mutex> lock(open_mutex);
    return open_session;
  }

  // Call it after a replay on this thread threw and was recorded. The exception is propagating, so
  // a failure here is only reported.
  void compare_replays() noexcept {
    if (options_.differences_path.empty()) return;
    try {
      const std::lock_guard<std::mutex> comparing(differences_mutex_);
      if (differences_left_-- <= 0) return;
      {
        const std::lock_guard<std::mutex> lock(threads_mutex_);
        for (const auto& thread : threads_) thread->flush();
      }
      std::ofstream file(options_.differences_path, std::ios::binary | std::ios::app);
      print_replay_differences(Recording::load(path_), file);
      file.close();
      TORCH_WARN("[Recorder] a replay has thrown: ", options_.differences_path,
                 file ? " says where it differs from its forward" : " cannot be written",
                 "; the recording is ", path_, ".");
    } catch (const std::exception& error) {
      TORCH_WARN("[Recorder] a replay has thrown, and cannot be compared: ", error.what());
    }
  }

  /// Called by exit(). at::removeCallback() needs LibTorch's thread-locals, which are gone by then,
  /// so the callbacks stay registered, and find no open session.
  static void end_with_process() {
    if (const auto session = take_open(nullptr)) session->close_threads();
  }

  void close_threads() {
    const std::lock_guard<std::mutex> lock(threads_mutex_);
    for (const auto& thread : threads_) thread->close();
  }

  /// Keeps the thread's recorder alive while `this_thread` refers to it.
  struct HereOwner {
    ~HereOwner() {
      this_thread = {.is_over = true};
      if (recorder) end_thread(recorder);
    }
    std::shared_ptr<ThreadRecorder> recorder;
  };

  static inline thread_local HereOwner this_thread_owner;
  static inline std::mutex open_mutex;
  static inline std::shared_ptr<Session> open_session;  // guarded by open_mutex
  static inline std::atomic<uint64_t> open_number{0};   // number of the open session; 0: none
  static inline std::atomic<uint64_t> newest_number{0};

  const std::string path_;
  const std::shared_ptr<RecordingWriter> writer_;
  const RecorderOptions options_;
  const TimeNs begin_ns_ = wall_ns();
  const uint64_t number_ = ++newest_number;
  std::shared_ptr<Memory> memory_;
  std::vector<at::CallbackHandle> callbacks_;
  std::mutex differences_mutex_;
  int differences_left_ = 3;  // comparisons still to be made; guarded by differences_mutex_
  std::mutex threads_mutex_;
  std::vector<std::shared_ptr<ThreadRecorder>> threads_;  // live threads; guarded by threads_mutex_
  uint32_t thread_count_ = 0;  // threads so far; guarded by threads_mutex_
};

Recorder::Recorder(const std::string& path, const RecorderOptions& options) {
  Session::check_can_start();  // before the file is overwritten
  session_ = std::make_shared<Session>(path, options);
  session_->start();
}

Recorder::~Recorder() {
  session_->stop();
}

void Recorder::mark(std::string_view name) {
  if (ThreadRecorder* const recorder = Session::here()) recorder->mark(name);
}

void Recorder::tell_plan(std::string_view label, const PlannedBytes& planned,
                         const std::function<std::string()>& json) {
  if (ThreadRecorder* const recorder = Session::here()) recorder->plan(label, planned, json);
}

const std::string& Recorder::path() const {
  return session_->path();
}

void Recorder::report(const std::string& page) {
  stop();
  try {
    write_report_file({path()}, page);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

void Recorder::stop() {
  session_->stop();
  const std::string fault = session_->fault();
  TORCH_CHECK(fault.empty(), fault);
}

}  // namespace remat
