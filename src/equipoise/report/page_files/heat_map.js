// The confusion matrix on a canvas: classes from head to tail, zoomed by dragging, buttons or keys; a cell tells its classes.
"use strict";
(() => {
  const { data, models, classes, chosen, drawn, element, add, digits } = equipoise;
  if (!data.heat) return;
  const NAMED = 24; // classes in view that are written out
  const FONT = "11px system-ui, sans-serif";
  const GROUP_NAMES = ["many", "medium", "few"];
  const total = data.heat.classes;
  const name = (place) => { const i = classes.rank.indexOf(place + 1); return i < 0 ? `class ${place + 1}` : classes.name[i]; };
  const colour = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
  const within = (value, low, high) => Math.min(Math.max(value, low), high);

  function start(figure) {
    const role = figure.dataset.heat;
    const canvas = figure.querySelector("canvas");
    const told = figure.querySelector("output");
    const view = { row: 0, column: 0, size: total }; // the classes in view
    let cursor = null;
    let box = null; // of the cells, in pixels
    let drag = null;

    const cells = () => (models[chosen[role]].heat || { row: [], column: [], share: [] });

    function find(row, column) {
      const { row: rows, column: columns, share } = cells();
      for (let i = rows.length - 1; i >= 0; i -= 1) if (rows[i] === row && columns[i] === column) return share[i];
      return 0;
    }

    function tell(row, column) {
      const share = find(row, column);
      const words = row === column ? `${name(row)} is recognised in` : `${name(row)} is mistaken for ${name(column)} in`;
      told.textContent = `${words} ${share ? `${digits(share)} %` : "none or very few"} of its test items`;
    }

    function draw() {
      const width = figure.querySelector(".canvas").clientWidth;
      const scale = window.devicePixelRatio || 1;
      const named = view.size <= NAMED;
      const edge = named ? Math.min(longest() + 14, 110, width * 0.3) : 22;
      const side = width - edge - 2;
      box = { left: edge, top: edge, side };
      Object.assign(canvas, { width: width * scale, height: (side + edge + 2) * scale }); // which also clears it
      const pen = canvas.getContext("2d");
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.fillStyle = colour("--card");
      pen.fillRect(edge, edge, side, side);
      const [right, wrong] = [colour("--after"), colour("--few")];
      const step = side / view.size;
      const { row, column, share } = cells();
      pen.save();
      pen.beginPath();
      pen.rect(edge, edge, side, side);
      pen.clip();
      for (let i = 0; i < row.length; i += 1) {
        const [y, x] = [row[i] - view.row, column[i] - view.column];
        if (y < 0 || x < 0 || y >= view.size || x >= view.size) continue;
        pen.fillStyle = row[i] === column[i] ? right : wrong;
        pen.globalAlpha = 0.08 + 0.92 * Math.sqrt(share[i] / 1000);
        pen.fillRect(edge + x * step, edge + y * step, Math.max(step - (step > 6 ? 1 : 0), 1), Math.max(step - (step > 6 ? 1 : 0), 1));
      }
      pen.restore();
      lines(pen, step, edge, side);
      labels(pen, step, edge, side, named);
      if (drag && drag.to) {
        pen.strokeStyle = colour("--ink");
        pen.setLineDash([4, 3]);
        const [x, y, size] = square(drag);
        pen.strokeRect(x, y, size, size);
        pen.setLineDash([]);
      }
      if (cursor && document.activeElement === canvas) {
        pen.strokeStyle = colour("--ink");
        pen.lineWidth = 2;
        pen.strokeRect(edge + (cursor.column - view.column) * step, edge + (cursor.row - view.row) * step, Math.max(step, 4), Math.max(step, 4));
      }
      describe();
    }

    // The width of the longest name in view.
    function longest() {
      const pen = canvas.getContext("2d");
      pen.font = FONT;
      const names = Array.from({ length: view.size }, (_, i) => [name(view.row + i), name(view.column + i)]).flat();
      return Math.max(...names.map((text) => pen.measureText(text).width), 10);
    }

    function lines(pen, step, edge, side) {
      pen.strokeStyle = colour("--muted");
      pen.lineWidth = 0.8;
      pen.strokeRect(edge, edge, side, side);
      for (const end of data.heat.ends.slice(0, 2)) {
        const [x, y] = [edge + (end - view.column) * step, edge + (end - view.row) * step];
        pen.beginPath();
        if (x > edge && x < edge + side) { pen.moveTo(x, edge); pen.lineTo(x, edge + side); }
        if (y > edge && y < edge + side) { pen.moveTo(edge, y); pen.lineTo(edge + side, y); }
        pen.stroke();
      }
    }

    function labels(pen, step, edge, side, named) {
      pen.fillStyle = colour("--ink");
      pen.font = FONT;
      pen.textBaseline = "middle";
      const fit = (text, room) => {
        let cut = text;
        while (cut.length > 1 && pen.measureText(cut === text ? cut : `${cut}…`).width > room) cut = cut.slice(0, -1);
        return cut === text ? text : `${cut}…`;
      };
      const turned = (text, x, y) => { pen.save(); pen.translate(x, y); pen.rotate(-Math.PI / 2); pen.fillText(text, 0, 0); pen.restore(); };
      if (named) {
        for (let i = 0; i < view.size; i += 1) {
          pen.textAlign = "right";
          pen.fillText(fit(name(view.row + i), edge - 8), edge - 5, edge + (i + 0.5) * step);
          pen.textAlign = "left";
          turned(fit(name(view.column + i), edge - 8), edge + (i + 0.5) * step, edge - 5);
        }
        return;
      }
      pen.textAlign = "center";
      let from = 0;
      data.heat.ends.forEach((end, i) => {
        for (const [start_, across] of [[view.column, true], [view.row, false]]) {
          const [low, high] = [Math.max(from, start_), Math.min(end, start_ + view.size)].map((place) => edge + (place - start_) * step);
          if (high - low < 44) continue;
          if (across) pen.fillText(GROUP_NAMES[i], (low + high) / 2, edge / 2);
          else turned(GROUP_NAMES[i], edge / 2, (low + high) / 2);
        }
        from = end;
      });
    }

    function describe() {
      const { row, column, share } = cells();
      let worst = -1;
      for (let i = 0; i < row.length; i += 1) if (row[i] !== column[i] && (worst < 0 || share[i] > share[worst])) worst = i;
      const mistake = worst < 0 ? "" : ` Most frequent mistake: ${name(row[worst])} mistaken for ${name(column[worst])} in ${digits(share[worst])} %.`;
      const range = `classes ${view.row + 1} to ${view.row + view.size} of ${total}`;
      canvas.setAttribute("aria-label", `Confusions of ${models[chosen[role]].name}, ${range}, rows true, columns predicted.${mistake} ` +
        "Arrow keys move, plus and minus zoom, Escape shows all.");
    }

    function zoom(row, column, size) {
      view.size = within(Math.round(size), Math.min(4, total), total);
      view.row = within(Math.round(row), 0, total - view.size);
      view.column = within(Math.round(column), 0, total - view.size);
      draw();
    }
    const middle = () => ({ row: view.row + view.size / 2, column: view.column + view.size / 2 });
    const closer = (factor, at = middle()) => zoom(at.row - (view.size * factor) / 2, at.column - (view.size * factor) / 2, view.size * factor);

    function place(event) {
      const frame = canvas.getBoundingClientRect();
      const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
      const [column, row] = [x - box.left, y - box.top].map((at) => Math.floor((at / box.side) * view.size));
      const inside = column >= 0 && row >= 0 && column < view.size && row < view.size;
      return { x, y, row: row + view.row, column: column + view.column, inside };
    }
    function square({ from, to }) {
      const size = Math.max(Math.abs(to.x - from.x), Math.abs(to.y - from.y));
      return [to.x < from.x ? from.x - size : from.x, to.y < from.y ? from.y - size : from.y, size];
    }

    canvas.addEventListener("pointermove", (event) => {
      const at = place(event);
      if (drag) { drag.to = at; draw(); } else if (at.inside) tell(at.row, at.column);
    });
    canvas.addEventListener("pointerdown", (event) => {
      const at = place(event);
      if (!at.inside) return;
      cursor = { row: at.row, column: at.column };
      tell(at.row, at.column);
      if (event.pointerType !== "touch") drag = { from: at };
    });
    canvas.addEventListener("pointerup", () => {
      const done = drag;
      drag = null;
      if (!done || !done.to) return;
      const [x, y, size] = square(done);
      const step = box.side / view.size;
      if (size > 8) zoom(view.row + (y - box.top) / step, view.column + (x - box.left) / step, size / step);
      else draw();
    });
    canvas.addEventListener("pointerleave", () => { drag = null; draw(); });
    canvas.addEventListener("focus", () => { cursor = cursor || { row: view.row, column: view.column }; draw(); });
    canvas.addEventListener("blur", draw);
    canvas.addEventListener("keydown", (event) => {
      const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      if (steps[event.key]) {
        const [down, across] = steps[event.key];
        cursor = { row: within(cursor.row + down, 0, total - 1), column: within(cursor.column + across, 0, total - 1) };
        view.row = within(view.row, cursor.row - view.size + 1, cursor.row);
        view.column = within(view.column, cursor.column - view.size + 1, cursor.column);
        draw();
        tell(cursor.row, cursor.column);
      } else if (event.key === "+" || event.key === "=") closer(0.5, cursor);
      else if (event.key === "-") closer(2, cursor);
      else if (event.key === "Escape") zoom(0, 0, total);
      else return;
      event.preventDefault();
    });
    for (const button of figure.querySelectorAll("button")) {
      button.addEventListener("click", () => (button.dataset.zoom === "all" ? zoom(0, 0, total) : closer(button.dataset.zoom === "in" ? 0.5 : 2)));
    }
    new ResizeObserver(draw).observe(figure.querySelector(".canvas"));
    document.addEventListener("theme", draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    drawn.push(() => {
      const known = Boolean(models[chosen[role]].heat);
      figure.querySelector(".empty").hidden = known;
      figure.querySelector(".known").hidden = !known;
      if (known) draw();
    });
  }

  for (const figure of document.querySelectorAll("figure[data-heat]")) start(figure);
})();
