// Uses the page as a person would and checks the results. ci/report.sh appends this to a copy of a
// report, with another report in base64 as the element #other; an error is in data-error, and
// data-driven says that the script ran to its end, with both runs shown.

function check(condition, what) {
  if (!condition) throw new Error(`not so: ${what}`);
}

const box = byId("tooltip");

function send(target, type, Kind, details) {
  target.dispatchEvent(new Kind(type, { bubbles: true, cancelable: true, ...details }));
}

function pointAt(target, x, y) {
  const place = target.getBoundingClientRect();
  send(target, "pointermove", PointerEvent, { clientX: place.left + x, clientY: place.top + y, pointerId: 1 });
}

// Moves the pointer over a grid until the tooltip contains the text.
function findByPointing(target, text, step = 6) {
  for (let y = 4; y < target.clientHeight; y += step) {
    for (let x = LABEL_WIDTH + 4; x < target.clientWidth; x += step) {
      pointAt(target, x, y);
      if (!box.hidden && box.textContent.includes(text)) return { x, y };
    }
  }
  throw new Error(`nothing on ${target.id} says "${text}"`);
}

function choose(select, value) {
  select.value = value;
  send(select, "change", Event, {});
}

function press(place, text) {
  [...place.querySelectorAll("button")].find((button) => button.textContent === text).click();
}

function driveTimeline(timeline) {
  const { viewport, data } = timeline;
  const { medianStep } = data.steps;
  check(timeline.from === data.stepEnds[medianStep - 1] && timeline.to === data.stepEnds[medianStep], "the page opens on the median step");
  const controls = byId("timeline-controls");
  press(controls, "Expand");
  press(controls, "Fit");
  check(timeline.from === 0 && timeline.to === data.elapsed, "fit shows the whole run");
  const { x, y } = findByPointing(viewport, "last to join");
  check(timeline.hovered !== null, "a slice is under the pointer");
  timeline.drawNow();
  const place = viewport.getBoundingClientRect();
  const before = timeline.to - timeline.from;
  const under = timeline.time(x);
  const wheel = { clientX: place.left + viewport.clientLeft + x, clientY: place.top + y };
  send(viewport, "wheel", WheelEvent, { ...wheel, deltaY: -60, ctrlKey: true });
  check(timeline.to - timeline.from < before, "the wheel zooms in");
  check(Math.abs(timeline.time(x) - under) < before / 100, "the time under the pointer stays there");
  const { from } = timeline;
  send(viewport, "wheel", WheelEvent, { ...wheel, deltaY: 80, shiftKey: true });
  check(timeline.from > from, "shift and the wheel pan");
  send(viewport, "keydown", KeyboardEvent, { key: "0" });
  check(timeline.to - timeline.from === data.elapsed, "0 fits");
  choose(byId("timeline-step"), "1");
  check(timeline.from === data.stepEnds[0] && timeline.to === data.stepEnds[1], "a step fills the view");
  send(viewport, "keydown", KeyboardEvent, { key: "w" });
  check(timeline.to - timeline.from < data.stepEnds[1] - data.stepEnds[0], "w zooms in");
  press(controls, "−");
  choose(controls.querySelectorAll("select")[1], `${data.worldSize - 1}`);
  timeline.drawNow();
  press(controls, "Collapse");
  check(timeline.rows.rows.length === timeline.rows.shown.length, "closed nodes have a row each");
  press(controls, "Fit");
  findByPointing(viewport, "ranks computing");
  send(viewport, "pointerleave", PointerEvent, {});
  check(box.hidden, "the tooltip goes with the pointer");
}

function driveCharts(data) {
  const [memory, exposed, matrix] = ["memory", "exposed", "matrix"].map((id) => byId(id).querySelector("canvas"));
  findByPointing(memory, "optimizer state", 16);
  choose(byId("memory-rank"), `${data.worldSize - 1}`);
  check(byId("memory-note").textContent.startsWith(`Rank ${data.worldSize - 1}:`), "the memory of another rank is shown");
  findByPointing(exposed, "of which exposed", 16);
  findByPointing(matrix, "GiB", 3);
  const { views } = data.matrix;
  check(views.length > 1 && byId("matrix-view").options.length === views.length, "the matrix has a view for each axis");
  const dp = views.findIndex(({ name }) => name === "dp_replicate");
  choose(byId("matrix-view"), `${dp}`);
  const [, , chart] = page.charts;
  check(chart.cells === views[dp].cells, "the matrix shows one axis");
  chart.drawNow();
  findByPointing(matrix, "GiB", 3);
  choose(byId("matrix-view"), "0");
  check(chart.cells === views[0].cells, "the matrix shows all axes");
  check(byId("memory-rank").options[1].textContent.startsWith("1 ("), "ranks are named with their place in the mesh");
}

