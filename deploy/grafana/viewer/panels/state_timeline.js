// A lane a series, in pieces as long as its value stayed the same, each with the name and colour of its mapping.
import {html, svg, textWidth} from "../dom.js";
import {display, valueColor} from "../fields.js";
import {Plot} from "../plot.js";

// [{from, to, value}]; a sample holds until the next one.
export function piecesOf({times, values}, step) {
  const pieces = [];
  values.forEach((value, i) => {
    const last = pieces.at(-1);
    if (value === null) return;
    if (last && last.value === value && last.to >= times[i] - step / 2)
      last.to = times[i] + step;
    else
      pieces.push({from: times[i], to: times[i] + step, value});
  });
  return pieces;
}

export function draw(body, context) {
  const {panel, fields, step, range} = context;
  const box = html("div", {class: "chart"});
  body.replaceChildren(box);
  // Lanes from the top: the axis counts upwards, so the first series has the highest number.
  const lanes =
      fields.map((field, index) => ({field, index, at: fields.length - 1 - index, pieces: piecesOf(field, step)}));
  const ticks = Array.from({length: fields.length + 1}, (_, i) => ({value: i, text: ""}));
  const plot = new Plot(box, ticks, context, Math.max(...fields.map(({name}) => textWidth(name))));
  const group = svg("g", {class: "states"}), laneHeight = plot.y(0) - plot.y(1),
        high = laneHeight * panel.options.rowHeight;
  for (const {field, index, at, pieces} of lanes) {
    const top = plot.y(at + 1) + (laneHeight - high) / 2;
    group.append(
        svg("text", {class: "lane", x: plot.left - 8, y: top + high / 2 + 3.5, "text-anchor": "end"}, field.name));
    for (const {from, to, value} of pieces) {
      const left = plot.x(Math.max(from, range.from)), width = plot.x(Math.min(to, range.to)) - left,
            text = display(value, field.config);
      if (width <= 0) continue;
      group.append(svg("rect", {
        x: left,
        width: Math.max(1, width - 1),
        y: top,
        height: high,
        rx: 2,
        style: `fill: ${valueColor(value, field, index)}; fill-opacity: ${
            panel.fieldConfig.defaults.custom.fillOpacity / 100}`
      }));
      if (textWidth(text) + 12 < width)
        group.append(svg("text", {class: "state", x: left + 6, y: top + high / 2 + 3.5}, text));
    }
  }
  plot.root.append(group);
  plot.interact(
      (time) => ({
        rows: lanes.flatMap(
            ({field, index, pieces}) =>
                pieces.filter(({from, to}) => time >= from && time < to).map(({value}) => ({
                                                                               color: valueColor(value, field, index),
                                                                               name: field.name,
                                                                               text: display(value, field.config)
                                                                             }))),
      }));
}
