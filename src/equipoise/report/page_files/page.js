// Fills the charts of the page with rows of the chosen models, and moves the sliders. Text enters the page only as text.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const classes = data.classes;
  const models = data.models || [];
  const GROUPS = ["many", "medium", "few"];
  const ROLES = models.length > 1 ? ["before", "after"] : ["after"];
  const chosen = { before: 0, after: Math.max(models.length - 1, 0) };
  const views = {};

  const percent = (value) => (value === null || value === undefined ? "–" : (100 * value).toFixed(1));
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

  // The same chart with its legend in fewer columns.
  const narrowed = (spec) => JSON.parse(JSON.stringify(spec), (key, value) => (key === "columns" ? Math.ceil(value / 2) : value));

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
    if (views[key]) {
      views[key].data("rows", values);
      await views[key].runAsync();
      views[key].resize();
      return views[key].runAsync();
    }
    const spec = { ...(place.clientWidth < 480 ? narrowed(specs[kind]) : specs[kind]), data: { name: "rows", values } };
    views[key] = (await vegaEmbed(place, spec, options)).view;
  }

  function names() {
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

  function cards() {
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
      add(card, "div", found === null ? "no such class in the test set" : interval, "range");
      if (models.length > 1 && found !== null && before.headline[key] !== null) {
        const was = add(card, "div", undefined, "was");
        const change = 100 * (found.value - before.headline[key].value);
        add(was, "b", `${change < -0.049 ? "▼ −" : change > 0.049 ? "▲ +" : "± "}${Math.abs(change).toFixed(1)}`);
        add(was, "span", ` from ${percent(before.headline[key].value)}`);
      }
    }
  }

  async function drawAll() {
    if (models.length) {
      names();
      cards();
    }
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
    const words = alpha === 0 ? "every class equally likely" : `${alpha > 0 ? "the head" : "the tail"} up to ` +
      `${ratio >= 10 ? Math.round(ratio).toLocaleString("en") : ratio.toFixed(1)} times likelier`;
    element("alpha-value").textContent = `alpha ${alpha.toFixed(2)}: ${words}`;
    for (const [role, sweep, line] of readouts("world-readout")) {
      add(line, "b", `${percent(sweep.accuracy[place][sweep.as_it_is])} %`).dataset.read = `${role}-as-it-is`;
      add(line, "span", " as it is, ");
      add(line, "b", `${percent(sweep.accuracy[place][place])} %`).dataset.read = `${role}-told`;
      add(line, "span", " told the prior");
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
      add(line, "span", ` in that world with that tau; best is tau ${data.taus[best].toFixed(2)} with ${percent(row[best])} %`);
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
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  });
  drawAll().then(() => { document.documentElement.dataset.ready = "yes"; });
})();
