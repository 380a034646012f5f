// Lines and areas over time, stacked or not. A panel is drawn by draw(body, context), where `context` has
//   panel, fields        the panel's JSON; what its queries gave (fields.js)
//   range, step          {from, to} and seconds between samples
//   annotations          [{color, title, from, to}]
//   hidden               names of series that the legend has switched off; lives as long as the panel
//   zoom(from, to)       asks for another range
//   signal               aborted before the panel is drawn again
import {html, svg} from "../dom.js";
import {cssColor, display, seriesColor} from "../fields.js";
import {legendOf} from "../legend.js";
import {Plot} from "../plot.js";
import {axisTicks} from "../units.js";

export function draw(body, context) {
  const {panel, fields, hidden} = context;
  const legend = panel.options.legend;
  const series = fields.map((field, index) => ({field, color: seriesColor(field, index)}));
  const box = html("div", {class: "chart"});
  const redraw = () => {
    body.replaceChildren(...[box, legendOf(series, legend, hidden, redraw)].filter(Boolean));
    drawChart(box, series.filter(({field}) => !hidden.has(field.name)), context);
  };
  body.classList.toggle("beside", legend.showLegend && legend.placement === "right");
  redraw();
}

// Each series' lower and upper edge at each time: what is below it, and with it.
function stacked(series) {
  const below = [];
  return series.map((one) => {
    if (one.field.config.custom.stacking?.mode !== "normal") return {...one, low: null, high: one.field.values};
    const low = one.field.values.map((_, i) => below[i] ?? 0);
    const high = one.field.values.map((value, i) => (value === null ? null : low[i] + value));
    high.forEach((value, i) => (below[i] = value ?? low[i]));
    return {...one, low, high};
  });
}

// What the vertical axis covers: all values; zero too where they are near it, or areas stand on it.
export function bounds(values, config, fromZero) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value === null || !Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) [low, high] = [0, 1];
  if (fromZero || (low > 0 && low < 0.5 * high)) low = Math.min(0, low);
  const even = high - low <= 1e-6 * Math.max(Math.abs(low), Math.abs(high));  // But for what sums round differently.
  if (even)
    [low, high] = low === 0 ? [0, 1] : [Math.min(0, low * 1.25), Math.max(0, high * 1.25)];
  else if (low !== 0 && high !== 0)
    low -= 0.04 * (high - low);  // A line does not lie on the axis.
  return [config.min ?? low, config.max ?? high];
}

function ticksOf(series, context) {
  const {defaults} = context.panel.fieldConfig;
  const areas = series.some(({low, field}) => low || field.config.custom.fillOpacity > 0);
  const [low, high] = bounds(series.flatMap((one) => one.high), defaults, areas);
  return {low, high, unit: defaults.unit, decimals: defaults.decimals};
}

function drawChart(box, series, context) {
  const layers = stacked(series);
  const {low, high, unit, decimals} = ticksOf(layers, context);
  const ticks = axisTicks(low, high, Math.max(2, Math.floor((box.clientHeight - 30) / 42)), unit, decimals);
  const plot = new Plot(box, ticks, context);
  const lines = svg("g", {class: "series"});
  for (const layer of [...layers].reverse()) lines.append(...shapes(plot, layer));
  plot.root.append(thresholdLines(plot, context.panel.fieldConfig.defaults, ticks), lines);
  plot.interact((time) => rowsAt(series, time, context));
}

function shapes(plot, {field, color, low, high}) {
  const {lineWidth, fillOpacity, lineStyle} = field.config.custom;
  const points = high.map(
      (value, i) =>
          (value === null ? null : {x: plot.x(field.times[i]), y: plot.y(value), base: plot.y(low ? low[i] : 0)}));
  const drawn = [];
  for (const run of runsOf(points)) {
    const path = pathOf(run);
    if (fillOpacity > 0) {
      const floor = run.map(({x, base}) => ({x, y: Math.min(plot.bottom, base)})).reverse();
      const area = `${path}L${pathOf(floor).slice(1)}Z`;
      drawn.push(svg("path", {class: "area", d: area, style: `fill: ${color}; fill-opacity: ${fillOpacity / 100}`}));
    }
    if (run.length === 1) drawn.push(svg("circle", {cx: run[0].x, cy: run[0].y, r: 1.5, style: `fill: ${color}`}));
    const dashes = lineStyle?.fill === "dash" ? `stroke-dasharray: ${lineStyle.dash.join(" ")};` : "";
    drawn.push(
        svg("path", {class: "line", d: path, style: `stroke: ${color}; ${dashes} stroke-width: ${lineWidth * 1.5}`}));
  }
  return drawn;
}

// Pieces without a gap.
function runsOf(points) {
  const runs = [[]];
  for (const point of points) {
    if (point)
      runs.at(-1).push(point);
    else if (runs.at(-1).length)
      runs.push([]);
  }
  return runs.filter((run) => run.length > 0);
}

const pathOf = (run) => `M${run.map(({x, y}) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L")}`;

function thresholdLines(plot, config, ticks) {
  const group = svg("g", {class: "thresholds"});
  if (config.custom.thresholdsStyle?.mode !== "line") return group;
  for (const {value, color} of config.thresholds.steps) {
    if (value === null || value < ticks[0].value || value > ticks.at(-1).value) continue;
    group.append(svg(
        "line",
        {x1: plot.left, x2: plot.right, y1: plot.y(value), y2: plot.y(value), style: `stroke: ${cssColor(color)}`}));
  }
  return group;
}

function rowsAt(series, time, {range, step, panel, annotations}) {
  if (series.length === 0) return null;
  const times = series[0].field.times;
  const at = Math.min(times.length - 1, Math.max(0, Math.round((time - times[0]) / step)));
  const rows =
      series.filter(({field}) => field.values[at] !== null)
          .map(
              ({field, color}) =>
                  ({color, name: field.name, value: field.values[at], text: display(field.values[at], field.config)}));
  if (panel.options.tooltip.sort === "desc") rows.sort((a, b) => b.value - a.value);
  const near = (range.to - range.from) / 150;
  for (const {color, title, from, to} of annotations) {
    if (time >= from - near && time <= to + near) rows.push({color, name: title, text: "", strong: true});
  }
  return {rows};
}
