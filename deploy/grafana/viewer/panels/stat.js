// One large figure a series, with its history behind it.
import {html, linear, svg} from "../dom.js";
import {display, mapped, reduce, valueColor} from "../fields.js";
import {formatParts} from "../units.js";

export function draw(body, {panel, fields}) {
  const {graphMode, textMode, reduceOptions} = panel.options;
  const named = textMode === "auto" && fields.length > 1;
  body.replaceChildren(html("div", {class: "stats"}, ...fields.map((field, index) => {
    const value = reduce(field.values, reduceOptions.calcs[0]);
    const color = valueColor(value, field, index);
    const figure = textMode === "name" ? html("strong", {}, field.name) : figureOf(value, field.config);
    return html(
        "div", {class: "stat", style: `--color: ${color}`}, figure, named ? html("span", {}, field.name) : null,
        graphMode === "area" ? sparkline(field.values) : null);
  })));
}

function figureOf(value, config) {
  if (mapped(value, config)) return html("strong", {}, display(value, config));
  const {number, suffix} = formatParts(value, config.unit, config.decimals);
  return html("strong", {}, number, suffix ? html("small", {}, suffix) : null);
}

function sparkline(values) {
  const numbers = values.filter((value) => value !== null);
  if (numbers.length < 2) return null;
  const low = Math.min(...numbers), high = Math.max(...numbers);
  const x = linear(0, values.length - 1, 0, 100), y = low === high ? () => 20 : linear(low, high, 38, 4);
  const points = values.map((value, i) => (value === null ? null : `${x(i).toFixed(2)},${y(value).toFixed(2)}`));
  const first = points.findIndex(Boolean), last = points.findLastIndex(Boolean);
  const path = `M${points.filter(Boolean).join("L")}`;
  return svg(
      "svg", {class: "sparkline", viewBox: "0 0 100 40", preserveAspectRatio: "none", "aria-hidden": "true"},
      svg("path", {class: "area", d: `${path}L${x(last)},40L${x(first)},40Z`}), svg("path", {class: "line", d: path}));
}
