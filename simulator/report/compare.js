// Two runs side by side: that of this page, and that of another report.html, which is chosen or dropped.

const MOST_REPORT_BYTES = 256 << 20;
const PAIR_HEIGHT = 420;
const SIDES = ["Before", "After"];

// How an amount is written, and the sign of a change for the better; 0 for neither.
const TIME = { text: (ns) => format.time(ns, 4), better: -1 };
const BYTES = { text: (bytes) => format.bytes(bytes), better: -1 };
const TRAFFIC = { ...BYTES, better: 0 };
const SHARE = { text: (share) => format.percent(share), better: 0, isShare: true };

let comparison = null;  // {view, timelines} while two runs are shown

// ---- Matching.

const firstOf = ([name]) => name;
const secondOf = ([, amount]) => amount;

// [{name, before, after}], by the name that `key` gives; a run that lacks it has undefined.
function matched(before, after, key) {
  const pairs = new Map();
  for (const each of before) pairs.set(key(each), { name: key(each), before: each });
  for (const each of after) pairs.set(key(each), { name: key(each), ...pairs.get(key(each)), after: each });
  return [...pairs.values()];
}

// A collective that has another algorithm or size of group after than before is the same one, if it is the only one of its name.
function matchedCollectives(before, after) {
  const pairs = matched(before, after, ({ name, algorithm, ranks }) => `${name} ${algorithm} ${ranks}`);
  const alone = (side, other, name) => {
    const found = pairs.filter((pair) => !pair[other] && pair[side].name === name);
    return found.length === 1 ? found[0] : null;
  };
  for (const { name } of before) {
    const [gone, added] = [alone("before", "after", name), alone("after", "before", name)];
    if (!gone || !added) continue;
    gone.after = added.after;
    pairs.splice(pairs.indexOf(added), 1);
  }
  return pairs.map((pair) => ({ ...pair, name: (pair.after ?? pair.before).name }));
}

const sizeOfChange = ({ before, after }, amount) => Math.abs((after ? amount(after) : 0) - (before ? amount(before) : 0));

const byChange = (pairs, amount) => pairs.sort((a, b) => sizeOfChange(b, amount) - sizeOfChange(a, amount));

// ---- Texts.

// "+1.2 ms (+3.4 %)"; the sign says it, and a colour as well.
function changeText(before, after, { text, better, isShare }) {
  const by = after - before;
  if (by === 0) return "0";
  const sign = by > 0 ? "+" : "−";
  const part = before > 0 && !isShare ? ` (${sign}${format.percent(Math.abs(by) / before)})` : "";
  const amount = isShare ? `${digits(100 * Math.abs(by), 3)} points` : text(Math.abs(by));
  const className = better === 0 ? "" : Math.sign(by) === better ? "better" : "worse";
  return element("b", { className }, [`${sign}${amount}${part}`]);
}

const changeOf = ({ before, after }, amount, kind) => changeText(before ? amount(before) : 0, after ? amount(after) : 0, kind);

const textOf = (each, amount, text) => (each === undefined ? "–" : text(amount(each)));

// "12 → 14", or once if they are the same or one is missing.
function bothText({ before, after }, amount, text) {
  const texts = [before, after].filter(Boolean).map((each) => text(amount(each)));
  return [...new Set(texts)].join(" → ");
}

// The name, marked if one run lacks it.
function nameOf({ name, before, after }) {
  const text = name || "none";
  if (before && after) return text;
  const mark = element("span", { className: "badge" }, [before ? "gone" : "new"]);
  return element("span", {}, [text, " ", mark]);
}

// ---- Parts of panels.

function panel(title, parts, controls = []) {
  return element("section", { className: "panel" }, [
    element("div", { className: "panel-head" }, [element("h2", {}, [title]), element("div", { className: "controls" }, controls)]),
    ...parts,
  ]);
}

const note = (text) => element("p", { className: "hint" }, [text]);

// `colourOf` gives the name of a pair's colour in the bars.
function changeTable(head, pairs, amount, kind, colourOf = null) {
  return tableOf([head, ...SIDES, "Change"], pairs.map((pair) => [
    colourOf ? element("span", { className: "coloured" }, [swatch(colourOf(pair)), nameOf(pair)]) : nameOf(pair),
    textOf(pair.before, amount, kind.text), textOf(pair.after, amount, kind.text), changeOf(pair, amount, kind),
  ]));
}

