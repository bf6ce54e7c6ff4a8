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
  const RANKS = ["no finding", "info", "warning", "error"];
  const UNKNOWN = "not checked";
  const OUTSIDE = "-";
  const MOST = { layers: 512, modules: 80 };
  let picked = -1;
  let mapView = null;
  let paper = false;

  // Sorting: any table with buttons in its heads. Numbers by value, names with numbers by those.
  const collator = new Intl.Collator("en", { numeric: true });
  const keyOf = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.key !== undefined ? cell.dataset.key : cell.textContent.trim();
    const bare = text.replace(/,/g, "");
    const value = bare === "inf" ? Infinity : /^[-+]?(\d|\.\d)/.test(bare) ? parseFloat(bare) : NaN;
    return { text, value, empty: text === "" || text === "-" };
  };
  const compare = (one, two, sign) => {
    if (one.empty || two.empty) return one.empty - two.empty;
    const order = Number.isNaN(one.value) || Number.isNaN(two.value)
      ? collator.compare(one.text, two.text)
      : one.value === two.value ? 0 : one.value - two.value;
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
  const told = (shown, rows) => (shown === rows ? `${count(rows)} shown` : `${count(shown)} of ${count(rows)} shown`);
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
  for (const button of document.querySelectorAll("button[data-code]")) {
    button.addEventListener("click", () => {
      filters.reset();
      filters.elements.code.value = button.dataset.code;
      filter();
      by("findings").scrollIntoView({ block: "start" });
      by("findings").focus({ preventScroll: true });
    });
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

  // Plots: Vega-Lite, interpreted (the page's policy forbids eval). Colours are the page's own
  // variables, so that light, dark and print need no other drawing; a ramp is mixed from numbers.
  const color = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const ink = (name) => `var(--${name})`;
  const config = {
    background: null,
    font: "system-ui, 'Segoe UI', Roboto, Arial, sans-serif",
    view: { stroke: null },
    axis: {
      labelColor: ink("quiet"), titleColor: ink("quiet"), titleFontWeight: "normal",
      gridColor: ink("line"), domainColor: ink("line"), tickColor: ink("line"),
      labelFontSize: 12, titleFontSize: 12,
    },
    legend: {
      labelColor: ink("quiet"), titleColor: ink("quiet"), titleFontWeight: "normal",
      labelFontSize: 12, titleFontSize: 12,
    },
  };
  const draw = (place, spec) => window.vegaEmbed(place, { config, ...spec }, {
    mode: "vega-lite", actions: false, renderer: "svg", ast: true, defaultStyle: false,
    tooltip: { disableDefaultStyle: true },
  });

  const metric = by("metric");
  const options = () => {
    const held = data.metrics.map((one, at) => [one.title, at])
      .filter(([, at]) => data.metrics[at].mapped);
    const told = data.subjects.some((one) => one.severity || one.unchecked);
    const severity = ["worst finding", -1];
    return told || !held.length ? [severity, ...held] : [...held, severity];
  };
  const grade = (one) => (!one.unchecked || one.severity > 1 ? RANKS[one.severity] : UNKNOWN);
  const cells = (at) => {
    const found = new Map();
    const bad = (one) => {
      if (at < 0) return one.severity || (one.unchecked ? 0.5 : 0);
      const value = one.values[at];
      if (value === null || value === undefined) return -Infinity;
      return data.metrics[at].reverse ? -value : value;
    };
    data.subjects.forEach((one, index) => {
      for (const layer of one.layers.length ? one.layers : [OUTSIDE]) {
        const key = `${layer}\n${one.module}`;
        const held = found.get(key);
        if (held === undefined) {
          found.set(key, { layer, at: index, more: 0 });
        } else {
          held.more += 1;
          if (bad(one) > bad(data.subjects[held.at])) held.at = index;
        }
      }
    });
    return [...found.values()].map(({ layer, at: index, more }) => {
      const one = data.subjects[index];
      const value = at < 0 ? grade(one) : one.values[at];
      return {
        at: index, layer, module: one.module, tensor: one.name,
        value: value === undefined ? null : value,
        also: more ? `worst of ${more + 1}` : "one tensor",
      };
    });
  };
  const narrowLegend = (orient) => (orient === "right" ? 1 : window.innerWidth < 740 ? 3 : 5);
  const placeOf = (layer) => (layer === OUTSIDE ? -2 : layer === "all" ? -1 : Number(layer));
  const fillOf = (at, values, title, orient) => {
    if (at < 0) {
      const graded = values.some((one) => one.value === UNKNOWN) ? [...RANKS, UNKNOWN] : RANKS;
      const named = { [RANKS[0]]: "none", [UNKNOWN]: "unknown" };
      return { field: "value", type: "nominal", title, legend: { orient, columns: narrowLegend(orient) },
        scale: { domain: graded, range: graded.map((word) => ink(`${named[word] || word}-fill`)) } };
    }
    const { form, most, reverse } = data.metrics[at];
    const ramp = paper ? [color("paper-low"), color("paper-high")] : [color("low"), color("high")];
    return { field: "value", type: "quantitative", title, legend: { orient, format: form, gradientLength: 120 },
      scale: {
        range: reverse ? ramp.reverse() : ramp,
        domain: [0, Math.max(most, ...values.map((one) => (one.value === null ? 0 : one.value)))],
      } };
  };
  const drawMap = async () => {
    if (!metric) return;
    const at = Number(metric.value);
    const every = cells(at);
    const some = (key, most, order) => {
      const found = [...new Set(every.map((one) => one[key]))];
      return order ? found.sort(order).slice(0, most) : found.slice(0, most);
    };
    const layers = some("layer", MOST.layers, (one, two) => placeOf(one) - placeOf(two) || 0);
    const modules = some("module", MOST.modules);
    const inside = [new Set(layers), new Set(modules)];
    const values = every.filter((one) => inside[0].has(one.layer) && inside[1].has(one.module));
    const rows = new Map(modules.map((name, row) => [name, row]));
    for (const one of values) one.row = rows.get(one.module);  // names stay out of expressions
    const note = [];
    if (values.length < every.length) note.push(`${every.length - values.length} more are in the table`);
    if (layers.includes(OUTSIDE)) note.push(`column ${OUTSIDE}: outside of layers`);
    by("map-note").textContent = note.join("; ");
    by("map-note").hidden = !note.length;
    const room = Math.max(240, by("map").clientWidth - 330);
    const step = Math.max(14, Math.min(30, Math.floor(room / layers.length)));
    const narrow = window.innerWidth < 740;
    const orient = narrow || step * layers.length > room ? "top" : "right";
    const title = at < 0 ? "worst finding" : data.metrics[at].title;
    const form = at < 0 ? undefined : data.metrics[at].form;
    const gaps = { paddingInner: 0.1 };
    const result = await draw(by("map"), {
      description: `Layers by modules, coloured by ${title}`,
      data: { values },
      params: [{ name: "picked", value: picked }, { name: "modules", value: modules }],
      width: { step }, height: { step: 22 },
      mark: { type: "rect", cursor: "pointer", strokeWidth: 2, invalid: null },
      encoding: {
        x: { field: "layer", type: "ordinal", sort: layers, title: "layer", scale: gaps,
          axis: { labelAngle: 0, labelOverlap: "greedy", labelSeparation: 4, grid: false } },
        y: { field: "row", type: "ordinal", title: null, scale: gaps,
          axis: { labelExpr: "modules[datum.value]", labelLimit: narrow ? 130 : 230, grid: false } },
        color: { condition: { test: "datum.value === null", value: ink("panel") }, ...fillOf(at, values, title, orient) },
        stroke: { condition: [{ test: "datum.at === picked", value: ink("text") },
          { test: `datum.value === '${UNKNOWN}'`, value: ink("line") }], value: null },
        tooltip: [
          { field: "tensor", type: "nominal" }, { field: "layer", type: "nominal" },
          at < 0 ? { field: "value", type: "nominal", title }
            : { field: "value", type: "quantitative", title, format: form },
          { field: "also", type: "nominal", title: "of this cell" },
        ],
      },
    });
    if (mapView) mapView.finalize();
    mapView = result.view;
    mapView.addEventListener("click", (event, item) => {
      if (item && item.datum && item.datum.at !== undefined) pick(item.datum.at, "near");
    });
  };

  const specs = chartSpecs(ink);
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

  // What is said of one tensor.
  const findingRows = new Map([...document.querySelectorAll("#finding-rows tbody tr")]
    .map((row) => [Number(row.dataset.finding), row]));
  const aboutFindings = (one) => {
    const list = by("detail-findings");
    const found = one.findings || [];
    const lines = found.filter((index) => findingRows.has(index)).map((index) => {
      const { cells: parts } = findingRows.get(index);
      const line = make("li");
      line.append(parts[0].firstElementChild.cloneNode(true), " ",
        make("b", parts[1].children[0].textContent), " ",
        make("span", parts[1].children[1].textContent, "quiet"),
        ...[...parts[3].children].map((each) => each.cloneNode(true)));
      return line;
    });
    const rest = (one.more || 0) + found.length - lines.length;
    if (rest) lines.push(make("li", `and ${count(rest)} more`, "quiet"));
    list.replaceChildren(...lines);
    list.hidden = !lines.length;
  };
  const aboutNumbers = (row, one) => {
    const heads = row.closest("table").tHead.rows[0].cells;
    const pair = (label, value) => {
      const line = make("div");
      line.append(make("dt", label), make("dd", value));
      return line;
    };
    by("tiles").replaceChildren(...[...row.cells]
      .filter((cell) => cell.classList.contains("metric") && cell.dataset.key)
      .map((cell) => pair(heads[cell.cellIndex].textContent, cell.textContent)));
    const groups = new Map();
    for (const [at, value] of one.numbers || []) {
      const [, head, label] = /^(?:(.*?): )?(.*)$/.exec(data.labels[at]);
      const key = head || "";
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(pair(label, value));
    }
    const parts = [];
    for (const [head, lines] of groups) {
      if (head) parts.push(make("h3", head));
      const list = make("dl", undefined, "numbers");
      list.append(...lines);
      parts.push(list);
    }
    by("numbers").replaceChildren(...parts);
    by("more").hidden = !parts.length;
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
    const about = [row.cells[1].textContent, row.cells[2].textContent, grade(one)];
    if (!one.numbers) about.push("its numbers are in the JSON report: only the worst have them here");
    by("detail-about").textContent = about.join(", ");
    aboutFindings(one);
    by("detail-said").textContent = one.said || "";
    by("detail-said").hidden = !one.said || !by("detail-findings").hidden;
    aboutNumbers(row, one);
    if (mapView) mapView.signal("picked", at).runAsync();
    await drawCharts();
    const top = detail.getBoundingClientRect().top;
    if (scroll === true || (scroll === "near" && (top < 0 || top > window.innerHeight - 160))) {
      detail.scrollIntoView({ block: "start" });
    }
    if (scroll === true) by("detail-name").focus({ preventScroll: true });
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
    await drawMap();
  });
  show(themes.includes(remembered()) ? remembered() : "system");
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawMap);
  for (const [name, printing] of [["beforeprint", true], ["afterprint", false]]) {
    window.addEventListener(name, () => { paper = printing; drawMap(); });
  }
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
      const rank = ({ severity, charts, values }) => [severity, charts.length > 0, values[0] || 0];
      order.sort((one, two) => {
        const [first, second] = [rank(data.subjects[one]), rank(data.subjects[two])];
        return second[0] - first[0] || second[1] - first[1] || second[2] - first[2];
      });
      await pick(order[0], false);
    }
    root.dataset.ready = "1";
  };
  begin();
})();
