// The visible part of the map. It converts positions on the map, -1 to 1 on both axes, to pixels and back.

const CLOSEST = 400;

export class View {
  constructor() {
    this.resize(1, 1);
    this.fit([]);
    this.reset();
  }

  resize(width, height) {
    Object.assign(this, { width, height });
  }

  reset() {
    Object.assign(this, { x: 0, y: 0, zoom: 1 });
  }

  /** Fit the view to the points: store the largest |x| and |y|. */
  fit(points) {
    const farthest = (axis) => Math.max(1e-3, ...points.map((point) => Math.abs(point[axis])));
    this.extent = [farthest("x"), farthest("y")];
  }

  /** Return pixels per unit of the map; equal on both axes, so that distances can be compared. */
  get unit() {
    return 0.45 * Math.min(this.width / this.extent[0], this.height / this.extent[1]) * this.zoom;
  }

  place({ x, y }) {
    return [this.width / 2 + (x - this.x) * this.unit, this.height / 2 - (y - this.y) * this.unit];
  }

  pan(right, down) {
    this.x -= right / this.unit;
    this.y += down / this.unit;
    this.stay();
  }

  /** Zoom by `factor` around a pixel. */
  zoomAt(factor, [px, py] = [this.width / 2, this.height / 2]) {
    const before = 1 / this.unit;
    this.zoom = Math.min(CLOSEST, Math.max(1, this.zoom * factor));
    const moved = before - 1 / this.unit;
    this.x += (px - this.width / 2) * moved;
    this.y -= (py - this.height / 2) * moved;
    this.stay();
  }

  /** Pan as little as necessary to show the point inside the view. */
  reveal(point) {
    const [px, py] = this.place(point);
    const edge = 24;
    const out = (at, length) => Math.min(0, at - edge) || Math.max(0, at - length + edge);
    this.pan(-out(px, this.width), -out(py, this.height));
  }

  stay() {
    this.x = Math.min(1, Math.max(-1, this.x));
    this.y = Math.min(1, Math.max(-1, this.y));
  }
}

/** Return the index of the place nearest to a pixel, within `reach` pixels, or -1. */
export function nearest(places, [px, py], reach = Infinity) {
  let best = -1;
  let least = reach ** 2;
  places.forEach(([x, y], i) => {
    const distance = (x - px) ** 2 + (y - py) ** 2;
    if (distance <= least) [best, least] = [i, distance];
  });
  return best;
}

/** Return the next place in a direction ([1, 0] is right, [0, 1] is down), or -1. */
export function neighbour(places, from, [right, down]) {
  const [px, py] = places[from];
  let best = -1;
  let least = Infinity;
  places.forEach(([x, y], i) => {
    const ahead = (x - px) * right + (y - py) * down;
    const aside = Math.abs((x - px) * down) + Math.abs((y - py) * right);
    const cost = ahead + 2 * aside;
    if (i !== from && ahead > 0 && ahead >= aside && cost < least) [best, least] = [i, cost];
  });
  return best;
}
