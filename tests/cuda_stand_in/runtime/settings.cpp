// SPDX-License-Identifier: BSD-3-Clause

// Reads the stand-in's settings from the environment.
#include "settings.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace cuda_stand_in {
namespace {

const char* text_of(const char* name, const char* otherwise) {
  const char* const text = std::getenv((std::string("CUDA_STAND_IN_") + name).c_str());
  return text && *text ? text : otherwise;
}

double number_of(const char* name, double otherwise) {
  const char* const text = text_of(name, nullptr);
  if (!text) return otherwise;
  char* end = nullptr;
  const double number = std::strtod(text, &end);
  if (end != text && *end == '\0') return number;
  std::fprintf(stderr, "[cuda stand-in] CUDA_STAND_IN_%s: expected a number, got \"%s\".\n", name,
               text);
  std::exit(2);
}

/// Returns how many of `devices` CUDA_VISIBLE_DEVICES leaves visible.
int visible_of(int devices) {
  const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!text) return devices;
  const auto listed = *text ? 1 + std::count(text, text + std::strlen(text), ',') : 0;
  return std::min(devices, static_cast<int>(listed));
}

}  // namespace

Order order_named(const char* name) {
  constexpr const char* kNames[] = {"eager", "lazy", "side-lazy", "side-eager", "random"};
  const auto found = std::find_if(std::begin(kNames), std::end(kNames),
                                  [&](const char* known) { return !std::strcmp(known, name); });
  if (found != std::end(kNames)) return static_cast<Order>(found - std::begin(kNames));
  std::fprintf(stderr,
               "[cuda stand-in] order: expected eager, lazy, side-lazy, side-eager or random, got "
               "\"%s\".\n",
               name);
  std::exit(2);
}

Settings settings_of_environment() {
  return {
      .capacity_bytes = static_cast<size_t>(number_of("MB", 8192)) << 20,
      .devices = visible_of(std::clamp(static_cast<int>(number_of("DEVICES", 2)), 0, kMaxDevices)),
      .compute_capability = static_cast<int>(number_of("SM", 80)),
      .order = order_named(text_of("ORDER", "eager")),
      .seed = static_cast<unsigned>(number_of("SEED", 1)),
      .launch_ns = number_of("LAUNCH_NS", 2000),
      .thread_ns = number_of("THREAD_NS", 0.01),
      .flops_per_ns = number_of("TFLOPS", 50) * 1000,
      .link_bytes_per_ns = number_of("LINK_GBS", 25),
      .memory_bytes_per_ns = number_of("MEMORY_GBS", 1500),
      .queries_follow_clock = number_of("CLOCK", 0) != 0,
      .polls = std::max(1, static_cast<int>(number_of("POLLS", 100))),
      .poison = static_cast<int>(number_of("POISON", -1)),
      .log = number_of("LOG", 0) != 0,
  };
}

}  // namespace cuda_stand_in
