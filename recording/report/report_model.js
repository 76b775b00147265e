// SPDX-License-Identifier: BSD-3-Clause
// The data of the page, as Note [Data of a page] in recording/report_data.h describes it, and
// queries on it.
"use strict";

function sums(differences) {
  const all = new Float64Array(differences.length);
  let last = 0;
  differences.forEach((difference, i) => { all[i] = last += difference; });
  return all;
}

/// The last index in ascending `values` whose value is at most `value`; -1 if none.
function lastUntil(values, value) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function most(values) {
  return values.reduce((largest, value) => Math.max(largest, value), 0);
}

/// Maps labels that differ only by numbers to one label.
function folded(label) {
  return label.replace(/[0-9]+/g, "*");
}

class Run {
  constructor(data) {
    Object.assign(this, data);
    this.times = sums(data.curve.time);
    this.layers = data.curve.bytes.map(sums);
    this.total = new Float64Array(this.times.length);
    for (const layer of this.layers) layer.forEach((bytes, i) => { this.total[i] += bytes; });
    this.peak = data.curve.peak;
    this.begin = Math.min(0, this.times.length ? this.times[0] : 0);
    this.end = Math.max(this.begin + 1, data.summary.end, this.times.length ? this.times[this.times.length - 1] : 0);
    this.rowBegin = sums(data.alive.begin);
    this.rowBlocks = new Map(data.alive.several);
    this.marks = data.marks.map(([time, name]) => ({ time, name: this.words[name] }));
    this.plans = data.plans.map(([time, end, label, budget, predicted, plain, base, measured]) =>
      ({ time, end, label: this.words[label], budget, predicted, plain, base, measured }));
    this.regions = data.regions.map(([label, ...numbers]) => ({ label: this.words[label], numbers }));
  }

  totalAt(moment) {
    return moment < 0 ? 0 : this.total[moment];
  }

  bytesAt(moment, kind) {
    return moment < 0 ? 0 : this.layers[kind][moment];
  }

  /// The live bytes at a moment by origin, the largest first; `folds` joins similar regions.
  groupsAt(moment, folds) {
    const { length, origin, bytes } = this.alive;
    const groups = new Map();
    const unlisted = KINDS.map((_, kind) => this.bytesAt(moment, kind));
    for (let row = 0; row < length.length && this.rowBegin[row] <= moment; ++row) {
      if (this.rowBegin[row] + length[row] <= moment) continue;
      const group = this.groupOf(groups, this.alive.origins[origin[row]], folds);
      group.bytes += bytes[row];
      group.blocks += this.rowBlocks.get(row) || 1;
      unlisted[group.kind] -= bytes[row];
    }
    unlisted.forEach((left, kind) => {
      if (left > 0) groups.set(`rest ${kind}`, { ...emptyGroup(kind), op: "smaller blocks, summed", bytes: left });
    });
    return [...groups.values()].sort((a, b) => b.bytes - a.bytes);
  }

  groupOf(groups, [kind, op, made, label, slot, call, line], folds) {
    const name = this.words[label];
    const key = [kind, op, made, slot, call, line, folds ? folded(name) : label].join(" ");
    let group = groups.get(key);
    if (!group) {
      group = { ...emptyGroup(kind), op: this.words[op], node: this.words[made], slot, line: this.words[line] };
      group.call = this.words[call] || (kind === 2 ? "a rule" : "");
      groups.set(key, group);
    }
    if (name) group.labels.add(name);
    return group;
  }

  /// Rows of the table of regions; labels that differ only by numbers share a row.
  regionGroups() {
    const groups = new Map();
    for (const { label, numbers } of this.regions) {
      const key = folded(label);
      const group = groups.get(key) || { labels: new Set(), numbers: numbers.map(() => 0) };
      group.labels.add(label);
      numbers.forEach((number, i) => { group.numbers[i] += number; });
      groups.set(key, group);
    }
    return [...groups.values()];
  }
}

function emptyGroup(kind) {
  return { kind, op: "", node: "", labels: new Set(), slot: -1, call: "", line: "", blocks: 0, bytes: 0 };
}

/// "h.7" for one label, "h.*" for several.
function labelText(labels) {
  const [first] = labels;
  return labels.size === 0 ? "" : labels.size === 1 ? first : folded(first);
}
