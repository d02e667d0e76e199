// Reads the data of the page, which html.cc writes.

const CROWD = 8;
const NAME_FACTOR = 16;
const COUNT_FACTOR = 1024;
const DISK_STREAM = 1 << 20;

// The first of so many places in order that a condition does not hold for.
function firstBehind(length, isBefore) {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isBefore(middle)) low = middle + 1;
    else high = middle;
  }
  return low;
}

class Track {
  // `device` is the name of the device, empty if the rank has one only.
  constructor([rank, , stream, numbers], device) {
    const n = numbers.length / 4;
    this.rank = rank;
    this.device = device;
    this.stream = stream;
    this.length = n;
    this.start = new Float64Array(n);
    this.end = new Float64Array(n);
    this.kind = new Uint8Array(n);
    this.name = new Uint32Array(n);
    this.operation = new Int32Array(n).fill(-1);
    this.count = new Float64Array(n).fill(1);
    this.busy = new Float32Array(n).fill(1);
    this.longest = 0;
    let start = 0;
    for (let i = 0; i < n; ++i) {
      const duration = numbers[4 * i + 1];
      const what = numbers[4 * i + 2];
      const detail = numbers[4 * i + 3];
      start += numbers[4 * i];
      this.start[i] = start;
      this.end[i] = start + duration;
      this.kind[i] = what % CROWD;
      this.name[i] = Math.floor(what / NAME_FACTOR);
      if (what & CROWD) {
        this.count[i] = Math.floor(detail / COUNT_FACTOR);
        this.busy[i] = (detail % COUNT_FACTOR) / 1000;
      } else {
        this.operation[i] = detail - 1;
      }
      this.longest = Math.max(this.longest, duration);
    }
  }

  // The first slice that may reach beyond a time.
  firstFrom(time) {
    return firstBehind(this.length, (i) => this.start[i] < time - this.longest);
  }

  get label() {
    if (this.stream < 0) return "host";
    if (this.stream === DISK_STREAM) return "disk reads";
    if (this.stream === DISK_STREAM + 1) return "disk writes";
    if (this.stream === DISK_STREAM + 2) return "host waits";
    return this.device ? `${this.device} stream ${this.stream}` : `stream ${this.stream}`;
  }
}

class MemoryCurve {
  constructor([rank, , numbers], device, categories) {
    const width = categories + 1;
    const n = numbers.length / width;
    this.rank = rank;
    this.name = device ? `${rank}, ${device}` : `${rank}`;
    this.length = n;
    this.time = new Float64Array(n);
    this.bytes = Array.from({ length: categories }, () => new Float64Array(n));
    this.total = new Float64Array(n);
    this.peak = 0;  // the sample where the total is highest
    for (let i = 0; i < n; ++i) {
      this.time[i] = (i > 0 ? this.time[i - 1] : 0) + numbers[i * width];
      for (let c = 0; c < categories; ++c) {
        this.bytes[c][i] = (i > 0 ? this.bytes[c][i - 1] : 0) + numbers[i * width + 1 + c];
        this.total[i] += this.bytes[c][i];
      }
      if (this.total[i] > this.total[this.peak]) this.peak = i;
    }
  }

  // The sample that holds at a time; -1 before the first.
  at(time) {
    return firstBehind(this.length, (i) => this.time[i] <= time) - 1;
  }
}

const kindOf = (value) => (Array.isArray(value) ? "list" : value === null ? "null" : typeof value);

// A page has all fields always; these are null where a run has none.
const FIELDS_THAT_MAY_BE_NULL = new Set(["failure", "steps", "path", "matrix"]);

// An object with these fields for each row; `texts` has those whose values are numbers of texts.
function objectsOf(rows, fields, texts = {}) {
  const names = fields.split(" ");
  return rows.map((row) => Object.fromEntries(names.map((name, i) => [name, texts[name] ? texts[name][row[i]] : row[i]])));
}

class PageData {
  constructor(raw) {
    Object.assign(this, raw);
    this.fieldKinds = Object.entries(raw).map(([name, value]) => [name, kindOf(value)]);
    this.elapsed = Math.max(1, raw.elapsed);
    const { names } = raw;
    this.ranks = objectsOf(raw.ranks, "end compute communication exposed peak flops driverPeak retries");
    this.operators = objectsOf(raw.operators, "name calls total flops bytes", { name: names });
    this.collectives = objectsOf(raw.collectives, "name algorithm ranks calls bytes total busBytes shared", { name: names, algorithm: names });
    this.links = objectsOf(raw.links, "name links rate bytes use stepUse worstUse worst busy stepBytes");
    this.modules = raw.modules.map(([path, pattern, ...bytes]) => ({
      path, pattern, bytes, total: bytes.reduce((sum, each) => sum + each, 0),
    }));
    this.operations = objectsOf(raw.operations, "name group algorithm bytes ranks firstRank lastRank spread",
      { name: names, group: names, algorithm: names });
    if (raw.path) {
      const shares = objectsOf(raw.path.shares, "label part time segments");
      this.path = { ...raw.path, shares, longest: objectsOf(raw.path.longest, "part name rank start time") };
    }
    const deviceOf = ([rank, device]) =>
      (raw.devicesPerRank > 1 ? `sim:${(rank % raw.ranksPerNode) * raw.devicesPerRank + device}` : "");
    this.tracks = raw.tracks.map((track) => new Track(track, deviceOf(track)));
    this.memory = raw.memory.map((curve) => new MemoryCurve(curve, deviceOf(curve), raw.categories.length));
    if (raw.matrix) this.matrix.views = objectsOf(raw.matrix.views, "name cells");
    this.shownSlices = this.tracks.reduce((sum, track) => sum + track.length, 0);
  }

  // The slices of an operation, as {track, index}, in the order of start.
  members(operation) {
    if (!this.membersOf) {
      this.membersOf = this.operations.map(() => []);
      for (const track of this.tracks) {
        for (let index = 0; index < track.length; ++index) {
          const each = track.operation[index];
          if (each >= 0) this.membersOf[each].push({ track, index });
        }
      }
      for (const members of this.membersOf) {
        members.sort((a, b) => a.track.start[a.index] - b.track.start[b.index]);
      }
    }
    return this.membersOf[operation];
  }

  // The name of a field that another page's data lacks, or has as something else.
  fieldMissingIn(raw) {
    if (kindOf(raw) !== "object") return "run";
    return this.fieldKinds.map(([name]) => name).find((name, i) => {
      const kind = kindOf(raw[name]);
      return FIELDS_THAT_MAY_BE_NULL.has(name) ? kind !== "null" && kind !== "object" : kind !== this.fieldKinds[i][1];
    });
  }

  // When a step begins and ends.
  stepSpan(step) {
    return { from: step > 0 ? this.stepEnds[step - 1] : 0, to: this.stepEnds[step] };
  }

  sum(field) {
    return this.ranks.reduce((sum, rank) => sum + rank[field], 0);
  }
}
