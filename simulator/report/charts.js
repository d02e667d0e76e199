// Memory over time, exposed communication per rank, and the communication matrix.

// The height of the two charts that are side by side.
const CHART_HEIGHT = 440;

// A chart in a box of its own. It is drawn again when the box changes, and it shows a tooltip.
class Chart {
  constructor(box) {
    this.box = box;
    this.canvas = box.querySelector("canvas");
    this.pointer = null;
    this.draw = onceAFrame(() => this.drawNow());
    this.canvas.addEventListener("pointermove", (event) => {
      const place = this.canvas.getBoundingClientRect();
      this.pointer = { x: event.clientX - place.left, y: event.clientY - place.top };
      const text = this.textAt(this.pointer);
      if (text) tooltip.show(event, ...text);
      else tooltip.hide();
      this.draw();
    });
    this.canvas.addEventListener("pointerleave", () => {
      this.pointer = null;
      tooltip.hide();
      this.draw();
    });
  }

  resize() {
    this.draw();
  }

  start(height) {
    this.width = this.box.clientWidth;
    this.height = height;
    this.context = prepare(this.canvas, this.width, height);
    return this.context;
  }

  // Horizontal lines at the ticks, with labels to the left.
  yAxis(plot, max, values, text) {
    const { context } = this;
    context.font = SMALL_FONT;
    context.textAlign = "right";
    for (const value of values) {
      const y = Math.round(plot.bottom - (value / max) * (plot.bottom - plot.top)) + 0.5;
      fillBox(context, "line", plot.left, y, plot.right - plot.left, 1);
      context.fillStyle = theme.colour("text-2");
      context.fillText(text(value), plot.left - 8, y);
    }
  }
}

class MemoryChart extends Chart {
  constructor(data, box) {
    super(box);
    this.data = data;
    this.choose(this.highest());
  }

  highest() {
    return this.data.memory.reduce((best, curve) =>
      (curve.total[curve.peak] > best.total[best.peak] ? curve : best), this.data.memory[0]).name;
  }

  choose(name) {
    this.curve = this.data.memory.find((curve) => curve.name === name);
    const { capacity } = this.data;
    const peak = this.curve.total[this.curve.peak];
    const part = capacity > 0 ? `, ${format.percent(peak / capacity)} of ${format.bytes(capacity)}` : "";
    // The line of the capacity would press the curve flat if it is far above.
    this.showsCapacity = capacity > 0 && peak > capacity / 4;
    const far = capacity > 0 && !this.showsCapacity ? " The capacity lies above the chart." : "";
    document.getElementById("memory-note").textContent =
      `Rank ${name}: peak of ${format.bytes(peak)}${part}, at ${format.time(this.curve.time[this.curve.peak])}.${far}`;
    this.draw();
  }

  get plot() {
    return { left: 74, right: this.width - 14, top: 14, bottom: this.height - 26 };
  }

  drawNow() {
    const context = this.start(280);
    const { plot, curve, data } = this;
    const peak = curve.total[curve.peak];
    this.max = Math.max(1, 1.06 * (this.showsCapacity ? Math.max(data.capacity, peak) : peak));
    this.yAxis(plot, this.max, byteTicks(this.max, 6), (value) => format.bytes(value));
    const below = new Float64Array(curve.length);
    data.categories.forEach((category, c) => this.area(category, curve.bytes[c], below));
    if (this.showsCapacity) this.capacityLine();
    this.timeAxis();
    this.pointerLine();
    context.globalAlpha = 1;
  }

  x(time) {
    const { left, right } = this.plot;
    return left + (time / this.data.elapsed) * (right - left);
  }

  y(bytes) {
    const { top, bottom } = this.plot;
    return bottom - (bytes / this.max) * (bottom - top);
  }

  // Fills the area between `below` and `below` plus the values, in steps; `below` grows by the values.
  area(category, values, below) {
    const { context, curve } = this;
    const n = curve.length;
    const end = (i) => this.x(i + 1 < n ? curve.time[i + 1] : this.data.elapsed);
    context.fillStyle = theme.colour(category);
    context.beginPath();
    for (let i = 0; i < n; ++i) {
      const y = this.y(below[i] + values[i]);
      context.lineTo(this.x(curve.time[i]), y);
      context.lineTo(end(i), y);
    }
    for (let i = n - 1; i >= 0; --i) {
      const y = this.y(below[i]);
      context.lineTo(end(i), y);
      context.lineTo(this.x(curve.time[i]), y);
    }
    context.globalAlpha = 0.88;
    context.fill();
    context.globalAlpha = 1;
    for (let i = 0; i < n; ++i) below[i] += values[i];
  }

