// SPDX-License-Identifier: BSD-3-Clause

// The table knows where memory came from, and does not take new memory for memory that is gone.
#include <remat/engine/storage_table.h>

#include "support/catch.h"

#include <torch/torch.h>

#include <set>
#include <vector>

#include "support/made_call.h"

namespace remat {
namespace {

Origin found_in(const StorageTable& table, const at::Tensor& tensor) {
  return table.find(memory_of(tensor));
}

}  // namespace

TEST_CASE("Memory has the origin with which it was entered, at any number of entries",
          "[engine][log]") {
  StorageTable table;
  std::vector<at::Tensor> all;
  for (size_t i = 0; i < 500; ++i) all.push_back(at::empty({4}));
  CHECK(found_in(table, all[0]).is_unknown());
  for (size_t i = 0; i < all.size(); ++i) table.enter(memory_of(all[i]), Origin::outside(i));
  for (size_t i = 0; i < all.size(); ++i) CHECK(found_in(table, all[i]).number() == i);
  CHECK(found_in(table, at::empty({4})).is_unknown());
}

TEST_CASE("A new table is empty, although the thread keeps its memory", "[engine][log]") {
  const at::Tensor tensor = at::empty({4});
  {
    StorageTable table;
    table.enter_result(tensor);
    table.set_value(memory_of(tensor), 3);
  }
  const StorageTable table;
  CHECK(found_in(table, tensor).is_unknown());
  CHECK(table.value(memory_of(tensor)) == StorageTable::kNoValue);
}

TEST_CASE("Results are made inside, and views of memory from outside stay outside",
          "[engine][log]") {
  StorageTable table;
  const at::Tensor outside = at::empty({4});
  const at::Tensor made = at::empty({4});
  table.enter(memory_of(outside), Origin::outside(2));
  table.enter_result(outside.view({2, 2}), Origin::made(5, 0));
  table.enter_result(made);
  CHECK(found_in(table, outside).number() == 2);
  CHECK(found_in(table, outside).is_outside());
  CHECK(found_in(table, made).is_inside());
}

TEST_CASE("Memory counts as made by the last logged op that wrote it", "[engine][log]") {
  StorageTable table;
  const at::Tensor made = at::empty({4});
  table.enter_result(made, Origin::made(5, 0));
  table.enter_result(made, Origin::made(7, 1));
  CHECK(found_in(table, made).maker() == 7);
  table.enter_result(made);
  CHECK(found_in(table, made).maker() == 7);
}

TEST_CASE("Memory is unwritten until an op writes it", "[engine][log]") {
  StorageTable table;
  const at::Tensor made = at::empty({4});
  table.enter_result(made, Origin::unwritten());
  MadeCall reads("aten::sin", "", {made});
  table.note_write(reads.get(), 0, made, found_in(table, made));
  CHECK(found_in(table, made).is_unwritten());
  MadeCall writes("aten::zero_", "", {made});
  table.note_write(writes.get(), 0, made, found_in(table, made));
  CHECK_FALSE(found_in(table, made).is_unwritten());
  CHECK(found_in(table, made).is_inside());
}

TEST_CASE("A value of the tape lasts until its memory is entered again", "[engine][log]") {
  StorageTable table;
  const at::Tensor tensor = at::empty({4});
  table.set_value(memory_of(tensor), 9);
  CHECK(found_in(table, tensor).is_inside());
  CHECK(table.value(memory_of(tensor)) == 9);
  table.enter(memory_of(tensor), Origin::outside(0));
  CHECK(table.value(memory_of(tensor)) == StorageTable::kNoValue);
  table.set_value(memory_of(tensor), 4);
  CHECK(found_in(table, tensor).is_outside());
}

TEST_CASE("The address of a dead result is not used again while the table lives", "[engine][log]") {
  StorageTable table;
  std::set<const void*> dead;
  for (int i = 0; i < 50; ++i) {
    const at::Tensor made = at::empty({4});
    CHECK(dead.count(memory_of(made)) == 0);
    table.enter_result(made);
    dead.insert(memory_of(made));
  }
}

TEST_CASE("A storage that an op gets is given, unless the region knows it", "[engine][log]") {
  StorageTable table;
  const at::Tensor known = at::empty({4});
  const at::Tensor given = at::empty({4});
  table.enter_result(known);
  CHECK_FALSE(table.is_given(given));
  table.note_storage(known.storage());
  table.note_storage(given.storage());
  CHECK(table.is_given(given));
  CHECK_FALSE(table.is_given(known));
  table.enter_result(given, Origin::made(3, 0));
  CHECK(table.is_given(given));
}

TEST_CASE("A tensor of parts is made where its first part from the region is", "[engine][log]") {
  StorageTable table;
  const at::Tensor outside = at::empty({4});
  const at::Tensor made = at::empty({4});
  table.enter(memory_of(outside), Origin::outside(0));
  table.enter_result(made, Origin::made(6, 0));
  CHECK(table.find_made({outside, made}).maker() == 6);
  CHECK(table.find_made({outside}).is_unknown());
  CHECK(table.find_made({outside, at::empty({1})}).is_unknown());
  const at::Tensor product = at::empty({4});
  table.enter(memory_of(product), Origin::product(0));
  CHECK(table.find_made({product}).value() == Origin::inside().value());
}

TEST_CASE("Foreign memory on a result of the region is found", "[engine][log]") {
  StorageTable table;
  const at::Tensor made = at::zeros({8});
  table.enter_result(made);
  const at::Tensor inside = at::from_blob(made.data_ptr<float>() + 4, {2});
  const at::Tensor behind = at::from_blob(made.data_ptr<float>() + 8, {2});
  CHECK(table.has_memory_of(inside.storage()));
  CHECK_FALSE(table.has_memory_of(behind.storage()));
}

}  // namespace remat
