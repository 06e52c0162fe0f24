/** Prepare the history for charts: the store keeps only steps in which something happened. */

/** Milliseconds after the end of a step during which its counts may still change. */
const SETTLE_TIME = 12_000;

/**
 * Return one value for each complete step between `from` and `to` (in milliseconds; `step` is in seconds).
 *
 * @param {any[]} points @param {number} step @param {number} from @param {number} to
 * @param {(point: any) => number | null | undefined} value @param {number | null} none the value of a step that is not stored
 * @returns {[number, number | null][]}
 */
export function fillSteps(points, step, from, to, value, none) {
  const length = step * 1000;
  const stored = new Map(points.map((point) => [Date.parse(point.at), point]));
  /** @type {[number, number | null][]} */
  const steps = [];
  for (let at = Math.ceil(from / length) * length; at + length + SETTLE_TIME <= to; at += length) {
    const point = stored.get(at);
    steps.push([at, point === undefined ? none : (value(point) ?? none)]);
  }
  return steps;
}

/**
 * Return for each step the sum of the last `count` steps.
 *
 * @param {[number, number | null][]} steps @param {number} count
 * @returns {[number, number | null][]}
 */
export function rollingSum(steps, count) {
  let sum = 0;
  return steps.map(([at, value], index) => {
    sum += (value ?? 0) - (index >= count ? (steps[index - count][1] ?? 0) : 0);
    return [at, sum];
  });
}

/**
 * Merge a history into longer steps: counts are added, waits take the maximum.
 *
 * @param {{step: number, points: any[]}} history @param {number} step
 * @returns {{step: number, points: any[]}}
 */
export function mergeSteps(history, step) {
  if (history.step >= step) return history;
  /** @type {Map<number, any>} */
  const groups = new Map();
  for (const { at, ...values } of history.points) {
    const begins = Math.floor(Date.parse(at) / 1000 / step) * step;
    const group = groups.get(begins) ?? {};
    for (const [name, value] of Object.entries(values)) {
      if (value === null) continue;
      const before = group[name] ?? 0;
      group[name] = /_(p50|p95|p99|max)$/.test(name) ? Math.max(before, value) : before + value;
    }
    groups.set(begins, group);
  }
  return { step, points: [...groups].map(([at, values]) => ({ at: new Date(at * 1000).toISOString(), ...values })) };
}
