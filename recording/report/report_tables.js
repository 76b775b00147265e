// SPDX-License-Identifier: BSD-3-Clause
// Tables that are sorted by buttons in their headers.
"use strict";

const FEW_ROWS = 20;

/// A column has a title, value(row) if it can be sorted, text(row) or cell(row), which returns
/// nodes, is_number, and optionally exact(row), a tooltip.
class SortableTable {
  constructor(place, caption, columns) {
    this.place = place;
    this.caption = caption;
    this.columns = columns;
    this.sorted = null; // the column, and whether it is in descending order
    this.showsAll = false;
  }

  show(rows, totals = null, few = FEW_ROWS) {
    Object.assign(this, { rows, totals, few });
    this.draw();
  }

  draw() {
    const head = node("tr", {}, ...this.columns.map((column, i) => this.head(column, i)));
    const rows = this.inOrder();
    const shown = this.showsAll ? rows : rows.slice(0, this.few);
    const body = node("tbody", {}, ...shown.map((row) => node("tr", {}, ...this.columns.map((column) => this.cell(column, row)))));
    const table = node("table", { "aria-label": this.caption }, node("thead", {}, head), body);
    if (this.totals) table.append(node("tfoot", {}, node("tr", {}, ...this.columns.map((column, i) => this.foot(column, i)))));
    const parts = [node("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": this.caption }, table)];
    if (rows.length > this.few) parts.push(this.more(rows.length));
    this.place.replaceChildren(...parts);
  }

  inOrder() {
    if (!this.sorted) return this.rows;
    const { column, falls } = this.sorted;
    const sign = falls ? -1 : 1;
    const { value } = this.columns[column];
    const compare = (a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
    return [...this.rows].sort((a, b) => sign * compare(value(a), value(b)));
  }

  head(column, i) {
    const cell = node("th", { scope: "col", class: column.is_number ? "number" : "" });
    if (!column.value) {
      cell.append(column.title);
      return cell;
    }
    const isSorted = this.sorted && this.sorted.column === i;
    cell.setAttribute("aria-sort", isSorted ? (this.sorted.falls ? "descending" : "ascending") : "none");
    const button = node("button", { type: "button", "data-column": i }, column.title);
    button.addEventListener("click", () => {
      this.sorted = { column: i, falls: isSorted ? !this.sorted.falls : Boolean(column.is_number) };
      this.draw();
      this.place.querySelector(`[data-column="${i}"]`).focus();
    });
    cell.append(button);
    return cell;
  }

  cell(column, row) {
    const cell = node("td", { class: column.is_number ? "number" : column.look || "" });
    if (column.cell) cell.append(...column.cell(row));
    else cell.append(column.text(row));
    if (column.exact) cell.title = column.exact(row);
    return cell;
  }

  foot(column, i) {
    const words = i in this.totals ? this.totals[i] : "";
    const attributes = { class: column.is_number ? "number" : "" };
    return words && !column.is_number ? node("th", { scope: "row", ...attributes }, words) : node("td", attributes, words);
  }

  more(count) {
    const button = node("button", { type: "button", class: "more" }, this.showsAll ? `Show ${this.few}` : `Show all ${countText(count)}`);
    button.addEventListener("click", () => {
      this.showsAll = !this.showsAll;
      this.draw();
      this.place.querySelector(".more").focus();
    });
    return button;
  }
}

function exactBytes(bytes) {
  return `${countText(bytes)} bytes`;
}

/// The table of live bytes by group.
function aliveTable(place, caption) {
  let largest = 1;
  const table = new SortableTable(place, caption, [
    { title: "Bytes", is_number: true, value: (group) => group.bytes, exact: (group) => exactBytes(group.bytes),
      cell: (group) => [bytesText(group.bytes), node("span",
        { class: "bar", colour: kindColour(group.kind), style: `width:${((100 * group.bytes) / largest).toFixed(1)}%` })] },
    { title: "Kind", value: (group) => KINDS[group.kind], cell: (group) => [kindName(group.kind)] },
    { title: "Op", value: (group) => group.op || group.node, cell: (group) => opNodes(group) },
    { title: "Region", look: "label", value: (group) => labelText(group.labels), cell: (group) => labelNodes(group.labels) },
    { title: "Slot", is_number: true, value: (group) => group.slot, text: (group) => (group.slot < 0 ? "" : String(group.slot)) },
    { title: "Kept by", value: (group) => group.call, text: (group) => group.call },
    { title: "Source line", value: (group) => group.line, cell: (group) => [node("code", {}, group.line)] },
    { title: "Blocks", is_number: true, value: (group) => group.blocks, text: (group) => (group.blocks ? countText(group.blocks) : "") },
  ]);
  return (groups, few) => {
    largest = Math.max(1, most(groups.map((group) => group.bytes)));
    const bytes = groups.reduce((sum, group) => sum + group.bytes, 0);
    const blocks = groups.reduce((sum, group) => sum + group.blocks, 0);
    place.dataset.bytes = bytes;
    table.show(groups, { 0: bytesText(bytes), 1: "in all", 7: countText(blocks) }, few);
  };
}

function opNodes(group) {
  const parts = [];
  if (group.op) parts.push(node("code", {}, group.op));
  if (group.op && group.node) parts.push(node("span", { class: "times" }, " in "));
  if (group.node) parts.push(node("code", {}, group.node.replace("torch::autograd::", "")));
  return parts;
}

