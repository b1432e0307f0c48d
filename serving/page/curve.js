// A figure of p_same over the similarity.

import { drawn, percent } from "./dom.js";

const WIDE = 340;
const HIGH = 220;
const EDGE = { left: 48, right: 20, top: 12, bottom: 40 };
const STEPS = 120;

/** Draw the logistic curve of a calibration {slope, offset}, with a dot where "same" becomes the likelier answer. */
export function curve({ slope, offset }) {
  const half = -offset / slope;
  const low = Math.min(0, Math.floor(10 * (half - 4 / slope)) / 10) < -0.05 ? -1 : 0;
  const x = (similarity) => EDGE.left + ((similarity - low) / (1 - low)) * (WIDE - EDGE.left - EDGE.right);
  const y = (chance) => HIGH - EDGE.bottom - chance * (HIGH - EDGE.top - EDGE.bottom);
  const chance = (similarity) => 1 / (1 + Math.exp(-(slope * similarity + offset)));
  const points = Array.from({ length: STEPS + 1 }, (_, i) => low + (i / STEPS) * (1 - low));
  const line = points.map((one) => `${x(one).toFixed(1)},${y(chance(one)).toFixed(1)}`).join(" ");
  const parts = [...grid(x, y, low), drawn("polyline", { points: line, class: "line" })];
  if (half > low && half < 1) parts.push(drawn("circle", { cx: x(half), cy: y(0.5), r: 4.5, class: "dot" }));
  const said = `The probability of the same class grows from ${percent(chance(low))} at similarity ${low} to ` +
    `${percent(chance(1))} at 1; it is one half at ${half.toFixed(2)}.`;
  return drawn("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, class: "curve", role: "img", "aria-label": said }, ...parts);
}

function grid(x, y, low) {
  const lines = [];
  for (const chance of [0, 0.5, 1]) {
    lines.push(drawn("line", { x1: x(low), x2: x(1), y1: y(chance), y2: y(chance), class: "rule" }));
    lines.push(drawn("text", { x: EDGE.left - 8, y: y(chance) + 4, "text-anchor": "end" }, `${100 * chance} %`));
  }
  for (const similarity of [low, (low + 1) / 2, 1]) {
    lines.push(drawn("text", { x: x(similarity), y: HIGH - EDGE.bottom + 18, "text-anchor": "middle" }, `${similarity}`));
  }
  const middle = { x: x((low + 1) / 2), y: HIGH - 4, "text-anchor": "middle" };
  return [...lines, drawn("text", middle, "similarity")];
}
