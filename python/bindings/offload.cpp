// SPDX-License-Identifier: BSD-3-Clause

// C++ stores for Python: host_memory_store(), and the engine behind offload().
#include "bindings.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <remat/engine/offload_store.h>
#include <remat/offload/disk_memory.h>
#include <remat/offload/mask_store.h>
#include <remat/offload/offload_engine.h>
#include <remat/offload/rounding_store.h>
#include <remat/offload/sim_link.h>

namespace remat::python {
namespace {

using namespace py::literals;

template <class Call>
auto without_gil(const Call& call) {
  const py::gil_scoped_release released;
  return call();
}

/// Kind ("host" or "disk"), byte limit, and for a disk the folder and whether to verify checksums.
using Memory = std::tuple<std::string, std::optional<int64_t>, std::string, bool>;

std::shared_ptr<OffloadMemory> make_memory(const Memory& memory,
                                           const std::shared_ptr<CopyLink>& link) {
  const auto& [kind, max_bytes, directory, checksums] = memory;
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  if (kind == "host") return host_memory({.max_bytes = max_bytes.value_or(kNoLimit), .link = link});
  return disk_memory({.directory = directory,
                      .max_bytes = max_bytes.value_or(kNoLimit),
                      .checksums = checksums,
                      .link = link});
}

std::shared_ptr<OffloadEngine> make_engine(const std::vector<Memory>& memories, int64_t min_bytes,
                                           std::optional<int64_t> max_bytes, int64_t prefetch_bytes,
                                           std::optional<int64_t> max_leaving_bytes,
                                           std::optional<c10::Device> device, bool raises,
                                           std::optional<std::pair<double, double>> speed) {
  OffloadOptions options;
  const std::shared_ptr<CopyLink> link =
      speed ? sim_link({.gbps = speed->first, .latency_us = speed->second}) : copy_link();
  for (const Memory& memory : memories) options.memories.push_back(make_memory(memory, link));
  options.min_bytes = min_bytes;
  if (max_bytes) options.max_bytes = *max_bytes;
  options.prefetch_bytes = prefetch_bytes;
  if (max_leaving_bytes) options.max_leaving_bytes = *max_leaving_bytes;
  options.device = device;
  options.when_full = raises ? WhenFull::kRaise : WhenFull::kKeep;
  return offload_engine(std::move(options));
}

py::dict stats_of(const OffloadEngine& engine) {
  const OffloadStats stats = engine.stats();
  return py::dict("left_bytes"_a = stats.left_bytes, "left_count"_a = stats.left_count,
                  "fetched_bytes"_a = stats.fetched_bytes, "fetched_count"_a = stats.fetched_count,
                  "prefetched_count"_a = stats.prefetched_count,
                  "unused_count"_a = stats.unused_count, "stayed_count"_a = stats.stayed_count,
                  "full_count"_a = stats.full_count, "waited_us"_a = stats.waited_us,
                  "away_bytes"_a = stats.away_bytes, "leaving_bytes"_a = stats.leaving_bytes,
                  "device_bytes"_a = stats.device_bytes);
}

py::dict rounding_stats_of(const RoundingStore& store) {
  const RoundingStats stats = without_gil([&] { return store.stats(); });
  return py::dict("count"_a = stats.count, "tensor_bytes"_a = stats.tensor_bytes,
                  "rounded_bytes"_a = stats.rounded_bytes, "max_error"_a = stats.max_error,
                  "max_relative_error"_a = stats.max_relative_error);
}

py::dict mask_stats_of(const MaskStore& store) {
  const MaskStats stats = store.stats();
  return py::dict("count"_a = stats.count, "mask_bytes"_a = stats.mask_bytes,
                  "packed_bytes"_a = stats.packed_bytes);
}

py::object limit(int64_t bytes) {
  if (bytes == OffloadPlace::kNoLimit) return py::none();
  return py::int_(bytes);
}

py::dict terms_of(OffloadEngine& engine, const py::object& given) {
  std::optional<c10::Device> device;
  if (!given.is_none())
    device = py::module_::import("torch").attr("device")(given).cast<c10::Device>();
  const OffloadTerms terms = without_gil([&] { return engine.terms(device); });
  py::list places;
  for (const OffloadPlace& place : terms.places)
    places.append(py::dict("name"_a = place.name, "out_gbps"_a = place.out_gbps,
                           "in_gbps"_a = place.in_gbps, "latency_us"_a = place.latency_us,
                           "max_bytes"_a = limit(place.max_bytes),
                           "block_bytes"_a = place.block_bytes));
  return py::dict("places"_a = places, "min_bytes"_a = terms.min_bytes,
                  "max_bytes"_a = limit(terms.max_bytes), "prefetch_bytes"_a = terms.prefetch_bytes,
                  "max_leaving_bytes"_a = limit(terms.max_leaving_bytes));
}

}  // namespace

void add_offload(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module>(module);
  py::class_<OffloadStore, std::shared_ptr<OffloadStore>>(
      m, "CppOffloadStore",
      "A store implemented in C++, from host_memory_store() or offload(). A copy of a function "
      "shares its store.")
      .def("__copy__", [](py::object self) { return self; })
      .def("__reduce_ex__",
           [](const py::object& /*self*/, int /*protocol*/) -> py::object {
             throw py::type_error(
                 "[offload] expected what stays in its process, got a store to pickle: what it "
                 "keeps is here. Pickle a model's state_dict, or make a store in the other "
                 "process.");
           })
      .def("__deepcopy__", [](py::object self, const py::dict& /*memo*/) { return self; });
  py::class_<OffloadEngine, OffloadStore, std::shared_ptr<OffloadEngine>>(
      m, "OffloadEngine", "The result of offload().")
      .def("stats", stats_of,
           "Counts since construction: storages that left, came back, were fetched ahead, stayed; "
           "and those that are away now. Bytes are those of storages, waited_us the time that "
           "threads waited for copies.")
      .def("terms", torch::wrap_pybind_function(terms_of), py::arg("device") = py::none(),
           "The numbers that a MemoryPlanner uses: the limits, and for each memory the speed in "
           "each direction, which the first call for a device measures. The default device is "
           "the store's own, else the current accelerator, else the CPU.");
  py::class_<MaskStore, OffloadStore, std::shared_ptr<MaskStore>>(m, "MaskStore",
                                                                  "The result of mask_store().")
      .def("stats", mask_stats_of,
           "Counts since construction: masks, their bytes as tensors, and their bytes as bits.");
  py::class_<RoundingStore, OffloadStore, std::shared_ptr<RoundingStore>>(
      m, "RoundingStore", "The result of rounding_store().")
      .def("stats", torch::wrap_pybind_function(rounding_stats_of),
           "Counts since construction: tensors, their bytes before and after rounding, and the "
           "errors.");
  m.def("_rounding_store", torch::wrap_pybind_function(rounding_store));
  m.def("_mask_store", torch::wrap_pybind_function(mask_store));
  m.def("host_memory_store", torch::wrap_pybind_function(host_memory_store),
        "A store for OFFLOAD calls and rules that copies to host memory and back, and waits for "
        "both copies.");
  m.def("_offload_engine", torch::wrap_pybind_function(make_engine));
}

}  // namespace remat::python
