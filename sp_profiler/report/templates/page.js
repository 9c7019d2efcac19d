"use strict";
/* Draws the plots and fills the tables. Text from a trace is only ever set as text, never as markup. */
(() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("page-data").textContent);
  const byId = (id) => document.getElementById(id);
  const make = (tag, properties = {}, text = "") => {
    const element = Object.assign(document.createElement(tag), properties);
    if (text !== "") element.textContent = text;
    return element;
  };

  /* ---- theme ---- */
  const system = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => root.dataset.theme || (system.matches ? "dark" : "light");
  const toggle = byId("theme-toggle");
  const showTheme = () => {
    const dark = theme() === "dark";
    toggle.setAttribute("aria-pressed", String(dark));
    toggle.textContent = dark ? "Light" : "Dark";
    if (!window.Plotly) return;
    for (const [id, plot] of Object.entries(data.plots)) {
      const element = byId(`plot-${id}`);
      if (element.dataset.drawn) Plotly.relayout(element, plot.themes[theme()]);
    }
  };
  toggle.addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    try { localStorage.setItem("sp-profile-theme", root.dataset.theme); } catch (error) { return showTheme(); }
    showTheme();
  });
  system.addEventListener("change", showTheme);
  showTheme();

  /* ---- numbers ---- */
  const digits = (value) => {
    const size = Math.abs(value);
    if (size < 10) return value.toFixed(2);
    if (size < 1000) return value.toFixed(1);
    return Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f");
  };
  const scaled = (value, unit) => {
    if (value === 0) return "0";
    return Math.abs(value / unit) < 0.01 ? "<0.01" : digits(value / unit);
  };
  const sizes = (value) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let place = 0;
    while (Math.abs(value) >= 1024 && place < units.length - 1) { value /= 1024; place += 1; }
    return `${place ? digits(value) : value} ${units[place]}`;
  };
  const ratio = (value) => {
    const percent = value * 100;
    if (percent === 0 || percent === 100) return String(percent);
    if (percent > 0 && percent < 0.1) return "<0.1";
    if (percent >= 99 && percent < 100) return Math.min(percent, 99.9).toFixed(1);
    return Math.abs(percent) >= 10 ? percent.toFixed(0) : percent.toFixed(1);
  };
  const formats = {
    text: (value) => String(value),
    int: (value) => String(value),
    number: digits,
    ms: (value) => scaled(value, 1e6),
    us: (value) => scaled(value, 1e3),
    bytes: sizes,
    mib: (value) => (value / 1048576).toFixed(4),
    ratio,
  };
  const shown = (kind, value) => (value === null ? "–" : typeof value === "string" ? value : formats[kind](value));

  /* ---- tables ---- */
  const compare = (kind) => (one, two) => {
    if (one === null || two === null) return one === two ? 0 : one === null ? 2 : -2; // null stays last
    if (kind !== "text") return Math.sign(one - two);
    return Math.sign(String(one).localeCompare(String(two), "en", { numeric: true }));
  };

  function buildTable(host, spec) {
    const numeric = spec.columns.map((column) => column.kind !== "text");
    const texts = spec.rows.map((row) => row.map((value, place) => shown(spec.columns[place].kind, value)));
    const haystack = texts.map((row) => row.map((text) => (spec.full[text] ? `${text}\u0000${spec.full[text]}` : text)).join("\u0000").toLowerCase());
    const state = { order: spec.rows.map((_, row) => row), sort: null, descending: false, page: 0, size: spec.columns.length > 4 ? 20 : 8 };

    const filter = make("input", { type: "search", placeholder: "Filter", id: `filter-${spec.id}` });
    filter.setAttribute("aria-label", `Filter the table ${spec.title}`);
    const count = make("span", { className: "count" });
    count.setAttribute("role", "status");
    const bar = make("div", { className: "table-bar" });
    bar.append(filter, count);

    const table = make("table");
    table.append(make("caption", { className: "hidden" }, spec.title));
    const heads = spec.columns.map((column, place) => {
      const head = make("th", { scope: "col", className: numeric[place] ? "num" : "" });
      const button = make("button", { type: "button" }, column.label);
      if (column.unit) button.append(make("span", { className: "unit" }, ` ${column.unit}`));
      button.addEventListener("click", () => sortBy(place));
      head.setAttribute("aria-sort", "none");
      if (column.label) head.append(button);
      return head;
    });
    const headRow = make("tr");
    headRow.append(...heads);
    const top = make("thead");
    top.append(headRow);
    const body = make("tbody");
    table.append(top, body);
    if (spec.rest) {
      const line = make("tr");
      spec.rest.forEach((value, place) => {
        line.append(make("td", { className: numeric[place] ? "num" : "text" }, shown(spec.columns[place].kind, value)));
      });
      const foot = make("tfoot");
      foot.append(line);
      table.append(foot);
    }
    const scroll = make("div", { className: "scroll", tabIndex: 0 });
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", spec.title);
    scroll.append(table);

    const previous = make("button", { type: "button" }, "Previous");
    const next = make("button", { type: "button" }, "Next");
    const where = make("span");
    const pager = make("div", { className: "pager" });
    pager.append(previous, where, next);
    previous.addEventListener("click", () => { state.page -= 1; draw(); });
    next.addEventListener("click", () => { state.page += 1; draw(); });

    function sortBy(place) {
      state.descending = state.sort === place ? !state.descending : numeric[place];
      state.sort = place;
      refresh();
    }

    function refresh() {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      state.order = spec.rows.map((_, row) => row).filter((row) => words.every((w) => haystack[row].includes(w)));
      if (state.sort !== null) {
        const by = compare(spec.columns[state.sort].kind);
        state.order.sort((a, b) => {
          const verdict = by(spec.rows[a][state.sort], spec.rows[b][state.sort]);
          return Math.abs(verdict) === 2 ? verdict : (state.descending ? -verdict : verdict) || a - b;
        });
      }
      heads.forEach((head, place) => {
        const sorted = state.descending ? "descending" : "ascending";
        head.setAttribute("aria-sort", place === state.sort ? sorted : "none");
      });
      state.page = 0;
      draw();
    }

    function draw() {
      const pages = Math.max(1, Math.ceil(state.order.length / state.size));
      state.page = Math.min(Math.max(state.page, 0), pages - 1);
      const from = state.page * state.size;
      body.replaceChildren(...state.order.slice(from, from + state.size).map((row) => {
        const line = make("tr");
        texts[row].forEach((text, place) => {
          const cell = make("td", { className: numeric[place] ? "num" : "text" }, text);
          const whole = spec.full[text] || text;
          if (whole.length > 28 || whole !== text) cell.title = whole;
          line.append(cell);
        });
        return line;
      }));
      const all = spec.total > spec.rows.length ? `${spec.rows.length} shown of ${spec.total}` : `${spec.rows.length}`;
      count.textContent = filter.value ? `${state.order.length} of ${all} rows` : `${all} rows`;
      where.textContent = `Page ${state.page + 1} of ${pages}`;
      pager.hidden = pages === 1;
      previous.disabled = state.page === 0;
      next.disabled = state.page === pages - 1;
    }

    filter.addEventListener("input", refresh);
    bar.hidden = spec.rows.length <= Math.min(state.size, 10);
    host.replaceChildren(bar, scroll, pager);
    draw();
  }
  for (const spec of data.tables) buildTable(byId(`table-${spec.id}`), spec);

  /* ---- plots ---- */
  const say = (text) => {
    for (const element of document.querySelectorAll(".plot:not([data-drawn])")) element.textContent = text;
  };

  async function unpackPlotly() {
    if (typeof DecompressionStream === "undefined") {
      throw new Error("it has no DecompressionStream (Chrome 80, Firefox 113, Safari 16.4 and later do)");
    }
    const packed = byId("plotly-packed");
    const bytes = Uint8Array.from(atob(packed.textContent.trim()), (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    packed.remove();
    if (!window.Plotly) throw new Error("the plot library did not start");
  }

  /* The legend: a button per kind of time, which hides and shows it. Ours, so that it wraps. */
  function buildLegend(element, traces) {
    const legend = make("div", { className: "legend" });
    legend.setAttribute("role", "group");
    legend.setAttribute("aria-label", "Legend: hide or show");
    const places = new Map();
    traces.forEach((trace, place) => { // a map of colours has a colour bar instead
      if (trace.marker) places.set(trace.name, [...(places.get(trace.name) || []), place]);
    });
    if (places.size === 0) return;
    for (const [name, indices] of places) {
      const marker = traces[indices[0]].marker;
      const shapes = { "/": "slash", "\\": "backslash", x: "cross", "-": "across", "|": "upright", "+": "plus", ".": "dots" };
      const pattern = marker.pattern || traces[indices[0]].fillpattern;
      const swatch = make("i", { className: pattern && pattern.shape ? `swatch ${shapes[pattern.shape]}` : "swatch" });
      swatch.style.backgroundColor = marker.color;
      const button = make("button", { type: "button" });
      button.append(swatch, name);
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(on));
        Plotly.restyle(element, { visible: on }, indices);
      });
      legend.append(button);
    }
    element.before(legend);
  }

  async function drawAll() {
    await unpackPlotly();
    for (const [id, plot] of Object.entries(data.plots)) {
      const element = byId(`plot-${id}`);
      element.textContent = "";
      buildLegend(element, plot.data);
      await Plotly.newPlot(element, plot.data, plot.layout, plot.config);
      element.dataset.drawn = "true";
      await Plotly.relayout(element, plot.themes[theme()]);
      await fit(id, plot);
    }
    window.addEventListener("resize", () => {
      for (const [id, plot] of Object.entries(data.plots)) fit(id, plot);
    });
  }

  /* On a narrow screen labels of lanes stand above them: beside them they would take half of the plot. */
  function fit(id, plot) {
    const element = byId(`plot-${id}`);
    const size = element.clientWidth < 640 ? "narrow" : "wide";
    if ((element.dataset.size || "wide") === size) return undefined;
    element.dataset.size = size;
    return Plotly.relayout(element, plot.sizes[size]);
  }

  if (Object.keys(data.plots).length === 0) {
    root.dataset.plots = "none";
  } else {
    drawAll().then(
      () => { root.dataset.plots = "drawn"; },
      (error) => {
        root.dataset.plots = "failed";
        say(`This browser cannot draw the plots: ${error.message}. All numbers are in the tables.`);
      },
    );
  }
})();
