// The page around the charts: header, key figures, operators, and the start of the script.

const FIRST_ROWS = 15;
const byId = (id) => document.getElementById(id);

function fail(message) {
  document.documentElement.dataset.error = message;
  byId("failure").hidden = false;
  byId("failure").textContent = `This page could not be drawn: ${message}`;
}
window.addEventListener("error", (event) => fail(event.message));
window.addEventListener("unhandledrejection", (event) => fail(String(event.reason)));

const titleOf = (data) => (data.topology ? `Simulation of ${data.topology}` : "Simulation report");

function showTitle(title) {
  byId("title").textContent = title;
  document.title = title;
}

// "8 ranks on 1 node"
function ranksText(data) {
  const nodes = Math.ceil(data.worldSize / data.ranksPerNode);
  const ranks = data.worldSize === 1 ? "1 rank" : `${format.count(data.worldSize)} ranks`;
  const where = nodes === 1 ? "on 1 node" : `on ${format.count(nodes)} nodes`;
  return `${ranks} ${where}`;
}

const deviceText = (data) => (data.devicesPerRank > 1 ? `${data.devicesPerRank} × ${data.device} a rank` : data.device || "CPU");

function showHeader(data) {
  const facts = [
    [ranksText(data)],
    ...(data.executedRanks < data.worldSize
      ? [["executed ", `${format.count(data.executedRanks)} of ${format.count(data.worldSize)} ranks; the others count as these`]]
      : []),
    ["device ", deviceText(data)],
    ...(data.capacity > 0 ? [["memory ", `${format.bytes(data.capacity)} each`]] : []),
    ["seed ", data.seed],
  ];
  showTitle(titleOf(data));
  byId("facts").replaceChildren(...facts.map(([name, value]) =>
    element("li", {}, value === undefined ? [element("b", {}, [name])] : [name, element("b", {}, [value])])));
  if (!data.command) return;
  byId("repeat").hidden = false;
  byId("command").textContent = data.command;
  byId("copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(data.command);
      byId("copy").textContent = "Copied";
    } catch {
      // Pages from disk may not write the clipboard: select the text instead.
      getSelection().selectAllChildren(byId("command"));
    }
  });
}

function showFailure(data) {
  if (!data.failure) return;
  byId("failure-panel").hidden = false;
  byId("failure-message").textContent = data.failure.message;
  byId("failed-ranks").replaceChildren(tableOf(["Ranks", "At the failure", "Last call"],
    data.failure.ranks.map((row) => row.map((text) => text || "–"))));
}

function showFaults(data) {
  if (data.faults.length === 0) return;
  byId("faults-panel").hidden = false;
  byId("faults").replaceChildren(...data.faults.map((text) => element("li", {}, [text])));
}