  capacityLine() {
    const { context, plot } = this;
    const y = Math.round(this.y(this.data.capacity)) + 0.5;
    context.strokeStyle = theme.colour("danger");
    context.setLineDash([6, 4]);
    context.beginPath();
    context.moveTo(plot.left, y);
    context.lineTo(plot.right, y);
    context.stroke();
    context.setLineDash([]);
    context.font = SMALL_FONT;
    context.textAlign = "right";
    context.fillStyle = theme.colour("danger");
    context.fillText(`capacity ${format.bytes(this.data.capacity)}`, plot.right, y + 9);
  }

  timeAxis() {
    const { context, plot, data } = this;
    context.font = SMALL_FONT;
    context.fillStyle = theme.colour("text-2");
    const parts = Math.max(2, Math.floor((plot.right - plot.left) / 120));
    for (const at of ticks(data.elapsed, parts)) {
      const text = at === 0 ? "0" : format.time(at).replace(/\.0+ /, " ");
      const half = context.measureText(text).width / 2;
      context.textAlign = "center";
      context.fillText(text, Math.min(this.x(at), this.width - half - 2), plot.bottom + 14);
    }
  }

  pointerLine() {
    if (!this.pointer || !this.textAt(this.pointer)) return;
    fillBox(this.context, "text", Math.round(this.pointer.x), this.plot.top, 1, this.plot.bottom - this.plot.top);
  }

  textAt({ x }) {
    const { plot, curve, data } = this;
    const time = ((x - plot.left) / (plot.right - plot.left)) * data.elapsed;
    const index = curve.at(time);
    if (time < 0 || time > data.elapsed || index < 0) return null;
    // From top to bottom, as they are stacked.
    const rows = data.categories.map((category, c) =>
      [category, format.bytes(curve.bytes[c][index]), category]).reverse();
    return [`${format.bytes(curve.total[index])} at ${format.time(time, 4)}`, rows];
  }
}

class ExposedChart extends Chart {
  constructor(data, box) {
    super(box);
    this.data = data;
    this.shares = data.ranks.map((rank) => ({
      exposed: rank.end > 0 ? rank.exposed / rank.end : 0,
      all: rank.end > 0 ? rank.communication / rank.end : 0,
    }));
  }

  get plot() {
    return { left: 48, right: this.width - 8, top: 18, bottom: this.height - 38 };
  }

  drawNow() {
    const context = this.start(CHART_HEIGHT);
    const { plot, shares } = this;
    const highest = Math.max(0.01, ...shares.map((share) => share.all));
    const max = Math.min(1, highest * 1.15);
    this.yAxis(plot, max, ticks(max, 5), (value) => `${Number((100 * value).toFixed(2))} %`);
    const slot = (plot.right - plot.left) / shares.length;
    const isThin = slot < 6;
    const width = isThin ? slot : Math.min(slot * 0.72, 64);
    const top = (share) => plot.bottom - (share / max) * (plot.bottom - plot.top);
    context.font = SMALL_FONT;
    context.textAlign = "center";
    const wide = slot > 44;
    shares.forEach((share, rank) => {
      let x = plot.left + (rank + 0.5) * slot - width / 2;
      let right = x + width;
      // Thin bars touch; between whole pixels no seams show.
      if (isThin) [x, right] = [Math.floor(x), Math.max(Math.floor(right), Math.floor(x) + 1)];
      context.fillStyle = theme.colour("collective");
      context.globalAlpha = 0.35;
      context.fillRect(x, top(share.all), right - x, top(share.exposed) - top(share.all));
      context.globalAlpha = 1;
      context.fillRect(x, top(share.exposed), right - x, plot.bottom - top(share.exposed));
      context.fillStyle = theme.colour("text");
      if (wide) context.fillText(format.percent(share.exposed), x + width / 2, top(share.exposed) - 9);
    });
    this.rankAxis(slot);
    if (this.pointer && this.textAt(this.pointer)) {
      const rank = this.rankAt(this.pointer.x);
      context.strokeStyle = theme.colour("text");
      context.strokeRect(plot.left + rank * slot, plot.top, slot, plot.bottom - plot.top);
    }
  }

  rankAxis(slot) {
    const { context, plot, shares } = this;
    context.fillStyle = theme.colour("text-2");
    context.textAlign = "center";
    const every = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024].find((each) => each * slot > 30) ?? 2048;
    for (let rank = 0; rank < shares.length; rank += every) {
      context.fillText(`${rank}`, plot.left + (rank + 0.5) * slot, plot.bottom + 12);
    }
    context.fillText("rank", (plot.left + plot.right) / 2, plot.bottom + 29);
  }

  rankAt(x) {
    const { left, right } = this.plot;
    return Math.floor(((x - left) / (right - left)) * this.shares.length);
  }

  textAt({ x }) {
    const rank = this.rankAt(x);
    if (!(rank in this.shares)) return null;
    const { exposed, communication, end, compute } = this.data.ranks[rank];
    const of = (part) => `${format.time(part)}, ${format.percent(end > 0 ? part / end : 0)}`;
    return [rankName(this.data, rank), [
      ["communicating", of(communication)],
      ["of which exposed", of(exposed), "collective"],
      ["computing", of(compute), "kernel"],
      ["end", format.time(end)],
    ]];
  }
}

