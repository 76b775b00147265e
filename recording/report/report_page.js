// SPDX-License-Identifier: BSD-3-Clause
// Lays out the page and updates it when the cursor moves.
"use strict";

class Page {
  constructor(runs) {
    this.runs = runs;
    this.chart = new Chart(byId("chart"));
    this.control = new ChartControl(this.chart, byId("overview"), () => this.cursorMoved());
    this.showCursorTable = aliveTable(byId("cursor-table"), "Alive at the cursor");
    this.showPeakTable = aliveTable(byId("peak-table"), "Alive at the peak");
    this.showRegionTable = regionTable(byId("region-table"));
    this.listen();
    if (runs.length > 1) this.offerRuns();
    this.show(0);
  }

  listen() {
    byId("zoom-in").addEventListener("click", () => this.control.zoomAtCursor(0.5));
    byId("zoom-out").addEventListener("click", () => this.control.zoomAtCursor(2));
    byId("zoom-all").addEventListener("click", () => this.control.showAll());
    byId("go-peak").addEventListener("click", () => this.control.goToPeak());
    byId("align").addEventListener("change", () => this.showChart());
    byId("fold").addEventListener("change", () => {
      this.showPeak();
      this.cursorMoved();
    });
  }

  show(number) {
    this.number = number;
    this.run = this.runs[number];
    this.other = this.runs.length > 1 ? this.runs[1 - number] : null;
    byId("runs").querySelectorAll("button").forEach((button, i) => button.setAttribute("aria-pressed", String(i === number)));
    this.showHead();
    this.showTiles();
    this.showPeak();
    this.showRegions();
    this.showPlans();
    this.showChart();
  }

  showHead() {
    const { run } = this;
    const title = this.runs.map(({ name }) => name).join(" and ") || "A recording";
    document.title = `${title} \u2013 remat-report`;
    byId("title").textContent = title;
    const parts = [run.program || "no program", `pid ${run.pid}`, `torch ${run.torch || "unknown"}`];
    if (run.begin_unix_ms > 0) parts.push(new Date(run.begin_unix_ms).toISOString().replace("T", " ").slice(0, 16) + " UTC");
    parts.push(`${countText(run.summary.events)} events`);
    byId("about").textContent = parts.join(" \u00b7 ");
    byId("damage").hidden = run.damage === "";
    byId("damage").textContent = `The recording is not whole: ${run.damage}. What follows is left out.`;
  }

  showTiles() {
    const { summary, regions } = this.run;
    const [outside, forward, replay, backward] = summary.phases;
    const count = regions.reduce((sum, { numbers }) => sum + numbers[0], 0);
    const tiles = [["Peak, made while recording", bytesText(summary.peak_bytes), `after ${timeText(summary.peak)}`],
      ["Alive in the end", bytesText(summary.end_bytes), `after ${timeText(summary.end)}`],
      ["Forward", timeText(forward[1]), `${countText(forward[0])} ops in regions`],
      ["Replays", timeText(replay[1]), forward[1] > 0 ? `${percentText(replay[1] / forward[1])} of the forward` : `${countText(replay[0])} ops`],
      ["Backward", timeText(backward[1]), `${countText(backward[0])} ops`],
      ["Regions", countText(count), `${countText(outside[0])} ops outside, ${timeText(outside[1])}`]];
    byId("tiles").replaceChildren(...tiles.map(([label, value, note]) => node("li", {}, node("span", { class: "label" }, label),
      node("span", { class: "value" }, value), node("span", { class: "note" }, note))));
  }

  showChart() {
    const haveMarks = this.other !== null && this.run.marks.length > 0 && this.other.marks.length > 0;
    byId("align-label").hidden = !haveMarks;
    const shift = haveMarks && byId("align").value === "mark" ? this.run.marks[0].time - this.other.marks[0].time : 0;
    this.chart.show(this.run, this.other, shift);
    const { times, curve } = this.run;
    byId("cursor-card").hidden = times.length === 0;
    byId("moments").textContent = times.length < curve.of
      ? `The chart has ${countText(times.length)} of ${countText(curve.of)} moments: where least and most was alive, stretch by stretch.` : "";
    this.cursorMoved();
    this.control.redraw();
  }

