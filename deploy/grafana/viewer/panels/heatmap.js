// A histogram over time: a column a step, a row a bucket, the darker the more.
import {html, svg} from "../dom.js";
import {Plot} from "../plot.js";
import {formatTime} from "../time.js";
import {format} from "../units.js";

// Prometheus counts in each bucket what is below its bound; what is above the bound before stays: [{bound, values}].
export function bucketsOf(fields) {
  const boundOf = ({labels}) => (labels.le === "+Inf" ? Infinity : Number(labels.le));
  const cumulative =
      fields.map((field) => ({bound: boundOf(field), values: field.values})).sort((a, b) => a.bound - b.bound);
  return cumulative.map(
      ({bound, values}, row) => ({
        bound,
        values: values.map(
            (value, i) =>
                (value === null ? null : Math.max(0, value - (row > 0 ? cumulative[row - 1].values[i] ?? 0 : 0)))),
      }));
}

const shadeOf = (share) => (0.12 + 0.88 * share).toFixed(3);

// Without the empty rows above and below everything.
function occupied(buckets, least) {
  const some = buckets.map(({values}) => values.some((value) => value !== null && value > least));
  return buckets.slice(Math.max(0, some.indexOf(true) - 1), some.lastIndexOf(true) + 2);
}

export function draw(body, context) {
  const {panel, fields, step} = context;
  const {color, yAxis, cellGap, filterValues, legend} = panel.options;
  const least = filterValues?.le ?? 0;
  const buckets = occupied(bucketsOf(fields), least);
  const most = Math.max(...buckets.flatMap(({values}) => values.map((value) => value ?? 0)));
  const box = html("div", {class: "chart"});
  body.replaceChildren(...[box, legend.show ? scaleOf(most, color) : null].filter(Boolean));
  const boundText = (bound) => (bound === Infinity ? "∞" : format(bound, yAxis.unit, yAxis.decimals));
  const every = Math.ceil(buckets.length / Math.max(2, Math.floor(box.clientHeight / 26)));
  const ticks = [
    {value: 0, text: ""},
    ...buckets.map(({bound}, i) => ({value: i + 1, text: i % every === 0 ? boundText(bound) : ""}))
  ];
  const plot = new Plot(box, ticks, context);
  const times = fields[0].times, width = plot.x(times[0] + step) - plot.x(times[0]), height = plot.y(0) - plot.y(1);
  const cells = svg("g", {class: "heat"});
  buckets.forEach(({values}, row) => values.forEach((value, i) => {
    if (value === null || value <= least) return;
    const left = Math.max(plot.left, plot.x(times[i] - step)), right = Math.min(plot.right, plot.x(times[i]));
    if (right <= left) return;
    cells.append(svg("rect", {
      x: left,
      width: Math.max(1, right - left - (width > 4 ? cellGap : 0)),
      y: plot.y(row + 1) + cellGap,
      height: height - 2 * cellGap,
      style: `fill-opacity: ${shadeOf((value / most) ** color.exponent)}`
    }));
  }));
  plot.root.append(cells);
  plot.interact((time, y) => {
    const i = Math.ceil((time - times[0]) / step - 1e-9), row = Math.floor((plot.bottom - y) / height);
    if (!buckets[row] || i < 0 || i >= times.length) return null;
    const from = row > 0 ? boundText(buckets[row - 1].bound) : "0", value = buckets[row].values[i];
    return {
      title: formatTime(times[i]),
      rows: [
        {color: "var(--blue)", name: `${from} to ${boundText(buckets[row].bound)}`, text: format(value ?? 0, "short")}
      ]
    };
  });
}

function scaleOf(most, {steps}) {
  const shades = Array.from({length: steps}, (_, i) => html("i", {style: `opacity: ${shadeOf(i / (steps - 1))}`}));
  return html("div", {class: "shades"}, html("span", {}, "0"), ...shades, html("span", {}, format(most, "short")));
}
