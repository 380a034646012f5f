// Rows of labels and values.
import {html} from "../dom.js";
import {configFor, display, mapped, valueColor} from "../fields.js";
import {tableOf, transformed} from "../transforms.js";

// Numbers stand right, words left.
const isNumeric = (values) =>
    values.every((value) => value === null || (value !== "" && Number.isFinite(Number(value))));

function sortRows(columns, sortBy) {
  const order = columns[0].values.map((_, i) => i);
  for (const {displayName, desc} of [...sortBy].reverse()) {
    const column = columns.find(({name}) => name === displayName);
    if (!column) throw new Error(`sortBy: no column ${JSON.stringify(displayName)}`);
    const numeric = isNumeric(column.values);
    const compare = (a, b) => (numeric ? Number(a) - Number(b) : String(a).localeCompare(String(b)));
    order.sort((a, b) => (desc ? -1 : 1) * compare(column.values[a], column.values[b]));
  }
  return order;
}

export function draw(body, {panel, fields}) {
  const {columns} = transformed(tableOf(fields), panel.transformations);
  const described = columns.map((column) => {
    const field = {...column, labels: {}};
    field.config = configFor(field, panel.fieldConfig);
    const {align = "auto"} = field.config.custom;
    return {...field, right: align === "right" || (align === "auto" && isNumeric(column.values))};
  });
  const head = described.map(({name, right}) => html("th", {class: right ? "right" : null, scope: "col"}, name));
  const rows = sortRows(described, panel.options.sortBy ?? [])
                   .map((row) => html("tr", {}, ...described.map((column) => cell(column, row))));
  body.replaceChildren(html(
      "div", {class: "scroll", tabindex: 0},
      html("table", {class: "data"}, html("thead", {}, html("tr", {}, ...head)), html("tbody", {}, ...rows))));
}

// Labels as they are, values with their unit.
function cell(field, row) {
  const raw = field.values[row];
  const shown = typeof raw === "number" || raw === null || mapped(raw, field.config) ? display(raw, field.config) : raw;
  const colored = field.config.custom.cellOptions?.type === "color-text";
  return html(
      "td", {class: field.right ? "right" : null, style: colored ? `color: ${valueColor(raw, field, 0)}` : null},
      shown === "" ? "–" : shown);
}
