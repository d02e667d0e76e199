// Wheel, pointer and keyboard input of the timeline, and the texts of its tooltip.

function timelineInput(timeline) {
  const { viewport } = timeline;
  let drag = null;  // {x, y, from, to, scrollTop, moved}

  const place = (event) => {
    const box = viewport.getBoundingClientRect();
    return [event.clientX - box.left - viewport.clientLeft, event.clientY - box.top - viewport.clientTop];
  };

  const hover = (event) => {
    const [x, y] = place(event);
    const found = timeline.at(x, y);
    timeline.hovered = found.track ? { track: found.track, index: found.index } : null;
    if (found.track) tooltip.show(event, ...sliceText(timeline, found.track, found.index));
    else if (found.row && !found.row.track && x >= LABEL_WIDTH) tooltip.show(event, ...nodeText(timeline, found.row.node, x));
    else tooltip.hide();
    viewport.style.cursor = found.row && !found.row.track ? "pointer" : "";
    timeline.draw();
  };

  viewport.addEventListener("wheel", (event) => {
    const [x] = place(event);
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      timeline.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.006), timeline.time(Math.max(x, LABEL_WIDTH)));
    } else if (event.shiftKey || Math.abs(sideways) > Math.abs(event.deltaY)) {
      event.preventDefault();
      timeline.pan(sideways / timeline.plotWidth);
    }
    if (event.defaultPrevented) hover(event);
  }, { passive: false });

  viewport.addEventListener("scroll", () => timeline.draw());

  viewport.addEventListener("pointerdown", (event) => {
    const [x, y] = place(event);
    if (event.button !== 0 || x > viewport.clientWidth) return;
    drag = { x, y, from: timeline.from, to: timeline.to, scrollTop: viewport.scrollTop, moved: false };
    viewport.setPointerCapture(event.pointerId);
  });

  viewport.addEventListener("pointermove", (event) => {
    if (!drag) {
      hover(event);
      return;
    }
    const [x, y] = place(event);
    if (Math.hypot(x - drag.x, y - drag.y) > 3) drag.moved = true;
    if (!drag.moved) return;
    tooltip.hide();
    viewport.classList.add("dragging");
    const by = ((drag.x - x) / timeline.plotWidth) * (drag.to - drag.from);
    timeline.view(drag.from + by, drag.to + by);
    viewport.scrollTop = drag.scrollTop + drag.y - y;
  });

  const release = (event) => {
    viewport.classList.remove("dragging");
    const clicked = drag && !drag.moved && event.type === "pointerup";
    drag = null;
    if (!clicked) return;
    const { row } = timeline.at(...place(event));
    if (!row || row.track) return;
    timeline.rows.toggle(row.node);
    timeline.resize();
  };
  viewport.addEventListener("pointerup", release);
  viewport.addEventListener("pointercancel", release);

  viewport.addEventListener("pointerleave", () => {
    timeline.hovered = null;
    tooltip.hide();
    timeline.draw();
  });

  viewport.addEventListener("dblclick", (event) => {
    const { track, index } = timeline.at(...place(event));
    if (!track) return;
    const margin = (track.end[index] - track.start[index]) * 0.1;
    timeline.view(track.start[index] - margin, track.end[index] + margin);
  });

  const keys = [
    [["ArrowLeft", "a"], () => timeline.pan(-0.15)],
    [["ArrowRight", "d"], () => timeline.pan(0.15)],
    [["+", "=", "w"], () => timeline.zoom(0.7)],
    [["-", "s"], () => timeline.zoom(1 / 0.7)],
    [["0"], () => timeline.fit()],
  ];
  viewport.addEventListener("keydown", (event) => {
    const found = keys.find(([names]) => names.includes(event.key));
    if (!found || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    found[1]();
  });
}

// The buttons of a timeline and the choice of a rank, which also serve its companion.
function timelineControls(timeline) {
  const both = [timeline, timeline.companion].filter(Boolean);
  const button = (textContent, act, ariaLabel) => {
    const made = element("button", { type: "button", textContent, ...(ariaLabel && { ariaLabel }) });
    made.addEventListener("click", act);
    return made;
  };
  const group = (ariaLabel, buttons) => element("span", { className: "group", role: "group", ariaLabel }, buttons);
  const openAll = (open) => () => both.forEach((each) => each.openAll(open));
  const ranks = element("select");
  const { data } = both.reduce((most, each) => (each.data.worldSize > most.data.worldSize ? each : most));
  options(ranks, [["", "go to …"], ...data.ranks.map((_, rank) => [rank, withPlace(data, rank, `${rank}`)])]);
  ranks.addEventListener("change", () => {
    if (ranks.value !== "") both.forEach((each) => each.showRank(Number(ranks.value)));
    ranks.value = "";
  });
  return [
    element("label", { className: "select" }, ["Rank ", ranks]),
    group("Nodes", [button("Expand", openAll(true)), button("Collapse", openAll(false))]),
    group("Zoom", [button("−", () => timeline.zoom(2), "Zoom out"), button("+", () => timeline.zoom(0.5), "Zoom in"),
      button("Fit", () => timeline.fit())]),
  ];
}

function sliceText({ data, bounds }, track, index) {
  const duration = track.end[index] - track.start[index];
  const rows = [
    ["where", `${rankName(data, track.rank)}, ${track.label}`],
    ["start", format.time(track.start[index] - bounds.from, 6)],
    ["duration", format.time(duration, 4)],
    ["kind", data.kinds[track.kind[index]], data.kinds[track.kind[index]]],
  ];
  if (track.count[index] > 1) {
    rows.push(["busy", format.percent(track.busy[index])], ["most time", data.names[track.name[index]]]);
    return [`${format.count(track.count[index])} slices`, rows];
  }
  const operation = data.operations[track.operation[index]];
  if (operation && track.kind[index] === KIND_WAIT) rows.push(["for", operation.name]);
  if (operation) rows.push(...operationText(operation, track.kind[index] === KIND_WAIT ? 0 : duration));
  return [data.names[track.name[index]], rows];
}

// `duration` is that of the transfer; 0 if it is not known.
function operationText(operation, duration) {
  const rows = [
    ["bytes", format.bytes(operation.bytes)],
    ["ranks", operation.ranks],
  ];
  if (operation.group) rows.push(["group", operation.group]);
  if (operation.algorithm) rows.push(["algorithm", operation.algorithm]);
  if (duration > 0) rows.push(["rate", `${format.bytes(operation.bytes / (duration / 1e9))}/s`]);
  if (operation.spread > 0) {
    rows.push(["last to join", `rank ${operation.lastRank}, ${format.time(operation.spread)} after rank ${operation.firstRank}`]);
  }
  return rows;
}

function nodeText(timeline, node, x) {
  const columns = Math.max(1, Math.floor(timeline.plotWidth / 2));
  const column = Math.min(columns - 1, Math.floor(((x - LABEL_WIDTH) / timeline.plotWidth) * columns));
  const { compute, communicate } = timeline.density(node, columns);
  return [node.name, [
    ["time", format.time(timeline.time(x) - timeline.bounds.from, 5)],
    ["ranks computing", format.percent(compute[column]), "kernel"],
    ["ranks communicating", format.percent(communicate[column]), "collective"],
  ]];
}
