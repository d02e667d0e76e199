// Tables: where a step's time goes, its critical path, the use of links, what fills memory.

// Cells are texts or elements.
function tableOf(heads, rows, className = "") {
  return element("div", { className: "scroll-x" }, [element("table", { className }, [
    element("thead", {}, [element("tr", {}, heads.map((text) => element("th", { scope: "col" }, [text])))]),
    element("tbody", {}, rows.map((cells) => element("tr", {}, cells.map((cell) => element("td", {}, [cell]))))),
  ])]);
}

// A figure of the run; `more` are texts or elements.
function cardOf(name, value, more) {
  return element("div", { className: "card", dataset: { figure: name } }, [
    element("div", { className: "name" }, [name[0].toUpperCase() + name.slice(1)]),
    element("div", { className: "value" }, [value]),
    element("div", { className: "more" }, more),
  ]);
}

// A bar, and its percentage.
function shareBar(part) {
  const bar = element("i");
  bar.style.setProperty("--part", `${100 * part}%`);
  return element("span", { className: "share" }, [bar, element("span", {}, [format.percent(part)])]);
}

function showStep(data) {
  byId("step-panel").hidden = !data.steps || !data.timeIsModelled;
  if (byId("step-panel").hidden) return;
  const phases = data.phases.map(([name, time]) => `${name} ${format.time(time)}`).join(", ");
  byId("step-shares").hidden = data.shares.length === 0;
  if (data.shares.length === 0) {
    byId("step-note").textContent = `On average a step is ${phases}. What the median step goes to is not known, because not all slices were recorded.`;
    return;
  }
  const all = Math.max(1, data.shares.reduce((sum, [, time]) => sum + time, 0));
  byId("step-shares").replaceChildren(tableOf(["Rank 0 in the median step", "Time", "Share"],
    data.shares.map(([name, time]) => [name, format.time(time), shareBar(time / all)])));
  byId("step-note").textContent = `On average a step is ${phases}. Each instant of the table counts as the first row that happens then; ` +
    "the devices have nothing to do where they wait for the host.";
}

// A part of a bar of that length.
function stackPiece(part, amount, all, text) {
  const piece = element("i", { title: `${part}: ${text}` });
  piece.style.flexGrow = amount / all;
  piece.style.background = `var(${colourName(part)})`;
  return piece;
}

// The time on the path of each kind of part.
function partsOf({ shares }) {
  const parts = new Map();
  for (const { part, time } of shares) parts.set(part, (parts.get(part) ?? 0) + time);
  return [...parts];
}

function showPath(data) {
  byId("path-panel").hidden = !data.path;
  if (!data.path) return;
  const { step, ranks, shares, longest } = data.path;
  const all = Math.max(1, shares.reduce((sum, { time }) => sum + time, 0));
  byId("path-title").textContent = `Critical path of the median step (${step + 1}), ${format.time(all, 4)}`;
  const parts = partsOf(data.path);
  byId("path-bar").replaceChildren(...parts.map(([part, time]) =>
    stackPiece(part, time, all, `${format.time(time)}, ${format.percent(time / all)}`)));
  legend(byId("path-legend"), parts.map(([part]) => [part, part]));
  byId("path-shares").replaceChildren(tableOf(["What the step waits for", "Time", "Share"],
    shares.map(({ label, time }) => [label, format.time(time), shareBar(time / all)])));
  byId("path-longest").replaceChildren(tableOf(["Longest segments", "Rank", "From", "Time"], longest.map(({ part, name, rank, start, time }) =>
    [name ? `${name} (${part})` : part, `${rank}`, format.time(start), format.time(time)])));
  byId("path-note").textContent = "From the end of rank 0's step backwards: each part began when the one before it ended, on a stream, the host, or " +
    `at the last member of a collective; the path goes through ${ranks.length > 1 ? `ranks ${ranks}` : `rank ${ranks}`}. ` +
    "Less time on the path makes the step shorter, until another chain is the longest.";
}

function showLinks(data) {
  byId("links-panel").hidden = data.links.length === 0;
  if (data.links.length === 0) return;
  const inSteps = data.stepEnds.length > 0;
  const heads = ["Links", "Number", "Rate", "Bytes in the run", "Bytes in a step", "Busy", "Use over a step", "Of the worst", "Worst"];
  byId("links").replaceChildren(tableOf(heads, data.links.map((each) => [
    each.name, format.count(each.links), `${format.bytes(each.rate)}/s`, format.bytes(each.bytes),
    inSteps ? format.bytes(each.stepBytes) : "–", format.percent(each.busy / data.elapsed),
    shareBar(inSteps ? each.stepUse : each.use), format.percent(each.worstUse), each.worst,
  ])));
  const busiest = data.links[data.busiestLinks];
  byId("links-note").textContent = `Busiest: ${busiest.name}, most at ${busiest.worst}. Bytes are those that each algorithm sends, without headers and flags; ` +
    "use is what the rate carries in that time, and busy is the mean share of the run with something under way, latencies included. Bytes in a step are a link's mean.";
}

// Modules with one pattern together: layers that are alike.
function alike(modules) {
  const byPattern = new Map();
  for (const { pattern, bytes, total } of modules) {
    const sum = byPattern.get(pattern) ?? { name: pattern, count: 0, bytes: bytes.map(() => 0), total: 0 };
    ++sum.count;
    sum.total += total;
    sum.bytes = sum.bytes.map((each, i) => each + bytes[i]);
    byPattern.set(pattern, sum);
  }
  return [...byPattern.values()].sort((a, b) => b.total - a.total);
}

const MOST_MODULES = 100;

function showModules(data) {
  const isNamed = data.modules.some(({ path }) => path);
  byId("modules-panel").hidden = !isNamed;
  if (!isNamed) return;
  const all = data.modules.reduce((sum, { total }) => sum + total, 0);
  const shown = data.categories.map((_, i) => i).filter((i) => data.modules.some(({ bytes }) => bytes[i] > 0));
  byId("modules-title").textContent = `Memory at the peak by module: ${rankName(data, data.peakRank)}, ${format.bytes(all)}`;
  const heads = ["Module", "Number", "Bytes", "Share", ...shown.map((i) => data.categories[i])];
  const fill = (together) => {
    const rows = together ? alike(data.modules)
      : data.modules.map(({ path, bytes, total }) => ({ name: path, count: 1, bytes, total }));
    byId("modules").replaceChildren(tableOf(heads, rows.slice(0, MOST_MODULES).map(({ name, count, bytes, total }) => [
      name || "none", format.count(count), format.bytes(total), shareBar(all > 0 ? total / all : 0),
      ...shown.map((i) => (bytes[i] ? format.bytes(bytes[i]) : "–")),
    ])));
    byId("modules-note").textContent = (rows.length > MOST_MODULES ? `The largest ${MOST_MODULES} of ${format.count(rows.length)}; summary.json has all. ` : "") +
      "Parameters, their gradients and their optimizer state belong to the parameter's module. Activations and temporaries belong to the module whose " +
      "parameter an operator used last; inputs, buckets and what belongs to no module are none's.";
  };
  options(byId("modules-view"), [["1", "layers that are alike together"], ["", "each module"]]);
  byId("modules-view").addEventListener("change", ({ target }) => fill(target.value === "1"));
  fill(true);
}
