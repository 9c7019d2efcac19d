/* What the page does without asking the server: its URL, its theme, keys, and how numbers of tables look. */
(() => {
  "use strict";

  /* --- the URL says what is shown ------------------------------------------------------------------- */

  const written = (params) => {
    const text = params.toString();
    return text ? `?${text}` : "";
  };

  const OF_A_RUN = ["rank", "t", "ranks", "pick", "op", "group", "purpose", "phase", "cause", "step", "of", "q"];
  const last = {}; // what each control said last: one that only appears changes nothing else

  /* Controls carry {set: name}; the one that changed puts its value into the URL. */
  function go(values, ids, search) {
    const params = new URLSearchParams(search);
    for (const one of dash_clientside.callback_context.triggered) {
      const { set } = JSON.parse(one.prop_id.slice(0, one.prop_id.lastIndexOf(".")));
      if (one.value === undefined) continue;
      const text = one.value === null ? "" : Array.isArray(one.value) ? one.value.join(".") : String(one.value);
      const changed = set in last && last[set] !== text;
      last[set] = text;
      if ((params.get(set) || "") === text) continue;
      if (text === "") params.delete(set);
      else params.set(set, text);
      if (changed && set === "run") OF_A_RUN.forEach((name) => params.delete(name));
      if (changed && set === "rank") params.delete("pick");
    }
    return replaced(params, search);
  }

  /* The theme of the URL, else the one of the system. */
  function scheme(search) {
    const asked = new URLSearchParams(search).get("theme");
    const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const theme = asked === "dark" || asked === "light" ? asked : system;
    document.documentElement.setAttribute("data-theme", theme);
    return [theme, theme];
  }

  /* While a run is read the server is asked again, each time after its last answer. */
  function later(again) {
    if (again) window.setTimeout(() => dash_clientside.set_props("poll", { data: again }), 500);
    return dash_clientside.no_update;
  }

  function toggle(clicks, search) {
    if (!clicks) return dash_clientside.no_update;
    const params = new URLSearchParams(search);
    params.set("theme", document.documentElement.getAttribute("data-theme") === "dark" ? "light" : "dark");
    return written(params);
  }

  /* A zoom of the timeline: `axis` has where its zero lies and the whole span, in ns; none on leaving it. */
  function zoom(relayout, [axis], search) {
    if (!relayout || !axis) return dash_clientside.no_update;
    const params = new URLSearchParams(search);
    let from = relayout["xaxis.range[0]"], to = relayout["xaxis.range[1]"];
    if (relayout["xaxis.range"]) [from, to] = relayout["xaxis.range"];
    if (relayout["xaxis.autorange"]) params.delete("t");
    else if (from === undefined || to === undefined) return dash_clientside.no_update;
    else setWindow(params, axis, from * 1e6, to * 1e6);
    return replaced(params, search);
  }

  const SMALLEST = 50; // ns

  function setWindow(params, axis, from, to) {
    const middle = (from + to) / 2;
    const half = Math.max((to - from) / 2, SMALLEST / 2);
    const width = Math.min(2 * half, axis.span); // kept at both ends: what moves does not zoom
    const start = Math.round(Math.min(Math.max(middle - half, 0), axis.span - width));
    const end = Math.round(start + width);
    if (end > start) params.set("t", `${start}-${end}`);
  }

  /* Zooming leaves no trail of a hundred pages behind: the entry of the history is replaced. */
  function replaced(params, search) {
    const next = written(params);
    if (next === written(new URLSearchParams(search))) return dash_clientside.no_update;
    window.history.replaceState(null, "", window.location.pathname + next);
    return next;
  }

  /* A click on the timeline picks a collective, or goes closer to a stretch of bins. */
  function pick(click, [axis], search) {
    if (!click || !click.points || !click.points.length || !axis) return dash_clientside.no_update;
    const params = new URLSearchParams(search);
    const point = click.points[0];
    const data = point.customdata;
    if (Array.isArray(data) && data[0] !== null && data[0] >= 0) {
      params.set("pick", String(data[0]));
      params.set("t", `${Math.round(axis.start)}-${Math.round(axis.end)}`);
    }
    else if (point.x !== undefined && axis.binned && !Array.isArray(data)) {
      const width = (axis.end - axis.start) / 16;
      const at = point.x * 1e6;
      setWindow(params, axis, at - width, at + width);
    } else return dash_clientside.no_update;
    return replaced(params, search);
  }

  /* Buttons of the timeline: {move: in | out | left | right | step | whole}. */
  function move(clicks, [axis], search) {
    const changed = dash_clientside.callback_context.triggered[0];
    if (!changed || !changed.value || !axis) return dash_clientside.no_update;
    return moved(JSON.parse(changed.prop_id.slice(0, changed.prop_id.lastIndexOf("."))).move, axis, search);
  }

  function moved(how, axis, search) {
    const params = new URLSearchParams(search);
    const width = axis.end - axis.start, middle = (axis.start + axis.end) / 2;
    if (how === "whole") params.set("t", `0-${Math.round(axis.span)}`);
    else if (how === "step") params.delete("t");
    else if (how === "in" || how === "out") {
      const half = width * (how === "in" ? 0.25 : 1);
      setWindow(params, axis, middle - half, middle + half);
    } else {
      const by = width * (how === "left" ? -0.4 : 0.4);
      const start = Math.min(Math.max(axis.start + by, 0), Math.max(axis.span - width, 0));
      setWindow(params, axis, start, start + width);
    }
    return replaced(params, search);
  }

  /* A row of the table of collectives is picked. */
  function pickRow(cell, search) {
    if (!cell || cell.rowId === undefined) return dash_clientside.no_update;
    const params = new URLSearchParams(search);
    params.set("pick", String(cell.rowId));
    return replaced(params, search);
  }

  /* Of a heatmap Dash passes no customdata on: it is looked up in the figure. */
  function ofCell(point) {
    const drawn = document.querySelector("#graph-waits .js-plotly-plot")?.data[0];
    const row = drawn?.y.findIndex((name) => String(name) === String(point.y));
    return drawn?.customdata[row]?.[drawn.x.indexOf(point.x)];
  }

  /* A cell or point that stands for a collective leads to it. */
  function toTimeline(click, search) {
    const point = click && click.points && click.points[0];
    const data = point && (point.customdata || ofCell(point));
    if (!Array.isArray(data) || data[0] === null || data[0] < 0) return dash_clientside.no_update;
    const params = new URLSearchParams(search);
    params.set("view", "timeline");
    params.set("pick", String(data[0]));
    for (const name of ["rank", "t", "ranks"]) params.delete(name);
    return written(params);
  }

  function unpick(clicks, search) {
    if (!clicks || !clicks.some(Boolean)) return dash_clientside.no_update;
    const params = new URLSearchParams(search);
    params.delete("pick");
    return replaced(params, search);
  }

  const VIEWS = ["overview", "timeline", "overlap", "across", "memory", "ring", "compare"];

  /* Each view's link keeps what else the URL says, so that zoom and filters are there on coming back. */
  function tabs(search) {
    const params = new URLSearchParams(search);
    const here = VIEWS.includes(params.get("view")) ? params.get("view") : "overview";
    const links = VIEWS.map((view) => {
      if (view === "overview") params.delete("view");
      else params.set("view", view);
      return `/${written(params)}`;
    });
    for (const view of VIEWS) {
      const tab = document.getElementById(`tab-${view}`);
      if (view === here) tab?.setAttribute("aria-current", "page");
      else tab?.removeAttribute("aria-current");
    }
    return links;
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    sp: { go, later, scheme, tabs, toggle, zoom, pick, move, pickRow, unpick, toTimeline },
  });

  /* --- numbers of tables, as `report.format.cell_text` writes them ----------------------------------- */

  const digits = (value) => {
    if (value < 0) return `−${digits(-value)}`;
    const size = value;
    if (size < 10) return value.toFixed(2);
    if (size < 1000) return value.toFixed(1);
    return Math.round(value).toString().replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
  };
  const UNIT = { ms: 1e6, us: 1e3, ratio: 0.01 };

  function percent(value) {
    const shown = Math.abs(value * 100);
    if (value < 0) return `−${percent(-value)}`;
    if (shown === 0 || shown === 100) return shown.toFixed(0);
    if (shown > 0 && shown < 0.1) return "<0.1";
    if (shown >= 99 && shown < 100) return Math.min(shown, 99.9).toFixed(1);
    return shown >= 10 ? shown.toFixed(0) : shown.toFixed(1);
  }

  function bytes(value) {
    if (Math.abs(value) < 1024) return `${Math.round(value)} B`;
    let rest = value;
    for (const unit of ["KiB", "MiB", "GiB", "TiB"]) {
      rest /= 1024;
      if (Math.abs(rest) < 1024 || unit === "TiB") return `${digits(rest)} ${unit}`;
    }
    return "";
  }

  function cell(value, kind) {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return String(value);
    if (kind === "int") return String(value);
    if (kind === "bytes") return bytes(value);
    if (kind === "ratio") return percent(value);
    if (kind === "mib") return (value / 1048576).toFixed(4);
    const shown = value / (UNIT[kind] || 1);
    return shown !== 0 && Math.abs(shown) < 0.01 ? "<0.01" : shown === 0 ? "0" : digits(shown);
  }

  const inUnit = (value, kind) => (typeof value === "number" ? value / (UNIT[kind] || 1) : value);

  window.dashAgGridFunctions = Object.assign({}, window.dashAgGridFunctions, { cell, inUnit });

  /* --- pictures ---------------------------------------------------------------------------------------- */

  /* What the view shows, as it is zoomed: a file a figure. */
  document.addEventListener("click", async (event) => {
    const format = event.target instanceof Element && event.target.closest("[data-save]")?.dataset.save;
    if (!format) return;
    const view = document.querySelector("#content [data-view]")?.dataset.view || "figure";
    for (const plot of document.querySelectorAll("#content .js-plotly-plot")) {
      const name = plot.closest("[id]").id.replace(/^graph-/, "");
      const { width, height } = plot._fullLayout;
      const scale = format === "png" ? 2 : 1;
      await window.Plotly.downloadImage(plot, { format, width, height, scale, filename: `${view}-${name}` });
    }
  });

  /* --- the ledger, named in every view, stands on the overview ---------------------------------------- */

  document.addEventListener("click", (event) => {
    if (!(event.target instanceof Element && event.target.closest("a.quality"))) return;
    const until = performance.now() + 10000;
    const reveal = () => {
      const ledger = document.getElementById("data-quality");
      if (ledger) ledger.scrollIntoView({ block: "center" });
      else if (performance.now() < until) requestAnimationFrame(reveal);
    };
    requestAnimationFrame(reveal);
  });

  /* --- keys ------------------------------------------------------------------------------------------ */

  const MOVES = { a: "left", d: "right", w: "in", s: "out", 0: "step", f: "whole" };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target;
    if (target instanceof Element && target.closest("input, textarea, select, [role=combobox], [contenteditable]")) return;
    if (event.key >= "1" && event.key <= String(VIEWS.length)) {
      document.getElementById(`tab-${VIEWS[Number(event.key) - 1]}`)?.click();
    } else if (event.key === "t") document.getElementById("theme")?.click();
    else if (event.key === "?") document.getElementById("help")?.click();
    else if (event.key in MOVES) document.querySelector(`[data-move="${MOVES[event.key]}"]`)?.click();
    else return;
    event.preventDefault();
  });
})();
