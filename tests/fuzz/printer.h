// SPDX-License-Identifier: BSD-3-Clause

// Code that the printers of all languages share.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/program.h"
#include "fuzz/run.h"

namespace remat::fuzz {

using Names = std::vector<std::string>;

/// Texts of a region's options in a language, each up to the option's value if it has one.
struct OptionWords {
  std::string_view name;
  std::string_view uncompared;
  std::string_view runs_to_end;
  std::string_view automatic;
  std::string_view tape;
  std::string_view cuts;
  std::string_view policy;
  std::string_view hooks;
  std::string_view store;
};

/// Returns ".to(device)" for the i-th input or parameter of a program on CUDA.
std::string placed_text(const Program& program, size_t i);

bool is_stream(ScopeChoices::Kind kind);

/// Prints the steps of blocks. `names` are the variables that hold a list of values.
class Printer {
 public:
  explicit Printer(const Program& program) : program_(program), sizes_(tape_sizes(program)) {}
  Printer(const Printer&) = delete;
  Printer& operator=(const Printer&) = delete;
  virtual ~Printer() = default;

 protected:
  using Words = std::map<std::string, std::string, std::less<>>;

  /// Returns lines for the steps, and adds the variables that they make to `names`.
  std::string steps(const Block& block, Names& names);

  /// Returns names of new variables.
  Names new_names(size_t count);

  /// Returns names of new variables, and adds them to `names`.
  Names add_names(Names& names, size_t count);

  std::string next_region() { return std::to_string(regions_++); }
  std::string next_call() { return std::to_string(calls_++); }

  const Program& program() const { return program_; }
  std::string placed(size_t i) const { return placed_text(program_, i); }

  /// Returns the options of the region that `step` opens. `number` is the region's number in the
  /// run.
  Names options(const Step& step, const OptionWords& words, const std::string& number) const;

 private:
  /// Returns the expression for a tensor's device.
  virtual std::string device() const = 0;
  virtual std::string text_of(const Cuts& cuts) const = 0;
  virtual std::string text_of(const std::vector<OpRule>& rules) const = 0;
  virtual std::string region(const Step& step, Names& names) = 0;
  virtual std::string call(const Step& step, Names& names) = 0;
  virtual std::string scope(const Step& step, Names& names) = 0;

  /// Prints an op. `words` replace a, b, w, buffer, r and s in the op's text.
  virtual std::string op(const OpInfo& op, const Words& words, const Names& made) = 0;

  std::string step(const Step& step, Names& names);
  std::string op(const Step& step, Names& names);

  const Program& program_;
  const TapeSizes sizes_;
  size_t values_ = 0;
  size_t regions_ = 0;
  size_t calls_ = 0;
};

Names picked(const Names& names, const std::vector<size_t>& numbers);

/// Returns `text` with some words replaced.
std::string with_words(std::string_view text,
                       const std::map<std::string, std::string, std::less<>>& words);

/// True if `name` is a word of `text`.
bool has_word(std::string_view text, std::string_view name);

/// Returns the text of all helpers that `text` uses, directly or not, in the order in which they
/// are listed.
std::string helpers_for(const std::string& text, std::string_view Helper::*language);

/// Joins the parts with commas: "a, b".
std::string joined(const Names& parts);

/// Returns `text` with `spaces` spaces before each line.
std::string indented(std::string_view text, size_t spaces);

}  // namespace remat::fuzz