function driveOperators(data) {
  const rows = () => [...byId("operators").tBodies[0].rows];
  check(rows().length === Math.min(FIRST_ROWS, data.operators.length), "the first operators are listed");
  const first = () => rows()[0].cells[0].textContent;
  check(first() === data.operators[0].name, "the one with the most time comes first");
  const heads = [...byId("operators").tHead.rows[0].cells];
  heads[0].firstChild.click();
  const names = data.operators.map((op) => op.name).sort();
  check(first() === names[0], "a click on the head sorts by name");
  heads[0].firstChild.click();
  check(first() === names[names.length - 1], "a second click turns the order around");
  heads[2].firstChild.click();
}

function driveCollectives(data) {
  const rows = [...byId("collectives").tBodies[0].rows];
  check(rows.length === data.collectives.length, "the collectives are listed");
  check(rows[0].cells[1].textContent === data.collectives[0].algorithm, "with their algorithms");
  check(rows[0].cells[8].textContent === "25.0 %", "with what others on the links added");
  check(rows[0].cells[9].textContent.endsWith("GiB/s"), "with the bandwidth of the bus");
}

function drivePath(data) {
  const { shares, longest } = data.path;
  const sum = shares.reduce((all, { time }) => all + time, 0);
  const { medianStep } = data.steps;
  check(sum === data.stepEnds[medianStep] - data.stepEnds[medianStep - 1], "the critical path adds up to the step");
  check(byId("path-shares").querySelector("tbody").rows.length === shares.length, "its parts are listed");
  check(byId("path-longest").querySelector("tbody").rows.length === Math.min(10, longest.length), "and its longest segments");
  const [first] = byId("path-bar").children;
  check(first.title.startsWith(shares[0].part) && first.clientWidth > 0, "and drawn");
}

function driveLinks(data) {
  const rows = [...byId("links").querySelector("tbody").rows];
  check(rows.length === data.links.length && rows.length > 0, "the links are listed");
  check(byId("links-note").textContent.includes(data.links[data.busiestLinks].name), "the busiest are named");
}

function driveModules(data) {
  const rows = () => [...byId("modules").querySelector("tbody").rows];
  const together = rows().length;
  check(together > 0 && rows().some((row) => row.cells[0].textContent.includes("*")), "layers that are alike are one row");
  choose(byId("modules-view"), "");
  check(rows().length > together && rows().length === Math.min(MOST_MODULES, data.modules.length), "each module has a row");
}

// Until something holds that the page does after it has read a file.
async function until(holds, what) {
  for (let tries = 0; tries < 400; ++tries) {
    if (holds()) return;
    await new Promise((done) => setTimeout(done, 10));
  }
  check(false, what);
}

function filesOf(text, name) {
  const files = new DataTransfer();
  files.items.add(new File([text], name));
  return files;
}

function compared(title) {
  const found = [...byId("beside").querySelectorAll(".panel")].find((each) => each.querySelector("h2").textContent === title);
  return [...found.querySelector("tbody").rows].map((row) => [...row.cells].map((cell) => cell.textContent));
}