// A panel whose table can be sorted.
function sortedPanel(title, columns, items, text) {
  const more = element("button", { type: "button", className: "more-rows" });
  const made = panel(title, [tableOf([], []), note(text)], [more]);
  showTable(made, columns, items, "Change");
  return made;
}

// A stacked bar for each run, on one axis. What is matched are parts [name, amount].
function stackedBars(pairs, { text }, marks) {
  const stacks = ["before", "after"].map((side) => pairs.map((pair) => [pair.name, pair[side] ? secondOf(pair[side]) : 0]));
  const sums = stacks.map((parts) => parts.reduce((sum, [, amount]) => sum + amount, 0));
  const most = Math.max(1, ...sums);
  const bars = stacks.flatMap((parts, side) => {
    const pieces = parts.filter(([, amount]) => amount > 0).map(([name, amount]) => {
      const piece = stackPiece(name, amount, most, text(amount));
      if (amount > most / 12) piece.append(element("span", {}, [name]));
      return piece;
    });
    const rest = element("i");
    rest.style.flexGrow = 1 - sums[side] / most;
    return [element("span", {}, [`${SIDES[side]}: `, element("b", {}, [text(sums[side])])]),
      element("div", { className: "stack" }, [...pieces, rest])];
  });
  const axis = marks(most, 8).filter((at) => at < 0.95 * most).map((at) => {
    const mark = element("span", {}, [at === 0 ? "0" : text(at).replace(/(\.\d*[1-9])0+ |\.0+ /, "$1 ")]);
    mark.style.left = `${(100 * at) / most}%`;
    return mark;
  });
  const label = `${SIDES[0]} ${text(sums[0])}, ${SIDES[1].toLowerCase()} ${text(sums[1])}; the table has the parts`;
  return element("div", { className: "bars", role: "img", ariaLabel: label }, [...bars, element("span"), element("div", { className: "axis" }, axis)]);
}

// ---- Panels.

// The words of a text, those marked that the other text lacks.
function markedWords(text, other) {
  const others = new Set(other.split(" "));
  return element("span", {}, text.split(" ").flatMap((word) => [others.has(word) ? word : element("mark", {}, [word]), " "]));
}

function runsPanel(runs) {
  const factsOf = ({ data }) => [
    ["topology", data.topology],
    ["ranks", ranksText(data)],
    ["executed ranks", data.executedRanks < data.worldSize ? format.count(data.executedRanks) : ""],
    ["device", deviceText(data)],
    ["memory of a device", data.capacity > 0 ? format.bytes(data.capacity) : ""],
    ["seed", data.seed],
    ["libraries", Object.entries(data.versions ?? {}).map((library) => library.join(" ")).join(", ")],
    ["arithmetic", Object.entries(data.arithmetic ?? {}).map(([name, text]) => `${name.replace("_", " ")} ${text}`).join(", ")],
    ["steps", format.count(data.stepEnds.length)],
    ["command", data.command],
    ["failure", data.failure ? data.failure.message : ""],
  ];
  const [before, after] = runs.map(factsOf);
  const rows = before.map(([name, text], i) => [name, `${text}`, `${after[i][1]}`]).filter(([, ...texts]) => texts.some(Boolean));
  return panel("The two runs", [tableOf(["", ...SIDES, ""], [
    ["report", ...runs.map(({ name }) => name), ""],
    ...rows.map(([name, a, b]) => [name, markedWords(a, b), markedWords(b, a), a === b ? "" : "differs"]),
  ], "texts")]);
}

const highest = (data, field) => data.ranks.reduce((most, rank) => Math.max(most, rank[field]), 0);

