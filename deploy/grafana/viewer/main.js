// Grafana's dashboards without a Grafana: reads ../dashboards/*.json and asks the Prometheus that serves this page, or
// stands behind what serves it. What is looked at stands in the address, by the names that Grafana uses:
//   ?board=telar-job&from=now-1h&to=now&refresh=10s&var-job_id=k3x9q2ab
// <html data-state> says "loading", "ready" or "error".
import {html} from "./dom.js";
import {cssColor, legendName} from "./fields.js";
import {Grid} from "./grid.js";
import {Prometheus} from "./prometheus.js";
import {boardProblems} from "./schema.js";
import {formatTime, parseDuration, parseTime} from "./time.js";
import {boardLinks, timeMenus, variableMenu} from "./toolbar.js";
import {expand, parseLabelValues, sorted, valueFor} from "./variables.js";

const BOARDS = ["telar-fleet", "telar-job", "telar-ranks"];
const prometheus =
    new Prometheus(new URL("../../", document.baseURI));  // This page is at /user/viewer/, the API at /api/v1/.
const main = document.querySelector("main");
const place = (selector) => document.querySelector(`header ${selector}`);

// Shows all `messages` above everything else; with none, takes them away.
function complain(...messages) {
  document.querySelector(".complaint")?.remove();
  if (messages.length)
    main.before(html("div", {class: "complaint", role: "alert"}, ...messages.map((message) => html("p", {}, message))));
}

async function loadBoard(uid) {
  const response = await fetch(new URL(`../dashboards/${uid}.json`, document.baseURI));
  if (!response.ok) throw new Error(`${response.url}: ${response.status} ${response.statusText}`);
  return response.json();
}

// What the address says, the dashboard's own where it says nothing.
function readState(board) {
  const query = new URLSearchParams(location.search);
  const chosen = {};
  for (const {name} of board.templating.list) {
    const values = query.getAll(`var-${name}`).filter((value) => value !== "$__all" && value !== "All");
    chosen[name] = values.length ? values : null;
  }
  return {
    board: board.uid,
    from: query.get("from") ?? board.time.from,
    to: query.get("to") ?? board.time.to,
    refresh: query.get("refresh") ?? board.refresh,
    chosen
  };
}

function addressOf({board, from, to, refresh, chosen}) {
  const query = new URLSearchParams({board, from, to, refresh});
  for (const [name, values] of Object.entries(chosen))
    for (const value of values ?? []) query.append(`var-${name}`, value);
  return `?${query}`;
}

function rangeOf({from, to}, now = Date.now() / 1000) {
  const range = {from: parseTime(from, now), to: parseTime(to, now)};
  if (range.from >= range.to) throw new Error(`from ${from} is not before to ${to}`);
  return range;
}

class Page {
  constructor(board, boards) {
    this.board = board;
    this.boards = boards.filter(({tags}) => board.links.some((link) => link.tags.every((tag) => tags.includes(tag))));
    this.state = readState(board);
    this.grid = new Grid(main, board, () => this.refresh());
    this.running = new AbortController();
    addEventListener("popstate", () => this.change(readState(board), false));
  }

  // Takes a change of `state` and shows it; an impossible range is an error, and nothing changes.
  change(part, remember = true) {
    const next = {...this.state, ...part};
    rangeOf(next);
    this.state = next;
    if (remember && Object.keys(part).length) history.pushState(null, "", addressOf(next));
    this.refresh();
  }

  // [{variable, options}] and name -> what it stands for in PromQL, in the order of the dashboard: later ones may use
  // earlier.
  async variables(range, signal) {
    const values = {datasource: "prometheus"}, menus = [];
    for (const variable of this.board.templating.list.filter(({type}) => type === "query")) {
      const {selector, label} = parseLabelValues(variable.query.query);
      const found = await prometheus.labelValues(
          {selector: selector && expand(selector, values), label}, range.from, range.to, signal);
      menus.push({variable, options: sorted(found, variable.sort)});
      values[variable.name] = valueFor(variable, this.state.chosen[variable.name]);
    }
    return {values, menus};
  }

