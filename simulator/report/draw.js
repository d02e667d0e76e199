// Shared by all charts: colours of the theme, canvases at the screen's resolution, the tooltip.

const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif';
const SMALL_FONT = FONT.replace("12px", "11px");

// Colours of report.css have the names of what they show. Another run's file may hold any name.
function colourName(name) {
  return `--${`${name}`.replace(/[^a-z0-9]+/g, "-")}`;
}

const theme = {
  colours: new Map(),
  forget() {
    this.colours.clear();
  },
  colour(name) {
    if (!this.colours.has(name)) {
      const style = getComputedStyle(document.documentElement);
      this.colours.set(name, style.getPropertyValue(colourName(name)).trim());
    }
    return this.colours.get(name);
  },
  // Between two colours of the theme, written as #rrggbb.
  mix(from, to, part) {
    const channel = (text, i) => parseInt(text.slice(1 + 2 * i, 3 + 2 * i), 16);
    const [a, b] = [this.colour(from), this.colour(to)];
    const mixed = [0, 1, 2].map((i) => Math.round(channel(a, i) * (1 - part) + channel(b, i) * part));
    return `rgb(${mixed.join(" ")})`;
  },
};

// Makes the canvas as sharp as the screen; returns its context, scaled to CSS pixels and empty.
function prepare(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const pixels = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) {
    [canvas.width, canvas.height] = pixels;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = FONT;
  context.textBaseline = "middle";
  return context;
}

function fillBox(context, colour, x, y, width, height) {
  context.fillStyle = theme.colour(colour);
  context.fillRect(x, y, width, height);
}

// The text, shortened to fit; "" if not even a few letters do.
function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const letters = Math.floor((width / context.measureText(text).width) * text.length) - 1;
  return letters < 3 ? "" : `${text.slice(0, letters)}…`;
}

function element(tag, properties = {}, children = []) {
  const { dataset, ...others } = properties;
  const made = Object.assign(document.createElement(tag), others);
  Object.assign(made.dataset, dataset);
  made.append(...children);
  return made;
}

function swatch(colour, pale = false) {
  const made = element("span", { className: pale ? "swatch pale" : "swatch" });
  made.style.background = `var(${colourName(colour)})`;
  return made;
}

function legend(list, entries) {
  list.replaceChildren(...entries.map(([colour, text, pale]) =>
    element("li", {}, [swatch(colour, pale), text])));
}

const tooltip = {
  // rows: [name, value] or [name, value, colour of a swatch].
  show(event, title, rows) {
    const box = document.getElementById("tooltip");
    const list = element("dl");
    for (const [name, value, colour] of rows) {
      const term = element("dt", {}, colour ? [swatch(colour), name] : [name]);
      list.append(term, element("dd", {}, [value]));
    }
    box.replaceChildren(element("b", {}, [title]), list);
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const gap = 14;
    const fitsRight = event.clientX + gap + width < window.innerWidth;
    const fitsBelow = event.clientY + gap + height < window.innerHeight;
    const left = fitsRight ? event.clientX + gap : Math.max(4, event.clientX - gap - width);
    const top = fitsBelow ? event.clientY + gap : Math.max(4, event.clientY - gap - height);
    box.style.transform = `translate(${left}px, ${top}px)`;
  },
  hide() {
    document.getElementById("tooltip").hidden = true;
  },
};

// Draws at most once a frame.
function onceAFrame(draw) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  };
}

// The name with the rank's place in the program's mesh, as in "rank 5 (dp 1, tp 1)".
function withPlace(data, rank, name) {
  return data.places[rank] ? `${name} (${data.places[rank]})` : name;
}

function rankName(data, rank) {
  return withPlace(data, rank, `rank ${rank}`);
}

// "rank 3", "node 2" or "ranks 8–15", for a block of neighbouring ranks.
function blockName(data, block, index) {
  if (block === 1) return rankName(data, index);
  if (block === data.ranksPerNode) return `node ${index}`;
  const last = Math.min(data.worldSize, (index + 1) * block) - 1;
  return `ranks ${index * block}–${last}`;
}
