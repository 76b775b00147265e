// SPDX-License-Identifier: BSD-3-Clause

// JSON of offload terms. The limit no_limit is null in JSON.
#include "offload_json.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace remat::detail {

namespace {

using nlohmann::ordered_json;

constexpr int64_t no_limit = OffloadPlace::kNoLimit;

[[noreturn]] void refuse(const std::string& path, const std::string& expected,
                         const std::string& got, const std::string& advice) {
  throw std::invalid_argument("[memory plan] offload." + path + ": expected " + expected +
                              ", got " + got + ". " + advice);
}

void require_bytes(const std::string& path, int64_t bytes) {
  if (bytes < 0) refuse(path, "0 bytes or more", std::to_string(bytes), "Give bytes.");
}

void require_speed(const std::string& path, double gbps) {
  if (gbps > 0 && gbps <= 1e6) return;  // false for NaN
  refuse(path, "above 0, up to 1e6 GB/s", std::to_string(gbps),
         "OffloadEngine::terms() measures it.");
}

ordered_json limit_json(int64_t bytes) {
  return bytes == no_limit ? ordered_json(nullptr) : ordered_json(bytes);
}

int64_t read_limit(const JsonValue& value) {
  return value.is_null() ? no_limit : value.bytes();
}

OffloadPlace read_place(const JsonValue& value) {
  value.check_members({"name", "out_gbps", "in_gbps", "latency_us", "max_bytes", "block_bytes"},
                      {});
  return {.name = value.at("name").string(),
          .out_gbps = value.at("out_gbps").number(),
          .in_gbps = value.at("in_gbps").number(),
          .latency_us = value.at("latency_us").number(),
          .max_bytes = read_limit(value.at("max_bytes")),
          .block_bytes = value.at("block_bytes").bytes()};
}

}  // namespace

void check_terms(const OffloadTerms& terms) {
  if (terms.places.empty()) return;
  require_bytes("min_bytes", terms.min_bytes);
  require_bytes("max_bytes", terms.max_bytes);
  require_bytes("prefetch_bytes", terms.prefetch_bytes);
  require_bytes("max_leaving_bytes", terms.max_leaving_bytes);
  if (terms.max_leaving_bytes == no_limit) {
    refuse("max_leaving_bytes", "a limit", "none: the peak would depend on how fast copies are",
           "Make the engine with max_leaving_bytes, a few percent of the budget: it counts as "
           "memory, and prefetch_bytes too.");
  }
  if (terms.prefetch_bytes == no_limit) {
    refuse(
        "prefetch_bytes", "a limit", "none: all would come back at once",
        "Make the engine with prefetch_bytes, a few percent of the budget: it counts as memory.");
  }
  for (size_t i = 0; i < terms.places.size(); ++i) {
    const OffloadPlace& place = terms.places[i];
    const std::string path = "places[" + std::to_string(i) + "].";
    require_speed(path + "out_gbps", place.out_gbps);
    require_speed(path + "in_gbps", place.in_gbps);
    require_bytes(path + "max_bytes", place.max_bytes);
    if (place.block_bytes < 1)
      refuse(path + "block_bytes", "1 byte or more", std::to_string(place.block_bytes),
             "Give bytes.");
    if (place.latency_us >= 0 && place.latency_us <= 1e9) continue;
    refuse(path + "latency_us", "0 to 1e9 us", std::to_string(place.latency_us),
           "OffloadEngine::terms() measures it.");
  }
}

ordered_json to_json(const OffloadTerms& terms) {
  ordered_json places = ordered_json::array();
  for (const OffloadPlace& place : terms.places) {
    places.push_back({{"name", place.name},
                      {"out_gbps", place.out_gbps},
                      {"in_gbps", place.in_gbps},
                      {"latency_us", place.latency_us},
                      {"max_bytes", limit_json(place.max_bytes)},
                      {"block_bytes", place.block_bytes}});
  }
  return {{"min_bytes", terms.min_bytes},
          {"max_bytes", limit_json(terms.max_bytes)},
          {"prefetch_bytes", terms.prefetch_bytes},
          {"max_leaving_bytes", terms.max_leaving_bytes},
          {"places", std::move(places)}};
}

OffloadTerms read_terms(const JsonValue& value) {
  value.check_members({"min_bytes", "max_bytes", "prefetch_bytes", "max_leaving_bytes", "places"},
                      {});
  OffloadTerms terms;
  terms.min_bytes = value.at("min_bytes").bytes();
  terms.max_bytes = read_limit(value.at("max_bytes"));
  terms.prefetch_bytes = value.at("prefetch_bytes").bytes();
  terms.max_leaving_bytes = value.at("max_leaving_bytes").bytes();
  for (const JsonValue& place : value.at("places").items())
    terms.places.push_back(read_place(place));
  if (terms.places.empty()) value.at("places").fail("one or more", "none");
  try {
    check_terms(terms);
  } catch (const std::invalid_argument& error) {
    value.fail("terms of an engine", error.what());
  }
  return terms;
}

}  // namespace remat::detail