  cursorMoved() {
    const { run, chart } = this;
    const moment = chart.cursor;
    const time = moment < 0 ? 0 : run.times[moment];
    const words = `${bytesText(run.totalAt(moment))} alive`;
    byId("cursor-title").textContent = `After ${timeText(time)}: ${words}${moment === run.peak ? ", the peak" : ""}`;
    const place = byId("chart");
    const values = { valuemin: 0, valuemax: Math.max(0, run.times.length - 1), valuenow: Math.max(0, moment),
      valuetext: `after ${timeText(time)}, ${words}` };
    for (const [name, value] of Object.entries(values)) place.setAttribute(`aria-${name}`, String(value));
    this.showLegend(moment);
    const isPeak = moment >= 0 && moment === run.peak;
    byId("cursor-table").hidden = isPeak;
    byId("cursor-note").hidden = !isPeak;
    this.showCursorTable(run.groupsAt(moment, byId("fold").checked), 6);
  }

  showLegend(moment) {
    const items = [...STACK].reverse().map((kind) => node("li", {}, node("span", { class: "swatch", colour: kindColour(kind) }),
      node("span", {}, KINDS[kind]), node("b", {}, bytesText(this.run.bytesAt(moment, kind)))));
    if (this.other) {
      items.push(node("li", {}, node("span", { class: "swatch stroke", colour: "var(--ink)" }), node("span", {}, this.run.name)));
      items.push(node("li", {}, node("span", { class: "swatch stroke", colour: "var(--second)" }), node("span", {}, this.other.name)));
    }
    byId("legend").replaceChildren(...items);
  }

  showPeak() {
    const { run } = this;
    const moment = run.peak === null ? -1 : run.peak;
    const groups = moment < 0 ? [] : run.groupsAt(moment, byId("fold").checked);
    const total = run.totalAt(moment);
    for (const id of ["peak-share", "peak-table"]) byId(id).hidden = groups.length === 0;
    byId("peak-words").replaceChildren(...this.peakWords(groups, total));
    const kinds = [...STACK].map((kind) => [kind, run.bytesAt(moment, kind)]).filter(([, bytes]) => bytes > 0);
    byId("peak-share").replaceChildren(...kinds.map(([kind, bytes]) => node("span",
      { colour: kindColour(kind), style: `flex:${bytes / total}`, title: `${KINDS[kind]} ${bytesText(bytes)}` })));
    byId("peak-share").setAttribute("aria-label", kinds.map(([kind, bytes]) => `${KINDS[kind]} ${percentText(bytes / total)}`).join(", "));
    this.showPeakTable(groups);
  }

  peakWords(groups, total) {
    if (groups.length === 0) return ["No memory was allocated while this was recorded."];
    const [largest] = groups;
    const kinds = KINDS.map((name, kind) => [name, this.run.bytesAt(this.run.peak, kind)]).filter(([, bytes]) => bytes > 0)
      .sort((a, b) => b[1] - a[1]).map(([name, bytes]) => `${name} ${percentText(bytes / total)}`);
    const where = labelText(largest.labels) ? ` in ${labelText(largest.labels)}` : "";
    return [node("b", {}, bytesText(total)), ` after ${timeText(this.run.times[this.run.peak])}: ${kinds.join(", ")}. The most is of `,
      node("code", {}, largest.op || largest.node || "no op"), `${where}, ${bytesText(largest.bytes)}.`];
  }

  showRegions() {
    const rows = this.run.regionGroups();
    byId("region-section").hidden = rows.length === 0;
    drawBars(byId("region-bars"), rows);
    this.showRegionTable(rows);
  }

  showPlans() {
    byId("plan-section").hidden = this.run.plans.length === 0;
    planTable(byId("plan-table"), this.run.plans);
  }

  offerRuns() {
    byId("compare-section").hidden = false;
    compareTable(byId("compare-table"), this.runs);
    byId("runs").hidden = false;
    byId("runs").append(...this.runs.map((run, i) => {
      const button = node("button", { type: "button" }, run.name || `recording ${i + 1}`);
      button.addEventListener("click", () => this.show(i));
      return button;
    }));
  }
}

/// Follows the system's theme until the button is pressed.
function listenToTheme(button) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const isDark = () => (chosen === null ? system.matches : chosen);
  const tell = () => button.setAttribute("aria-pressed", String(isDark()));
  button.addEventListener("click", () => {
    chosen = !isDark();
    document.documentElement.style.colorScheme = chosen ? "dark" : "light";
    tell();
  });
  system.addEventListener("change", tell);
  tell();
}

listenToTheme(byId("theme"));
const page = new Page(JSON.parse(byId("data").textContent).runs.map((run) => new Run(run)));
