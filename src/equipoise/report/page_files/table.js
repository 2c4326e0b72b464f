// The table of classes: sorted by any column, searched, and saved as CSV.
"use strict";
(() => {
  const { data, models, classes, chosen, called, drawn, changes, element, add, none, tenths, digits, signed } = equipoise;
  if (!element("class-table")) return;
  const FIRST = 25;
  const MORE = 200;
  const REST = 10; // no more than these are not worth a button
  const several = models.length > 1;
  const state = { key: "count", down: true, find: "", group: "", most: FIRST };
  let rows = [];

  // Every column: its key, what it shows, of which model where both are shown, and its kind: a text, a count, a share or
  // a change ([value, low, high] in tenths of a percent).
  const columns = [
    { key: "name", what: "class", kind: "text" },
    { key: "count", what: "training items", kind: "count" },
    { key: "items", what: data.table.items, kind: "count" },
    ...data.table.scores.flatMap(({ key, title }, place) => [
      ...(several && place === 0 ? [{ key: `before_${key}`, what: title, of: "before", kind: "share" }] : []),
      { key: `after_${key}`, what: title, of: several && place === 0 ? "after" : "", kind: "share" },
      ...(several && place === 0 ? [{ key: "change", what: "change", kind: "change" }] : []),
    ]),
  ];
  const titled = ({ what, of }) => (of ? `${what}, ${called(24)[of]}` : what);

  // A score of a class with both ends of its interval, in tenths of a percent.
  function triple(model, { key, columns: shares }, i) {
    if (!model.columns.items[i]) return [null, null, null];
    if (shares.length) return shares.map((name) => (none(model.columns[name][i]) ? null : tenths(model.columns[name][i])));
    return ["", "_low", "_high"].map((end) => (model.table[key + end] || [])[i]);
  }

  function collect() {
    const [before, after] = [models[chosen.before], models[chosen.after]];
    const moved = several ? changes() : null;
    const first = data.table.scores[0].key;
    rows = classes.name.map((name, i) => {
      const row = { name, count: classes.count[i], items: after.columns.items[i], group: classes.group[i], rank: classes.rank[i] };
      for (const score of data.table.scores) {
        row[`after_${score.key}`] = triple(after, score, i);
        if (several) row[`before_${score.key}`] = triple(before, score, i);
      }
      if (several) {
        const [now, was] = [row[`after_${first}`][0], row[`before_${first}`][0]];
        const size = none(now) || none(was) ? null : now - was;
        const known = size !== null && moved && moved.low.length && !none(moved.low[i]);
        row.change = [size, known ? moved.low[i] : null, known ? moved.high[i] : null];
      }
      return row;
    });
  }

  const value = (row, key) => (Array.isArray(row[key]) ? row[key][0] : row[key]);

  function shown() {
    const wanted = state.find.trim().toLowerCase();
    const kept = rows.filter((row) => (!state.group || row.group === state.group) && (!wanted || row.name.toLowerCase().includes(wanted)));
    const sign = state.down ? -1 : 1;
    return kept.sort((a, b) => {
      const [x, y] = [value(a, state.key), value(b, state.key)];
      if (none(x) || none(y)) return none(x) - none(y) || a.rank - b.rank; // what is not known comes last
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y) || a.rank - b.rank;
    });
  }

  function cell(parent, column, row) {
    const made = add(parent, "td", undefined, column.kind === "text" ? "name" : "");
    made.setAttribute("role", "cell");
    made.dataset.label = titled(column).replaceAll("_", "_\u200b"); // a long name may be broken there
    if (column.kind === "text") {
      add(made, "span", undefined, `shape ${data.table.shapes[row.group]}`).setAttribute("aria-hidden", "true");
      add(made, "span", row.name);
      add(made, "span", `, ${row.group}`, "unseen");
    } else if (column.kind === "count") {
      add(made, "span", row[column.key].toLocaleString("en"));
    } else {
      const [size, low, high] = row[column.key];
      const write = column.kind === "change" ? signed : digits;
      add(made, column.kind === "change" && !none(low) && (low > 0 || high < 0) ? "b" : "span", write(size));
      if (!none(size) && !none(low)) add(made, "small", `${write(low)}${column.kind === "change" ? " to " : "–"}${write(high)}`);
    }
  }

  function fill() {
    const found = shown();
    const most = found.length <= state.most + REST ? found.length : state.most;
    const body = element("class-rows");
    body.replaceChildren();
    for (const row of found.slice(0, most)) {
      const line = add(body, "tr");
      line.setAttribute("role", "row");
      for (const column of columns) cell(line, column, row);
    }
    const every = found.length.toLocaleString("en");
    const classes_ = found.length === 1 ? "class" : "classes";
    element("table-count").textContent = most < found.length ? `${most.toLocaleString("en")} of ${every} classes shown` : `${every} ${classes_}`;
    element("table-more").hidden = most === found.length;
    element("table-more").textContent = `Show ${Math.min(MORE, found.length - most)} more`;
    for (const head of element("class-heads").children) {
      const here = head.dataset.key === state.key;
      head.setAttribute("aria-sort", here ? (state.down ? "descending" : "ascending") : "none");
    }
    element("table-sort").value = `${state.key} ${state.down ? "down" : "up"}`;
  }

  function sortBy(key, down) {
    Object.assign(state, { key, down, most: FIRST });
    fill();
  }

  // A name that a spreadsheet would take for a formula is kept from it by an apostrophe.
  const quoted = (text) => `"${(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;

  function csv() {
    const roles = several ? ["before", "after"] : ["after"];
    const parts = [];
    for (const role of roles) {
      for (const { key, title } of data.table.scores) parts.push([`${role}_${key}`, several ? `${models[chosen[role]].name}: ${title}` : title]);
    }
    if (several) parts.push(["change", "change"]);
    const head = ["class", "group", "training items", data.table.items];
    for (const [, title] of parts) head.push(`${title}, %`, `${title}, low`, `${title}, high`);
    const number = (tenth) => (none(tenth) ? "" : (tenth / 10).toFixed(1));
    const lines = shown().map((row) => [quoted(row.name), row.group, row.count, row.items,
      ...parts.flatMap(([key]) => row[key].map(number))].join(","));
    return [head.map(quoted).join(","), ...lines, ""].join("\r\n");
  }

  const titles = []; // what writes the headings, which name the chosen models
  for (const column of columns) {
    const head = add(element("class-heads"), "th");
    head.setAttribute("role", "columnheader");
    head.setAttribute("scope", "col");
    head.dataset.key = column.key;
    const button = add(head, "button", undefined, column.of ? "sort of" : "sort");
    button.type = "button";
    const first = column.kind !== "text"; // numbers begin with the largest, names with A
    button.addEventListener("click", () => sortBy(column.key, column.key === state.key ? !state.down : first));
    for (const [down, words] of first ? [[true, "largest first"], [false, "smallest first"]] : [[false, "A to Z"], [true, "Z to A"]]) {
      const option = add(element("table-sort"), "option");
      option.value = `${column.key} ${down ? "down" : "up"}`;
      titles.push(() => { option.textContent = `${titled(column)}, ${words}`; });
    }
    titles.push(() => { button.textContent = titled(column); });
  }
  element("table-sort").addEventListener("change", (event) => {
    const [key, way] = event.target.value.split(" ");
    sortBy(key, way === "down");
  });
  element("table-find").addEventListener("input", (event) => { Object.assign(state, { find: event.target.value, most: FIRST }); fill(); });
  element("table-group").addEventListener("change", (event) => { Object.assign(state, { group: event.target.value, most: FIRST }); fill(); });
  element("table-more").addEventListener("click", () => { state.most += MORE; fill(); });
  element("table-csv").addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob(["\ufeff", csv()], { type: "text/csv;charset=utf-8" }));
    link.download = "classes.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
  equipoise.csv = csv;
  drawn.push(() => {
    for (const write of titles) write();
    collect();
    fill();
  });
})();