  // [{color, title, from, to}]: samples that follow each other are one event.
  async annotations(range, variables, signal) {
    const one = async ({name, expr, iconColor, step, textFormat}) => {
      const seconds = Math.max(parseDuration(step), Math.ceil((range.to - range.from) / 1000));
      const series = await prometheus.range(
          expand(expr, variables), Math.floor(range.from / seconds) * seconds, range.to, seconds, signal);
      return series.flatMap(({labels, times, values}) => {
        const events = [];
        values.forEach((value, i) => {
          if (value === null) return;
          if (i > 0 && values[i - 1] !== null)
            events.at(-1).to = times[i];
          else
            events.push({
              color: cssColor(iconColor),
              title: `${name}: ${legendName(textFormat, labels)}`,
              from: times[i],
              to: times[i]
            });
        });
        return events.filter(({to}) => to >= range.from);
      });
    };
    return (await Promise.all(this.board.annotations.list.map(one))).flat();
  }

  // Only anew when something is different, so that a refresh takes neither the focus nor what is being typed.
  showToolbar(range, menus) {
    const content = JSON.stringify([this.state, menus.map(({options}) => options)]);
    if (content === this.toolbar) return;
    this.toolbar = content;
    const open = document.querySelector("details.menu[open] fieldset");
    const focus = open ? [...open.querySelectorAll("input")].indexOf(document.activeElement) : -1;
    const {board, chosen} = this.state;
    place("nav").replaceChildren(...boardLinks(this.boards, board, (uid) => addressOf({...this.state, board: uid})));
    const choose = (name) => (values) => this.change({chosen: {...this.state.chosen, [name]: values}});
    place(".variables")
        .replaceChildren(...menus.map(
            ({variable, options}) => variableMenu(variable, options, chosen[variable.name], choose(variable.name))));
    place(".time").replaceChildren(...timeMenus(this.state, range, (part) => this.change(part)));
    const again = open && document.querySelector(`[data-variable="${open.dataset.variable}"]`);
    if (!again) return;
    again.parentElement.open = true;
    again.querySelectorAll("input")[focus]?.focus();
  }

  async refresh() {
    this.running.abort();
    this.running = new AbortController();
    const {signal} = this.running, {dataset} = document.documentElement;
    clearTimeout(this.timer);
    dataset.state = "loading";
    try {
      this.scrape ??= await prometheus.scrapeInterval();
      const range = rangeOf(this.state);
      const {values, menus} = await this.variables(range, signal);
      const warnings = [];
      const annotations = await this.annotations(range, values, signal).catch((error) => {
        warnings.push(`annotations: ${error.message}`);
        return [];
      });
      this.showToolbar(range, menus);
      const zoom = (from, to) => this.change({from: formatTime(from), to: formatTime(to)});
      await this.grid.refresh({prometheus, range, scrape: this.scrape, variables: values, annotations, zoom, signal});
      complain(...warnings);
      dataset.state = "ready";
    } catch (error) {
      if (signal.aborted) return;
      complain(error.message);
      dataset.state = "error";
    }
    if (this.state.refresh) this.timer = setTimeout(() => this.refresh(), 1000 * parseDuration(this.state.refresh));
  }
}

async function start() {
  const boards = await Promise.all(BOARDS.map(loadBoard));
  const wanted = new URLSearchParams(location.search).get("board") ?? BOARDS[0];
  const board = boards.find(({uid}) => uid === wanted);
  if (!board) throw new Error(`no dashboard ${JSON.stringify(wanted)} (${BOARDS.join(", ")})`);
  const problems = boardProblems(board);
  if (problems.length) throw new Error(`${wanted}: ${problems.join("; ")}`);
  document.title = board.title;
  await new Page(board, boards).refresh();
}

start().catch((error) => {
  complain(error.message);
  document.documentElement.dataset.state = "error";
});
