// The timeline: tracks of slices over virtual time. Only what is in view is drawn.

const LABEL_WIDTH = 156;
const AXIS_HEIGHT = 30;
const MOST_HEIGHT = 780;
const KIND_HOST = 4;  // This and the later kinds neither compute nor communicate.
const KIND_MESSAGE = 3;
const KIND_WAIT = 5;

class Timeline {
  // `bounds` is what can be seen, {from, to}; times count from its beginning. What follows `end` is faded.
  constructor(data, viewport, bounds = { from: 0, to: data.elapsed }, mostHeight = MOST_HEIGHT) {
    this.data = data;
    this.viewport = viewport;
    this.bounds = bounds;
    this.mostHeight = mostHeight;
    this.canvas = viewport.querySelector("canvas");
    this.rows = new TimelineRows(data);
    this.from = bounds.from;
    this.to = bounds.to;
    this.hovered = null;  // {track, index}
    this.draw = onceAFrame(() => this.drawNow());
    this.resize();
    timelineInput(this);
  }

  // ---- Geometry.

  get plotWidth() {
    return Math.max(1, this.width - LABEL_WIDTH);
  }

  x(time) {
    return LABEL_WIDTH + ((time - this.from) / (this.to - this.from)) * this.plotWidth;
  }

  time(x) {
    return this.from + ((x - LABEL_WIDTH) / this.plotWidth) * (this.to - this.from);
  }

  resize() {
    const content = this.rows.height + AXIS_HEIGHT;
    this.height = Math.min(content, this.mostHeight);
    this.viewport.style.height = `${this.height + 2}px`;
    this.viewport.querySelector(".spacer").style.height = `${content}px`;
    this.width = this.viewport.clientWidth;
    this.draw();
  }

  view(from, to) {
    const { bounds } = this;
    const whole = bounds.to - bounds.from;
    const span = Math.min(Math.max(to - from, Math.min(whole, 50)), whole);
    const middle = (from + to) / 2;
    this.show(Math.min(Math.max(bounds.from, middle - span / 2), bounds.to - span), span);
    const { companion } = this;
    if (companion) companion.show(companion.bounds.from + this.from - bounds.from, span);
  }

  show(from, span) {
    this.from = from;
    this.to = from + span;
    this.draw();
  }

  fit() {
    this.view(this.bounds.from, this.bounds.to);
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    const span = (this.to - this.from) * factor;
    const part = (around - this.from) / (this.to - this.from);
    const from = Math.max(this.bounds.from, around - part * span);
    this.view(from, from + span);
  }

  pan(part) {
    const by = part * (this.to - this.from);
    this.view(this.from + by, this.to + by);
  }

  openAll(open) {
    this.rows.openAll(open);
    this.resize();
  }

  showRank(rank) {
    const track = this.data.tracks.find((each) => each.rank === rank);
    if (!track) return;
    const node = this.rows.nodes[Math.floor(rank / this.rows.block)];
    if (!node.open) this.rows.toggle(node);
    this.resize();
    this.viewport.scrollTop = this.rows.rowOf(track).y - NODE_HEIGHT;
    this.draw();
  }

  // ---- Finding.

  // {row, track, index} under a point of the canvas; missing parts are left out.
  at(x, y) {
    if (y < AXIS_HEIGHT) return {};
    const row = this.rows.at(y - AXIS_HEIGHT + this.viewport.scrollTop);
    if (!row || !row.track || x < LABEL_WIDTH) return { row };
    const { track } = row;
    const slack = (2 * (this.to - this.from)) / this.plotWidth;  // two pixels
    const time = this.time(x);
    let best = -1;
    let distance = slack;
    for (let i = track.firstFrom(time - slack); i < track.length && track.start[i] <= time + slack; ++i) {
      const away = Math.max(track.start[i] - time, time - track.end[i], 0);
      if (away < distance || (away === 0 && distance === 0)) {
        best = i;
        distance = away;
      }
    }
    return best < 0 ? { row } : { row, track, index: best };
  }

