"use strict";
(() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("data").textContent);
  const by = (id) => document.getElementById(id);
  const make = (tag, text, kind) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };
  const RANKS = ["none", "info", "warning", "error"];
  let picked = -1;
  let mapView = null;

  // Sorting: any table with buttons in its heads. Numbers by value, names with numbers by those.
  const collator = new Intl.Collator("en", { numeric: true });
  const keyOf = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.key !== undefined ? cell.dataset.key : cell.textContent.trim();
    const bare = text.replace(/,/g, "");
    const value = /^[-+]?(\d|\.\d)/.test(bare) ? parseFloat(bare) : NaN;
    return { text, value, empty: text === "" || text === "-" };
  };
  const compare = (one, two, sign) => {
    if (one.empty || two.empty) return one.empty - two.empty;
    const order = Number.isNaN(one.value) || Number.isNaN(two.value)
      ? collator.compare(one.text, two.text)
      : one.value - two.value;
    return sign * order;
  };
  const sort = (head) => {
    const table = head.closest("table");
    const sign = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [keyOf(row, head.cellIndex), row]);
    rows.sort((one, two) => compare(one[0], two[0], sign));
    body.append(...rows.map((pair) => pair[1]));
  };
  for (const head of document.querySelectorAll(".sortable thead th")) {
    head.firstElementChild.addEventListener("click", () => sort(head));
  }

  // Filters.
  const words = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);
  const holds = (row, wanted) => {
    const text = row.textContent.toLowerCase();
    return wanted.every((word) => text.includes(word));
  };
  const told = (shown, rows) => (shown === rows ? `${rows} shown` : `${shown} of ${rows} shown`);
  const filters = by("filters");
  const filter = () => {
    const given = new FormData(filters);
    const severities = new Set(given.getAll("severity"));
    const wanted = words(given.get("text"));
    const rows = [...by("finding-rows").tBodies[0].rows];
    let shown = 0;
    for (const row of rows) {
      const code = given.get("code");
      row.hidden = !(severities.has(row.dataset.severity) &&
        (!code || row.dataset.code === code) && holds(row, wanted));
      if (!row.hidden) shown += 1;
    }
    by("shown").value = told(shown, rows.length);
  };
  if (filters) {
    filters.addEventListener("input", filter);
    filters.addEventListener("submit", (event) => event.preventDefault());
    filter();
  }
  const search = by("subject-text");
  const narrow = () => {
    const wanted = words(search.value);
    const rows = [...by("subject-rows").tBodies[0].rows];
    let shown = 0;
    for (const row of rows) {
      row.hidden = !holds(row, wanted);
      if (!row.hidden) shown += 1;
    }
    by("subjects-shown").value = told(shown, rows.length);
  };
  if (search) {
    search.addEventListener("input", narrow);
    search.form.addEventListener("submit", (event) => event.preventDefault());
    narrow();
  }

  // Plots: Vega-Lite, interpreted (the page's policy forbids eval), in the page's own colours.
  const color = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const config = () => ({
    background: null,
    font: "system-ui, 'Segoe UI', Roboto, Arial, sans-serif",
    view: { stroke: null },
    axis: {
      labelColor: color("quiet"), titleColor: color("quiet"), titleFontWeight: "normal",
      gridColor: color("line"), domainColor: color("line"), tickColor: color("line"),
      labelFontSize: 11, titleFontSize: 11,
    },
    legend: {
      labelColor: color("quiet"), titleColor: color("quiet"), titleFontWeight: "normal",
      labelFontSize: 11, titleFontSize: 11,
    },
  });
  const draw = (place, spec) => window.vegaEmbed(place, { config: config(), ...spec }, {
    mode: "vega-lite", actions: false, renderer: "svg", ast: true, defaultStyle: false,
    tooltip: { disableDefaultStyle: true },
  });

  const metric = by("metric");
  const options = () => {
    const held = data.metrics.map((one, at) => [one.title, at])
      .filter(([, at]) => data.subjects.some((one) => one.values.length && one.values[at] !== null));
    const worst = data.subjects.some((one) => one.severity);
    const severity = ["worst finding", -1];
    return worst || !held.length ? [severity, ...held] : [...held, severity];
  };
  const cells = (at) => {
    const found = new Map();
    const bad = (one) => {
      if (at < 0) return one.severity;
      const value = one.values[at];
      if (value === null || value === undefined) return -Infinity;
      return data.metrics[at].reverse ? -value : value;
    };
    data.subjects.forEach((one, index) => {
      if (!one.layer) return;
      const key = `${one.layer}\n${one.module}`;
      const held = found.get(key);
      if (held === undefined || bad(one) > bad(data.subjects[held.at])) {
        found.set(key, { at: index, more: held ? held.more + 1 : 0 });
      } else {
        held.more += 1;
      }
    });
    return [...found.values()].map(({ at: index, more }) => {
      const one = data.subjects[index];
      const value = at < 0 ? RANKS[one.severity] : one.values[at];
      return {
        at: index, layer: one.layer, module: one.module, tensor: one.name,
        value: value === undefined ? null : value, also: more ? `worst of ${more + 1}` : "one tensor",
      };
    });
  };
  const drawMap = async () => {
    if (!metric) return;
    const at = Number(metric.value);
    const values = cells(at);
    const layers = [...new Set(values.map((one) => one.layer))]
      .sort((one, two) => Number(one) - Number(two));
    const modules = [...new Set(values.map((one) => one.module))].slice(0, 80);
    const room = Math.max(240, by("map").clientWidth - 330);
    const step = Math.max(14, Math.min(30, Math.floor(room / layers.length)));
    const title = at < 0 ? "worst finding" : data.metrics[at].title;
    const form = at < 0 ? undefined : data.metrics[at].form;
    const gaps = { paddingInner: 0.1 };
    const orient = window.innerWidth < 740 ? "top" : "right";
    const ramp = [color("low"), color("high")];
    const fill = at < 0
      ? { field: "value", type: "nominal", title, legend: { orient },
        scale: { domain: RANKS, range: RANKS.map((rank) => color(`${rank}-fill`)) } }
      : { field: "value", type: "quantitative", title, legend: { orient, format: form, gradientLength: 120 },
        scale: {
          range: data.metrics[at].reverse ? ramp.reverse() : ramp,
          domain: [0, Math.max(data.metrics[at].most,
            ...values.map((one) => (one.value === null ? 0 : one.value)))],
        } };
    const result = await draw(by("map"), {
      description: `Layers by modules, coloured by ${title}`,
      data: { values: values.filter((one) => modules.includes(one.module)) },
      params: [{ name: "picked", value: picked }],
      width: { step }, height: { step: 22 },
      mark: { type: "rect", cursor: "pointer", strokeWidth: 2 },
      encoding: {
        x: { field: "layer", type: "ordinal", sort: layers, title: "layer", scale: gaps,
          axis: { labelAngle: 0, labelOverlap: "greedy", labelSeparation: 4, grid: false } },
        y: { field: "module", type: "ordinal", sort: modules, title: null, scale: gaps,
          axis: { labelLimit: 230, grid: false } },
        color: { condition: { test: "datum.value === null", value: color("panel") }, ...fill },
        stroke: { condition: { test: "datum.at === picked", value: color("text") },
          value: null },
        tooltip: [
          { field: "tensor", type: "nominal" },
          at < 0 ? { field: "value", type: "nominal", title }
            : { field: "value", type: "quantitative", title, format: form },
          { field: "also", type: "nominal", title: "of this cell" },
        ],
      },
    });
    if (mapView) mapView.finalize();
    mapView = result.view;
    mapView.addEventListener("click", (event, item) => {
      if (item && item.datum && item.datum.at !== undefined) pick(item.datum.at, false);
    });
  };

  const count = (value) => value.toLocaleString("en");
  const specs = {
    profile: (one) => ({
      note: one.per > 1
        ? `${count(one.channels)} rows, ${one.per} to a bar: their mean, and behind it the largest`
        : `${count(one.channels)} rows`,
      spec: {
        data: { values: one.mean.map((mean, at) => ({
          from: at * one.per, to: Math.min(one.channels, (at + 1) * one.per), mean, most: one.most[at],
        })) },
        encoding: {
          x: { field: "from", type: "quantitative", title: "row (output channel)",
            scale: { domain: [0, one.channels], nice: false }, axis: { format: "~d", grid: false, tickCount: 8 } },
          x2: { field: "to" },
          tooltip: [{ field: "from", type: "quantitative", title: "from row" },
            { field: "mean", type: "quantitative" }, { field: "most", type: "quantitative", title: "largest" }],
        },
        layer: ["most", "mean"].map((field) => ({
          mark: { type: "bar", color: color(field === "most" ? "bar-most" : "bar"), binSpacing: 0 },
          encoding: {
            y: { field, type: "quantitative", title: null, axis: { format: ".2~g", tickCount: 4 } },
            y2: { datum: 0 },
          },
        })),
      },
    }),
    histogram: (one) => {
      const unit = one.unit === "step" ? "steps" : "multiples of its RMS";
      const beyond = one.below + one.above;
      const reach = -one.from;
      const rows = `${count(one.rows)} ${one.rows === 1 ? "row" : "rows"}`;
      return {
        note: `${rows} looked at; ${count(one.below)} below ${-reach}, ${count(one.above)} ` +
          `at ${reach} or above${beyond ? "" : ": none beyond"}`,
        spec: {
          data: { values: one.counts.map((seen, at) => ({
            from: one.from + at * one.width, to: one.from + (at + 1) * one.width, seen,
          })) },
          mark: { type: "bar", color: color("bar"), binSpacing: 1 },
          encoding: {
            x: { field: "from", type: "quantitative", title: `error in ${unit}`,
              scale: { domain: [one.from, reach], nice: false }, axis: { grid: false } },
            x2: { field: "to" },
            y: { field: "seen", type: "quantitative", title: null, axis: { format: "~s", tickCount: 4 } },
            y2: { datum: 0 },
            tooltip: [{ field: "from", type: "quantitative" }, { field: "to", type: "quantitative" },
              { field: "seen", type: "quantitative", title: "errors", format: "," }],
          },
        },
      };
    },
    bars: (one) => ({
      note: "",
      spec: {
        data: { values: one.bars.map(([code, seen]) => ({ code, seen })) },
        mark: { type: "bar", color: color("bar") },
        encoding: {
          x: { field: "code", type: "ordinal", title: one.x, sort: null,
            axis: { labelAngle: 0, labelOverlap: true } },
          y: { field: "seen", type: "quantitative", title: null, axis: { format: "~s", tickCount: 4 } },
          tooltip: [{ field: "code", type: "ordinal" }, { field: "seen", type: "quantitative", format: "," }],
        },
      },
    }),
  };
  let views = [];
  const drawCharts = async () => {
    for (const view of views) view.finalize();
    views = [];
    const charts = by("charts");
    if (!charts) return;
    charts.replaceChildren();
    const mine = picked;
    const one = data.subjects[picked];
    const waiting = ((one && one.charts) || []).map((chart) => {
      const { spec, note } = specs[chart.kind](chart);
      const figure = make("figure");
      const plot = make("div", undefined, "plot");
      figure.append(make("h3", chart.title), plot);
      if (note) figure.append(make("figcaption", note));
      charts.append(figure);
      return { chart, spec, figure, plot };
    });
    for (const { chart, spec, figure, plot } of waiting) {  // all in place: widths are final
      const width = Math.max(200, figure.clientWidth - 30);
      const result = await draw(plot, {
        description: chart.title, width, height: 150,
        autosize: { type: "fit-x", contains: "padding" }, ...spec,
      });
      if (mine !== picked) { result.view.finalize(); return; }
      views.push(result.view);
    }
  };

  const pick = async (at, scroll) => {
    const one = data.subjects[at];
    if (!one) return;
    picked = at;
    const detail = by("detail");
    detail.hidden = false;
    by("detail-name").textContent = one.name;
    const row = document.querySelector(`#subject-rows tr[data-at="${at}"]`);
    for (const other of document.querySelectorAll("tr.picked")) other.classList.remove("picked");
    row.classList.add("picked");
    const about = [row.cells[1].textContent, row.cells[2].textContent];
    if (one.severity) about.push(`worst finding: ${RANKS[one.severity]}`);
    if (!one.numbers) about.push("its numbers are in the JSON report: only the worst have them here");
    by("detail-about").textContent = about.join(", ");
    by("numbers").replaceChildren(...(one.numbers || []).map(([label, value]) => {
      const line = make("div");
      line.append(make("dt", data.labels[label]), make("dd", value));
      return line;
    }));
    if (mapView) mapView.signal("picked", at).runAsync();
    await drawCharts();
    if (scroll) {
      detail.scrollIntoView({ block: "start" });
      by("detail-name").focus({ preventScroll: true });
    }
    root.dataset.picked = String(at);
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-subject]");
    if (button) pick(Number(button.dataset.subject), true);
  });

  // Light and dark.
  const themes = ["system", "light", "dark"];
  const button = by("theme");
  const redraw = async () => { await drawMap(); await drawCharts(); };
  const remembered = () => {
    try { return localStorage.getItem("qassay-theme"); } catch { return null; }
  };
  const show = (theme) => {
    if (theme === "system") delete root.dataset.theme; else root.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
  };
  button.addEventListener("click", async () => {
    const now = root.dataset.theme || "system";
    const next = themes[(themes.indexOf(now) + 1) % themes.length];
    show(next);
    try { localStorage.setItem("qassay-theme", next); } catch { /* a page from disk may keep nothing */ }
    await redraw();
  });
  show(themes.includes(remembered()) ? remembered() : "system");
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let waiting = 0;
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 200);
  });

  const begin = async () => {
    if (metric) {
      for (const [title, at] of options()) {
        const option = make("option", title);
        option.value = String(at);
        metric.append(option);
      }
      metric.addEventListener("change", drawMap);
      metric.form.addEventListener("submit", (event) => event.preventDefault());
      await drawMap();
    }
    if (data.subjects.length) {
      const order = data.subjects.map((one, at) => at).filter((at) => data.subjects[at].numbers);
      const rank = (at) => [data.subjects[at].severity, data.subjects[at].values[0] || 0];
      order.sort((one, two) => rank(two)[0] - rank(one)[0] || rank(two)[1] - rank(one)[1]);
      await pick(order[0], false);
    }
    root.dataset.ready = "1";
  };
  begin();
})();