// With a report that has an operator less and one more, whose name would harm a page that took it for HTML.
async function driveComparison(data) {
  const text = new TextDecoder().decode(Uint8Array.from(atob(byId("other").textContent.trim()), (letter) => letter.charCodeAt(0)));
  const evil = "aten::silu<img src=x onerror=fail(1)>";
  const other = new DOMParser().parseFromString(text, "text/html").getElementById("data").textContent;
  const before = new PageData(JSON.parse(other));
  const names = before.names.map((name) => (name === "aten::gelu" ? evil : name));
  const changed = text.replace(other, () => JSON.stringify({ ...JSON.parse(other), names }).replaceAll("<", "\\u003c"));
  check(changed.includes("aten::silu"), "the other run has another operator");

  const input = byId("compare-file");
  input.files = filesOf("<!DOCTYPE html><p>a page</p>", "page.html").files;
  send(input, "change", Event, {});
  await until(() => !byId("compare-problem").hidden, "another page is refused");
  check(byId("compare-problem").textContent.startsWith("page.html cannot be shown: it has no data of a run."), "and the message says why");
  for (const field of ["ranksPerNode", "categories"]) {
    const without = JSON.parse(other);
    delete without[field];
    byId("compare-problem").hidden = true;
    input.files = filesOf(text.replace(other, () => JSON.stringify(without).replaceAll("<", "\\u003c")), "part.html").files;
    send(input, "change", Event, {});
    await until(() => !byId("compare-problem").hidden, `a report without ${field} is refused`);
    check(byId("compare-problem").textContent.startsWith(`part.html cannot be shown: its data has no "${field}" as`), "and the message names it");
  }
  check(!byId("report").hidden && !byId("beside"), "the page stays as it was");

  send(window, "drop", DragEvent, { dataTransfer: filesOf(changed, "before.html") });
  await until(() => byId("beside"), "a dropped report is shown beside this one");
  check(byId("report").hidden && byId("compare-problem").hidden, "in place of it");
  const [, [, first, last]] = compared("The two runs");
  check(first.trim() === before.topology && last.trim() === data.topology, "the runs are named");
  const card = document.querySelector("#beside [data-figure='step time']").textContent;
  const change = data.steps.median - before.steps.median;
  const [was, is] = [before, data].map(({ steps }) => format.time(steps.median, 4));
  const by = `${change > 0 ? "+" : "−"}${format.time(Math.abs(change), 4)} (`;
  check(card.startsWith(`Step time${is}${by}`) && card.endsWith(`; before ${was}`), "the step time and its change");
  const attention = compared("Where the median step's time goes")[0];
  check(attention[1] === format.time(before.shares[0][1], 4) && attention[2] === format.time(data.shares[0][1], 4), "activities are matched");
  const operators = compared("Operators");
  check(operators.length === data.operators.length + 1, "operators are matched by name");
  check(operators.some(([name]) => name === `${evil} gone`) && operators.some(([name]) => name === "aten::gelu new"), "the others are marked");
  const linear = operators.find(([name]) => name === "aten::linear");
  if (before.worldSize === data.worldSize) {
    const [a, b] = [before, data].map((run) => run.operators.find(({ name }) => name === "aten::linear"));
    check(linear[1] === `${format.count(a.calls)} → ${format.count(b.calls)}` && linear[4] === format.time(b.total, 4), "with their calls and times");
  } else {
    const [collective] = compared("Collectives");
    check(collective[1] === "ring → tree" && collective[2] === `${before.worldSize} → ${data.worldSize}`, "collectives may change their algorithm");
  }
  const [above, below] = comparison.timelines;
  check(above.to - above.from === below.to - below.from && above.from === before.stepSpan(before.steps.medianStep).from, "the timelines have one scale");
  above.zoom(0.5);
  check(Math.abs((above.from - above.bounds.from) - (below.from - below.bounds.from)) < 1 && below.to - below.from === above.to - above.from, "and zoom together");

  byId("compare-swap").click();
  check(compared("Operators").some(([name]) => name === "aten::gelu gone"), "the runs change places");
  input.files = filesOf('{"world_size": 8}', "summary.json").files;
  send(input, "change", Event, {});
  await until(() => !byId("compare-problem").hidden, "a file of another kind is refused");
  check(byId("report").hidden && comparison.runs[1].name === "before.html", "and the comparison stays");
  byId("compare-close").click();
  check(!byId("beside") && !byId("report").hidden && byId("title").textContent === titleOf(data), "closing brings the page back");
  input.files = filesOf(text, "before.html").files;
  send(input, "change", Event, {});
  await until(() => byId("beside"), "a chosen report is shown beside this one");
  tooltip.hide();
}

async function drive() {
  const { data } = page.timeline;
  driveTimeline(page.timeline);
  driveCharts(data);
  drivePath(data);
  driveLinks(data);
  driveModules(data);
  driveCollectives(data);
  driveOperators(data);
  await driveComparison(data);
  send(window, "resize", Event, {});
  document.documentElement.dataset.driven = "1";
}
drive().catch((error) => fail(String(error)));