  // The share of a node's ranks that compute and that communicate, per column.
  density(node, columns) {
    const compute = new Float32Array(columns);
    const communicate = new Float32Array(columns);
    const perColumn = (this.to - this.from) / columns;
    for (const track of node.tracks) {
      for (let i = track.firstFrom(this.from); i < track.length && track.start[i] < this.to; ++i) {
        if (track.kind[i] >= KIND_HOST) continue;
        const bins = track.kind[i] < 2 ? compute : communicate;
        const start = (Math.max(track.start[i], this.from) - this.from) / perColumn;
        const end = (Math.min(track.end[i], this.to) - this.from) / perColumn;
        for (let column = Math.floor(start); column < end && column < columns; ++column) {
          bins[column] += (Math.min(end, column + 1) - Math.max(start, column)) * track.busy[i];
        }
      }
    }
    const share = (busy) => Math.min(1, busy / node.executed);
    return { compute: compute.map(share), communicate: communicate.map(share) };
  }

  // ---- Drawing.

  drawNow() {
    const context = prepare(this.canvas, this.width, this.height);
    const top = this.viewport.scrollTop;
    this.context = context;
    fillBox(context, "surface", 0, 0, this.width, this.height);
    context.save();
    context.beginPath();
    context.rect(0, AXIS_HEIGHT, this.width, this.height - AXIS_HEIGHT);
    context.clip();
    context.translate(0, AXIS_HEIGHT - top);
    const visible = this.rows.between(top, top + this.height);
    for (const row of visible) {
      if (row.track) this.drawTrack(row);
      else this.drawNode(row);
    }
    this.drawEnd(top);
    this.drawStepLines(top, top + this.height);
    this.drawOperation();
    for (const row of visible) this.drawLabel(row);
    context.restore();
    this.drawAxis();
  }

  drawNode(row) {
    const { context } = this;
    fillBox(context, "surface-2", 0, row.y, this.width, row.height);
    const columns = Math.max(1, Math.floor(this.plotWidth / 2));
    const width = this.plotWidth / columns;
    const { compute, communicate } = this.density(row.node, columns);
    const middle = row.y + row.height / 2;
    const half = row.height / 2 - 2;
    const area = (values, direction, colour) => {
      context.fillStyle = theme.colour(colour);
      context.beginPath();
      context.moveTo(LABEL_WIDTH, middle);
      values.forEach((value, i) => {
        context.lineTo(LABEL_WIDTH + i * width, middle + direction * half * value);
        context.lineTo(LABEL_WIDTH + (i + 1) * width, middle + direction * half * value);
      });
      context.lineTo(this.width, middle);
      context.fill();
    };
    area(compute, -1, "kernel");
    area(communicate, 1, "collective");
    fillBox(context, "line", 0, row.y + row.height - 1, this.width, 1);
    context.fillRect(LABEL_WIDTH, middle - 0.5, this.plotWidth, 1);
  }

  drawTrack(row) {
    const { context } = this;
    const { track } = row;
    const kinds = this.data.kinds;
    const scale = this.plotWidth / (this.to - this.from);
    // Slices narrower than a pixel are added up, so that a crowd looks as busy as it is.
    const cover = new Float32Array(Math.ceil(this.plotWidth) + 1);
    const coverKind = new Uint8Array(cover.length);
    context.font = SMALL_FONT;
    for (let i = track.firstFrom(this.from); i < track.length && track.start[i] < this.to; ++i) {
      if (track.end[i] < this.from) continue;
      const left = (Math.max(track.start[i], this.from) - this.from) * scale;
      const right = (Math.min(track.end[i], this.to) - this.from) * scale;
      if (right - left < 1) {
        const column = Math.floor(left);
        cover[column] += Math.max(right - left, 0.08) * track.busy[i];
        coverKind[column] = track.kind[i];
        continue;
      }
      this.drawSlice(row, i, LABEL_WIDTH + left, right - left);
    }
    for (let column = 0; column < cover.length; ++column) {
      if (cover[column] === 0) continue;
      context.globalAlpha = Math.min(1, 0.15 + 0.85 * cover[column]);
      fillBox(context, kinds[coverKind[column]], LABEL_WIDTH + column, row.y, 1, row.height);
    }
    context.globalAlpha = 1;
  }

