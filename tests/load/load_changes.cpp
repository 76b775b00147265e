// SPDX-License-Identifier: BSD-3-Clause

// load_changes LIBRARY ... REMAT_LIBRARY: loads libraries and compares the process before and
// after. Loading may change nothing; the first region, which REMAT_LIBRARY runs, must.
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/VariableHooksInterface.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <dlfcn.h>
#include <torch/csrc/autograd/engine.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <string>

namespace {

using Facts = std::map<std::string, std::string>;

template <class T>
std::string address(const T* object) {
  return std::to_string(reinterpret_cast<uintptr_t>(object));
}

size_t count_files(const std::filesystem::path& folder) {
  const std::filesystem::directory_iterator files(folder);
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

std::string environment() {
  std::string all;
  for (char** variable = environ; *variable; ++variable) all.append(*variable).append("\n");
  return all;
}

std::string signal_handlers() {
  std::string all;
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    sigset_t blocked = {};
    if (sigaction(number, nullptr, &action) != 0) continue;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    all += address(reinterpret_cast<const void*>(action.sa_handler)) +
           (sigismember(&blocked, number) ? " blocked, " : ", ");
  }
  return all;
}

void add_dispatcher(Facts& facts) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  std::string names;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) names += toString(name) + "\n";
  facts["names of ops"] = names;
  for (const auto& [name, overload] : {std::pair("aten::add", "Tensor"),
                                       {"aten::mm", ""},
                                       {"aten::empty", "memory_format"},
                                       {"aten::linear", ""}}) {
    const auto op = dispatcher.findSchemaOrThrow(name, overload);
    facts[std::string("kernels of ") + name] = op.dumpState() + op.dumpComputedTable();
  }
}

void add_thread(Facts& facts) {
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  facts["dispatch keys of the thread"] = toString(keys.included_) + toString(keys.excluded_);
  const auto& hooks = at::SavedTensorDefaultHooks::get_tls_state();
  facts["saved-tensor hooks of the thread"] = std::to_string(hooks.stack.size());
  facts["debug info of the thread"] = address(c10::ThreadLocalDebugInfo::current().get());
}

Facts look(const std::filesystem::path& folder) {
  Facts facts;
  add_dispatcher(facts);
  add_thread(facts);
  facts["table of hooks"] = address(at::impl::GetVariableHooks());
  facts["engine"] = address(&torch::autograd::Engine::get_default_engine());
  facts["name of PrivateUse1"] = c10::get_privateuse1_backend(/*lower_case=*/false);
  facts["PrivateUse1 is taken"] = std::to_string(c10::is_privateuse1_backend_registered());
  facts["observers of all ops"] = std::to_string(at::hasGlobalCallbacks());
  facts["warning handler"] = address(c10::WarningUtils::get_warning_handler());
  facts["environment"] = environment();
  facts["signal handlers"] = signal_handlers();
  facts["threads"] = std::to_string(count_files("/proc/self/task"));
  facts["files of recordings"] = std::to_string(count_files(folder));
  facts["current folder"] = std::filesystem::current_path().string();
  return facts;
}

/// Prints the facts that differ. Returns their number.
int differences(const char* where, const Facts& before, const Facts& after) {
  int count = 0;
  for (const auto& [name, fact] : before) {
    if (after.at(name) == fact) continue;
    std::printf("%s: %s: %.2000s\n  became: %.2000s\n", where, name.c_str(), fact.c_str(),
                after.at(name).c_str());
    ++count;
  }
  return count;
}

void* load(const char* library) {
  void* const loaded = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  if (!loaded) {
    std::printf("%s\n", dlerror());
    std::exit(2);
  }
  return loaded;
}

/// Returns the number of facts that the first region leaves as they were, though it must not.
int unchanged_by_first_region(void* remat, const std::filesystem::path& folder,
                              const Facts& before) {
  reinterpret_cast<void (*)()>(dlsym(remat, "run_first_region"))();
  const Facts after = look(folder);
  int count = 0;
  for (const char* const name : {"engine", "table of hooks", "kernels of aten::add",
                                 "files of recordings", "observers of all ops"}) {
    if (after.at(name) != before.at(name)) continue;
    std::printf("the first region: expected it to change: %s\n", name);
    ++count;
  }
  return count;
}

}  // namespace

int main(int count, char** arguments) {
  char name[] = "/tmp/remat_load_XXXXXX";
  const std::filesystem::path folder = mkdtemp(name);
  setenv("REMAT_RECORD", folder.c_str(), 1);
  setenv("REMAT_DEBUG", "1", 1);
  const Facts before = look(folder);
  int faults = 0;
  void* last = nullptr;
  for (int i = 1; i < count; ++i) {
    last = load(arguments[i]);
    faults += differences(arguments[i], before, look(folder));
  }
  faults += unchanged_by_first_region(last, folder, before);
  std::filesystem::remove_all(folder);
  return faults == 0 ? 0 : 1;
}
