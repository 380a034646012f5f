// The bar above: which dashboard, what the variables are, which time, how often.
import {html} from "./dom.js";
import {formatTime} from "./time.js";

const RANGES = [
  ["5m", "5 minutes"], ["15m", "15 minutes"], ["30m", "30 minutes"], ["1h", "1 hour"], ["3h", "3 hours"],
  ["6h", "6 hours"], ["12h", "12 hours"], ["24h", "24 hours"], ["2d", "2 days"], ["7d", "7 days"], ["30d", "30 days"]
];
const REFRESH = ["", "5s", "10s", "30s", "1m", "5m"];

// A drop-down that the keyboard opens and closes too; only one is open at a time.
function menu(label, title, content) {
  const details = html("details", {class: "menu", name: "menu"}, html("summary", {title}, label), content);
  details.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !details.open) return;
    details.open = false;
    details.querySelector("summary").focus();
  });
  return details;
}

document.addEventListener("pointerdown", (event) => {
  for (const open of document.querySelectorAll("details.menu[open]"))
    if (!open.contains(event.target)) open.open = false;
});

export function boardLinks(boards, current, addressOf) {
  return boards.map(
      ({uid, title}) => html(
          "a", {href: addressOf(uid), "aria-current": uid === current ? "page" : null}, title.replace(/^Telar: /, "")));
}

// `options`: what the variable can be; `chosen`: null for all, or some of them.
export function variableMenu({name, label, multi, includeAll}, options, chosen, change) {
  const shown = chosen === null ? "All" :
      chosen.length > 2         ? `${chosen.length} of ${options.length}` :
                                  chosen.join(", ");
  const listed = [...new Set([...options, ...(chosen ?? [])])];
  const toggle = (value, on) => {
    if (!multi) return change([value]);
    const next = listed.filter((option) => (option === value ? on : chosen?.includes(option)));
    return change(next.length === 0 ? null : next);
  };
  const choice = (text, checked, onchange) => html(
      "label", {}, html("input", {type: multi ? "checkbox" : "radio", name, checked, onchange}),
      html("span", {}, text));
  const choices = listed.map(
      (value) =>
          choice(value, chosen !== null && chosen.includes(value), (event) => toggle(value, event.target.checked)));
  if (includeAll) choices.unshift(choice("All", chosen === null, () => change(null)));
  const summary = html("span", {}, html("small", {}, label), shown);
  return menu(
      summary, `${label}: ${shown}`,
      html("fieldset", {class: "choices", "data-variable": name}, html("legend", {}, label), ...choices));
}

function rangeLabel({from, to}, range) {
  const span = to === "now" ? /^now-(.*)$/.exec(from)?.[1] : null;
  const quick = RANGES.find(([one]) => one === span);
  return span ? `Last ${quick?.[1] ?? span}` :
                `${formatTime(range.from)} to ${to === "now" ? "now" : formatTime(range.to)}`;
}

// `state`: {from, to, refresh} as written in the address; `range` in seconds; `change` takes what is to be different.
export function timeMenus(state, range, change) {
  const quick = RANGES.map(
      ([span, text]) =>
          html("button", {type: "button", onclick: () => change({from: `now-${span}`, to: "now"})}, `Last ${text}`));
  const from =
      html("input", {name: "from", value: /^now/.test(state.from) ? state.from : formatTime(range.from), size: 20});
  const to = html("input", {name: "to", value: /^now/.test(state.to) ? state.to : formatTime(range.to), size: 20});
  const problem = html("p", {class: "problem", role: "alert"});
  const form = html(
      "form", {
        onsubmit: (event) => {
          event.preventDefault();
          try {
            change({from: from.value, to: to.value});
          } catch (error) {
            problem.textContent = error.message;
          }
        },
      },
      html("label", {}, "From", from), html("label", {}, "To", to), html("button", {type: "submit"}, "Apply"), problem);
  const refresh = html(
      "select", {"aria-label": "Refresh", onchange: (event) => change({refresh: event.target.value})},
      ...[...new Set([...REFRESH, state.refresh])].map(
          (every) => html("option", {value: every, selected: every === state.refresh}, every === "" ? "Off" : every)));
  const again = html(
      "button",
      {type: "button", class: "again", title: "Refresh now", "aria-label": "Refresh now", onclick: () => change({})},
      "↻");
  return [
    menu(
        rangeLabel(state, range), "Time range",
        html("div", {class: "ranges"}, form, html("div", {class: "quick"}, ...quick))),
    refresh, again
  ];
}
