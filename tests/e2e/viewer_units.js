// Unit tests of deploy/grafana/viewer, run in a browser by viewer_test.py: run(load) gives what failed.
// `load`: from a module's name to the module.

export async function run(load) {
  const {axisTicks, format} = await load("units.js");
  const {formatDuration, parseDuration, parseTime, timeTicks} = await load("time.js");
  const {builtIns, expand, parseLabelValues, sorted, stepFor, valueFor} = await load("variables.js");
  const {configFor, display, legendName, mapped, reduce, seriesColor, thresholdColor, valueColor} =
      await load("fields.js");
  const {boardProblems, panelProblems} = await load("schema.js");
  const {tableOf, transformed} = await load("transforms.js");
  const {bounds} = await load("panels/timeseries.js");
  const {bucketsOf} = await load("panels/heatmap.js");
  const {piecesOf} = await load("panels/state_timeline.js");

  const failures = [];
  let checks = 0;
  const equal = (what, got, wanted) => {
    ++checks;
    if (JSON.stringify(got) !== JSON.stringify(wanted))
      failures.push(`${what}: ${JSON.stringify(got)}, wanted ${JSON.stringify(wanted)}`);
  };
  const fails = (what, action, part) => {
    ++checks;
    try {
      action();
      failures.push(`${what}: no error`);
    } catch (error) {
      if (!error.message.includes(part)) failures.push(`${what}: ${error.message}, wanted ${part}`);
    }
  };

  for (const [value, unit, decimals, wanted] of [
           [0, "s", null, "0 s"],
           [0.0123, "s", null, "12.3 ms"],
           [75, "s", null, "1.25 min"],
           [3e-7, "s", null, "300 ns"],
           [90000, "s", null, "1.04 d"],
           [1234, "short", null, "1.23 K"],
           [1.6e6, "short", null, "1.60 M"],
           [999.9999, "short", null, "1 K"],
           [3, "short", null, "3"],
           [-1500, "short", null, "-1.50 K"],
           [-0.0001, "short", 2, "0.00"],
           [2.3456, "short", 3, "2.346"],
           [7e9, "short", null, "7 B"],
           [1536, "bytes", null, "1.50 KiB"],
           [1024 ** 3, "bytes", 1, "1.0 GiB"],
           [0.5, "bytes", null, "0.500 B"],
           [12345678, "Bps", null, "12.3 MB/s"],
           [0.123456, "percentunit", null, "12.3%"],
           [1, "percentunit", null, "100%"],
           [4950, "none", null, "4950"],
           [1e-3, "sci", null, "1.00e-3"],
           [0, "sci", null, "0"],
           [9.894e14, "flops", null, "989 TFLOP/s"],
           [4.2, "ops", null, "4.20 ops/s"],
           [null, "short", null, "–"],
           [Infinity, "s", null, "∞"],
  ])
    equal(`format(${value}, ${unit}, ${decimals})`, format(value, unit, decimals), wanted);
  fails("a unit that nobody knows", () => format(1, "furlong"), "furlong");

  const texts = (...parameters) => axisTicks(...parameters).map(({text}) => text);
  equal("ticks of shares", texts(0, 1, 5, "percentunit"), ["0%", "20%", "40%", "60%", "80%", "100%"]);
  equal("ticks of bytes", texts(0, 2.5e6, 4, "bytes"), ["0", "1 MiB", "2 MiB", "3 MiB"]);
  equal("ticks of seconds", texts(0, 0.013, 5, "s"), ["0", "5 ms", "10 ms", "15 ms"]);
  equal("ticks of tiny steps", texts(0.002991, 0.003, 3, "sci"), ["2.990e-3", "2.995e-3", "3.000e-3"]);
  equal("ticks with exponents", texts(0, 0.0012, 2, "sci"), ["0", "1e-3", "2e-3"]);
  equal("ticks of whole things", texts(0, 1, 5, "short", 0), ["0", "1"]);
  equal("ticks between steps", texts(0, 0.5, 4, "short"), ["0", "0.2", "0.4", "0.6"]);
  equal("ticks below zero", texts(-1, 1, 4, "short"), ["-1.0", "-0.5", "0", "0.5", "1.0"]);

  equal(
      "durations",
      [parseDuration("90s"), parseDuration("1h30m"), formatDuration(90), formatDuration(3600), formatDuration(0.2)],
      [90, 5400, "1m30s", "1h", "1s"]);
  fails("no duration", () => parseDuration("5 parsecs"), "5 parsecs");
  equal(
      "times", [parseTime("now", 1000), parseTime("now-5m", 1000), parseTime("1700000000000", 0)],
      [1000, 700, 1700000000]);
  equal("a date", parseTime("2024-03-01 12:00", 0), new Date(2024, 2, 1, 12).getTime() / 1000);
  fails("no time", () => parseTime("yesterday", 0), "yesterday");
  const noon = new Date(2024, 2, 1, 12).getTime() / 1000;
  equal("ticks of an hour", timeTicks(noon - 60, noon + 3600, 4).map(({text}) => text), ["12:00", "12:30", "13:00"]);
  equal(
      "ticks of a minute", timeTicks(noon, noon + 60, 4).map(({text}) => text),
      ["12:00:00", "12:00:15", "12:00:30", "12:00:45", "12:01:00"]);

  const hour = {from: 0, to: 3600};
  equal(
      "steps",
      [
        stepFor(hour, 400, 5), stepFor(hour, 1200, 5), stepFor({from: 0, to: 86400}, 600, 15),
        stepFor({from: 0, to: 60}, 600, 15)
      ],
      [10, 5, 300, 15]);
  equal("intervals", builtIns(hour, 10, 5), {__interval: "10s", __rate_interval: "20s", __range: "1h"});
  equal("a rate over long steps", builtIns(hour, 60, 15).__rate_interval, "1m15s");
  const job = {allValue: ".*"};
  equal("values", [valueFor(job, null), valueFor(job, ["a.b"]), valueFor(job, ["a", "b"])], [".*", "a\\\\.b", "(a|b)"]);
  equal(
      "expansion", expand("x{job=~\"$job_id\"}[$__rate_interval] ${job_id}", {job_id: "a", __rate_interval: "20s"}),
      "x{job=~\"a\"}[20s] a");
  fails("an unknown variable", () => expand("$nobody", {}), "$nobody");
  equal(
      "label_values", parseLabelValues("label_values(up{a=~\"$b\"}, instance)"),
      {selector: "up{a=~\"$b\"}", label: "instance"});
  equal("label_values of all", parseLabelValues("label_values(job)"), {selector: null, label: "job"});
  fails("another query", () => parseLabelValues("query_result(up)"), "query_result(up)");
  equal(
      "sorting", [sorted(["10", "9"], 1), sorted(["10", "9"], 3), sorted(["9", "10"], 4), sorted(["b", "a"], 0)],
      [["10", "9"], ["9", "10"], ["10", "9"], ["b", "a"]]);

  equal(
      "legends",
      [
        legendName("{{a}} of {{ b }}{{c}}", {a: "1", b: "2"}), legendName("", {__name__: "up", job: "x"}),
        legendName("__auto", {})
      ],
      ["1 of 2", "up{job=\"x\"}", "{}"]);
  const values = [null, 1, 3, null];
  equal("reductions", ["lastNotNull", "mean"].map((name) => reduce(values, name)), [3, 2]);
  equal("reductions of nothing", ["lastNotNull", "mean"].map((name) => reduce([null], name)), [null, null]);
  const config = {
    defaults: {unit: "s", custom: {lineWidth: 1}},
    overrides: [
      {matcher: {id: "byName", options: "a"}, properties: [{id: "unit", value: "bytes"}]},
      {
        matcher: {id: "byRegexp", options: "/^a/"},
        properties: [{id: "custom.lineWidth", value: 3}, {id: "unit", value: "short"}]
      },
    ],
  };
  equal(
      "overrides, the last on top", configFor({name: "a", refId: "A"}, config),
      {unit: "short", custom: {lineWidth: 3}});
  equal("overrides of others", configFor({name: "b", refId: "B"}, config), {unit: "s", custom: {lineWidth: 1}});
  const states = {unit: "short", mappings: [{type: "value", options: {1: {text: "UP", color: "green"}}}]};
  equal("mappings", [display(1, states), display(4, states), mapped(4, states)], ["UP", "4", null]);
  const limits = {
    thresholds: {steps: [{value: null, color: "green"}, {value: 1, color: "red"}]},
    color: {mode: "thresholds"}
  };
  equal("thresholds", [thresholdColor(0.9, limits), thresholdColor(1, limits)], ["var(--green)", "var(--red)"]);
  const field = (config) => ({config, values: [5]});
  equal(
      "colours",
      [
        seriesColor(field({}), 1), seriesColor(field({color: {mode: "fixed", fixedColor: "#102030"}}), 1),
        valueColor(1, field(states), 0), valueColor(5, field(limits), 0)
      ],
      ["var(--orange)", "#102030", "var(--green)", "var(--red)"]);
  fails(
      "a colour that nobody knows", () => seriesColor(field({color: {mode: "fixed", fixedColor: "mauve"}}), 0),
      "mauve");
  equal(
      "bounds",
      [
        bounds([2, 3], {}, false), bounds([1, 9], {}, false), bounds([8, 9], {}, true), bounds([5, 5], {}, false),
        bounds([null], {}, false), bounds([0.2], {min: 0, max: 1}, false)
      ],
      [[1.96, 3], [0, 9], [0, 9], [0, 6.25], [0, 1], [0, 1]]);

  equal("what only rounding tells apart", bounds([5, 5 + 1e-9], {}, false)[0], 0);

  const series = (labels, value) => ({labels, times: [9], values: [value]});
  const table = tableOf([
    series({rank: "0", phase: "forward"}, 1), series({rank: "0", phase: "backward"}, 2),
    series({rank: "1", phase: "backward"}, 3)
  ]);
  equal(
      "a matrix",
      transformed(
          table, [{id: "groupingToMatrix", options: {rowField: "rank", columnField: "phase", valueField: "Value"}}])
          .columns,
      [
        {name: "rank\\phase", values: ["0", "1"]}, {name: "forward", values: [1, null]},
        {name: "backward", values: [2, 3]}
      ]);
  equal(
      "a tidy table",
      transformed(
          table, [{
            id: "organize",
            options:
                {excludeByName: {Time: true, phase: true}, indexByName: {Value: 0, rank: 1}, renameByName: {Value: "s"}}
          }])
          .columns,
      [{name: "s", values: [1, 2, 3]}, {name: "rank", values: ["0", "0", "1"]}]);
  equal(
      "buckets",
      bucketsOf([
        {labels: {le: "+Inf"}, values: [5]}, {labels: {le: "1"}, values: [2]}, {labels: {le: "2"}, values: [4]}
      ]).map(({values: [value]}) => value),
      [2, 2, 1]);
  equal(
      "pieces", piecesOf({times: [0, 1, 2, 3, 4], values: [1, 1, 2, null, 2]}, 1),
      [{from: 0, to: 2, value: 1}, {from: 2, to: 3, value: 2}, {from: 4, to: 5, value: 2}]);

  const panel = (changes) => ({
    id: 1,
    type: "timeseries",
    title: "t",
    description: "",
    gridPos: {h: 8, w: 8, x: 0, y: 0},
    targets: [],
    fieldConfig: {defaults: {unit: "s", custom: {}}, overrides: []},
    options: {
      legend: {displayMode: "list", placement: "bottom", showLegend: true, calcs: []},
      tooltip: {mode: "multi", sort: "none"}
    },
    ...changes,
  });
  equal("a good panel", panelProblems(panel({})), []);
  const named = (what, changes, part) =>
      equal(what, panelProblems(panel(changes)).some((problem) => problem.includes(part)), true);
  named("an unknown type", {type: "piechart"}, "\"piechart\" is not understood");
  named("an unknown key", {repeat: "rank"}, "repeat is not understood");
  named(
      "an unknown option", {options: {legend: {displayMode: "list", isVisible: true}}},
      "options.legend.isVisible is not understood");
  named("an unknown value", {options: {legend: {displayMode: "hidden"}}}, "options.legend.displayMode: \"hidden\"");
  named("an unknown unit", {fieldConfig: {defaults: {unit: "furlong"}, overrides: []}}, "unit: \"furlong\"");
  named(
      "an unknown field option", {fieldConfig: {defaults: {custom: {pointSize: 5}}, overrides: []}},
      "custom.pointSize is not understood");
  named("an unknown transformation", {transformations: [{id: "merge", options: {}}]}, "\"merge\" is not understood");
  named(
      "an override of what is not there", {
        fieldConfig:
            {defaults: {}, overrides: [{matcher: {id: "byName", options: "a"}, properties: [{id: "links", value: []}]}]}
      },
      "\"links\" is not understood");
  named(
      "an override with a bad value", {
        fieldConfig: {
          defaults: {},
          overrides: [{matcher: {id: "byName", options: "a"}, properties: [{id: "unit", value: "furlong"}]}]
        }
      },
      "override of unit");
  equal("a dashboard's unknown key", boardProblems({weekStart: "monday"}).length, 1);
  return {checks, failures};
}
