// Times: what "now-1h" means, how a span is written, where the ticks of a time axis stand. All in seconds since 1970.

const UNITS = {
  s: 1,
  m: 60,
  h: 3600,
  d: 86400,
  w: 7 * 86400
};

// "5m" -> 300, "1h30m" -> 5400. What is no duration is an error.
export function parseDuration(text) {
  if (!/^(\d+[smhdw])+$/.test(text)) throw new Error(`${JSON.stringify(text)} is no duration, such as 30s, 5m or 1h`);
  let seconds = 0;
  for (const [, count, unit] of text.matchAll(/(\d+)([smhdw])/g)) seconds += Number(count) * UNITS[unit];
  return seconds;
}

// Prometheus's way to write it: 90 -> "1m30s".
export function formatDuration(seconds) {
  let rest = Math.max(1, Math.round(seconds)), text = "";
  for (const unit of ["d", "h", "m", "s"]) {
    const count = Math.floor(rest / UNITS[unit]);
    if (count > 0) text += `${count}${unit}`;
    rest -= count * UNITS[unit];
  }
  return text;
}

// "now", "now-1h", milliseconds since 1970 as Grafana has them in addresses, or a date such as 2025-01-31 12:00.
export function parseTime(text, now) {
  const relative = /^now(?:([+-])(.+))?$/.exec(text.trim());
  if (relative) return now + (relative[1] ? (relative[1] === "-" ? -1 : 1) * parseDuration(relative[2]) : 0);
  if (/^\d{10,}$/.test(text.trim())) return Number(text) / 1000;
  const parsed = Date.parse(text.trim().replace(" ", "T"));
  if (Number.isNaN(parsed)) throw new Error(`${JSON.stringify(text)} is no time, such as now-1h or 2025-01-31 12:00`);
  return parsed / 1000;
}

const two = (number) => String(number).padStart(2, "0");

export function formatTime(seconds, withDate = true) {
  const date = new Date(seconds * 1000);
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return withDate ? `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock}` : clock;
}

const STEPS = [
  1,    2,    5,    10,    15,    30,    60,    120,    300,    600,     900,
  1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000
];

// At most `count` ticks, at round local times: [{value, text}].
export function timeTicks(from, to, count) {
  const step = STEPS.find((candidate) => (to - from) / candidate <= count) ?? Math.ceil((to - from) / count);
  const offset = new Date(from * 1000).getTimezoneOffset() * 60;
  const ticks = [];
  for (let at = Math.ceil((from - offset) / step) * step + offset; at <= to; at += step) {
    const date = new Date(at * 1000);
    const day = `${two(date.getMonth() + 1)}-${two(date.getDate())}`;
    const clock = `${two(date.getHours())}:${two(date.getMinutes())}`;
    ticks.push({value: at, text: step >= 86400 ? day : step >= 60 ? clock : `${clock}:${two(date.getSeconds())}`});
  }
  return ticks;
}
