// SPDX-License-Identifier: BSD-3-Clause
// Moves the chart's view and cursor by pointer and keyboard.
"use strict";

class ChartControl {
  /// Calls moved() when the cursor moves.
  constructor(chart, overview, moved) {
    this.chart = chart;
    this.overview = overview;
    this.moved = moved;
    this.pressed = null; // the time at which the pointer went down
    this.isWaiting = false;
    this.listenToPointer(chart.place);
    this.listenToOverview();
    chart.place.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    chart.place.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.redraw()).observe(chart.place);
  }

  /// Redraws at most once per animation frame.
  redraw() {
    if (this.isWaiting) return;
    this.isWaiting = true;
    requestAnimationFrame(() => {
      this.isWaiting = false;
      this.chart.draw();
      this.drawOverview();
    });
  }

  setCursor(moment) {
    this.chart.setCursor(moment);
    this.moved();
    this.redraw();
  }

  timeOf(event) {
    const { chart } = this;
    const time = chart.timeAt(event.clientX - chart.place.getBoundingClientRect().left);
    return Math.max(chart.from, Math.min(chart.to, time));
  }

  listenToPointer(place) {
    place.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.pressed = this.timeOf(event);
      if (event.pointerType === "mouse") place.setPointerCapture(event.pointerId);
    });
    place.addEventListener("pointermove", (event) => {
      this.chart.hover = this.timeOf(event);
      if (this.pressed !== null) this.chart.chosen = this.isDrag(event) ? [this.pressed, this.chart.hover] : null;
      this.redraw();
    });
    place.addEventListener("pointerup", (event) => this.release(event));
    const leave = () => {
      this.chart.hover = this.chart.chosen = this.pressed = null;
      this.redraw();
    };
    place.addEventListener("pointercancel", leave);
    place.addEventListener("pointerleave", leave);
    place.addEventListener("dblclick", () => this.showAll());
  }

  isDrag(event) {
    return Math.abs(this.chart.x(this.timeOf(event)) - this.chart.x(this.pressed)) > 6;
  }

  release(event) {
    if (this.pressed === null) return;
    const time = this.timeOf(event);
    if (this.isDrag(event)) this.chart.look(Math.min(this.pressed, time), Math.max(this.pressed, time));
    else if (this.chart.run.times.length > 0) this.setCursor(this.chart.momentAt(time));
    this.pressed = this.chart.chosen = null;
    this.redraw();
  }

  /// When the chart is fully zoomed out, the page scrolls instead.
  wheel(event) {
    const { chart } = this;
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : Math.abs(event.deltaX) > Math.abs(event.deltaY) && event.deltaX;
    if (chart.showsAll() && (sideways || event.deltaY > 0)) return;
    event.preventDefault();
    if (sideways) this.pan((Math.sign(sideways) * (chart.to - chart.from)) / 12);
    else chart.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), this.timeOf(event));
    this.redraw();
  }

  pan(time) {
    this.chart.look(this.chart.from + time, this.chart.to + time);
  }

  zoomAtCursor(factor) {
    const { chart } = this;
    const time = chart.cursor < 0 ? chart.from : chart.run.times[chart.cursor];
    const isSeen = time >= chart.from && time <= chart.to;
    chart.zoom(factor, isSeen ? time : (chart.from + chart.to) / 2);
    this.redraw();
  }

  showAll() {
    this.chart.look(this.chart.first, this.chart.last);
    this.redraw();
  }

  goToPeak() {
    if (this.chart.run.peak !== null) this.setCursor(this.chart.run.peak);
  }

  goToNextMark() {
    const { run, cursor } = this.chart;
    const next = run.marks.find(({ time }) => Math.max(0, lastUntil(run.times, time)) > cursor) || run.marks[0];
    if (next) this.setCursor(lastUntil(run.times, next.time));
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || this.chart.run.times.length === 0) return;
    const { cursor, run } = this.chart;
    const far = Math.max(1, Math.round(run.times.length / 40));
    const step = event.shiftKey ? far : 1;
    const doer = {
      ArrowLeft: () => this.setCursor(cursor - step),
      ArrowRight: () => this.setCursor(cursor + step),
      ArrowDown: () => this.setCursor(cursor - step),
      ArrowUp: () => this.setCursor(cursor + step),
      PageDown: () => this.setCursor(cursor - far),
      PageUp: () => this.setCursor(cursor + far),
      Home: () => this.setCursor(0),
      End: () => this.setCursor(run.times.length - 1),
      "+": () => this.zoomAtCursor(0.5),
      "=": () => this.zoomAtCursor(0.5),
      "-": () => this.zoomAtCursor(2),
      0: () => this.showAll(),
      p: () => this.goToPeak(),
      m: () => this.goToNextMark(),
    }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!doer) return;
    event.preventDefault();
    doer();
  }

  /// The overview shows the whole recording and the visible range, which dragging moves.
  listenToOverview() {
    const move = (event) => {
      const { chart, overview } = this;
      const share = (event.clientX - overview.getBoundingClientRect().left - MARGIN.left) / chart.plotWidth;
      const middle = chart.first + share * (chart.last - chart.first);
      const half = (chart.to - chart.from) / 2;
      chart.look(middle - half, middle + half);
      this.redraw();
    };
    this.overview.addEventListener("pointerdown", (event) => {
      this.overview.setPointerCapture(event.pointerId);
      move(event);
    });
    this.overview.addEventListener("pointermove", (event) => { if (event.buttons) move(event); });
  }

  drawOverview() {
    const { chart, overview } = this;
    const { clientWidth: width, clientHeight: height } = overview;
    const x = (time) => MARGIN.left + ((time - chart.first) / (chart.last - chart.first)) * chart.plotWidth;
    const y = (bytes) => height * (1 - bytes / chart.most);
    const { times, total, end } = chart.run;
    let path = `M${x(chart.first)},${height}`;
    let before = 0;
    times.forEach((time, i) => {
      path += `L${x(time).toFixed(1)},${y(before).toFixed(1)}V${y(total[i]).toFixed(1)}`;
      before = total[i];
    });
    path += `L${x(end)},${y(before).toFixed(1)}V${height}Z`;
    const left = x(chart.from);
    overview.replaceChildren(shape("svg", { viewBox: `0 0 ${width} ${height}` }, shape("path", { class: "shape", d: path }),
      shape("rect", { class: "window", x: left, y: 0.5, width: Math.max(3, x(chart.to) - left), height: height - 1, rx: 3 })));
  }
}
