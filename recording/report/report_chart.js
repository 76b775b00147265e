// SPDX-License-Identifier: BSD-3-Clause
// Draws memory over time: kinds stacked, marks, plans, the peak, and the other recording's total.
"use strict";

const MARGIN = { left: 66, right: 14, top: 26, bottom: 26 };

class Chart {
  /// `other`: a Run whose total is drawn on top, or null. `shift`: the offset added to its times.
  constructor(place) {
    this.place = place;
    this.other = null;
    this.shift = 0;
    this.hover = null; // a time
    this.chosen = null; // two times, while the pointer drags
  }

  show(run, other, shift) {
    this.run = run;
    this.other = other;
    this.shift = shift;
    this.cursor = run.peak === null ? run.times.length - 1 : run.peak;
    this.first = run.begin;
    this.last = run.end;
    if (other) {
      this.first = Math.min(this.first, other.begin + shift);
      this.last = Math.max(this.last, other.end + shift);
    }
    this.from = this.first;
    this.to = this.last;
    this.most = this.mostBytes();
  }

  /// The top of the scale. Plans far above the live bytes do not raise it.
  mostBytes() {
    const alive = Math.max(1, most(this.run.total), this.other ? most(this.other.total) : 0);
    const lines = this.run.plans.flatMap((plan) => planLines(plan).map((line) => line.bytes));
    return 1.13 * Math.max(alive, most(lines.filter((bytes) => bytes <= 1.8 * alive)));
  }

  x(time) { return MARGIN.left + ((time - this.from) / (this.to - this.from)) * this.plotWidth; }
  y(bytes) { return MARGIN.top + this.plotHeight * (1 - bytes / this.most); }
  timeAt(x) { return this.from + ((x - MARGIN.left) / this.plotWidth) * (this.to - this.from); }
  momentAt(time) { return Math.max(0, lastUntil(this.run.times, time)); }

