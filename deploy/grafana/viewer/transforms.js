// Tables from instant queries, and Grafana's transformations of them. A table is {columns: [{name, values}]}.

// One row a series: its labels, then its value; several targets give a table with all rows.
export function tableOf(fields) {
  const labels =
      [...new Set(fields.flatMap((field) => Object.keys(field.labels)))].filter((label) => label !== "__name__");
  const columns = labels.map((name) => ({name, values: fields.map((field) => field.labels[name] ?? "")}));
  columns.unshift({name: "Time", values: fields.map((field) => field.times[0])});
  columns.push({name: "Value", values: fields.map((field) => field.values[0])});
  return {columns};
}

function columnOf(table, name) {
  const column = table.columns.find((candidate) => candidate.name === name);
  if (!column)
    throw new Error(
        `no column ${JSON.stringify(name)} (${table.columns.map((candidate) => candidate.name).join(", ")})`);
  return column;
}

function organize(table, {excludeByName = {}, indexByName = {}, renameByName = {}}) {
  const order = (column) => indexByName[column.name] ?? Infinity;
  const columns = table.columns.filter((column) => !excludeByName[column.name])
                      .sort((a, b) => (order(a) === order(b) ? 0 : order(a) - order(b)));
  return {columns: columns.map(({name, values}) => ({name: renameByName[name] || name, values}))};
}

// A row a value of `rowField`, a column a value of `columnField`, in the order in which they come.
function groupingToMatrix(table, {columnField, rowField, valueField}) {
  const rowOf = columnOf(table, rowField).values, columnAt = columnOf(table, columnField).values,
        valueAt = columnOf(table, valueField).values;
  const rows = [...new Set(rowOf)], names = [...new Set(columnAt)];
  const columns = names.map((name) => ({name, values: rows.map(() => null)}));
  rowOf.forEach((row, i) => {
    columns[names.indexOf(columnAt[i])].values[rows.indexOf(row)] = valueAt[i];
  });
  return {columns: [{name: `${rowField}\\${columnField}`, values: rows}, ...columns]};
}

const TRANSFORMS = {
  organize,
  groupingToMatrix
};

export function transformed(table, transformations) {
  return (transformations ?? []).reduce((result, {id, options}) => TRANSFORMS[id](result, options), table);
}
