// Rows and panels where gridPos puts them: frames with a title, which are filled by panels/*.js and say when they
// cannot be.
import {html} from "./dom.js";
import {fieldsOf} from "./fields.js";
import {draw as barchart} from "./panels/barchart.js";
import {draw as heatmap} from "./panels/heatmap.js";
import {draw as stat} from "./panels/stat.js";
import {draw as stateTimeline} from "./panels/state_timeline.js";
import {draw as table} from "./panels/table.js";
import {draw as timeseries} from "./panels/timeseries.js";
import {panelProblems} from "./schema.js";
import {builtIns, expand, stepFor} from "./variables.js";

const DRAW = {
  barchart,
  heatmap,
  stat,
  "state-timeline": stateTimeline,
  table,
  timeseries
};

class Panel {
  constructor(panel, top) {
    this.panel = panel;
    this.hidden = new Set();
    this.context = null;
    this.drawing = new AbortController();
    const {x, y, w, h} = panel.gridPos;
    const about = panel.description ?
        html(
            "button", {class: "about", type: "button", "aria-label": panel.description, "data-tip": panel.description},
            "i") :
        null;
    this.body = html("div", {class: "body"});
    this.element = html(
        "section", {
          class: "panel",
          "aria-label": panel.title,
          "data-type": panel.type,
          "data-title": panel.title,
          "data-state": "loading",
          style: `grid-column: ${x + 1} / span ${w}; grid-row: ${y - top + 1} / span ${h}`,
        },
        html("h3", {}, html("span", {title: panel.title}, panel.title), about), this.body);
    new ResizeObserver(() => requestAnimationFrame(() => this.draw())).observe(this.body);
  }

  say(state, ...lines) {
    this.context = null;
    this.element.dataset.state = state;
    this.body.className = "body";
    this.body.replaceChildren(...lines.map((line) => html("p", {class: "message"}, line)));
  }

  // Asks and draws; never throws, except when `query.signal` gave up.
  async refresh(query) {
    const problems = panelProblems(this.panel);
    if (problems.length) return this.say("error", ...problems);
    const {range, scrape, signal} = query;
    const step = stepFor(range, Math.min(this.panel.maxDataPoints ?? Infinity, this.body.clientWidth || 600), scrape);
    const values = {...query.variables, ...builtIns(range, step, scrape)};
    const ask = async (target) => {
      const expression = expand(target.expr, values);
      const series = target.instant ?
          await query.prometheus.instant(expression, range.to, signal) :
          await query.prometheus.range(
              expression, Math.floor(range.from / step) * step, Math.floor(range.to / step) * step, step, signal);
      return fieldsOf(target, series, this.panel.fieldConfig);
    };
    try {
      const fields = (await Promise.all(this.panel.targets.map(ask))).flat();
      const some = fields.some((field) => field.values.some((value) => value !== null));
      if (!some) return this.say("empty", this.panel.fieldConfig.defaults.noValue ?? "No data");
      this.context = {
        panel: this.panel,
        fields,
        range,
        step,
        annotations: query.annotations,
        hidden: this.hidden,
        zoom: query.zoom
      };
      return this.draw();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      return this.say("error", error.message);
    }
  }

  draw() {
    if (!this.context || this.body.clientWidth === 0) return;  // Folded away: there is no room to draw in.
    this.drawing.abort();
    this.drawing = new AbortController();
    try {
      DRAW[this.panel.type](this.body, {...this.context, signal: this.drawing.signal});
      this.element.dataset.state = "ok";
    } catch (error) {
      this.say("error", error.message);
    }
  }
}

export class Grid {
  // Builds the frames in `main`. `opened`: called when a row was opened, as its panels have no data yet.
  constructor(main, board, opened) {
    this.rows = [];
    for (const panel of board.panels) {
      if (panel.type !== "row")
        this.rowFor(panel).panels.push(panel);
      else
        this.rows.push({title: panel.title, collapsed: panel.collapsed, panels: [...panel.panels]});
    }
    for (const row of this.rows) {
      const top = Math.min(...row.panels.map(({gridPos}) => gridPos.y));
      row.frames = row.panels.map((panel) => new Panel(panel, top));
      row.element = html(
          "details", {class: "row", open: !row.collapsed, ontoggle: () => this.toggled(row, opened)},
          html("summary", {}, html("h2", {}, row.title), html("span", {}, `${row.panels.length} panels`)),
          html("div", {class: "grid"}, ...row.frames.map(({element}) => element)));
    }
    main.replaceChildren(...this.rows.map(({element}) => element));
  }

  // A dashboard may begin with panels that no row heads.
  rowFor() {
    if (this.rows.length === 0) this.rows.push({title: "", collapsed: false, panels: []});
    return this.rows.at(-1);
  }

  toggled(row, opened) {
    const wasClosed = row.collapsed;
    row.collapsed = !row.element.open;
    if (wasClosed && row.element.open) opened();
  }

  // What is folded away is not asked for.
  refresh(query) {
    return Promise.all(this.rows.filter(({element}) => element.open)
                           .flatMap(({frames}) => frames.map((frame) => frame.refresh(query))));
  }
}
