// 3x3 matrices, row by row in nine numbers; points live in the continuous frame of pixels.

export const IDENTITY = [1, 0, 0, 0, 1, 0, 0, 0, 1];

export function move(matrix, flat) {
  const [a, b, c, d, e, f, g, h, i] = matrix;
  const out = new Array(flat.length);
  for (let at = 0; at < flat.length; at += 2) {
    const x = flat[at];
    const y = flat[at + 1];
    const w = g * x + h * y + i;
    out[at] = (a * x + b * y + c) / w;
    out[at + 1] = (d * x + e * y + f) / w;
  }
  return out;
}

// CSS takes columns of a 4x4 matrix; a homography fits in with z left alone
export function toCss([a, b, c, d, e, f, g, h, i]) {
  return `matrix3d(${[a, d, 0, g, b, e, 0, h, 0, 0, 1, 0, c, f, 0, i].join(",")})`;
}

export function bounds(flat) {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (let at = 0; at < flat.length; at += 2) {
    left = Math.min(left, flat[at]);
    right = Math.max(right, flat[at]);
    top = Math.min(top, flat[at + 1]);
    bottom = Math.max(bottom, flat[at + 1]);
  }
  return { left, top, right, bottom };
}
