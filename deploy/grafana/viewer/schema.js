// What of Grafana's dashboard JSON this viewer understands. Anything else is named on the page: a picture that leaves
// something out is worse than none.
import {MATCHER_IDS, REDUCER_LABELS} from "./fields.js";
import {UNITS} from "./units.js";

const isString = (value) => typeof value === "string";
const isNumber = (value) => typeof value === "number";
const isBoolean = (value) => typeof value === "boolean";
const isAnything = () => true;
class ListOf {
  constructor(item) {
    this.item = item;
  }
}
const listOf = (item) => new ListOf(item);

// A shape is a test, a list of allowed values, listOf(shape), or an object whose keys are all that may be there.
function compare(value, shape, path, problems) {
  if (typeof shape === "function") {
    if (!shape(value)) problems.push(`${path}: ${JSON.stringify(value)} is not understood`);
  } else if (Array.isArray(shape)) {
    if (!shape.includes(value))
      problems.push(`${path}: ${JSON.stringify(value)} is not understood (${shape.join(", ")})`);
  } else if (shape instanceof ListOf) {
    if (!Array.isArray(value))
      problems.push(`${path}: ${JSON.stringify(value)} is no list`);
    else
      value.forEach((item, i) => compare(item, shape.item, `${path}[${i}]`, problems));
  } else if (typeof value !== "object" || value === null) {
    problems.push(`${path}: ${JSON.stringify(value)} is no object`);
  } else {
    for (const [key, inner] of Object.entries(value)) {
      const where = path ? `${path}.${key}` : key;
      if (Object.hasOwn(shape, key))
        compare(inner, shape[key], where, problems);
      else
        problems.push(`${where} is not understood (${Object.keys(shape).join(", ")})`);
    }
  }
}

// clang-format off
const COLOR = { mode: ["palette-classic", "fixed", "thresholds"], fixedColor: isString };
const isThreshold = (value) => value === null || isNumber(value);
const THRESHOLDS = { mode: ["absolute"], steps: listOf({ color: isString, value: isThreshold }) };
const MAPPED = { text: isString, color: isString, index: isNumber };
const isMapping = (texts) => Object.values(texts).every((one) => problemsWith(one, MAPPED).length === 0);
const CALCULATIONS = listOf(Object.keys(REDUCER_LABELS));

// Field options of all panels; `custom` are those of a type.
const fieldOptions = (custom) => ({
  unit: UNITS, decimals: isNumber, min: isNumber, max: isNumber, noValue: isString, color: COLOR, custom,
  thresholds: THRESHOLDS, mappings: listOf({ type: ["value"], options: isMapping }),
});

const LEGEND = {
  displayMode: ["list", "table"], placement: ["bottom", "right"], showLegend: isBoolean, calcs: CALCULATIONS,
};
const TOOLTIP = { mode: ["multi"], sort: ["none", "desc"] };

// Panel type -> the shapes of its `options` and of fieldConfig.defaults.custom. Where a list has one value, Grafana can
// do other things too, and this viewer cannot.
export const PANEL_TYPES = {
  row: null,
  timeseries: {
    options: { legend: LEGEND, tooltip: TOOLTIP },
    custom: {
      drawStyle: ["line"], lineWidth: isNumber, fillOpacity: isNumber, showPoints: ["never"], spanNulls: [false],
      lineStyle: { fill: ["solid", "dash"], dash: listOf(isNumber) }, scaleDistribution: { type: ["linear"] },
      stacking: { mode: ["none", "normal"], group: ["A"] }, thresholdsStyle: { mode: ["off", "line"] },
    },
  },
  stat: {
    options: {
      reduceOptions: { calcs: CALCULATIONS, fields: [""], values: [false] }, colorMode: ["value"],
      graphMode: ["none", "area"], textMode: ["auto", "name"], orientation: ["auto"], justifyMode: ["auto"],
    },
    custom: {},
  },
  table: {
    options: { showHeader: [true], cellHeight: ["sm"], sortBy: listOf({ displayName: isString, desc: isBoolean }) },
    custom: { cellOptions: { type: ["auto", "color-text"] } },
  },
  barchart: {
    options: {
      orientation: ["horizontal"], stacking: ["normal"], showValue: ["never"], barWidth: isNumber, xField: isString,
      legend: LEGEND, tooltip: TOOLTIP,
    },
    custom: { fillOpacity: isNumber, lineWidth: [0] },
  },
  heatmap: {
    options: {
      calculate: [false], cellGap: isNumber, rowsFrame: { layout: ["auto"] }, showValue: ["never"],
      legend: { show: isBoolean }, filterValues: { le: isNumber }, tooltip: { mode: ["single"], yHistogram: [false] },
      color: {
        mode: ["scheme"], scheme: ["Blues"], steps: isNumber, exponent: isNumber, fill: isAnything, reverse: [false],
      },
      yAxis: { unit: UNITS, decimals: isNumber, axisPlacement: ["left"] },
    },
    custom: {},
  },
  "state-timeline": {
    options: {
      mergeValues: [true], showValue: ["auto"], alignValue: ["left"], rowHeight: isNumber, tooltip: TOOLTIP,
      legend: { ...LEGEND, showLegend: [false] },
    },
    custom: { fillOpacity: isNumber, lineWidth: [0] },
  },
};

