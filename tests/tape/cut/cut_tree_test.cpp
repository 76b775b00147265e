// SPDX-License-Identifier: BSD-3-Clause

// The tree of a cut tape's segments and groups.
#include <remat/tape/cut_tree.h>

#include "support/catch.h"

#include <vector>

namespace remat {
namespace {

using Units = std::vector<size_t>;

/// Six segments, 0 to 5. Unit 6 is the group of segments 1 and 2, unit 7 that of 0 to 3.
PlannedCuts nested_groups() {
  return {{.positions = {1, 2, 3, 4, 5}, .groups = {{0, 4}, {1, 3}}}};
}

}  // namespace

TEST_CASE("Segments come first, then groups, inner ones before outer ones", "[tape][cut]") {
  const CutTree tree(nested_groups());
  REQUIRE(tree.units() == 8);
  CHECK_FALSE(tree.is_group(5));
  CHECK(tree.is_group(6));
  CHECK(tree.is_group(7));
  CHECK(tree.begin(6) == 1);
  CHECK(tree.end(6) == 3);
  CHECK(tree.begin(7) == 0);
  CHECK(tree.end(7) == 4);
  CHECK(tree.unit_of(4) == 4);
}

TEST_CASE("Each unit is inside the smallest group around it", "[tape][cut]") {
  const CutTree tree(nested_groups());
  CHECK(tree.parent(0) == 7);
  CHECK(tree.parent(1) == 6);
  CHECK(tree.parent(3) == 7);
  CHECK(tree.parent(5) == CutTree::kRoot);
  CHECK(tree.parent(6) == 7);
  CHECK(tree.parent(7) == CutTree::kRoot);
  CHECK(tree.groups_around(1) == 2);
  CHECK(tree.groups_around(0) == 1);
  CHECK(tree.groups_around(4) == 0);
  CHECK(tree.outermost(2) == 7);
  CHECK(tree.outermost(4) == 4);
}

TEST_CASE("Two segments share the smallest group that has both", "[tape][cut]") {
  const CutTree tree(nested_groups());
  CHECK(tree.common(1, 2) == 6);
  CHECK(tree.common(2, 1) == 6);
  CHECK(tree.common(1, 3) == 7);
  CHECK(tree.common(0, 3) == 7);
  CHECK(tree.common(1, 4) == CutTree::kRoot);
  CHECK(tree.common(4, 5) == CutTree::kRoot);
}

TEST_CASE("Units that begin or end with a segment are listed from the inside", "[tape][cut]") {
  const CutTree tree(nested_groups());
  CHECK(tree.beginning(0) == Units{0, 7});
  CHECK(tree.beginning(1) == Units{1, 6});
  CHECK(tree.beginning(2) == Units{2});
  CHECK(tree.ending(2) == Units{2, 6});
  CHECK(tree.ending(3) == Units{3, 7});
  CHECK(tree.ending(5) == Units{5});
}

TEST_CASE("What is inside a unit comes before it", "[tape][cut]") {
  const CutTree tree(nested_groups());
  CHECK(tree.inside(7) == Units{0, 1, 2, 3, 6, 7});
  CHECK(tree.inside(4) == Units{4});
  CHECK(tree.inside(CutTree::kRoot) == Units{0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("After a difference the open segment and its groups are the last planned ones",
          "[tape][cut]") {
  CutTree tree(nested_groups());
  tree.end_with(1);
  CHECK(tree.end(1) == 2);
  CHECK(tree.end(6) == 2);
  CHECK(tree.end(7) == 2);
  CHECK(tree.ending(1) == Units{1, 6, 7});
  tree.add_segment();
  CHECK(tree.units() == 9);
  CHECK(tree.unit_of(2) == 8);
  CHECK_FALSE(tree.is_group(8));
  CHECK(tree.begin(8) == 2);
  CHECK(tree.parent(8) == CutTree::kRoot);
  CHECK(tree.beginning(2) == Units{8});
  CHECK(tree.outermost(2) == 8);
}

TEST_CASE("Segments that are added while the tape is recorded are in one group", "[tape][cut]") {
  CutTree tree({.while_recorded = true});
  CHECK(tree.is_group(1));
  CHECK(tree.parent(0) == 1);
  tree.add_segment();
  tree.add_segment();
  CHECK(tree.unit_of(2) == 3);
  CHECK(tree.parent(3) == 1);
  CHECK(tree.end(1) == 3);
  CHECK(tree.ending(0) == Units{0});
  CHECK(tree.ending(1) == Units{2});
  CHECK(tree.ending(2) == Units{3, 1});
  CHECK(tree.common(0, 2) == 1);
  CHECK(tree.inside(CutTree::kRoot) == Units{0, 2, 3, 1});
}

}  // namespace remat
