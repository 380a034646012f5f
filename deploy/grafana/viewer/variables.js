// Variables in queries and titles: $name and ${name}, the built-in intervals, and queries for what a variable can be.
import {formatDuration} from "./time.js";

const ROUND_SECONDS =
    [1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

// Seconds between the samples of a query: a round number that gives no more than `points`, and no less than a scrape.
export function stepFor(range, points, scrape) {
  const rough = Math.max((range.to - range.from) / Math.max(1, points), scrape);
  return ROUND_SECONDS.find((step) => step >= rough - 1e-9) ?? Math.ceil(rough / 86400) * 86400;
}

// $__rate_interval is long enough for a rate at each step: four scrapes, or the step and one more.
export function builtIns(range, step, scrape) {
  return {
    __interval: formatDuration(step),
    __rate_interval: formatDuration(Math.max(step + scrape, 4 * scrape)),
    __range: formatDuration(range.to - range.from),
  };
}

// As Grafana puts several values into a regular expression, inside a PromQL string.
const escaped = (value) => value.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace(/\\/g, "\\\\");

// What a query variable stands for in PromQL; `chosen` is null for All.
export function valueFor(variable, chosen) {
  if (chosen === null) return variable.allValue || ".*";
  return chosen.length === 1 ? escaped(chosen[0]) : `(${chosen.map(escaped).join("|")})`;
}

// `text` with every variable replaced; one that `values` lacks is an error.
export function expand(text, values) {
  return text.replace(/\$(?:\{(\w+)\}|(\w+))/g, (_, braced, bare) => {
    const name = braced ?? bare;
    if (!(name in values)) throw new Error(`unknown variable $${name} in ${text}`);
    return values[name];
  });
}

// {selector, label} of a label_values(...) query, the only kind there is here.
export function parseLabelValues(query) {
  const match = /^label_values\((?:(.*),)?\s*(\w+)\)$/.exec(query.trim());
  if (!match) throw new Error(`variable query ${query} is not understood (label_values(selector, label))`);
  return {selector: match[1]?.trim() ?? null, label: match[2]};
}

// Grafana's `sort`: 0 none, 1 and 2 alphabetical, 3 and 4 numerical, the second of each downwards.
export function sorted(values, sort) {
  const order = sort >= 3 ? (a, b) => Number(a) - Number(b) : (a, b) => a.localeCompare(b);
  const list = sort === 0 ? [...values] : [...values].sort(order);
  return sort === 2 || sort === 4 ? list.reverse() : list;
}
