// A horizontal bar a row of a table, stacked of its columns.
import {html} from "../dom.js";
import {configFor, display, seriesColor} from "../fields.js";
import {legendOf} from "../legend.js";
import {hideTooltip, showTooltip} from "../plot.js";
import {tableOf, transformed} from "../transforms.js";
import {axisTicks} from "../units.js";

export function draw(body, {panel, fields, hidden}) {
  const {columns} = transformed(tableOf(fields), panel.transformations);
  const {xField, legend, barWidth} = panel.options, {fillOpacity} = panel.fieldConfig.defaults.custom;
  const labels = columns.find(({name}) => name === xField);
  if (!labels)
    throw new Error(`xField: no column ${JSON.stringify(xField)} (${columns.map(({name}) => name).join(", ")})`);
  const order = labels.values.map((_, i) => i)
                    .sort((a, b) => labels.values[a].localeCompare(labels.values[b], undefined, {numeric: true}));
  const series = columns.filter((column) => column !== labels).map((column, index) => {
    const field = {...column, labels: {}};
    field.config = configFor(field, panel.fieldConfig);
    return {field, color: seriesColor(field, index)};
  });
  const redraw = () => {
    const shown = series.filter(({field}) => !hidden.has(field.name));
    const total = (row) => shown.reduce((sum, {field}) => sum + (field.values[row] ?? 0), 0);
    const {max, unit, decimals} = panel.fieldConfig.defaults;
    const ticks = axisTicks(0, max ?? Math.max(...order.map(total), 1e-12), 4, unit, decimals);
    const full = max ?? ticks.at(-1).value;
    const bars = order.map(
        (row) => html(
            "div", {class: "bar-row"}, html("span", {}, labels.values[row]),
            bar(labels.values[row], row, shown, full)));
    body.replaceChildren(
        ...[html(
                "div", {class: "bars", style: `--height: ${100 * barWidth}%; --opacity: ${fillOpacity / 100}`}, ...bars,
                axis(ticks, full)),
            legendOf(series, legend, hidden, redraw)]
            .filter(Boolean));
  };
  body.classList.toggle("beside", legend.showLegend && legend.placement === "right");
  redraw();
}

function axis(ticks, full) {
  const shown = ticks.filter(({value}) => value <= full * (1 + 1e-9));
  return html(
      "div", {class: "bar-axis"},
      html("p", {}, ...shown.map(({value, text}) => html("span", {style: `left: ${(100 * value) / full}%`}, text))));
}

function bar(label, row, series, full) {
  const parts =
      series.filter(({field}) => field.values[row] > 0)
          .map(
              ({field, color}) =>
                  html("i", {style: `--color: ${color}; width: ${((100 * field.values[row]) / full).toFixed(3)}%`}));
  const rows =
      series.map(({field, color}) => ({color, name: field.name, text: display(field.values[row], field.config)}));
  const show = (event) => showTooltip(label, rows, event.clientX ?? 0, event.clientY ?? 0);
  const focus = (event) => {
    const {left, top, height} = event.target.getBoundingClientRect();
    showTooltip(label, rows, left, top + height / 2);
  };
  return html(
      "div", {
        class: "bar",
        tabindex: 0,
        onpointermove: show,
        onpointerleave: hideTooltip,
        onfocus: focus,
        onblur: hideTooltip,
        "aria-label": `${label}: ${rows.map(({name, text}) => `${name} ${text}`).join(", ")}`,
      },
      ...parts);
}
