// The rows of the timeline: one per node, and below an open node one per stream of its ranks.

const NODE_HEIGHT = 34;
const TRACK_HEIGHT = 17;
const TRACK_GAP = 2;
const RANK_GAP = 7;
const MOST_RANKS_OPEN = 32;

class TimelineRows {
  constructor(data) {
    this.data = data;
    this.block = TimelineRows.blockOf(data);
    this.nodes = [];
    const size = Math.ceil(data.worldSize / this.block);
    for (let index = 0; index < size; ++index) {
      this.nodes.push({ index, name: blockName(data, this.block, index), open: false, tracks: [] });
    }
    for (const track of data.tracks) this.nodes[Math.floor(track.rank / this.block)].tracks.push(track);
    const folded = data.executedRanks < data.worldSize;
    for (const node of this.nodes) {
      node.ranks = Math.min(this.block, data.worldSize - node.index * this.block);
      node.executed = folded ? new Set(node.tracks.map((track) => track.rank)).size : node.ranks;
    }
    // A folded cluster's nodes without an executed rank would be empty rows.
    this.shown = this.nodes.filter((node) => node.executed > 0);
    this.openAll(data.executedRanks <= MOST_RANKS_OPEN);
  }

  // A row shows a node; several nodes if each has a single rank, a part of a node if it is large.
  static blockOf(data) {
    if (data.ranksPerNode > 16) return 16;
    if (data.ranksPerNode === 1) return data.worldSize > MOST_RANKS_OPEN ? 8 : data.worldSize;
    return data.ranksPerNode;
  }

  openAll(open) {
    for (const node of this.nodes) node.open = open;
    this.layOut();
  }

  toggle(node) {
    node.open = !node.open;
    this.layOut();
  }

  layOut() {
    this.rows = [];
    this.places = new Map();  // by track: its row
    let y = 0;
    for (const node of this.shown) {
      this.rows.push({ node, y, height: NODE_HEIGHT });
      node.y = y;
      y += NODE_HEIGHT;
      if (!node.open) continue;
      y += RANK_GAP;
      let rank = -1;
      for (const track of node.tracks) {
        const first = track.rank !== rank;
        if (first && rank >= 0) y += RANK_GAP;
        rank = track.rank;
        const row = { node, track, first, y, height: TRACK_HEIGHT };
        this.rows.push(row);
        this.places.set(track, row);
        y += TRACK_HEIGHT + TRACK_GAP;
      }
      y += RANK_GAP;
    }
    this.height = y + 4;
  }

  // Where a track is drawn: its own row, or its node's.
  rowOf(track) {
    return this.places.get(track) ?? this.rows.find((row) =>
      !row.track && row.node.index === Math.floor(track.rank / this.block));
  }

  at(y) {
    return this.rows.find((row) => y >= row.y && y < row.y + row.height);
  }

  // The rows between two heights.
  between(top, bottom) {
    return this.rows.filter((row) => row.y + row.height >= top && row.y <= bottom);
  }
}
