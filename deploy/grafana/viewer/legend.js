// The legend of a chart: a list below it, or a table with a column for each calculation; a click shows one series
// alone.
import {html} from "./dom.js";
import {display, reduce, REDUCER_LABELS} from "./fields.js";

// `series`: [{field, color}]; `hidden`: the set of names that are not drawn, changed here; `redraw` after a change.
export function legendOf(series, options, hidden, redraw) {
  if (!options.showLegend) return null;
  const names = series.map(({field}) => field.name);
  const choose = (name, add) => {
    const alone = !hidden.has(name) && names.every((other) => other === name || hidden.has(other));
    if (add)
      hidden.has(name) ? hidden.delete(name) : hidden.add(name);
    else {
      hidden.clear();
      if (!alone) names.filter((other) => other !== name).forEach((other) => hidden.add(other));
    }
    redraw();
  };
  const button = ({field, color}) => html(
      "button", {
        type: "button",
        "aria-pressed": String(!hidden.has(field.name)),
        title: "Click: this one alone. Ctrl and click: with or without it",
        onclick: (event) => choose(field.name, event.ctrlKey || event.metaKey || event.shiftKey),
      },
      html("i", {class: "swatch", style: `--color: ${color}`}), html("span", {}, field.name));
  const calculations = options.calcs ?? [];
  const value = ({field}, calculation) => display(reduce(field.values, calculation), field.config);
  if (options.displayMode === "table") {
    const head = html(
        "tr", {}, html("th", {}), ...calculations.map((calculation) => html("th", {}, REDUCER_LABELS[calculation])));
    const rows = series.map(
        (one) => html(
            "tr", {}, html("td", {}, button(one)),
            ...calculations.map((calculation) => html("td", {}, value(one, calculation)))));
    return html("table", {class: `legend ${options.placement}`}, ...(calculations.length ? [head] : []), ...rows);
  }
  const entry = (one) =>
      html("li", {}, button(one), ...calculations.map((calculation) => html("b", {}, value(one, calculation))));
  return html("ul", {class: `legend ${options.placement}`}, ...series.map(entry));
}
