// A reliability diagram: the predicted p_same and the observed share. Good predictions are on the diagonal.

import { drawn, percent } from "./dom.js";

const SIDE = 220;
const WIDE = 340;
const EDGE = { left: 48, right: 20, top: 12, bottom: 40 };

/** Draw the reliability diagram of bins {probability, share, count}; larger dots have more pairs. */
export function reliability(bins) {
  const x = (chance) => EDGE.left + chance * (WIDE - EDGE.left - EDGE.right);
  const y = (share) => SIDE - EDGE.bottom - share * (SIDE - EDGE.top - EDGE.bottom);
  const most = Math.max(...bins.map(({ count }) => count));
  const dots = bins.map(({ probability, share, count }) => {
    const dot = drawn("circle", { cx: x(probability), cy: y(share), r: 3 + 5 * Math.sqrt(count / most), class: "dot" });
    dot.append(drawn("title", {}, `Predicted ${percent(probability)}, observed ${percent(share)} of ${count.toLocaleString()} pairs`));
    return dot;
  });
  const even = drawn("line", { x1: x(0), y1: y(0), x2: x(1), y2: y(1), class: "even" });
  const said = bins.map((one) => `predicted ${percent(one.probability)}, observed ${percent(one.share)} of ${one.count} pairs`);
  return drawn(
    "svg",
    { viewBox: `0 0 ${WIDE} ${SIDE}`, class: "curve", role: "img", "aria-label": `Reliability: ${said.join("; ")}.` },
    ...grid(x, y),
    even,
    ...dots,
  );
}

function grid(x, y) {
  const lines = [];
  for (const share of [0, 0.5, 1]) {
    lines.push(drawn("line", { x1: x(0), x2: x(1), y1: y(share), y2: y(share), class: "rule" }));
    lines.push(drawn("text", { x: EDGE.left - 8, y: y(share) + 4, "text-anchor": "end" }, `${100 * share} %`));
    lines.push(drawn("text", { x: x(share), y: SIDE - EDGE.bottom + 18, "text-anchor": "middle" }, `${100 * share} %`));
  }
  return [...lines, drawn("text", { x: x(0.5), y: SIDE - 4, "text-anchor": "middle" }, "predicted p_same (across) and observed share (up)")];
}
