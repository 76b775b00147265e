// SPDX-License-Identifier: BSD-3-Clause

// Code that the printers of all languages share.
#include "fuzz/printer.h"

#include <algorithm>
#include <cctype>

#include "fuzz/device.h"

namespace remat::fuzz {
namespace {

bool is_letter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
}

/// Calls `visit(word, is_name)` for each piece of `text`; members and quoted words are not names.
template <class Visitor>
void visit_words(std::string_view text, Visitor&& visit) {
  bool quoted = false;
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i++;
    if (is_letter(text[begin])) {
      while (i < text.size() && is_letter(text[i])) ++i;
    }
    if (text[begin] == '"') quoted = !quoted;
    const bool is_member = begin > 0 && text[begin - 1] == '.';
    visit(text.substr(begin, i - begin), !quoted && !is_member);
  }
}

}  // namespace

std::string Printer::steps(const Block& block, Names& names) {
  std::string text;
  for (const Step& step : block.steps) text += this->step(step, names);
  return text;
}

std::string Printer::step(const Step& step, Names& names) {
  switch (step.op) {
    case Op::kSame:
      names.push_back(names[step.a]);
      return {};
    case Op::kRegion:
      return region(step, names);
    case Op::kCall:
      return call(step, names);
    case Op::kScope:
      return scope(step, names);
    default:
      return op(step, names);
  }
}

std::string Printer::op(const Step& step, Names& names) {
  const OpInfo& op = info(step.op);
  const std::string buffer = "buffer" + std::to_string(step.b % kBuffers);
  const std::string home = op.effect == Effect::kWritesBuffer ? buffer
                           : op.effect == Effect::kWritesBank ? "bank"
                                                              : names[step.a];
  const auto there = [&](const std::string& name) {
    return !on_cuda() || name == home ? name : name + ".to(" + home + device() + ")";
  };
  Words words = {{"a", there(names[step.a])},
                 {"b", there(names[step.b])},
                 {"w", there("w" + std::to_string(step.b % kWeights))},
                 {"buffer", there(buffer)},
                 {"bank", there("bank")},
                 {"part", std::to_string(step.b % kParts)}};
  const Names made = add_names(names, op.results);
  if (op.results > 0) words["r"] = made[0];
  if (op.results > 1) words["s"] = made[1];
  return this->op(op, words, made);
}

Names Printer::new_names(size_t count) {
  Names names;
  for (size_t i = 0; i < count; ++i) names.push_back("v" + std::to_string(values_++));
  return names;
}

Names Printer::add_names(Names& names, size_t count) {
  Names made = new_names(count);
  names.insert(names.end(), made.begin(), made.end());
  return made;
}

Names Printer::options(const Step& step, const OptionWords& words,
                       const std::string& number) const {
  const RegionChoices& choices = step.region;
  const Cuts cuts = cuts_of(choices, records_of(sizes_, step));
  const ReplayEngine engine = engine_of(choices, cuts);
  const std::string name = "\"region " + std::to_string(program_.seed) + "." + number + "\"";
  Names options = {std::string(words.name) + name};
  if (!choices.compares) options.emplace_back(words.uncompared);
  if (!choices.early_stop) options.emplace_back(words.runs_to_end);
  if (engine == ReplayEngine::kAuto) options.emplace_back(words.automatic);
  if (engine == ReplayEngine::kTape) options.emplace_back(words.tape);
  if (!cuts.empty()) options.push_back(std::string(words.cuts) + text_of(cuts));
  if (!choices.rules.empty()) options.push_back(std::string(words.policy) + text_of(choices.rules));
  if (choices.hooks) options.emplace_back(words.hooks);
  options.emplace_back(words.store);
  return options;
}

Names picked(const Names& names, const std::vector<size_t>& numbers) {
  Names picked;
  for (const size_t i : numbers) picked.push_back(names[i]);
  return picked;
}

std::string with_words(std::string_view text,
                       const std::map<std::string, std::string, std::less<>>& words) {
  std::string result;
  visit_words(text, [&](std::string_view word, bool is_name) {
    const auto found = words.find(word);
    if (is_name && found != words.end()) {
      result += found->second;
    } else {
      result += word;
    }
  });
  return result;
}

bool has_word(std::string_view text, std::string_view name) {
  bool found = false;
  visit_words(text, [&](std::string_view word, bool is_name) {
    found = found || (is_name && word == name);
  });
  return found;
}

std::string helpers_for(const std::string& text, std::string_view Helper::*language) {
  std::string used;
  for (size_t i = helpers().size(); i-- > 0;) {
    const Helper& helper = helpers()[i];
    if (has_word(text + used, helper.name)) used = std::string(helper.*language) + "\n\n" + used;
  }
  return used;
}

std::string placed_text(const Program& program, size_t i) {
  if (!on_cuda()) return "";
  if (i != 2 || program.placement == Placement::kOneDevice) return ".to(\"cuda:0\")";
  return program.placement == Placement::kWithHost ? "" : ".to(\"cuda:1\")";
}

bool is_stream(ScopeChoices::Kind kind) {
  using Kind = ScopeChoices::Kind;
  return kind == Kind::kStream || kind == Kind::kSecondStream || kind == Kind::kLateStream;
}

std::string joined(const Names& parts) {
  std::string result;
  for (const std::string& part : parts) result += (result.empty() ? "" : ", ") + part;
  return result;
}

std::string indented(std::string_view text, size_t spaces) {
  std::string result;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) result += std::string(spaces, ' ');
    result += text.substr(0, end);
    result += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

}  // namespace remat::fuzz