function labelNodes(labels) {
  if (labels.size < 2) return [labelText(labels)];
  return [labelText(labels), node("span", { class: "times", title: [...labels].slice(0, 40).join("\n") }, ` \u00d7 ${labels.size}`)];
}

function regionTable(place) {
  const number = (title, i, words) => ({ title, is_number: true, value: (row) => row.numbers[i], text: (row) => words(row.numbers[i]) });
  const table = new SortableTable(place, "Regions by label", [
    { title: "Label", look: "label", value: (row) => labelText(row.labels), cell: (row) => labelNodes(row.labels) },
    number("Regions", 0, countText), number("Forward ops", 1, countText), number("Time", 2, timeText),
    number("Replayed ops", 3, countText), number("Time", 4, timeText), number("Slots dropped", 5, countText),
    number("Slots kept", 6, countText), number("Bytes kept", 7, bytesText), number("At the peak", 8, bytesText),
  ]);
  return (rows) => {
    const sum = (i) => rows.reduce((all, row) => all + row.numbers[i], 0);
    const words = [countText, countText, timeText, countText, timeText, countText, countText, bytesText, bytesText];
    const totals = { 0: "in all" };
    words.forEach((word, i) => { totals[i + 1] = word(sum(i)); });
    table.show(rows, rows.length > 1 ? totals : null);
  };
}

/// Draws for each label one bar for its forwards and one for its replays.
function drawBars(place, rows) {
  const longest = Math.max(1, most(rows.map(({ numbers }) => Math.max(numbers[2], numbers[4]))));
  const bar = (ns, kind, words) => node("div", { class: "one" },
    node("i", { colour: kindColour(kind), style: `--share:${(ns / longest).toFixed(4)}` }), node("span", {}, words));
  const shown = [...rows].sort((a, b) => b.numbers[2] + b.numbers[4] - a.numbers[2] - a.numbers[4]).slice(0, FEW_ROWS);
  place.replaceChildren(...shown.flatMap(({ labels, numbers }) => {
    const again = numbers[2] > 0 ? `, ${percentText(numbers[4] / numbers[2])} of it` : "";
    return [node("div", { class: "name" }, ...labelNodes(labels)), node("div", { class: "pair" },
      bar(numbers[2], 1, `forward ${timeText(numbers[2])}`), bar(numbers[4], 3, `replays ${timeText(numbers[4])}${again}`))];
  }));
}

function planTable(place, plans) {
  const bytes = (title, of) => ({ title, is_number: true, value: of, text: (plan) => bytesText(of(plan)), exact: (plan) => exactBytes(of(plan)) });
  const off = (plan) => plan.measured / plan.predicted - 1;
  new SortableTable(place, "Plans beside what was measured", [
    { title: "Region", look: "label", value: (plan) => plan.label, text: (plan) => plan.label },
    { title: "Begins", is_number: true, value: (plan) => plan.time, text: (plan) => timeText(plan.time) },
    bytes("Budget", (plan) => plan.budget), bytes("Predicted peak", (plan) => plan.predicted),
    bytes("Measured peak", (plan) => plan.measured),
    { title: "Off by", is_number: true, value: off, text: (plan) => (plan.predicted > 0 ? signedPercent(off(plan)) : "\u2013") },
    { title: "In budget", value: (plan) => (plan.measured <= plan.budget ? 1 : 0),
      cell: (plan) => [plan.budget <= 0 ? "\u2013" : plan.measured <= plan.budget ? "yes" : node("span", { class: "worse" }, "no")] },
    bytes("Plain peak", (plan) => plan.plain), bytes("Alive at its begin", (plan) => plan.base),
  ]).show(plans, null, 6);
}

function signedPercent(share) {
  return `${share < 0 ? "\u2212" : "+"}${percentText(Math.abs(share))}`;
}

/// The sums of two recordings and how the second differs.
function compareTable(place, [first, second]) {
  const rows = comparedSums(first).map(([title, value, words], i) => ({ title, words, a: value, b: comparedSums(second)[i][1] }));
  new SortableTable(place, "Two recordings side by side", [
    { title: "", text: (row) => row.title },
    { title: first.name, is_number: true, text: (row) => row.words(row.a) },
    { title: second.name, is_number: true, text: (row) => row.words(row.b) },
    { title: "Change", is_number: true, text: change },
  ]).show(rows, null, rows.length);
}

function change({ a, b }) {
  if (a === b) return "the same";
  if (a === 0) return "\u2013";
  return Math.abs(b / a - 1) < 0.0005 ? "the same" : signedPercent(b / a - 1);
}

function comparedSums({ summary, regions }) {
  const [outside, forward, replay, backward] = summary.phases;
  return [["Peak", summary.peak_bytes, bytesText], ["Peak after", summary.peak, timeText],
    ["Alive in the end", summary.end_bytes, bytesText], ["Recorded", summary.end, timeText],
    ["Ops outside of regions", outside[0], countText], ["their time", outside[1], timeText],
    ["Forward ops", forward[0], countText], ["their time", forward[1], timeText],
    ["Replayed ops", replay[0], countText], ["their time", replay[1], timeText],
    ["Backward ops", backward[0], countText], ["their time", backward[1], timeText],
    ["Regions", regions.reduce((sum, { numbers }) => sum + numbers[0], 0), countText]];
}
