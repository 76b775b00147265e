// SPDX-License-Identifier: BSD-3-Clause
// Formats numbers as text and creates nodes of the page.
"use strict";

const KINDS = ["outside of regions", "forward", "kept", "replayed", "backward", "weights\u2019 gradients"];
const STACK = [5, 2, 0, 1, 3, 4]; // from bottom to top: long-lived kinds are at the bottom

function digits(value) {
  const most = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return value.toLocaleString("en-US", { minimumFractionDigits: most, maximumFractionDigits: most });
}

function inUnits(value, units) {
  const size = Math.abs(value);
  const [least, name] = units.find(([from]) => size >= from) || units[units.length - 1];
  return least === 1 ? `${Math.round(value)} ${name}` : `${digits(value / least)} ${name}`;
}

function bytesText(bytes) {
  return inUnits(bytes, BYTE_UNITS);
}

function timeText(ns) {
  return inUnits(ns, TIME_UNITS);
}

function countText(count) {
  return count.toLocaleString("en-US");
}

function percentText(share) {
  if (!Number.isFinite(share)) return "\u2013";
  return share > 0 && share < 0.001 ? "< 0.1 %" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
}

/// Creates text nodes, so that text of a recording is never markup.
function node(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(element, attributes, children) {
  const { colour, ...others } = attributes;
  for (const [name, value] of Object.entries(others)) element.setAttribute(name, value);
  if (colour) element.style.setProperty("--colour", colour);
  element.append(...children);
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

function kindColour(kind) {
  return `var(--kind-${kind})`;
}

function kindName(kind) {
  return node("span", { class: "kind" }, node("span", { class: "swatch", colour: kindColour(kind) }), KINDS[kind]);
}

/// Round numbers in [from, to], about `count` of them.
function ticks(from, to, count) {
  const rough = (to - from) / Math.max(1, count);
  if (!(rough > 0)) return [from];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const all = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to * (1 + 1e-12); ++i) all.push(i * step);
  return all;
}

/// Texts of the ticks in one unit: "0", "0.5", "1 GB".
function tickTexts(values, units) {
  const most = Math.max(...values.map(Math.abs), 1);
  const [size, name] = units.find(([from]) => most >= from) || units[units.length - 1];
  const step = values.length > 1 ? Math.abs(values[1] - values[0]) / size : 1;
  const places = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step) - 1e-9)));
  return values.map((value) => (value === 0 ? "0" : `${(value / size).toFixed(places)} ${name}`));
}

const BYTE_UNITS = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];
const TIME_UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "\u00b5s"], [1, "ns"]];
