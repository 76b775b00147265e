// SPDX-License-Identifier: BSD-3-Clause

// Looking up ops and similar names.
#include "op_name_check.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace remat {
namespace {

using NamedOp = PolicyTable::NamedOp;

constexpr size_t kMostNames = 3;

std::string_view space_of(std::string_view name) {
  return name.substr(0, name.find("::"));
}

/// All ops that were registered at the last failed lookup: the dispatcher finds no op without its
/// overload.
class RegisteredOps {
 public:
  /// Calls `use` with the instance, under its lock.
  template <class Use>
  static auto with(Use&& use) {
    static RegisteredOps& ops = *new RegisteredOps;
    const std::lock_guard lock(ops.mutex_);
    return use(ops);
  }

  bool has(const NamedOp& op) const {
    const auto found = overloads_.find(op.name);
    return found != overloads_.end() && (!op.overload || found->second.contains(*op.overload));
  }

  bool has_name(const std::string& name) const { return overloads_.contains(name); }

  bool has_space(std::string_view space) const {
    return std::any_of(overloads_.begin(), overloads_.end(),
                       [&](const auto& op) { return space_of(op.first) == space; });
  }

  void look_again() {
    for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames())
      overloads_[op.name].insert(op.overload_name);
  }

  const std::map<std::string, std::set<std::string>>& all() const { return overloads_; }

 private:
  std::mutex mutex_;
  std::map<std::string, std::set<std::string>> overloads_;  // By op name.
};

/// Edit distance: the number of letters to change, leave out or add.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (const auto i : c10::irange(a.size())) {
    size_t before = std::exchange(row[0], i + 1);
    for (const auto j : c10::irange(b.size())) {
      const size_t other = before + (a[i] == b[j] ? 0 : 1);
      before = std::exchange(row[j + 1], std::min({other, row[j] + 1, row[j + 1] + 1}));
    }
  }
  return row.back();
}

/// Similar names, in order of their distance to `name`.
class CloseNames {
 public:
  explicit CloseNames(std::string_view name) : name_(name) {}

  void add(std::string_view candidate, const std::string& shown) {
    const size_t far = distance(name_, candidate);
    if (far <= std::max<size_t>(1, name_.size() / 3)) found_.emplace(far, shown);
  }

  /// "Did you mean a, b or c? "
  std::string str() const {
    std::string text;
    size_t count = 0;
    const size_t most = std::min(kMostNames, found_.size());
    for (const auto& [far, shown] : found_) {
      if (count == most) break;
      ++count;
      text.append(count == 1 ? "" : count == most ? " or " : ", ").append(shown);
    }
    return text.empty() ? "" : "Did you mean " + text + "? ";
  }

 private:
  std::string_view name_;
  std::set<std::pair<size_t, std::string>> found_;
};

std::string close_overloads(const RegisteredOps& ops, const NamedOp& op) {
  CloseNames close(*op.overload);
  for (const std::string& overload : ops.all().at(op.name))
    close.add(overload, op.name + "." + (overload.empty() ? "default" : overload));
  const std::string found = close.str();
  return found.empty() ? "Without an overload all of them are meant. " : found;
}

/// Similar names in the same namespace, or equal names in another one.
std::string close_names(const RegisteredOps& ops, const NamedOp& op) {
  const std::string_view space = space_of(op.name);
  const std::string_view name = std::string_view(op.name).substr(space.size());
  CloseNames close(name);
  for (const auto& [other, overloads] : ops.all()) {
    const std::string_view other_space = space_of(other);
    const std::string_view other_name = std::string_view(other).substr(other_space.size());
    if (other_space == space || other_name == name) close.add(other_name, other);
  }
  return close.str();
}

}  // namespace

bool names_an_op(const PolicyTable& table, size_t i, RulesAsked when) {
  const std::vector<NamedOp> forms = table.ops_named_by(i);
  if (forms.empty()) return true;
  return RegisteredOps::with([&](RegisteredOps& ops) {
    const auto is_there = [&] {
      return std::any_of(forms.begin(), forms.end(),
                         [&](const NamedOp& form) { return ops.has(form); });
    };
    if (is_there()) return true;
    ops.look_again();
    if (is_there()) return true;
    const auto is_known_whole = [&](const NamedOp& form) {
      const std::string_view space = space_of(form.name);
      return space == "aten" || (when == RulesAsked::kInRegion && ops.has_space(space));
    };
    for (const NamedOp& form : forms) {
      TORCH_CHECK_VALUE(!ops.has_name(form.name) || !is_known_whole(form), "[policy] op rule '",
                        table.rules()[i].pattern, "': expected an overload of ", form.name,
                        " that is registered, got another one. ", close_overloads(ops, form),
                        "Write it as the op's schema does.");
    }
    TORCH_CHECK_VALUE(!std::all_of(forms.begin(), forms.end(), is_known_whole),
                      "[policy] op rule '", table.rules()[i].pattern,
                      "': expected an op that is registered, got another name. ",
                      close_names(ops, forms.back()),
                      "Load the library that registers it before, or write a pattern with *, which "
                      "may match nothing.");
    return false;
  });
}

}  // namespace remat