// NaN where a run does not tell.
const MEASURES = [
  ["step time", ({ steps, timeIsModelled }) => (timeIsModelled && steps ? steps.median : NaN), TIME],
  ["virtual time", ({ elapsed, timeIsModelled }) => (timeIsModelled ? elapsed : NaN), TIME],
  ["MFU", ({ steps }) => (steps && steps.mfu > 0 ? steps.mfu : NaN), { ...SHARE, better: 1 }],
  ["exposed communication", (data) => (data.timeIsModelled ? data.sum("exposed") / Math.max(1, data.sum("end")) : NaN), { ...SHARE, better: -1 }],
  ["peak memory", (data) => highest(data, "peak") || NaN, BYTES],
  ["memory at the driver", (data) => highest(data, "driverPeak") || NaN, BYTES],
  ["sent in a step", ({ matrix, steps }) => (matrix && steps ? matrix.views[0].cells.reduce((sum, bytes) => sum + bytes, 0) / steps.count : NaN), TRAFFIC],
];

function cardsOf(runs) {
  return element("div", { className: "cards" }, MEASURES.map(([name, measure, kind]) => [name, ...runs.map(({ data }) => measure(data)), kind])
    .filter(([, before, after]) => !Number.isNaN(before + after))
    .map(([name, before, after, kind]) => cardOf(name, kind.text(after), before === after ? ["as before"]
      : [changeText(before, after, kind), "; before ", element("span", {}, [kind.text(before)])])));
}

function stepPanel(runs) {
  if (!runs.every(({ data }) => data.steps)) return [];
  const [a, b] = runs.map(({ data }) => data);
  const phases = changeTable("Phases, on average", matched(a.phases, b.phases, firstOf), secondOf, TIME);
  // What a step goes to is known of a run all of whose slices were recorded.
  if (a.shares.length === 0 || b.shares.length === 0) return [panel("Where a step's time goes", [phases])];
  const shares = matched(a.shares, b.shares, firstOf);
  return [panel("Where the median step's time goes", [
    stackedBars(shares, TIME, ticks),
    element("div", { className: "columns" }, [changeTable("Rank 0", shares, secondOf, TIME, ({ name }) => name), phases]),
  ])];
}

function pathPanel(runs) {
  const paths = runs.map(({ data }) => data.path);
  if (!paths.every(Boolean)) return [];
  const amount = ({ time }) => time;
  const pairs = matched(paths[0].shares, paths[1].shares, ({ label }) => label);
  return [panel("Critical path of the median step", [
    stackedBars(matched(...paths.map(partsOf), firstOf), TIME, ticks),
    changeTable("What the step waits for", byChange(pairs, amount), amount, TIME, ({ before, after }) => (after ?? before).part),
  ])];
}

function memoryPanels(runs) {
  const categoriesOf = ({ data }) => data.categories.map((name, i) =>
    [name, data.modules.reduce((sum, { bytes }) => sum + bytes[i], 0)]).filter(([, bytes]) => bytes > 0);
  if (!runs.every(({ data }) => data.modules.length > 0)) return [];
  const pairs = matched(...runs.map(categoriesOf), firstOf);
  const ranks = runs.map(({ data }, side) => `${rankName(data, data.peakRank)} ${SIDES[side].toLowerCase()}`).join(", ");
  const total = ({ total: bytes }) => bytes;
  const modules = matched(...runs.map(({ data }) => alike(data.modules)), ({ name }) => name);
  return [
    panel("Memory at the peak by category", [
      stackedBars(pairs, BYTES, byteTicks),
      changeTable("Category", pairs, secondOf, BYTES, ({ name }) => name),
      note(`The device with the highest peak: ${ranks}.`),
    ]),
    sortedPanel("Memory at the peak by module", [
      { name: "Module", value: ({ name }) => name, text: nameOf },
      { name: "Number", value: (pair) => (pair.after ?? pair.before).count, text: (pair) => bothText(pair, ({ count }) => count, format.count) },
      ...changeColumns(SIDES, total, BYTES),
    ], modules, "Layers that are alike are one row."),
  ];
}

// Columns for an amount in both runs and its change, by whose size rows are sorted.
function changeColumns([first, second], amount, kind) {
  const value = (side) => (pair) => (pair[side] ? amount(pair[side]) : -1);
  return [
    { name: first, value: value("before"), text: ({ before }) => textOf(before, amount, kind.text) },
    { name: second, value: value("after"), text: ({ after }) => textOf(after, amount, kind.text) },
    { name: "Change", value: (pair) => sizeOfChange(pair, amount), text: (pair) => changeOf(pair, amount, kind) },
  ];
}