const DATASOURCE = { type: ["prometheus"], uid: ["${datasource}"] };
const TARGET = {
  refId: isString, datasource: DATASOURCE, editorMode: isAnything, expr: isString, legendFormat: isString,
  range: isBoolean, instant: isBoolean, format: ["time_series", "table", "heatmap"],
};
const TRANSFORMATIONS = {
  organize: { excludeByName: isAnything, indexByName: isAnything, renameByName: isAnything },
  groupingToMatrix: { columnField: isString, rowField: isString, valueField: isString },
};

function panelShape(type) {
  const { options, custom } = PANEL_TYPES[type];
  const defaults = fieldOptions(custom);
  const properties = [...Object.keys(defaults), ...Object.keys(custom).map((key) => `custom.${key}`)];
  return {
    id: isNumber, type: isString, title: isString, description: isString, datasource: DATASOURCE, options,
    gridPos: { h: isNumber, w: isNumber, x: isNumber, y: isNumber }, targets: listOf(TARGET), maxDataPoints: isNumber,
    fieldConfig: {
      defaults,
      overrides: listOf({
        matcher: { id: MATCHER_IDS, options: isString }, properties: listOf({ id: properties, value: isAnything }),
      }),
    },
    transformations: listOf({ id: Object.keys(TRANSFORMATIONS), options: isAnything }),
  };
}

export function problemsWith(value, shape) {
  const problems = [];
  compare(value, shape, "", problems);
  return problems;
}

// What of a panel cannot be shown as Grafana would, each with its path and what is known instead.
export function panelProblems(panel) {
  if (!Object.hasOwn(PANEL_TYPES, panel.type)) {
    return [`panel type ${JSON.stringify(panel.type)} is not understood (${Object.keys(PANEL_TYPES).join(", ")})`];
  }
  if (panel.type === "row") return [];
  const problems = problemsWith(panel, panelShape(panel.type));
  if (problems.length) return problems;
  const shapes = fieldOptions(PANEL_TYPES[panel.type].custom);
  for (const { properties } of panel.fieldConfig.overrides) {
    for (const { id, value } of properties) {
      const shape = id.startsWith("custom.") ? shapes.custom[id.slice("custom.".length)] : shapes[id];
      problems.push(...problemsWith({ value }, { value: shape }).map((problem) => `override of ${id}: ${problem}`));
    }
  }
  for (const { id, options } of panel.transformations ?? []) {
    problems.push(...problemsWith(options, TRANSFORMATIONS[id]).map((problem) => `transformation ${id}: ${problem}`));
  }
  return problems;
}

const BOARD = {
  id: isAnything, uid: isString, title: isString, description: isString, tags: listOf(isString),
  schemaVersion: isNumber, version: isNumber, editable: isAnything, graphTooltip: [1], refresh: isString,
  time: { from: isString, to: isString }, timezone: ["browser"], timepicker: {}, panels: isAnything,
  annotations: {
    list: listOf({
      name: isString, datasource: DATASOURCE, enable: [true], hide: [false], iconColor: isString, expr: isString,
      titleFormat: isString, textFormat: isString, step: isString, useValueForTime: [false],
    }),
  },
  links: listOf({
    title: isString, type: ["dashboards"], tags: listOf(isString), asDropdown: isAnything, includeVars: [true],
    keepTime: [true], icon: isAnything, targetBlank: [false], tooltip: isAnything, url: [""],
  }),
  templating: {
    list: listOf({
      name: isString, label: isString, type: ["datasource", "query"], datasource: DATASOURCE, definition: isString,
      query: isAnything, refresh: [1, 2], sort: [0, 1, 2, 3, 4], multi: isBoolean, includeAll: isBoolean,
      allValue: isString, current: isAnything, hide: [0], regex: [""], options: isAnything, skipUrlSync: [false],
    }),
  },
};
// clang-format on

export const boardProblems = (board) => problemsWith(board, BOARD);
