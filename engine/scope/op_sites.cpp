// SPDX-License-Identifier: BSD-3-Clause

// Getting the site of an op, and lists of ops as text.
#include <remat/engine/hidden_scopes.h>
#include <remat/engine/op_sites.h>

#include <c10/util/StringUtil.h>
#include <c10/util/irange.h>

namespace remat {

std::string OpSites::now() const {
  const SuspendScopes suspend;
  return site_();
}

std::string OpSites::line(const std::string& op, const std::string& site) {
  return site.empty() ? op : c10::str(op, "  ", site);
}

std::string OpSites::numbered(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto i : c10::irange(lines.size())) text += c10::str("  ", i, " ", lines[i], "\n");
  return text;
}

}  // namespace remat
