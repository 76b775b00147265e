// SPDX-License-Identifier: BSD-3-Clause

#include "recorded_lines.h"

namespace remat {

StringId RecordedLines::here(bool by_engine) {
  if (!asks_) return 0;
  if (const SourcePlace place = in_python(); place.code && place != backward_)
    return number_of(place, *SourcePlaces::of_python());
  if (by_engine || backward_.code) return 0;
  SourcePlaces& places = SourcePlaces::of_cpp();
  const SourcePlace place = places.here();
  return place.code ? number_of(place, places) : 0;
}

void RecordedLines::begin_backward() {
  if (asks_) backward_ = in_python();
}

SourcePlace RecordedLines::in_python() {
  SourcePlaces* const places = SourcePlaces::of_python();
  return places ? places->here() : SourcePlace{};
}

StringId RecordedLines::number_of(const SourcePlace& place, SourcePlaces& places) {
  if (const auto known = known_.find(place); known != known_.end()) return known->second;
  // Hold no iterator into the map here: Python may run ops meanwhile.
  const StringId number = writer_.string(places.text(place));
  known_.emplace(place, number);
  return number;
}

}  // namespace remat