function bothColumn(name, amount, text) {
  return { name, value: ({ before, after }) => amount(after ?? before), text: (pair) => bothText(pair, amount, text) };
}

// Sums of runs of unlike length are compared by step; those of all ranks by step and rank, if the ranks are not as many.
function comparableSums(runs, list, perRank) {
  const [a, b] = runs.map(({ data }) => data);
  const byStep = a.steps && b.steps && (a.steps.count !== b.steps.count || a.worldSize !== b.worldSize);
  const sums = [a, b].map((data) => {
    const part = byStep ? data.steps.count * (perRank ? data.worldSize : 1) : 1;
    return data[list].map((each) => ({ ...each, calls: each.calls / part, total: each.total / part, bytes: each.bytes / part }));
  });
  return [sums, byStep ? `The sum of the run, divided by its steps${perRank ? " and ranks" : ""}.` : "Sums of the whole run."];
}

const sumColumns = (traffic) => [
  bothColumn("Calls", ({ calls }) => calls, format.count),
  bothColumn(traffic, ({ bytes }) => bytes, (bytes) => (bytes > 0 ? format.bytes(bytes) : "–")),
  ...changeColumns(["Time before", "Time after"], ({ total }) => total, TIME),
];

function sumPanels(runs) {
  const [operators, ofOperators] = comparableSums(runs, "operators", true);
  const [collectives, ofCollectives] = comparableSums(runs, "collectives", false);
  return [
    sortedPanel("Operators", [
      { name: "Operator", value: ({ name }) => name, text: nameOf }, ...sumColumns("Memory traffic"),
    ], matched(...operators, ({ name }) => name), ofOperators),
    sortedPanel("Collectives", [
      { name: "Collective", value: ({ name }) => name, text: nameOf },
      bothColumn("Algorithm", ({ algorithm }) => algorithm, (text) => text),
      bothColumn("Ranks", ({ ranks }) => ranks, format.count),
      ...sumColumns("Bytes"),
    ], matchedCollectives(...collectives), ofCollectives),
  ];
}

function linksPanel(runs) {
  const pairs = matched(...runs.map(({ data }) => data.links), ({ name }) => name);
  if (pairs.length === 0) return [];
  const inSteps = runs.every(({ data }) => data.stepEnds.length > 0);
  const bytes = (each) => (inSteps ? each.stepBytes : each.bytes);
  const use = (each) => (inSteps ? each.stepUse : each.use);
  const of = inSteps ? "a step" : "the run";
  const heads = ["Links", "Number", "Rate", `Bytes in ${of}`, "Change", `Use over ${of}`, "Change", "Busiest"];
  return [panel("Links", [tableOf(heads, pairs.map((pair) => [
    nameOf(pair), bothText(pair, ({ links }) => links, format.count), bothText(pair, ({ rate }) => rate, (rate) => `${format.bytes(rate)}/s`),
    bothText(pair, bytes, format.bytes), changeOf(pair, bytes, TRAFFIC), bothText(pair, use, format.percent), changeOf(pair, use, SHARE),
    bothText(pair, ({ worst }) => worst, (text) => text),
  ]))])];
}

// ---- Timelines.

function medianSpan(data) {
  if (!data.steps) return { from: 0, to: data.elapsed, name: "the whole run" };
  return { ...data.stepSpan(data.steps.medianStep), name: `step ${data.steps.medianStep + 1}` };
}

function timelinePanel(runs) {
  const box = (name) => element("div", { className: "viewport", tabIndex: 0, role: "application", ariaLabel: `Timeline ${name}, moved by the same keys as that of one run` }, [
    element("div", { className: "sticky" }, [element("canvas")]), element("div", { className: "spacer" })]);
  const boxes = SIDES.map((side) => box(side.toLowerCase()));
  const list = element("ul", { className: "legend" });
  const { kinds } = runs[1].data;
  legend(list, kinds.map((kind) => [kind, kind]));
  const parts = runs.flatMap(({ data }, side) => {
    const { from, to, name } = medianSpan(data);
    return [element("h3", {}, [`${SIDES[side]}: ${name} of ${data.topology || "the run"}, ${format.time(to - from, 4)}`]), boxes[side]];
  });
  const made = panel("Timelines of the median steps", [
    ...parts, note("Both show the same time since their step began; they zoom and move together. What follows a step is faded.")]);
  made.querySelector("h2").after(list);
  return { made, boxes };
}

