// Fills the charts of the page with rows of the chosen models, and moves the sliders. Text enters the page only as text.
// table.js, heat_map.js and pictures.js follow: what they add to `drawn` is called whenever other models are chosen.
"use strict";
const equipoise = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const classes = data.classes;
  const models = data.models || [];
  const GROUPS = ["many", "medium", "few"];
  const ROLES = models.length > 1 ? ["before", "after"] : ["after"];
  const chosen = { before: 0, after: Math.max(models.length - 1, 0) };
  const views = {};

  const drawn = [];
  const none = (value) => value === null || value === undefined;

  // Tenths of a percent of a share, and how they are shown: as `tenths` and `percent` of metrics/evaluation.py.
  const tenths = (share) => Math.sign(share) * Math.floor(1000 * Math.abs(share) + 0.500001);
  const digits = (value) => (none(value) ? "–" : (value / 10).toFixed(1));
  const signed = (value) => (none(value) ? "–" : `${value > 0 ? "+" : value < 0 ? "−" : "±"}${(Math.abs(value) / 10).toFixed(1)}`);
  const percent = (share) => (none(share) ? "–" : digits(tenths(share)));
  const range = (low, high) => `${percent(low)} to ${percent(high)}`;
  const element = (id) => document.getElementById(id);
  const add = (parent, tag, text, name) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (name) made.className = name;
    parent.append(made);
    return made;
  };

  // ------------------------------------------------------------------ drawing

  const both = new Set(["marginal", "slopes", "world", "precision_slopes", "f1_slopes"]);
  const columns = new Set(["classes", "marginal", "precision", "f1", "chosen"]);

  // What a chart shows of the chosen models: columns of all classes, or rows; rows_of of page_data and multilabel_data.
  function rowsOf(kind, role) {
    if (kind === "counts") return [classes];
    return (both.has(kind) ? ROLES : [role]).flatMap((name, place) => {
      const model = models[chosen[name]];
      const rows = columns.has(kind) ? [{ ...classes, ...model.columns }] : model.rows[kind] || [];
      return rows.map((row) => ({ ...row, role: name, model: model.name, place }));
    });
  }

  // What models are called in a chart or a table, cut to a length.
  const called = (longest) => Object.fromEntries(ROLES.map((role) => {
    const { name } = models[chosen[role]];
    return [role, name.length > longest ? `${name.slice(0, longest - 1)}…` : name];
  }));

  // The same chart with its legends in fewer columns, one below the other.
  function narrowed(spec) {
    const made = JSON.parse(JSON.stringify(spec), (key, value) => (key === "columns" ? Math.ceil(value / 3) : value));
    made.config.legend.layout = { top: { direction: "vertical", anchor: "start", margin: 4 } };
    return made;
  }

  // Expressions are interpreted (ast), and styles are in page.css: the page's policy forbids eval and other styles.
  const tooltip = { offsetX: 12, offsetY: 12, disableDefaultStyle: true };
  const options = { renderer: "svg", actions: false, ast: true, defaultStyle: false, tooltip };

  async function draw(figure) {
    const { chart: kind, role = "" } = figure.dataset;
    const place = figure.querySelector(".chart");
    const values = rowsOf(kind, role);
    const empty = figure.querySelector(".empty");
    if (empty) empty.hidden = values.length > 0;
    place.hidden = values.length === 0;
    if (values.length === 0) return;
    const key = kind + role;
    const narrow = place.clientWidth < 480;
    if (views[key]) {
      if (both.has(kind)) views[key].signal("names", called(narrow ? 18 : 40));
      views[key].data("rows", values);
      await views[key].runAsync();
      views[key].resize();
      return views[key].runAsync();
    }
    const spec = { ...(narrow ? narrowed(specs[kind]) : specs[kind]), data: { name: "rows", values } };
    if (both.has(kind)) spec.params = spec.params.map((param) => (param.name === "names" ? { ...param, value: called(narrow ? 18 : 40) } : param));
    views[key] = (await vegaEmbed(place, spec, options)).view;
  }

  function names() {
    for (const figure of document.querySelectorAll("figure[data-role]")) figure.setAttribute("aria-label", models[chosen[figure.dataset.role]].name);
    for (const mark of document.querySelectorAll("[data-name]")) mark.textContent = models[chosen[mark.dataset.name]].name;
    for (const mark of document.querySelectorAll("[data-ece]")) {
      const found = models[chosen[mark.dataset.ece]].ece;
      mark.textContent = Object.entries(found || {}).filter(([, ece]) => ece !== null)
        .map(([group, ece]) => `${group} ${percent(ece)}`).join(", ");
    }
    for (const mark of document.querySelectorAll("[data-tv]")) {
      mark.textContent = percent(models[chosen[mark.dataset.tv]].total_variation);
    }
  }

  // What changed from the model before to the one after; turned around where the page knows it the other way.
  function changes() {
    const [i, j] = [chosen.before, chosen.after];
    const found = (data.changes || {})[`${Math.min(i, j)}-${Math.max(i, j)}`];
    if (!found || i < j) return found;
    const back = (change) => change && { value: -change.value, low: -change.high, high: -change.low };
    const headline = Object.fromEntries(Object.entries(found.headline).map(([key, change]) => [key, back(change)]));
    const negated = (values) => values.map((value) => (none(value) ? null : -value));
    return { ...found, words: [...found.words].reverse(), headline, low: negated(found.high), high: negated(found.low) };
  }

  function conclude() {
    if (!element("conclusion-words") || models.length < 2) return;
    const found = changes();
    const same = "The same model is chosen twice; choose two to compare.";
    element("conclusion-words").textContent = found ? found.words[0] : chosen.before === chosen.after ? same : "";
    element("conclusion-how").textContent = !found ? "" : found.paired
      ? "Intervals of changes are paired, as both models saw the same test items."
      : "Intervals of changes treat the test items of the two models as different ones, as it is not known which items each got right.";
  }

  function cards() {
    const found_changes = changes();
    const place = element("cards");
    place.replaceChildren();
    const after = models[chosen.after];
    const before = models[chosen.before];
    for (const [key, what, group = GROUPS.includes(key) ? key : ""] of data.headlines) {
      const found = after.headline[key];
      const card = add(place, "div", undefined, "card");
      card.dataset.headline = key;
      const title = add(card, "div", undefined, "what");
      if (group) add(title, "span", undefined, `shape ${group}`);
      add(title, "span", what);
      const big = add(card, "div", found === null ? "–" : percent(found.value), "big");
      if (found !== null) add(big, "small", "%");
      const interval = found !== null && found.low === null ? "" : found && `95 %: ${range(found.low, found.high)}`;
      add(card, "div", found === null ? "no such classes in the test set" : interval, "range");
      if (models.length > 1 && found !== null && before.headline[key] !== null) {
        const was = add(card, "div", undefined, "was");
        const change = found_changes && found_changes.headline[key];
        const size = change ? change.value : tenths(found.value) - tenths(before.headline[key].value);
        add(was, "b", `${size < 0 ? "▼ " : size > 0 ? "▲ " : ""}${signed(size)}`);
        add(was, "span", ` from ${percent(before.headline[key].value)}`);
        if (change && !none(change.low)) {
          add(card, "div", `95 %: ${signed(change.low)} to ${signed(change.high)}`, "range change");
          const sure = change.low > 0 || change.high < 0;
          const either = change.low || change.high ? "may have changed either way" : "the same";
          add(card, "div", sure ? "more than chance" : size ? "may be chance" : either, `chance ${sure ? "sure" : ""}`);
        }
      }
    }
  }

  async function drawAll() {
    if (models.length) {
      names();
      conclude();
      cards();
    }
    for (const part of drawn) part();
    await Promise.all([...document.querySelectorAll("figure[data-chart]")].map(draw));
    if (element("alpha")) await Promise.all([moveWorld(), moveTau()]);
    if (element("odds")) await moveOdds();
  }

  // ------------------------------------------------------------------ sliders

  const swept = (kind = "sweep") => ROLES.filter((role) => models[chosen[role]][kind]);

  /** A fresh line for each model that can be swept: [role, its sweep, the line, which begins with its name]. */
  function readouts(id, kind = "sweep") {
    const readout = element(id);
    readout.replaceChildren();
    return swept(kind).map((role) => {
      const { name, [kind]: sweep } = models[chosen[role]];
      const line = add(readout, "div");
      add(line, "span", undefined, `tag ${role}`);
      add(line, "span", `${name}: `);
      return [role, sweep, line];
    });
  }

  async function moveOdds() {
    const place = Number(element("odds").value);
    const odds = data.odds[place];
    element("odds-value").textContent = `threshold ${Number((100 / (1 + Math.exp(-odds))).toPrecision(3))} %`;
    for (const [role, curve, line] of readouts("odds-readout", "curve")) {
      add(line, "span", "F1 ");
      Object.entries(curve).forEach(([group, values], i) => {
        add(line, "span", `${i ? ", " : ""}${group} `);
        add(line, "b", percent(values[place])).dataset.read = `${role}-${group}`;
      });
    }
    await Promise.all(["curvebefore", "curveafter"].filter((key) => views[key]).map((key) => views[key].signal("odds", odds).runAsync()));
  }

  async function moveWorld() {
    const place = Number(element("alpha").value);
    const alpha = data.worlds[place];
    const ratio = Math.pow(data.imbalance, Math.abs(alpha));
    const words = alpha === 0 ? "every class equally likely" : `${alpha > 0 ? "head" : "tail"} classes up to ` +
      `${ratio >= 10 ? Math.round(ratio).toLocaleString("en") : ratio.toFixed(1)} times as likely as ${alpha > 0 ? "tail" : "head"} classes`;
    element("alpha-value").textContent = `alpha ${alpha.toFixed(2)}: ${words}`;
    for (const [role, sweep, line] of readouts("world-readout")) {
      add(line, "b", `${percent(sweep.accuracy[place][sweep.as_it_is])} %`).dataset.read = `${role}-as-it-is`;
      add(line, "span", " as it is, ");
      add(line, "b", `${percent(sweep.accuracy[place][place])} %`).dataset.read = `${role}-told`;
      add(line, "span", " given the prior");
    }
    if (views.world) await views.world.signal("alpha", alpha).runAsync();
    here();
  }

  async function moveTau() {
    const place = Number(element("tau").value);
    const tau = data.taus[place];
    element("tau-value").textContent = `tau ${tau.toFixed(2)}`;
    for (const [role, sweep, line] of readouts("tau-readout")) {
      Object.entries(sweep.groups).forEach(([group, values], i) => {
        add(line, "span", `${i ? ", " : ""}${group} `);
        add(line, "b", percent(values[place])).dataset.read = `${role}-${group}`;
      });
      if (place === sweep.as_it_is) add(line, "span", " (as it is)");
    }
    await Promise.all(["taubefore", "tauafter"].filter((key) => views[key]).map((key) => views[key].signal("tau", tau).runAsync()));
    here();
  }

  function here() {
    const [world, tau] = [Number(element("alpha").value), Number(element("tau").value)];
    const readout = element("both-readout");
    readout.replaceChildren();
    for (const role of swept()) {
      const { name, sweep } = models[chosen[role]];
      const row = sweep.accuracy[world];
      const best = row.indexOf(Math.max(...row));
      const line = add(readout, "div");
      add(line, "span", undefined, `tag ${role}`);
      add(line, "span", `${name}: `);
      add(line, "b", `${percent(row[tau])} %`).dataset.read = `${role}-both`;
      add(line, "span", ` at this alpha and tau. The best tau on these test items, an optimistic choice, ` +
        `is ${data.taus[best].toFixed(2)} with ${percent(row[best])}\u00a0%`);
    }
  }

  // ------------------------------------------------------------------ start

  for (const role of ROLES) {
    const select = element(`pick-${role}`);
    if (!select) continue;
    models.forEach((model, i) => { add(select, "option", model.name).value = String(i); });
    select.value = String(chosen[role]);
    select.addEventListener("change", () => { chosen[role] = Number(select.value); drawAll(); });
  }
  if (element("alpha")) {
    element("alpha").addEventListener("input", moveWorld);
    element("tau").addEventListener("input", moveTau);
  }
  if (element("odds")) element("odds").addEventListener("input", moveOdds);
  const theme = element("theme");
  theme.addEventListener("click", () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
    look(now === "dark" ? "light" : "dark");
  });
  // Paper is white: printed, the page is light whatever it is on the screen.
  let shownAs;
  const look = (name) => {
    if (name) document.documentElement.dataset.theme = name;
    else delete document.documentElement.dataset.theme;
    document.dispatchEvent(new Event("theme"));
  };
  window.addEventListener("beforeprint", () => { shownAs = document.documentElement.dataset.theme; look("light"); });
  window.addEventListener("afterprint", () => look(shownAs));
  document.addEventListener("DOMContentLoaded", () => {
    drawAll().then(() => { document.documentElement.dataset.ready = "yes"; });
  });
  return { data, models, classes, chosen, called, drawn, changes, element, add, none, tenths, digits, signed, percent };
})();
