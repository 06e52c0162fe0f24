/** The history as charts draw it: the store keeps only the steps in which something happened. */

/** How long after its end a step may still be counted, in milliseconds. */
const LATE = 12_000;

/**
 * One value for each step from `from` to `to`, as far as it is over; instants in milliseconds, `step` in seconds.
 *
 * @param {any[]} points @param {number} step @param {number} from @param {number} to
 * @param {(point: any) => number | null | undefined} value @param {number | null} none what a step has in which nothing happened
 * @returns {[number, number | null][]}
 */
export function everyStep(points, step, from, to, value, none) {
  const length = step * 1000;
  const known = new Map(points.map((point) => [Date.parse(point.at), point]));
  /** @type {[number, number | null][]} */
  const found = [];
  for (let at = Math.ceil(from / length) * length; at + length + LATE <= to; at += length) {
    const point = known.get(at);
    found.push([at, point === undefined ? none : (value(point) ?? none)]);
  }
  return found;
}

/**
 * What came together in the `many` steps that end with each.
 *
 * @param {[number, number | null][]} steps @param {number} many
 * @returns {[number, number | null][]}
 */
export function together(steps, many) {
  let sum = 0;
  return steps.map(([at, value], place) => {
    sum += (value ?? 0) - (place >= many ? (steps[place - many][1] ?? 0) : 0);
    return [at, sum];
  });
}

/**
 * The history in longer steps, where the store keeps shorter ones: sums of what is counted, and the highest of waits.
 *
 * @param {{step: number, points: any[]}} history @param {number} step
 * @returns {{step: number, points: any[]}}
 */
export function longerSteps(history, step) {
  if (history.step >= step) return history;
  /** @type {Map<number, any>} */
  const groups = new Map();
  for (const { at, ...values } of history.points) {
    const begins = Math.floor(Date.parse(at) / 1000 / step) * step;
    const group = groups.get(begins) ?? {};
    for (const [name, value] of Object.entries(values)) {
      if (value === null) continue;
      const before = group[name] ?? 0;
      group[name] = /_(p50|p95|max)$/.test(name) ? Math.max(before, value) : before + value;
    }
    groups.set(begins, group);
  }
  return { step, points: [...groups].map(([at, values]) => ({ at: new Date(at * 1000).toISOString(), ...values })) };
}