// Draws into boxes that are in the page already. The two have one scale.
function timelinesIn({ made, boxes }, runs) {
  const spans = runs.map(({ data }) => medianSpan(data));
  const longest = Math.max(1, ...spans.map(({ from, to }) => to - from));
  const timelines = runs.map(({ data }, side) => {
    const { from, to } = spans[side];
    return new Timeline(data, boxes[side], { from, to: from + longest, end: to }, PAIR_HEIGHT);
  });
  timelines.forEach((each, side) => { each.companion = timelines[1 - side]; });
  made.querySelector(".controls").append(...timelineControls(timelines[0]));
  for (const each of timelines) each.drawNow();
  return timelines;
}

// ---- The other run.

// `own` is the data of this page.
async function readReport(file, own) {
  if (file.size > MOST_REPORT_BYTES) throw new Error("it is too large");
  const text = await file.text();
  const data = new DOMParser().parseFromString(text, "text/html").getElementById("data");
  if (!data) throw new Error("it has no data of a run");
  const raw = JSON.parse(data.textContent);
  const missing = own.fieldMissingIn(raw);
  if (missing !== undefined) throw new Error(`its data has no "${missing}" as that of this page has`);
  return new PageData(raw);
}

// Replaces what is shown once all of it could be made.
function showBeside(runs) {
  const untimed = SIDES.filter((_, side) => !runs[side].data.timeIsModelled);
  const timelines = timelinePanel(runs);
  const ofTime = untimed.length > 0
    ? [element("p", { className: "note" }, [`${untimed.join(", ")}: the run names no hardware, so time is not modelled and there is nothing to compare.`])]
    : [...stepPanel(runs), timelines.made, ...pathPanel(runs), ...memoryPanels(runs), ...sumPanels(runs), ...linksPanel(runs)];
  const view = element("main", { id: "beside" }, [runsPanel(runs), cardsOf(runs), ...ofTime]);
  byId("report").after(view);
  try {
    const drawn = untimed.length > 0 ? [] : timelinesIn(timelines, runs);
    comparison?.view.remove();
    comparison = { view, runs, timelines: drawn };
  } catch (error) {
    view.remove();
    throw error;
  }
}

function acceptOtherRuns(data, drawAll) {
  const own = { name: "this page", data };
  const problem = byId("compare-problem");
  const update = () => {
    const isShown = comparison !== null;
    byId("report").hidden = isShown;
    for (const id of ["facts", "repeat", "compare-hint"]) byId(id).hidden = isShown || (id === "repeat" && !data.command);
    for (const id of ["compare-swap", "compare-close"]) byId(id).hidden = !isShown;
    showTitle(isShown ? "Two runs side by side" : titleOf(data));
    problem.hidden = true;
    drawAll();
  };
  const show = (runs) => {
    showBeside(runs);
    update();
  };
  const close = () => {
    comparison.view.remove();
    comparison = null;
    update();
  };
  const read = async (file) => {
    if (!file) return;
    const earlier = comparison;
    try {
      show([{ name: file.name, data: await readReport(file, data) }, own]);
      scrollTo(0, 0);
    } catch (error) {
      if (comparison !== earlier) close();  // it could be shown, but not be drawn
      problem.hidden = false;
      problem.textContent = `${file.name} cannot be shown: ${error.message}. Choose the report.html of a simulated run, of the same version of Accelerate.`;
    }
  };
  byId("compare").addEventListener("click", () => byId("compare-file").click());
  byId("compare-file").addEventListener("change", async ({ target }) => {
    await read(target.files[0]);
    target.value = "";  // so that the same file can be chosen again
  });
  byId("compare-swap").addEventListener("click", () => show([...comparison.runs].reverse()));
  byId("compare-close").addEventListener("click", close);
  const { classList } = document.documentElement;
  window.addEventListener("dragover", (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    classList.add("dropping");
  });
  window.addEventListener("dragleave", ({ relatedTarget }) => {
    if (!relatedTarget) classList.remove("dropping");
  });
  window.addEventListener("drop", (event) => {
    classList.remove("dropping");
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    read(event.dataTransfer.files[0]);
  });
}
