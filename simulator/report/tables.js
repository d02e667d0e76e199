// Tables: where a step's time goes, its critical path, the use of links.

// A bar in a cell, and its percentage.
function shareCell(part) {
  const bar = element("i");
  bar.style.setProperty("--part", `${100 * part}%`);
  return element("td", {}, [element("span", { className: "share" }, [bar, element("span", {}, [format.percent(part)])])]);
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
  byId("step-shares").tBodies[0].replaceChildren(...data.shares.map(([name, time]) =>
    element("tr", {}, [element("td", {}, [name]), element("td", {}, [format.time(time)]), shareCell(time / all)])));
  byId("step-note").textContent = `On average a step is ${phases}. Each instant of the table counts as the first row that happens then; ` +
    "the devices have nothing to do where they wait for the host.";
}

// The names of parts are those of colours in report.css.
const partColour = (part) => `var(--${part.replaceAll(" ", "-")})`;

function showPath(data) {
  byId("path-panel").hidden = !data.path;
  if (!data.path) return;
  const { step, ranks, shares, longest } = data.path;
  const all = Math.max(1, shares.reduce((sum, { time }) => sum + time, 0));
  byId("path-title").textContent = `Critical path of the median step (${step + 1}), ${format.time(all, 4)}`;
  const parts = new Map();
  for (const { part, time } of shares) parts.set(part, (parts.get(part) ?? 0) + time);
  byId("path-bar").replaceChildren(...[...parts].map(([part, time]) => {
    const piece = element("i", { title: `${part}: ${format.time(time)}, ${format.percent(time / all)}` });
    piece.style.flexGrow = time / all;
    piece.style.background = partColour(part);
    return piece;
  }));
  legend(byId("path-legend"), [...parts.keys()].map((part) => [part, part]));
  byId("path-shares").tBodies[0].replaceChildren(...shares.map(({ label, time }) =>
    element("tr", {}, [element("td", {}, [label]), element("td", {}, [format.time(time)]), shareCell(time / all)])));
  byId("path-longest").tBodies[0].replaceChildren(...longest.map(({ part, name, rank, start, time }) =>
    element("tr", {}, [name ? `${name} (${part})` : part, `${rank}`, format.time(start), format.time(time)]
      .map((text) => element("td", {}, [text])))));
  byId("path-note").textContent = "From the end of rank 0's step backwards: each part began when the one before it ended, on a stream, the host, or " +
    `at the last member of a collective; the path goes through ${ranks.length > 1 ? `ranks ${ranks}` : `rank ${ranks}`}. ` +
    "Less time on the path makes the step shorter, until another chain is the longest.";
}

function showLinks(data) {
  byId("links-panel").hidden = data.links.length === 0;
  if (data.links.length === 0) return;
  const inSteps = data.stepEnds.length > 0;
  byId("links").tBodies[0].replaceChildren(...data.links.map((each) => element("tr", {}, [
    ...[each.name, format.count(each.links), `${format.bytes(each.rate)}/s`, format.bytes(each.bytes),
      inSteps ? format.bytes(each.stepBytes) : "–", format.percent(each.busy / data.elapsed)].map((text) => element("td", {}, [text])),
    shareCell(inSteps ? each.stepUse : each.use),
    element("td", {}, [format.percent(each.worstUse)]),
    element("td", {}, [each.worst]),
  ])));
  const busiest = data.links[data.busiestLinks];
  byId("links-note").textContent = `Busiest: ${busiest.name}, most at ${busiest.worst}. Bytes are those that each algorithm sends, without headers and flags; ` +
    "use is what the rate carries in that time, and busy is the mean share of the run with something under way, latencies included. Bytes in a step are a link's mean.";
}
