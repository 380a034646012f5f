// Numbers as people read them: Grafana's unit names, the prefix that suits the size, three digits that matter.

const SI = [[1, ""], [1e3, "k"], [1e6, "M"], [1e9, "G"], [1e12, "T"], [1e15, "P"], [1e18, "E"]];
const COUNT = [[1, ""], [1e3, "K"], [1e6, "M"], [1e9, "B"], [1e12, "T"], [1e15, "Q"]];
const IEC = [[1, "B"], [2 ** 10, "KiB"], [2 ** 20, "MiB"], [2 ** 30, "GiB"], [2 ** 40, "TiB"], [2 ** 50, "PiB"]];
const TIME =
    [[1e-9, "ns"], [1e-6, "µs"], [1e-3, "ms"], [1, "s"], [60, "min"], [3600, "h"], [86400, "d"], [7 * 86400, "w"]];

const withSuffix = (scale, suffix) => scale.map(([factor, prefix]) => [factor, `${prefix}${suffix}`]);

// Unit -> the steps of its scale, smallest first: what 1 stands for, and what is written behind the number.
const SCALES = {
  none: [[1, ""]],
  short: COUNT,
  percentunit: [[0.01, "%"]],
  s: TIME,
  bytes: IEC,
  Bps: withSuffix(SI, "B/s"),
  ops: withSuffix(COUNT, " ops/s"),
  flops: withSuffix(SI, "FLOP/s"),
  sci: null,  // Has no scale: 1.5e-4.
};

export const UNITS = Object.keys(SCALES);

function scaleOf(unit) {
  if (!(unit in SCALES)) throw new Error(`unit ${JSON.stringify(unit)} is not understood (${UNITS.join(", ")})`);
  return SCALES[unit];
}

// The largest step that leaves at least one before the point; the smallest for what is smaller than all.
function stepFor(scale, size) {
  let found = scale[0];
  for (const step of scale)
    if (size >= step[0] * (1 - 1e-12)) found = step;
  return size === 0 ? scale.find(([factor]) => factor >= 1) ?? scale[0] : found;
}

const threeDigits = (value) => (Math.abs(value) >= 100 ? Math.round(value) : Number(value.toPrecision(3)));

// Digits behind the point that leave three that matter; none for whole numbers.
function digitsFor(value) {
  if (Number.isInteger(value) || value === 0) return 0;
  return Math.min(12, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)) + 1e-12)));
}

// Rounded to `digits`, without a minus before a zero.
function fixed(value, digits) {
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text;
}

function suffixOf(label) {
  return label === "" || label === "%" ? label : ` ${label.trim()}`;
}

// {number, suffix}; `decimals` null or undefined: as many as are needed.
export function formatParts(value, unit = "short", decimals = null) {
  const scale = scaleOf(unit);
  if (value === null || Number.isNaN(value)) return {number: "–", suffix: ""};
  if (!Number.isFinite(value)) return {number: value > 0 ? "∞" : "-∞", suffix: ""};
  if (scale === null) return {number: value === 0 ? "0" : value.toExponential(decimals ?? 2), suffix: ""};
  const [factor, label] = stepFor(scale, Math.abs(threeDigits(value)));  // 999.9 is 1 K, not 1000.
  const scaled = Number((value / factor).toPrecision(12));
  return {number: fixed(scaled, decimals ?? digitsFor(threeDigits(scaled))), suffix: suffixOf(label)};
}

export function format(value, unit, decimals) {
  const {number, suffix} = formatParts(value, unit, decimals);
  return number + suffix;
}

// The first of 1, 2, 2.5, 5, 10, ... times a power of ten that is not below `rough`.
function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 2.5, 5, 10].find((nice) => nice * power >= rough * (1 - 1e-9));
}

// Digits behind the point that tell multiples of `step` apart.
function digitsOfStep(step) {
  let digits = 0;
  while (digits < 12 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) ++digits;
  return digits;
}

// The same of numbers with an exponent: as many digits as the step is smaller than the number.
function exponential(value, step) {
  const power = (number) => Math.floor(Math.log10(Math.abs(number)) + 1e-12);
  const digits = Math.max(0, power(value) - power(step)) + digitsOfStep(step / 10 ** power(step));
  return value.toExponential(digits);
}

// Round values that cover low..high, about `count` of them, all written in one step of the unit's scale:
// [{value, text}]; never closer than `decimals` can tell apart.
export function axisTicks(low, high, count, unit = "short", decimals = null) {
  const scale = scaleOf(unit);
  const [factor, label] = scale === null ? [1, ""] : stepFor(scale, Math.max(Math.abs(low), Math.abs(high)));
  let step = niceStep((high - low) / factor / Math.max(1, count));
  if (decimals !== null && decimals !== undefined && scale !== null) step = Math.max(step, 10 ** -decimals);
  if (decimals === 0) step = Math.ceil(step);
  const first = Math.floor(low / factor / step + 1e-9), last = Math.ceil(high / factor / step - 1e-9);
  const digits = digitsOfStep(step);
  const ticks = [];
  for (let i = first; i <= Math.max(last, first + 1); ++i) {
    const scaled = Number((i * step).toPrecision(12));
    const text = scaled === 0 ? (label === "%" ? "0%" : "0") :
        scale === null        ? exponential(scaled, step) :
                                fixed(scaled, digits) + suffixOf(label);
    ticks.push({value: scaled * factor, text});
  }
  return ticks;
}
