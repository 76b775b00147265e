// SPDX-License-Identifier: BSD-3-Clause

// JSON of step profiles: values and slots are rows of numbers, records and nodes are objects.
#include <remat/planner/step_profile.h>

#include "json_rows.h"
#include "step_check.h"

namespace remat {

namespace {

using detail::JsonValue;
using nlohmann::ordered_json;

ordered_json record_json(const StepRecord& record) {
  ordered_json writes = ordered_json::array();
  for (const StepWrite& write : record.writes) writes.push_back({write.before, write.after});
  ordered_json json = {{"op", record.op},
                       {"where", record.where},
                       {"kind", detail::hex_text(record.kind)},
                       {"forward_us", record.forward_us},
                       {"replay_us", record.replay_us},
                       {"backward_us", record.backward_us},
                       {"workspace_bytes", record.workspace_bytes},
                       {"forward_bytes", record.forward_bytes},
                       {"reads_data", record.reads_data},
                       {"reads", record.reads},
                       {"makes", record.makes},
                       {"writes", std::move(writes)}};
  if (record.copied_bytes > 0) json["copied_bytes"] = record.copied_bytes;
  return json;
}

ordered_json node_json(const StepNode& node) {
  return {{"name", node.name},
          {"record", node.record},
          {"us", node.us},
          {"before_bytes", node.before_bytes},
          {"inside_bytes", node.inside_bytes},
          {"after_bytes", node.after_bytes}};
}

StepValue read_value(const JsonValue& value) {
  const std::vector<JsonValue> row = value.row(6);
  return {row[0].int32(-1), row[1].int32(),   row[2].integer(),
          row[3].int32(),   row[4].int32(-1), row[5].integer()};
}

StepSlot read_slot(const JsonValue& value) {
  const std::vector<JsonValue> row = value.row(3);
  return {row[0].int32(-1), row[1].int32(), row[2].int32(StepSlot::kDropped)};
}

StepRecord read_record(const JsonValue& value) {
  value.check_members(
      {"op", "where", "kind", "forward_us", "replay_us", "backward_us", "workspace_bytes",
       "forward_bytes", "reads_data", "reads", "makes", "writes"},
      {"copied_bytes"});
  StepRecord record;
  record.op = value.at("op").string();
  record.where = value.at("where").string();
  record.kind = detail::read_hex(value.at("kind"));
  record.forward_us = value.at("forward_us").number();
  record.replay_us = value.at("replay_us").number();
  record.backward_us = value.at("backward_us").number();
  record.workspace_bytes = value.at("workspace_bytes").integer();
  record.forward_bytes = value.at("forward_bytes").integer();
  if (value.has("copied_bytes")) record.copied_bytes = value.at("copied_bytes").integer();
  record.reads_data = value.at("reads_data").boolean();
  record.reads = value.at("reads").ints();
  record.makes = value.at("makes").ints();
  for (const JsonValue& write : value.at("writes").items()) {
    const std::vector<JsonValue> pair = write.row(2);
    record.writes.push_back({pair[0].int32(), pair[1].int32()});
  }
  return record;
}

StepNode read_node(const JsonValue& value) {
  value.check_members({"name", "record", "us", "before_bytes", "inside_bytes", "after_bytes"}, {});
  StepNode node;
  node.name = value.at("name").string();
  node.record = value.at("record").int32();
  node.us = value.at("us").number();
  node.before_bytes = value.at("before_bytes").integer();
  node.inside_bytes = value.at("inside_bytes").integer();
  node.after_bytes = value.at("after_bytes").integer();
  return node;
}

}  // namespace

std::string StepProfile::to_json() const {
  std::vector<ordered_json> value_rows;
  std::vector<ordered_json> record_rows;
  std::vector<ordered_json> slot_rows;
  std::vector<ordered_json> node_rows;
  for (const StepValue& value : values)
    value_rows.push_back({value.maker, value.storage, value.bytes, value.held_until, value.released,
                          value.unpacked_bytes});
  for (const StepRecord& record : records) record_rows.push_back(record_json(record));
  for (const StepSlot& slot : slots) slot_rows.push_back({slot.value, slot.record, slot.node});
  for (const StepNode& node : nodes) node_rows.push_back(node_json(node));
  detail::JsonRows json;
  json.add("name", name);
  json.add("end_bytes", end_bytes);
  json.add("gap_bytes", gap_bytes);
  json.add("plain_peak_bytes", plain_peak_bytes);
  json.add("other_us", other_us);
  if (!device.empty()) json.add("device", device);
  if (!other_devices.empty()) json.add("other_devices", other_devices);
  json.add_rows("values", value_rows);
  json.add_rows("records", record_rows);
  json.add_rows("slots", slot_rows);
  json.add_rows("nodes", node_rows);
  return json.take();
}

StepProfile StepProfile::from_json(std::string_view text, const std::string& source) {
  const detail::JsonNode root = detail::parse_json(text, "memory plan", source);
  return detail::read_step_profile(detail::memory_plan_value(root, source));
}

void StepProfile::save(const std::string& path) const {
  detail::write_text_file(path, to_json());
}

StepProfile StepProfile::load(const std::string& path) {
  return from_json(detail::read_text_file(path), path);
}

StepProfile detail::read_step_profile(const JsonValue& value) {
  value.check_members({"name", "end_bytes", "gap_bytes", "plain_peak_bytes", "other_us", "values",
                       "records", "slots", "nodes"},
                      {"device", "other_devices"});
  StepProfile profile;
  profile.name = value.at("name").string();
  profile.end_bytes = value.at("end_bytes").integer();
  profile.gap_bytes = value.at("gap_bytes").integer();
  profile.plain_peak_bytes = value.at("plain_peak_bytes").integer();
  profile.other_us = value.at("other_us").number();
  if (value.has("device")) profile.device = value.at("device").string();
  if (value.has("other_devices")) profile.other_devices = value.at("other_devices").string();
  for (const JsonValue& row : value.at("values").items()) profile.values.push_back(read_value(row));
  for (const JsonValue& row : value.at("records").items())
    profile.records.push_back(read_record(row));
  for (const JsonValue& row : value.at("slots").items()) profile.slots.push_back(read_slot(row));
  for (const JsonValue& row : value.at("nodes").items()) profile.nodes.push_back(read_node(row));
  detail::raise_faults("memory plan", value.source(), &value.node(),
                       [&] { detail::check_profile(profile); });
  return profile;
}

}  // namespace remat