  drawSlice(row, index, x, width) {
    const { context } = this;
    const { track } = row;
    const gap = width > 6 ? 1 : 0;  // between neighbours
    context.globalAlpha = track.count[index] > 1 ? 0.3 + 0.6 * track.busy[index] : this.shade(track, index);
    fillBox(context, this.data.kinds[track.kind[index]], x, row.y, width - gap, row.height);
    context.globalAlpha = 1;
    if (width < 34) return;
    const text = fitted(context, this.sliceName(track, index), width - 8);
    if (!text) return;
    context.fillStyle = track.count[index] > 1 && track.busy[index] < 0.6 ? theme.colour("text") : theme.colour("on-fill");
    context.fillText(text, x + 4, row.y + row.height / 2 + 0.5);
  }

  // Different operators get slightly different shades.
  shade(track, index) {
    return track.kind[index] === 0 ? 1 - 0.09 * ((track.name[index] * 7) % 4) : 1;
  }

  sliceName(track, index) {
    const name = this.data.names[track.name[index]];
    return track.count[index] > 1 ? `${format.count(track.count[index])} slices, most ${name}` : name;
  }

  drawLabel(row) {
    const { context } = this;
    context.textAlign = "left";
    if (!row.track) {
      fillBox(context, "surface-2", 0, row.y, LABEL_WIDTH, row.height - 1);
      context.fillStyle = theme.colour("text");
      context.font = FONT;
      const middle = row.y + row.height / 2;
      this.drawCaret(14, middle, row.node.open);
      context.font = `600 ${FONT}`;
      context.fillText(row.node.name, 24, middle - (row.node.ranks > 1 ? 6 : 0));
      context.font = SMALL_FONT;
      context.fillStyle = theme.colour("text-2");
      if (row.node.ranks > 1) context.fillText(this.ranksOf(row.node), 24, middle + 8);
    } else {
      fillBox(context, "surface", 0, row.y - RANK_GAP, LABEL_WIDTH, row.height + 2 * RANK_GAP);
      context.font = FONT;
      context.fillStyle = theme.colour("text");
      if (row.first) context.fillText(`rank ${row.track.rank}`, 12, row.y + row.height / 2);
      context.font = SMALL_FONT;
      context.fillStyle = theme.colour("text-2");
      context.textAlign = "right";
      context.fillText(row.track.label, LABEL_WIDTH - 8, row.y + row.height / 2);
    }
    fillBox(context, "line", LABEL_WIDTH - 1, row.y - RANK_GAP, 1, row.height + 2 * RANK_GAP);
  }

  ranksOf(node) {
    if (node.executed < node.ranks) return `${node.executed} of ${node.ranks} ranks`;
    if (node.name.startsWith("ranks")) return `${node.ranks} ranks`;
    const first = node.index * this.rows.block;
    return `ranks ${first}–${first + node.ranks - 1}`;
  }

  drawCaret(x, y, open) {
    const { context } = this;
    const corners = open ? [[-5, -2.5], [5, -2.5], [0, 3.5]] : [[-2.5, -5], [3.5, 0], [-2.5, 5]];
    context.beginPath();
    for (const [dx, dy] of corners) context.lineTo(x + dx, y + dy);
    context.fill();
  }

  drawEnd(top) {
    const { context, bounds } = this;
    if (!(bounds.end < this.to)) return;
    const x = Math.max(LABEL_WIDTH, this.x(bounds.end));
    context.fillStyle = theme.colour("surface");
    context.globalAlpha = 0.8;
    context.fillRect(x, top, this.width - x, this.height);
    context.globalAlpha = 1;
  }

  drawStepLines(top, bottom) {
    const { context } = this;
    context.strokeStyle = theme.colour("line-strong");
    context.setLineDash([3, 3]);
    context.beginPath();
    for (const end of this.data.stepEnds) {
      if (end <= this.from || end >= this.to) continue;
      context.moveTo(Math.round(this.x(end)) + 0.5, top);
      context.lineTo(Math.round(this.x(end)) + 0.5, bottom);
    }
    context.stroke();
    context.setLineDash([]);
  }

