// From Prometheus's answers to fields: named series with what fieldConfig says of them, in Grafana's order of
// precedence.
import {format} from "./units.js";

// Hues for series whose colour nobody chose, in the order in which they are given out; style.css has them for dark and
// light.
export const PALETTE_SIZE = 12;
const NAMED = ["blue", "orange", "green", "purple", "red", "teal", "yellow", "brown", "gray", "lime", "pink", "indigo"];

// A CSS colour for one of Grafana's names or #rrggbb.
export function cssColor(name) {
  if (name === "text" || name === "transparent") return name === "text" ? "var(--text)" : name;
  if (NAMED.includes(name)) return `var(--${name})`;
  if (/^#[0-9a-f]{6}$/i.test(name)) return name;
  throw new Error(`colour ${JSON.stringify(name)} is not understood (${NAMED.join(", ")} or #rrggbb)`);
}

// {{label}} replaced; without a format, the labels as PromQL has them.
export function legendName(legendFormat, labels) {
  if (legendFormat && legendFormat !== "__auto") {
    return legendFormat.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? "").trim();
  }
  const pairs = Object.entries(labels).filter(([key]) => key !== "__name__").map(([key, value]) => `${key}="${value}"`);
  return `${labels.__name__ ?? ""}${pairs.length || !labels.__name__ ? `{${pairs.join(", ")}}` : ""}`;
}

const MATCHERS = {
  byName: (options, field) => field.name === options,
  byRegexp: (options, field) => new RegExp(options.replace(/^\/(.*)\/$/, "$1")).test(field.name),
};
export const MATCHER_IDS = Object.keys(MATCHERS);

// The config of one field: the panel's defaults, under what its overrides say of this field, the last one on top.
export function configFor(field, {defaults, overrides}) {
  const config = {...defaults, custom: {...defaults.custom}};
  for (const {matcher, properties} of overrides) {
    if (!MATCHERS[matcher.id](matcher.options, field)) continue;
    for (const {id, value} of properties) {
      if (id.startsWith("custom."))
        config.custom[id.slice("custom.".length)] = value;
      else
        config[id] = value;
    }
  }
  return config;
}

// The answer of one target as fields {name, labels, refId, times, values, config}.
export function fieldsOf(target, series, fieldConfig) {
  return series.map(({labels, times, values}) => {
    const field = {name: legendName(target.legendFormat, labels), labels, refId: target.refId, times, values};
    field.config = configFor(field, fieldConfig);
    return field;
  });
}

const present = (values) => values.filter((value) => value !== null);
const REDUCERS = {
  lastNotNull: (values) => present(values).at(-1) ?? null,
  mean: (values) =>
      (present(values).length ? present(values).reduce((a, b) => a + b, 0) / present(values).length : null),
};
export const REDUCER_LABELS = {
  lastNotNull: "last",
  mean: "mean"
};
export const reduce = (values, calculation) => REDUCERS[calculation](values);

// The text and colour that a value mapping has for `value`, or null.
export function mapped(value, config) {
  return (config.mappings ?? []).map(({options}) => options[String(value)]).find(Boolean) ?? null;
}

export function display(value, config) {
  return mapped(value, config)?.text ?? format(value, config.unit, config.decimals);
}

// The colour of the highest threshold that `value` has reached.
export function thresholdColor(value, config) {
  let color = "green";
  for (const step of config.thresholds?.steps ?? [])
    if (step.value === null || value >= step.value) color = step.color;
  return cssColor(color);
}

// The colour of a whole series: `index` counts the panel's series.
export function seriesColor(field, index) {
  const {mode = "palette-classic", fixedColor} = field.config.color ?? {};
  if (mode === "fixed") return cssColor(fixedColor);
  if (mode === "thresholds") return thresholdColor(reduce(field.values, "lastNotNull"), field.config);
  return `var(--${NAMED[index % PALETTE_SIZE]})`;
}

// The colour of one value: its mapping's, else as the series.
export function valueColor(value, field, index) {
  const color = mapped(value, field.config)?.color;
  if (color) return cssColor(color);
  return field.config.color?.mode === "thresholds" ? thresholdColor(value, field.config) : seriesColor(field, index);
}
