// SPDX-License-Identifier: BSD-3-Clause

// Reading and setting the settings that decide how LibTorch computes.
#include <remat/engine/thread_state.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#if defined(__SSE3__) || defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include <remat/engine/blocking_wait.h>

namespace remat {
namespace {

/// True if this thread's floating-point unit flushes denormal numbers to zero; checked on x86 only.
bool flushes_denormals() {
#if defined(__SSE3__) || defined(__x86_64__)
  constexpr unsigned kFlushToZero = 0x8000;
  return (_mm_getcsr() & kFlushToZero) != 0;
#else
  return false;
#endif
}

using Getter = bool (at::Context::*)() const;
using Setter = void (at::Context::*)(bool);

constexpr std::pair<Getter, Setter> kFlags[] = {
    {&at::Context::deterministicFillUninitializedMemory,
     &at::Context::setDeterministicFillUninitializedMemory},
    {&at::Context::deterministicCuDNN, &at::Context::setDeterministicCuDNN},
    {&at::Context::benchmarkCuDNN, &at::Context::setBenchmarkCuDNN},
    {&at::Context::deterministicMkldnn, &at::Context::setDeterministicMkldnn},
    {&at::Context::userEnabledMkldnn, &at::Context::setUserEnabledMkldnn},
    {&at::Context::userEnabledCuDNN, &at::Context::setUserEnabledCuDNN},
    {&at::Context::userEnabledNNPACK, &at::Context::setUserEnabledNNPACK},
    {&at::Context::userEnabledFlashSDP, &at::Context::setSDPUseFlash},
    {&at::Context::userEnabledMemEfficientSDP, &at::Context::setSDPUseMemEfficient},
    {&at::Context::userEnabledMathSDP, &at::Context::setSDPUseMath},
    {&at::Context::userEnabledCuDNNSDP, &at::Context::setSDPUseCuDNN},
};
// setDeterministicAlgorithms() takes two arguments, so its two flags have bits of their own.
constexpr uint32_t kDeterministicBit = 1U << std::size(kFlags);
constexpr uint32_t kWarnOnlyBit = kDeterministicBit << 1U;

uint32_t read_flags() {
  const at::Context& context = at::globalContext();
  uint32_t flags = 0;
  for (const auto i : c10::irange(std::size(kFlags))) {
    if ((context.*kFlags[i].first)()) flags |= 1U << i;
  }
  if (context.deterministicAlgorithms()) flags |= kDeterministicBit;
  if (context.deterministicAlgorithmsWarnOnly()) flags |= kWarnOnlyBit;
  return flags;
}

void write_flags(uint32_t flags) {
  const uint32_t differ = flags ^ read_flags();
  if (differ == 0) return;
  at::Context& context = at::globalContext();
  for (const auto i : c10::irange(std::size(kFlags))) {
    if (differ & (1U << i)) (context.*kFlags[i].second)(flags & (1U << i));
  }
  if (differ & (kDeterministicBit | kWarnOnlyBit)) {
    context.setDeterministicAlgorithms(flags & kDeterministicBit, flags & kWarnOnlyBit);
  }
}

/// Returns `word` with the float32 precisions of a library's matrix products, convolutions and
/// recurrent networks appended.
uint32_t with_precision_of(at::Float32Backend library, uint32_t word) {
  for (const at::Float32Op op : {at::Float32Op::MATMUL, at::Float32Op::CONV, at::Float32Op::RNN}) {
    word = word << 2U | static_cast<uint32_t>(at::globalContext().float32Precision(library, op));
  }
  return word;
}

/// The float32 precision in CUDA and MKL-DNN, cuBLAS's reduced-precision settings, and the
/// preferred libraries of a device.
uint32_t read_precision() {
  at::Context& context = at::globalContext();
  uint32_t word = context.allowFP16AccumulationCuBLAS() ? 1 : 0;
  const auto add = [&word](auto value) { word = word << 2U | static_cast<uint32_t>(value); };
  word = with_precision_of(at::Float32Backend::CUDA, word);
  add(context.allowFP16ReductionCuBLAS());
  add(context.allowBF16ReductionCuBLAS());
  add(context.blasPreferredBackend());
  add(context.linalgPreferredBackend());
  return with_precision_of(at::Float32Backend::MKLDNN, word);
}

/// The lowest bits of read_precision(): those that read_mkldnn_precision() reads.
constexpr uint32_t kMkldnnBits = 0x3F;
uint32_t read_mkldnn_precision() {
  return with_precision_of(at::Float32Backend::MKLDNN, 0);
}

/// The settings that all ops depend on.
uint64_t read_always() {
  const auto dtype = static_cast<uint64_t>(c10::get_default_dtype_as_scalartype());
  return dtype << 56U | (at::globalContext().userEnabledMkldnn() ? 2 : 0) |
         (flushes_denormals() ? 1 : 0);
}

// The process's settings now, and before the first running replay. Guarded by process_mutex().
size_t users = 0;  // Replays running in all threads.
ProcessSettings settings_now;
ProcessSettings settings_before;
thread_local size_t held = 0;  // Replays running on this thread.

// Leaked: replays may run in threads that outlive static destruction.
std::mutex& process_mutex() {
  static std::mutex& instance = *new std::mutex;
  return instance;
}
std::condition_variable& process_changed() {
  static std::condition_variable& instance = *new std::condition_variable;
  return instance;
}

ProcessSettings read_process() {
  return {c10::get_default_dtype(), read_flags()};
}

/// Reads the present settings first: a function that changes them may not have set them back,
/// because an early stop ended its replay.
void write_process(const ProcessSettings& wanted) {
  settings_now = read_process();
  if (settings_now == wanted) return;
  if (settings_now.default_dtype != wanted.default_dtype)
    c10::set_default_dtype(wanted.default_dtype);
  write_flags(wanted.flags);
  settings_now = wanted;
}

bool may_begin(const ProcessSettings& wanted) {
  return users == 0 || settings_now == wanted;
}

ProcessSettings begin_locked(const ProcessSettings& wanted) {
  settings_now = read_process();
  if (users == 0) settings_before = settings_now;
  const ProcessSettings outer = settings_now;
  ++users;
  ++held;
  write_process(wanted);
  return outer;
}

/// Sets `wanted`, and returns the settings to pass to end_process(). A thread's outermost replay
/// waits while other threads' replays use other settings.
ProcessSettings begin_process(const ProcessSettings& wanted) {
  {
    const std::lock_guard<std::mutex> lock(process_mutex());
    if (held > 0 || may_begin(wanted)) return begin_locked(wanted);
  }
  ProcessSettings outer;
  blocking_wait([&] {
    std::unique_lock<std::mutex> lock(process_mutex());
    process_changed().wait(lock, [&] { return may_begin(wanted); });
    outer = begin_locked(wanted);
  });
  return outer;
}

void end_process(const ProcessSettings& outer) {
  {
    const std::lock_guard<std::mutex> lock(process_mutex());
    --users;
    // The outermost replay of a thread leaves the settings to other threads' replays, if there are
    // any.
    if (--held > 0 || users == 0) write_process(held > 0 ? outer : settings_before);
  }
  process_changed().notify_all();
}

}  // namespace

ComputeSettings::ComputeSettings()
    : always_(read_always()),
      threads_(static_cast<uint32_t>(at::get_num_threads())),
      flags_(read_flags()),
      precision_(read_precision()) {}

uint64_t ComputeSettings::changed(const OpCall& call) const {
  const Kind kind = kind_of(call);
  const uint64_t always = read_always() ^ always_;
  if (kind == Kind::kPointwise) return always;
  uint64_t precision = 0;
  if (kind == Kind::kProduct) precision = read_precision() ^ precision_;
  if (kind == Kind::kCpuProduct) precision = (read_mkldnn_precision() ^ precision_) & kMkldnnBits;
  const uint64_t threads = static_cast<uint32_t>(at::get_num_threads()) ^ threads_;
  return ((threads << 21U ^ precision) << 16U ^ (read_flags() ^ flags_)) << 2U ^ always;
}

ComputeSettings::Kind ComputeSettings::kind_of(const OpCall& call) {
  if (call.info().is_pointwise()) return Kind::kPointwise;
  if (!call.info().may_multiply_matrices()) return Kind::kOther;
  const c10::ArrayRef<OpTensor> tensors = call.tensors();
  const bool is_on_cpu = std::all_of(tensors.begin(), tensors.end(),
                                     [](const OpTensor& one) { return one.tensor->is_cpu(); });
  return is_on_cpu ? Kind::kCpuProduct : Kind::kProduct;
}

ThreadState ThreadState::read() {
  ThreadState state = read_thread();
  state.precision_ = read_precision();
  state.process_ = read_process();
  return state;
}

ThreadState ThreadState::read_thread() {
  static_assert(kAutocastDevices ==
                std::tuple_size_v<decltype(at::autocast::_AUTOCAST_SUPPORTED_DEVICES)>);
  ThreadState state;
  for (const auto i : c10::irange(kAutocastDevices)) {
    const at::DeviceType device = at::autocast::_AUTOCAST_SUPPORTED_DEVICES[i];
    if (at::autocast::is_autocast_enabled(device)) state.autocast_enabled_ |= 1U << i;
    state.autocast_dtype_[i] = at::autocast::get_autocast_dtype(device);
  }
  state.autocast_cache_ = at::autocast::is_autocast_cache_enabled();
  state.forward_ad_ = c10::AutogradState::get_tls_state().get_fw_grad_mode();
  state.flushes_denormals_ = flushes_denormals();
  state.threads_ = at::get_num_threads();
  return state;
}

void ThreadState::check_precision(const std::string& region_label) const {
  TORCH_CHECK(precision_ == read_precision(), "[replay] ", region_label,
              ": expected the precision of matrix products, convolutions and recurrent networks as "
              "in the forward, got another one (set_float32_matmul_precision, fp32_precision, "
              "allow_tf32, allow_fp16_reduced_precision_reduction, preferred_blas_library, "
              "preferred_linalg_library). Set it before the forward, or "
              "after backward.");
}

void ThreadState::restore_thread() const {
  for (const auto i : c10::irange(kAutocastDevices)) {
    const at::DeviceType device = at::autocast::_AUTOCAST_SUPPORTED_DEVICES[i];
    const bool enabled = (autocast_enabled_ & (1U << i)) != 0;
    if (at::autocast::is_autocast_enabled(device) != enabled) {
      at::autocast::set_autocast_enabled(device, enabled);
    }
    if (at::autocast::get_autocast_dtype(device) != autocast_dtype_[i]) {
      at::autocast::set_autocast_dtype(device, autocast_dtype_[i]);
    }
  }
  at::autocast::set_autocast_cache_enabled(autocast_cache_);
  c10::AutogradState::get_tls_state().set_fw_grad_mode(forward_ad_);
  if (flushes_denormals() != flushes_denormals_)
    at::globalContext().setFlushDenormal(flushes_denormals_);
  // Sums are split among threads, so their rounding depends on the number of threads.
  if (at::get_num_threads() != threads_) at::set_num_threads(threads_);
}

ReplayThreadState::ReplayThreadState(const ThreadState& state, bool casts_weights)
    : outer_(begin_process(state.process_)), present_(ThreadState::read_thread()) {
  state.restore_thread();
  // Only if needed, because a changed flag makes a compiled function compile again.
  if (casts_weights) at::autocast::set_autocast_cache_enabled(false);
}

ReplayThreadState::~ReplayThreadState() {
  present_.restore_thread();
  end_process(outer_);
}

}  // namespace remat