class MatrixChart extends Chart {
  constructor(data, box) {
    super(box);
    this.data = data;
    this.choose(0);
  }

  // Shows the traffic of groups along one axis; the first view has that of all groups.
  choose(view) {
    this.cells = this.data.matrix.views[view].cells;
    const positive = this.cells.filter((bytes) => bytes > 0);
    // Not Math.max(...positive), because the matrix has too many cells for arguments of a call.
    this.highest = positive.reduce((most, bytes) => Math.max(most, bytes), 0);
    this.lowest = positive.reduce((least, bytes) => Math.min(least, bytes), this.highest);
    this.draw();
  }

  // Zero has no colour. The scale is logarithmic, because traffic differs by orders of magnitude.
  heat(bytes) {
    if (bytes <= 0) return theme.colour("surface");
    const range = Math.log(this.highest / this.lowest);
    return theme.mix("heat-low", "heat-high", range > 0.01 ? Math.log(bytes / this.lowest) / range : 0.7);
  }

  drawNow() {
    const { size } = this.data.matrix;
    const { cells } = this;
    const room = this.box.clientWidth - 62 - 104;
    this.side = Math.max(120, Math.min(room, CHART_HEIGHT - 52));
    const context = this.start(this.side + 52);
    this.left = 58;
    this.top = 8;
    this.cell = this.side / size;
    const gap = this.cell > 8 ? 1 : 0;
    for (let from = 0; from < size; ++from) {
      for (let to = 0; to < size; ++to) {
        const bytes = cells[from * size + to];
        if (bytes <= 0) continue;
        context.fillStyle = this.heat(bytes);
        const [x, y] = [this.left + to * this.cell, this.top + from * this.cell];
        context.fillRect(x, y, this.cell - gap, this.cell - gap);
      }
    }
    context.strokeStyle = theme.colour("line-strong");
    context.strokeRect(this.left - 0.5, this.top - 0.5, this.side + 1, this.side + 1);
    this.axes();
    this.scale();
    const place = this.pointer && this.placeAt(this.pointer);
    if (!place) return;
    context.strokeStyle = theme.colour("text");
    context.lineWidth = 2;
    context.strokeRect(this.left + place.to * this.cell, this.top + place.from * this.cell, this.cell, this.cell);
    context.lineWidth = 1;
  }

  axes() {
    const { context } = this;
    const { size } = this.data.matrix;
    context.font = SMALL_FONT;
    context.fillStyle = theme.colour("text-2");
    const every = [1, 2, 4, 8, 16, 32, 64].find((each) => each * this.cell > 24) ?? 128;
    for (let i = 0; i < size; i += every) {
      context.textAlign = "center";
      context.fillText(`${i}`, this.left + (i + 0.5) * this.cell, this.top + this.side + 12);
      context.textAlign = "right";
      context.fillText(`${i}`, this.left - 7, this.top + (i + 0.5) * this.cell);
    }
    const unit = this.unit();
    context.textAlign = "center";
    context.fillText(`receiving ${unit}`, this.left + this.side / 2, this.top + this.side + 32);
    context.save();
    context.translate(14, this.top + this.side / 2);
    context.rotate(-Math.PI / 2);
    context.fillText(`sending ${unit}`, 0, 0);
    context.restore();
  }

  unit() {
    const { block } = this.data.matrix;
    if (block === 1) return "rank";
    return block === this.data.ranksPerNode ? "node" : `block of ${block} ranks`;
  }

  scale() {
    const { context } = this;
    const x = this.left + this.side + 18;
    const height = Math.min(180, this.side);
    for (let i = 0; i < height; ++i) {
      const part = 1 - i / (height - 1);
      context.fillStyle = theme.mix("heat-low", "heat-high", part);
      context.fillRect(x, this.top + i, 12, 1.5);
    }
    context.textAlign = "left";
    context.fillStyle = theme.colour("text-2");
    context.fillText(format.bytes(this.highest), x + 18, this.top + 6);
    const low = format.bytes(this.lowest);
    if (low !== format.bytes(this.highest)) context.fillText(low, x + 18, this.top + height - 6);
  }

  placeAt({ x, y }) {
    const { size } = this.data.matrix;
    const to = Math.floor((x - this.left) / this.cell);
    const from = Math.floor((y - this.top) / this.cell);
    return from >= 0 && to >= 0 && from < size && to < size ? { from, to } : null;
  }

  textAt(pointer) {
    const place = this.placeAt(pointer);
    if (!place) return null;
    const { size, block } = this.data.matrix;
    const name = (index) => blockName(this.data, block, index);
    const bytes = this.cells[place.from * size + place.to];
    return [`${name(place.from)} → ${name(place.to)}`, [["sent", bytes > 0 ? format.bytes(bytes) : "nothing"]]];
  }
}
