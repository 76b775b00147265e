// SPDX-License-Identifier: BSD-3-Clause

#include "plan_file.h"

#include <c10/util/Exception.h>
#include <torch/headeronly/version.h>

#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <sstream>
#include <utility>

#include <remat/planner/digest.h>
#include <remat/planner/memory_plan_file.h>
#include <remat/planner/memory_planner.h>

#include "messages.h"

namespace remat {

namespace {

/// The terms to compare with those in a file: without speeds, because each process measures those.
OffloadTerms without_speeds(OffloadTerms terms) {
  for (OffloadPlace& place : terms.places) place.out_gbps = place.in_gbps = place.latency_us = 0;
  return terms;
}

std::map<std::string, std::string> fields_of(const StepSignature& signature) {
  std::string sizes;
  for (const int64_t size : signature.sizes) sizes += std::to_string(size) + " ";
  return {{"arguments", detail::hex_text(signature.kind)}, {"sizes", sizes}};
}

StepSignature signature_from(const std::map<std::string, std::string>& fields) {
  StepSignature signature;
  std::istringstream kind(fields.at("arguments"));
  kind >> std::hex >> signature.kind;
  std::istringstream sizes(fields.at("sizes"));
  for (int64_t size = 0; sizes >> size;) signature.sizes.push_back(size);
  return signature;
}

}  // namespace

PlanFile::PlanFile(std::string path, std::string name)
    : path_(std::move(path)), name_(std::move(name)) {
  if (path_.empty()) return;
  if (!exists()) {
    check_writable();
    return;
  }
  TORCH_CHECK_VALUE(std::filesystem::is_regular_file(path_), prefix(),
                    ": expected a file, got a folder or a device. Give the path of a file.");
}

/// For example "[auto_checkpoint] 'model': plan file plan.json".
std::string PlanFile::prefix() const {
  return message_prefix(name_) + "plan file " + path_;
}

bool PlanFile::exists() const {
  return !path_.empty() && std::filesystem::exists(path_);
}

/// Called before any step, since otherwise the error would come after several measured steps.
void PlanFile::check_writable() const {
  const std::filesystem::path folder = std::filesystem::absolute(path_).parent_path();
  TORCH_CHECK_VALUE(::access(folder.c_str(), W_OK) == 0, prefix(),
                    ": expected a file that can be written, got a folder ", folder.string(),
                    " that is not there, or not yours. Give a path in another folder.");
}

std::shared_ptr<StepVariant> PlanFile::load(const MemoryBudget& budget,
                                            const OffloadTerms& offload) const {
  MemoryPlanFile file = MemoryPlanFile::load(path_);
  const auto made_with = [&](const char* key) { return file.made_with[key]; };
  TORCH_CHECK_VALUE(
      !file.made_with.empty(), prefix(),
      ": expected one that auto_checkpoint() has saved, got a plan saved by hand. Give "
      "that to checkpoint(), as its plan, or give another path.");
  TORCH_CHECK_VALUE(made_with("torch") == TORCH_VERSION, prefix(), ": expected one of torch ",
                    TORCH_VERSION, ", got ", made_with("torch"),
                    ". Delete the file, or give another path.");
  StepSignature signature = signature_from(file.made_with);
  TORCH_CHECK_VALUE(file.plan.offload.places.empty() || !offload.places.empty(), prefix(),
                    ": expected a plan that moves nothing, as auto_checkpoint() has no store, got "
                    "one for a store. Give auto_checkpoint() one as offload, delete the file, or "
                    "give another path.");
  const bool is_for_this = made_with("memory_budget") == budget.text() &&
                           without_speeds(file.plan.offload) == without_speeds(offload);
  if (!is_for_this) {
    const MemoryPlanner planner(*file.plan.profile, {.offload = offload});
    file.plan = planner.plan(budget.bytes(planner, std::stoll("0" + made_with("static_bytes"))));
    TORCH_CHECK_VALUE(file.plan.feasible, limit_message(name_, file.plan, budget.text()));
  }
  return std::make_shared<StepVariant>(std::move(signature), std::move(file.plan));
}

std::string PlanFile::save(const StepVariant& variant, const MemoryBudget& budget) const {
  if (path_.empty()) return "";
  MemoryPlanFile file;
  file.made_with = fields_of(variant.signature());
  file.made_with["torch"] = TORCH_VERSION;
  file.made_with["memory_budget"] = budget.text();
  file.made_with["static_bytes"] = std::to_string(variant.static_bytes());
  file.plan = *variant.plan();
  try {
    file.save(path_);
    return "";
  } catch (const std::exception& error) {
    return std::string("the plan is not saved: ") + error.what();
  }
}

std::string PlanFile::other_step_warning() const {
  return "plan file " + path_ +
         ": expected the arguments that its plan was made for in the first step, got others, which "
         "are measured; the plan waits for its own. If it is another model's, delete the file, or "
         "give another path";
}

void PlanFile::refuse(const TapeDifference& difference) const {
  TORCH_CHECK_VALUE(false, prefix(),
                    ": expected a plan for this step, got one for another: ", difference.str(),
                    ". Delete the file, or give another path.");
  std::abort();
}

}  // namespace remat
