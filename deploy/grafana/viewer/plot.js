// What every chart over time shares: axes, the events of annotations, a cursor that all charts of the page follow,
// zoom.
import {html, linear, svg, textWidth} from "./dom.js";
import {formatTime, timeTicks} from "./time.js";

const BOTTOM = 22, TOP = 8, RIGHT = 10;

// The time that the pointer or the arrow keys are at, for all charts; null: nowhere.
export const cursor = new EventTarget();
cursor.time = null;
cursor.move = (time, owner) => {
  cursor.time = time;
  cursor.owner = owner;
  cursor.dispatchEvent(new Event("move"));
};

const tooltip = html("div", {class: "tooltip", role: "status", hidden: true});

export function hideTooltip() {
  tooltip.hidden = true;
}

// rows: [{color, name, text, strong}]; beside (x, y) of the window, and always inside of it.
export function showTooltip(title, rows, x, y) {
  const lines = rows.slice(0, 24).map(
      ({color, name, text, strong}) => html(
          "tr", {class: strong ? "strong" : null},
          html("td", {}, html("i", {class: "swatch", style: `--color: ${color}`}), name), html("td", {}, text)));
  if (rows.length > lines.length)
    lines.push(html("tr", {}, html("td", {colspan: 2}, `and ${rows.length - lines.length} more`)));
  tooltip.replaceChildren(html("p", {}, title), html("table", {}, ...lines));
  if (!tooltip.isConnected) document.body.append(tooltip);
  tooltip.hidden = false;
  const {width, height} = tooltip.getBoundingClientRect();
  const left = x + 16 + width > innerWidth ? x - 16 - width : x + 16;
  tooltip.style.left = `${Math.max(4, left)}px`;
  tooltip.style.top = `${Math.max(4, Math.min(y - height / 2, innerHeight - height - 4))}px`;
}

export class Plot {
  // `ticks`: [{value, text}] of the vertical axis, the lowest and highest of which bound it. `context`: see
  // panels/timeseries.js. `labels`: room left of the axis, by default for the ticks' texts.
  constructor(box, ticks, context, labels = Math.max(...ticks.map(({text}) => textWidth(text)))) {
    this.context = context;
    this.box = box;
    this.width = Math.max(120, box.clientWidth);
    this.height = Math.max(60, box.clientHeight);
    this.left = Math.ceil(labels) + 12;
    this.right = this.width - RIGHT;
    this.top = TOP;
    this.bottom = this.height - BOTTOM;
    const {from, to} = context.range;
    this.x = linear(from, to, this.left, this.right);
    this.y = linear(ticks[0].value, ticks.at(-1).value, this.bottom, this.top);
    this.root = svg("svg", {
      class: "plot",
      width: this.width,
      height: this.height,
      tabindex: 0,
      role: "img",
      "aria-label": context.panel.title
    });
    this.root.append(this.axes(ticks), this.events());
    box.replaceChildren(this.root);
  }

  axes(ticks) {
    const group = svg("g", {class: "axes"});
    for (const {value, text} of ticks) {
      const y = Math.round(this.y(value)) + 0.5;
      group.append(svg("line", {x1: this.left, x2: this.right, y1: y, y2: y}));
      group.append(svg("text", {x: this.left - 8, y: y + 3.5, "text-anchor": "end"}, text));
    }
    const {from, to} = this.context.range;
    for (const {value, text} of timeTicks(from, to, Math.max(1, (this.right - this.left) / 84))) {
      const x = Math.round(this.x(value)) + 0.5, half = textWidth(text) / 2;
      group.append(svg("line", {x1: x, x2: x, y1: this.top, y2: this.bottom, class: "minor"}));
      if (x + half <= this.width && x - half >= 0)
        group.append(svg("text", {x, y: this.height - 6, "text-anchor": "middle"}, text));
    }
    return group;
  }

  // A mark below the axis where something happened, and a line through the chart where that was one moment.
  events() {
    const group = svg("g", {class: "events"});
    for (const {color, title, from, to} of this.context.annotations) {
      const x1 = this.x(Math.max(from, this.context.range.from)), x2 = this.x(to);
      if (x2 - x1 < 8)
        group.append(svg("line", {x1, x2: x1, y1: this.top, y2: this.bottom, style: `stroke: ${color}`}));
      group.append(
          svg("rect",
              {x: x1 - 2, width: Math.max(4, x2 - x1 + 4), y: this.bottom, height: 4, rx: 2, style: `fill: ${color}`},
              svg("title", {}, title)));
    }
    return group;
  }

  // `rowsAt(time, y)`: {title, rows} for the tooltip, or null. The charts' cursors move together; only the one under
  // the pointer, or with the focus, shows its values.
  interact(rowsAt) {
    const line = svg("line", {class: "cursor", y1: this.top, y2: this.bottom, visibility: "hidden"});
    const band = svg("rect", {class: "zoom", y: this.top, height: this.bottom - this.top, visibility: "hidden"});
    this.root.append(band, line);
    const {range, step} = this.context;
    const timeAt = (x) => range.from + ((x - this.left) / (this.right - this.left)) * (range.to - range.from);
    const inside = (time) => time >= range.from && time <= range.to;
    const show = (time, x, y, plotY) => {
      if (!inside(time)) return hideTooltip();
      const found = rowsAt(time, plotY);
      return found ? showTooltip(found.title ?? formatTime(time), found.rows, x, y) : hideTooltip();
    };
    const moved = () => {
      const hidden = cursor.time === null || !inside(cursor.time);
      line.setAttribute("visibility", hidden ? "hidden" : "visible");
      if (!hidden)
        for (const end of ["x1", "x2"]) line.setAttribute(end, this.x(cursor.time));
    };
    cursor.addEventListener("move", moved, {signal: this.context.signal});
    let grabbed = null;
    const drag = (x) => {
      band.setAttribute("visibility", "visible");
      band.setAttribute("x", Math.min(grabbed, x));
      band.setAttribute("width", Math.abs(x - grabbed));
    };
    this.root.addEventListener("pointermove", (event) => {
      const time = timeAt(event.offsetX);
      cursor.move(inside(time) ? time : null, this);
      show(time, event.clientX, event.clientY, event.offsetY);
      if (grabbed !== null) drag(Math.min(this.right, Math.max(this.left, event.offsetX)));
    });
    this.root.addEventListener("pointerdown", (event) => {
      if (event.button === 0 && inside(timeAt(event.offsetX))) grabbed = event.offsetX;
    });
    this.root.addEventListener("pointerup", (event) => {
      const start = grabbed;
      grabbed = null;
      band.setAttribute("visibility", "hidden");
      if (start === null || Math.abs(event.offsetX - start) < 6) return;
      const [from, to] =
          [timeAt(start), Math.min(range.to, Math.max(range.from, timeAt(event.offsetX)))].sort((a, b) => a - b);
      this.context.zoom(from, to);
    });
    const leave = () => {
      grabbed = null;
      band.setAttribute("visibility", "hidden");
      cursor.move(null, null);
      hideTooltip();
    };
    this.root.addEventListener("pointerleave", leave);
    this.root.addEventListener("blur", leave);
    this.root.addEventListener("keydown", (event) => {
      const towards = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity}[event.key];
      if (event.key === "Escape") return leave();
      if (!towards) return undefined;
      event.preventDefault();
      const time = Math.min(range.to, Math.max(range.from, (cursor.time ?? range.to) + towards * step));
      cursor.move(time, this);
      const {left, top} = this.root.getBoundingClientRect();
      return show(time, left + this.x(time), top + (this.top + this.bottom) / 2, (this.top + this.bottom) / 2);
    });
    moved();
  }
}