function keyFigures(data) {
  const end = Math.max(1, data.sum("end"));
  const exposed = data.ranks.map((rank) => (rank.end > 0 ? rank.exposed / rank.end : 0));
  const mostExposed = exposed.indexOf(exposed.reduce((a, b) => Math.max(a, b), 0));
  const peaks = data.ranks.map((rank) => rank.peak);
  const highest = peaks.indexOf(peaks.reduce((a, b) => Math.max(a, b), 0));
  const sent = data.matrix ? data.matrix.views[0].cells.reduce((sum, bytes) => sum + bytes, 0) : 0;
  const slices = `${format.count(data.recordedSlices)} slices recorded`;
  const figures = [["virtual time", data.timeIsModelled ? format.time(data.elapsed, 4) : "not modelled", slices]];
  if (data.steps && data.timeIsModelled) {
    const { count, median, shortest, longest } = data.steps;
    figures.push(["step time", format.time(median, 4),
      count > 2 ? `median; ${format.time(shortest, 4)} to ${format.time(longest, 4)}` : `${count} step${count > 1 ? "s" : ""}`]);
  }
  if (data.steps && data.steps.mfu > 0) {
    const { mfu, samples, median } = data.steps;
    figures.push(["MFU", format.percent(mfu), samples > 0 && median > 0
      ? `of the bfloat16 peak; ${format.count(Number((samples / (median / 1e9)).toPrecision(3)))} samples a second` : "of the bfloat16 peak"]);
  }
  if (data.timeIsModelled) {
    figures.push(["exposed communication", format.percent(data.sum("exposed") / end),
      exposed[mostExposed] > 0 ? `of all ranks' time; most on ${rankName(data, mostExposed)}, ${format.percent(exposed[mostExposed])}` : ""]);
    figures.push(["computing", format.percent(data.sum("compute") / end), "of all ranks' time"]);
  }
  if (data.sum("flops") > 0 && data.timeIsModelled) {
    figures.push(["achieved per rank", format.rate(data.sum("flops") / data.worldSize / (data.elapsed / 1e9)),
      `${format.flops(data.sum("flops"))} in all`]);
  }
  if (peaks[highest] > 0) {
    figures.push(["peak memory", format.bytes(peaks[highest]),
      `${rankName(data, highest)}${data.capacity > 0 ? `, ${format.percent(peaks[highest] / data.capacity)} of the device` : ""}`]);
  }
  const driverPeaks = data.ranks.map((rank) => rank.driverPeak);
  const driverPeak = driverPeaks.reduce((a, b) => Math.max(a, b), 0);
  if (driverPeak > 0) {
    const retries = data.sum("retries");
    figures.push(["memory at the driver", format.bytes(driverPeak),
      `${rankName(data, driverPeaks.indexOf(driverPeak))}; with the context, communicators and what the allocator keeps` +
        (retries > 0 ? `; ${format.count(retries)} allocations were tried again` : "")]);
  }
  figures.push(["sent between ranks", sent > 0 ? format.bytes(sent) : "nothing",
    sent > 0 && data.steps ? `${format.bytes(sent / data.steps.count)} per step` : ""]);
  return figures;
}

function options(select, entries) {
  select.replaceChildren(...entries.map(([value, text]) => element("option", { value, textContent: text })));
}

function showTimeline(data) {
  const timeline = new Timeline(data, byId("timeline"));
  legend(byId("timeline-legend"), data.kinds.map((kind) => [kind, kind]));
  options(byId("timeline-step"), [["", "all"], ...data.stepEnds.map((_, i) => [i, `${i + 1}`])]);
  byId("timeline-step").parentElement.hidden = data.stepEnds.length === 0;
  const showStep = () => {
    const { value } = byId("timeline-step");
    const { from, to } = value === "" ? timeline.bounds : data.stepSpan(Number(value));
    timeline.view(from, to);
  };
  byId("timeline-step").addEventListener("change", showStep);
  if (data.steps && data.steps.median > 0) {
    byId("timeline-step").value = data.steps.medianStep;
    showStep();
  }
  byId("timeline-controls").append(...timelineControls(timeline));
  showDetailNote(data);
  return timeline;
}

function showDetailNote(data) {
  const notes = [];
  if (data.shownSlices < data.recordedSlices) {
    notes.push(`The run recorded ${format.count(data.recordedSlices)} slices. Short neighbouring slices are drawn as one, which ` +
      `leaves ${format.count(data.shownSlices)}. ACCELERATE_SIMULATE_REPORT_SLICES sets how many trace.json has.`);
  }
  if (data.droppedSlices > 0) {
    notes.push(`Recording stopped after ${format.count(data.recordedSlices)} slices; ${format.count(data.droppedSlices)} later ones are included in the sums only.`);
  }
  byId("detail-note").hidden = notes.length === 0;
  byId("detail-note").textContent = notes.join(" ");
}