  zoom(factor, around) {
    this.look(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  /// Sets the visible range; it spans at least a hundred nanoseconds.
  look(from, to) {
    const length = Math.min(this.last - this.first, Math.max(100, to - from));
    const middle = (from + to) / 2;
    this.from = Math.max(this.first, Math.min(this.last - length, middle - length / 2));
    this.to = this.from + length;
  }

  showsAll() {
    return this.from <= this.first && this.to >= this.last;
  }

  /// Moves the cursor; the view follows.
  setCursor(moment) {
    this.cursor = Math.max(0, Math.min(this.run.times.length - 1, moment));
    const time = this.run.times[this.cursor];
    const length = this.to - this.from;
    if (time < this.from) this.look(time - length * 0.2, time + length * 0.8);
    if (time > this.to) this.look(time - length * 0.8, time + length * 0.2);
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.place;
    this.plotWidth = Math.max(10, width - MARGIN.left - MARGIN.right);
    this.plotHeight = height - MARGIN.top - MARGIN.bottom;
    const clip = shape("clipPath", { id: "plot" }, shape("rect",
      { x: MARGIN.left, y: 0, width: this.plotWidth, height: height - MARGIN.bottom + 1 }));
    const inside = shape("g", { "clip-path": "url(#plot)" });
    const [first, last] = this.seen(this.run, 0);
    const looks = [last - first > this.plotWidth / 1.5 ? "dense" : "", this.other ? "compared" : ""].join(" ");
    const picture = shape("svg", { viewBox: `0 0 ${width} ${height}`, class: looks, "aria-hidden": "true" }, shape("defs", {}, clip));
    picture.append(...this.axes(height), inside);
    if (this.run.times.length > 0) inside.append(...this.layers(), ...this.totals());
    inside.append(...this.plans(), ...this.marks(height), ...this.peak(), ...this.cursors(height));
    this.place.replaceChildren(picture, ...this.tip(width));
  }

  axes(height) {
    const bottom = height - MARGIN.bottom;
    const bytes = ticks(0, this.most, this.plotHeight / 56);
    const texts = tickTexts(bytes, BYTE_UNITS);
    const all = bytes.flatMap((value, i) => [
      shape("line", { class: "grid", x1: MARGIN.left, x2: MARGIN.left + this.plotWidth, y1: this.y(value), y2: this.y(value) }),
      shape("text", { x: MARGIN.left - 8, y: this.y(value) + 4, "text-anchor": "end" }, texts[i])]);
    const times = ticks(this.from, this.to, this.plotWidth / 110);
    const names = tickTexts(times, TIME_UNITS);
    times.forEach((time, i) => {
      const x = this.x(time);
      const anchor = x < MARGIN.left + 20 ? "start" : x > MARGIN.left + this.plotWidth - 24 ? "end" : "middle";
      all.push(shape("line", { class: "axis", x1: x, x2: x, y1: bottom, y2: bottom + 4 }),
        shape("text", { x, y: bottom + 18, "text-anchor": anchor }, names[i]));
    });
    all.push(shape("line", { class: "axis", x1: MARGIN.left, x2: MARGIN.left + this.plotWidth, y1: bottom, y2: bottom }));
    return all;
  }

  /// The visible moments, with one before and one after.
  seen(run, shift) {
    return [Math.max(0, lastUntil(run.times, this.from - shift)),
      Math.min(run.times.length - 1, lastUntil(run.times, this.to - shift) + 1)];
  }

  /// The corners of the step curve of `values`, from left to right.
  steps(run, values, shift) {
    const [first, last] = this.seen(run, shift);
    const corners = [];
    let y = this.y(first === 0 ? 0 : values[first]);
    for (let i = first; i <= last; ++i) {
      const x = this.x(run.times[i] + shift).toFixed(1);
      corners.push(`${x},${y.toFixed(1)}`);
      y = this.y(values[i]);
      corners.push(`${x},${y.toFixed(1)}`);
    }
    corners.push(`${this.x(Math.min(this.to, run.end + shift)).toFixed(1)},${y.toFixed(1)}`);
    return corners;
  }

  layers() {
    const ground = new Float64Array(this.run.times.length);
    let below = this.steps(this.run, ground, 0);
    return STACK.map((kind) => {
      const bytes = this.run.layers[kind];
      for (let i = 0; i < ground.length; ++i) ground[i] += bytes[i];
      const above = this.steps(this.run, ground, 0);
      const path = `M${above.join("L")}L${below.reverse().join("L")}Z`;
      below = above;
      return shape("path", { class: "layer", d: path, style: `fill:${kindColour(kind)}` });
    });
  }

  totals() {
    const all = [shape("path", { class: "total", d: `M${this.steps(this.run, this.run.total, 0).join("L")}` })];
    if (this.other && this.other.times.length > 0)
      all.push(shape("path", { class: "other", d: `M${this.steps(this.other, this.other.total, this.shift).join("L")}` }));
    return all;
  }

  marks(height) {
    const all = [];
    let free = MARGIN.left;
    for (const { time, name } of this.run.marks) {
      const x = this.x(time);
      if (x < MARGIN.left || x > MARGIN.left + this.plotWidth) continue;
      all.push(shape("line", { class: "mark", x1: x, x2: x, y1: 16, y2: height - MARGIN.bottom }));
      const text = name.length > 24 ? `${name.slice(0, 23)}\u2026` : name;
      const width = 6.2 * text.length + 8;
      const atEnd = x + width > MARGIN.left + this.plotWidth;
      const begin = atEnd ? x - width : x;
      if (begin < free) continue;
      free = begin + width + 4;
      all.push(shape("text", { x: atEnd ? x - 4 : x + 4, y: 12, "text-anchor": atEnd ? "end" : "start" }, text));
    }
    return all;
  }

  peak() {
    if (this.run.peak === null) return [];
    const x = this.x(this.run.times[this.run.peak]);
    const y = this.y(this.run.total[this.run.peak]);
    const atEnd = x > MARGIN.left + this.plotWidth - 110;
    const words = `peak ${bytesText(this.run.total[this.run.peak])}`;
    return [shape("circle", { class: "peak-dot", cx: x, cy: y, r: 4.5 }),
      shape("text", { class: "halo peak-label", x: atEnd ? x - 9 : x + 9, y: Math.max(y - 4, MARGIN.top + 4),
        "text-anchor": atEnd ? "end" : "start" }, words)];
  }

  plans() {
    const all = [];
    let named = null; // the plan that covers most of the view
    for (const plan of joinedPlans(this.run.plans)) {
      const left = Math.max(this.from, plan.time);
      const right = Math.min(this.to, plan.end);
      if (left >= right) continue;
      if (!named || right - left > named.right - named.left) named = { plan, left, right };
      for (const { name, bytes } of planLines(plan)) {
        if (bytes > this.most) continue;
        all.push(shape("line", { class: `plan ${name}`, x1: this.x(left), x2: this.x(right), y1: this.y(bytes), y2: this.y(bytes) }));
      }
    }
    return named ? [...all, ...this.planLabels(named)] : all;
  }

  planLabels({ plan, right }) {
    const isAtLeft = this.x(right) < MARGIN.left + 150;
    const x = isAtLeft ? MARGIN.left + 6 : this.x(right) - 6;
    let free = MARGIN.top + this.plotHeight;
    return planLines(plan).sort((a, b) => a.bytes - b.bytes).map(({ title, bytes, above }) => {
      const isOut = bytes > this.most;
      const y = Math.min(isOut ? MARGIN.top + 8 : this.y(bytes) - 7, free);
      free = y - 13;
      const words = `${this.plotWidth < 420 ? title.replace(" peak", "") : title} ${bytesText(above)}${isOut ? " \u2191" : ""}`;
      return shape("text", { class: "halo plan-label", x, y, "text-anchor": isAtLeft ? "start" : "end" }, words);
    });
  }

  cursors(height) {
    const all = [];
    const line = (name, x) => shape("line", { class: name, x1: x, x2: x, y1: MARGIN.top - 6, y2: height - MARGIN.bottom });
    if (this.chosen) {
      const [a, b] = this.chosen.map((time) => this.x(time)).sort((p, q) => p - q);
      all.push(shape("rect", { class: "chosen", x: a, y: MARGIN.top, width: b - a, height: this.plotHeight }));
    }
    if (this.hover !== null) all.push(line("hover", this.x(this.hover)));
    if (this.cursor < 0) return all;
    const x = this.x(this.run.times[this.cursor]);
    all.push(line("cursor", x),
      shape("circle", { class: "cursor-dot", cx: x, cy: this.y(this.run.total[this.cursor]), r: 4 }));
    return all;
  }

  tip(width) {
    if (this.hover === null || this.run.times.length === 0) return [];
    const bytes = this.run.totalAt(lastUntil(this.run.times, this.hover));
    let words = `${timeText(this.hover)}: ${bytesText(bytes)}`;
    if (this.other) words += `, second ${bytesText(this.other.totalAt(lastUntil(this.other.times, this.hover - this.shift)))}`;
    const x = this.x(this.hover);
    const side = x > width / 2 ? `right:${width - x + 10}px` : `left:${x + 10}px`;
    return [node("div", { class: "tip", style: side }, words)];
  }
}

/// Joins successive plans that are equal.
function joinedPlans(plans) {
  const joined = [];
  for (const plan of plans) {
    const before = joined[joined.length - 1];
    const goesOn = before && before.end === plan.time
      && ["label", "budget", "predicted", "plain", "base"].every((field) => before[field] === plan[field]);
    if (goesOn) before.end = plan.end;
    else joined.push({ ...plan });
  }
  return joined;
}

/// The lines of a plan on the chart's axis: above what was alive when the step began.
function planLines(plan) {
  return [["budget", "budget", plan.budget], ["predicted", "predicted peak", plan.predicted],
    ["plain", "plain peak", plan.plain]].filter(([, , bytes]) => bytes > 0)
    .map(([name, title, above]) => ({ name, title, above, bytes: plan.base + above }));
}