  drawAxis() {
    const { context } = this;
    fillBox(context, "surface", 0, 0, this.width, AXIS_HEIGHT);
    fillBox(context, "line", 0, AXIS_HEIGHT - 1, this.width, 1);
    context.fillRect(LABEL_WIDTH - 1, 0, 1, AXIS_HEIGHT);
    const span = this.to - this.from;
    const step = ticks(span, Math.max(2, Math.floor(this.plotWidth / 110)))[1] ?? span;
    const zero = this.bounds.from;
    const significant = Math.max(3, Math.ceil(Math.log10(Math.max(1, (this.to - zero) / step))) + 1);
    context.font = SMALL_FONT;
    context.textAlign = "left";
    for (let at = Math.ceil((this.from - zero) / step) * step; at <= this.to - zero; at += step) {
      const x = Math.round(this.x(zero + at)) + 0.5;
      fillBox(context, "line-strong", x, AXIS_HEIGHT - 6, 1, 6);
      context.fillStyle = theme.colour("text-2");
      const text = at === 0 ? "0" : format.time(at, significant).replace(/\.?0+ /, (zeros) =>
        zeros.startsWith(".") ? " " : zeros);
      if (x + context.measureText(text).width + 4 < this.width) context.fillText(text, x + 4, AXIS_HEIGHT / 2);
    }
    context.font = FONT;
    context.fillStyle = theme.colour("text-2");
    context.fillText(zero > 0 ? "time in the step" : "virtual time", 12, AXIS_HEIGHT / 2);
  }

  // ---- The operation under the pointer, with its members connected.

  drawOperation() {
    if (!this.hovered) return;
    const { track, index } = this.hovered;
    this.outline(track, index);
    const operation = track.operation[index];
    if (operation < 0) return;
    const members = this.data.members(operation);
    const points = members.map(({ track: each, index: i }) => {
      const row = this.rows.rowOf(each);
      return { track: each, index: i, x: this.x(each.start[i]), y: row.y + row.height / 2, row };
    });
    for (const { track: each, index: i } of members) this.outline(each, i);
    if (points.some((point) => point.track.kind[point.index] === KIND_MESSAGE)) this.drawMessage(operation, points);
    else this.drawCollective(points);
  }

  drawCollective(points) {
    // One arrow per row, at its first arrival: members of a closed node share theirs.
    const byRow = new Map();
    for (const point of points) {
      if (!byRow.has(point.row)) byRow.set(point.row, point);
    }
    const path = [...byRow.values()].sort((a, b) => a.y - b.y);
    for (let i = 1; i < path.length; ++i) this.arrow(path[i - 1], path[i], i + 1 === path.length);
    for (const point of path) this.dot(point);
  }

  drawMessage(operation, members) {
    const points = members.filter(({ track, index }) => track.kind[index] === KIND_MESSAGE);
    const sender = points.find(({ track }) => `${track.rank}` === this.data.operations[operation].ranks.split(/[-,]/)[0]);
    const receiver = points.find((point) => point !== sender);
    if (!sender || !receiver) return;
    this.arrow(sender, { ...receiver, x: this.x(receiver.track.end[receiver.index]) }, true);
    this.dot(sender);
  }

  outline(track, index) {
    const row = this.rows.rowOf(track);
    if (!row.track) return;
    const left = Math.max(this.x(track.start[index]), LABEL_WIDTH);
    const right = Math.min(this.x(track.end[index]), this.width);
    if (right < LABEL_WIDTH || left > this.width) return;
    this.context.strokeStyle = theme.colour("text");
    this.context.lineWidth = 1.5;
    this.context.strokeRect(left, row.y + 0.5, Math.max(2, right - left - 1), row.height - 1);
    this.context.lineWidth = 1;
  }

  arrow(from, to, head) {
    const { context } = this;
    const bend = Math.min(26, Math.abs(to.y - from.y) / 2 + 6);
    context.strokeStyle = theme.colour("text");
    context.fillStyle = theme.colour("text");
    context.lineWidth = 1.25;
    context.beginPath();
    context.moveTo(from.x, from.y);
    context.bezierCurveTo(from.x - bend, from.y, to.x - bend, to.y, to.x, to.y);
    context.stroke();
    context.lineWidth = 1;
    if (!head) return;
    context.beginPath();
    context.moveTo(to.x + 1, to.y);
    context.lineTo(to.x - 7, to.y - 4);
    context.lineTo(to.x - 7, to.y + 4);
    context.fill();
  }

  dot({ x, y }) {
    const { context } = this;
    context.fillStyle = theme.colour("text");
    context.beginPath();
    context.arc(x, y, 2.6, 0, 2 * Math.PI);
    context.fill();
  }
}