function showMemory(data) {
  byId("memory-panel").hidden = data.memory.length === 0;
  if (data.memory.length === 0) return null;
  const chart = new MemoryChart(data, byId("memory"));
  legend(byId("memory-legend"), data.categories.map((category) => [category, category]));
  options(byId("memory-rank"), data.memory.map(({ rank, name, total, peak }) =>
    [name, `${withPlace(data, rank, name)}, peak ${format.bytes(total[peak])}`]));
  byId("memory-rank").value = chart.curve.name;
  byId("memory-rank").addEventListener("change", ({ target }) => chart.choose(target.value));
  return chart;
}

function showExposed(data) {
  if (data.sum("communication") === 0) {
    byId("exposed-note").textContent = "No rank communicated.";
    byId("exposed").hidden = true;
    return null;
  }
  legend(byId("exposed-legend"), [["collective", "no kernel running"], ["collective", "hidden behind kernels", true]]);
  byId("exposed-note").textContent =
    "The share of each rank's time with a collective or message in flight, including the wait for late members.";
  return new ExposedChart(data, byId("exposed"));
}

function showMatrix(data) {
  if (!data.matrix) {
    byId("matrix-note").textContent = "Nothing was sent.";
    byId("matrix").hidden = true;
    return null;
  }
  const { block, views } = data.matrix;
  byId("matrix-note").textContent = `Bytes sent, on a logarithmic scale${block > 1 ? `; ${block} ranks share a row` : ""}.`;
  const chart = new MatrixChart(data, byId("matrix"));
  options(byId("matrix-view"), views.map(({ name }, i) => [i, i > 0 ? name : "all axes"]));
  byId("matrix-view").parentElement.hidden = views.length === 1;
  byId("matrix-view").addEventListener("change", ({ target }) => chart.choose(Number(target.value)));
  return chart;
}

const callColumn = { name: "Calls", value: (each) => each.calls, text: (each) => format.count(each.calls) };
const timeColumns = [
  { name: "Total time", value: (each) => each.total, text: (each) => format.time(each.total) },
  { name: "Share", value: (each) => each.total, share: true },
  { name: "Mean", value: (each) => each.total / each.calls, text: (each) => format.time(each.total / each.calls) },
];

const operatorColumns = [
  { name: "Operator", value: (op) => op.name, text: (op) => op.name },
  callColumn,
  ...timeColumns,
  { name: "FLOPs", value: (op) => op.flops, text: (op) => (op.flops > 0 ? format.flops(op.flops) : "–") },
  { name: "Achieved", value: (op) => rateOf(op.flops, op), text: (op) => (op.flops > 0 ? format.rate(rateOf(op.flops, op)) : "–") },
  { name: "Memory traffic", value: (op) => rateOf(op.bytes, op), text: (op) => (op.bytes > 0 ? `${format.bytes(rateOf(op.bytes, op))}/s` : "–") },
];

function rateOf(amount, op) {
  return op.total > 0 ? amount / (op.total / 1e9) : 0;
}

const collectiveColumns = [
  { name: "Collective", value: (each) => each.name, text: (each) => each.name },
  { name: "Algorithm", value: (each) => each.algorithm, text: (each) => each.algorithm },
  { name: "Ranks", value: (each) => each.ranks, text: (each) => format.count(each.ranks) },
  callColumn,
  { name: "Bytes", value: (each) => each.bytes, text: (each) => format.bytes(each.bytes) },
  ...timeColumns,
  {
    name: "Links shared",
    title: "The part of the time that collectives of other groups on the same links added",
    value: (each) => each.shared / Math.max(1, each.total),
    text: (each) => (each.shared > 0 ? format.percent(each.shared / each.total) : "–"),
  },
  {
    name: "Bus bandwidth",
    value: (each) => rateOf(each.busBytes, each),
    text: (each) => (rateOf(each.busBytes, each) > 0 ? `${format.bytes(rateOf(each.busBytes, each))}/s` : "–"),
  },
];

// A panel's table that its heads sort, at first by one of its columns.
function showTable(panel, columns, items, first = "Total time") {
  panel.hidden = items.length === 0;
  const table = panel.querySelector("table");
  const more = panel.querySelector(".more-rows");
  const all = items.reduce((sum, item) => sum + item.total, 0);
  let sorted = { column: columns.find(({ name }) => name === first), descending: true };
  let showsAll = items.length <= FIRST_ROWS;

  const cell = (column, item) =>
    element("td", {}, [column.share ? shareBar(all > 0 ? item.total / all : 0) : column.text(item)]);
  const head = columns.map((column) => {
    const button = element("button", { type: "button", textContent: column.name, title: column.title ?? "" });
    button.addEventListener("click", () => {
      const again = sorted.column === column;
      sorted = { column, descending: again ? !sorted.descending : column !== columns[0] };
      fill();
    });
    return element("th", { scope: "col" }, [button]);
  });
  const fill = () => {
    const { column, descending } = sorted;
    const order = (a, b) => (column.value(a) < column.value(b) ? -1 : column.value(a) > column.value(b) ? 1 : 0);
    const rows = [...items].sort((a, b) => (descending ? order(b, a) : order(a, b)));
    table.tBodies[0].replaceChildren(...rows.slice(0, showsAll ? undefined : FIRST_ROWS).map((item) =>
      element("tr", {}, columns.map((each) => cell(each, item)))));
    head.forEach((th, i) => {
      th.removeAttribute("aria-sort");
      const button = th.firstChild;
      button.textContent = columns[i].name;
      if (columns[i] !== column) return;
      th.setAttribute("aria-sort", descending ? "descending" : "ascending");
      button.textContent += descending ? " ▾" : " ▴";
    });
    more.hidden = showsAll;
    more.textContent = `Show all ${items.length}`;
  };
  table.tHead.rows[0].replaceChildren(...head);
  more.addEventListener("click", () => {
    showsAll = true;
    fill();
  });
  fill();
}

function start() {
  const data = new PageData(JSON.parse(byId("data").textContent));
  byId("data").remove();  // The text is large and not needed again.
  showHeader(data);
  showFailure(data);
  showFaults(data);
  byId("time-note").hidden = data.timeIsModelled;
  byId("cards").replaceChildren(...keyFigures(data).map(([name, value, more]) => cardOf(name, value, [more])));
  showTable(byId("collectives-panel"), collectiveColumns, data.collectives);
  showTable(byId("operators-panel"), operatorColumns, data.operators);
  showStep(data);
  showPath(data);
  showLinks(data);
  showModules(data);
  const timeline = showTimeline(data);
  const charts = [showMemory(data), showExposed(data), showMatrix(data)].filter(Boolean);
  const drawings = () => (comparison ? comparison.timelines : [timeline, ...charts]);
  const drawAll = () => {
    theme.forget();
    for (const drawing of drawings()) drawing.resize();
  };
  window.addEventListener("resize", drawAll);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  // Paper is white. Printing does not wait for a frame.
  const drawForPrint = (printing) => () => {
    document.documentElement.classList.toggle("printing", printing);
    drawAll();
    for (const drawing of drawings()) drawing.drawNow();
  };
  window.addEventListener("beforeprint", drawForPrint(true));
  window.addEventListener("afterprint", drawForPrint(false));
  for (const drawing of drawings()) drawing.drawNow();
  acceptOtherRuns(data, drawAll);
  Object.assign(document.documentElement.dataset, {
    ready: 1,
    ranks: data.worldSize,
    tracks: data.tracks.length,
    recordedSlices: data.recordedSlices,
    shownSlices: data.shownSlices,
    operators: data.operators.length,
    steps: data.stepEnds.length,
    curves: data.memory.length,
    matrix: data.matrix ? data.matrix.size : 0,
  });
  return { data, timeline, charts };
}

let page;  // For the console and for drive_page.js.
try {
  page = start();
} catch (error) {
  fail(String(error));
  throw error;
}
