"use strict";

// Numbers for people. Three significant digits, unless a caller wants to tell close values apart.

function digits(value, significant) {
  if (value === 0) return "0";
  const whole = Math.floor(Math.log10(Math.abs(value))) + 1;
  return value.toFixed(Math.max(0, Math.min(9, significant - whole)));
}

function withUnit(value, units, base, significant) {
  // 999.6 of a unit would be written as 1000: that is 1 of the next one.
  const rounds = 1 - 0.5 / 10 ** significant;
  let index = 0;
  while (index + 1 < units.length && Math.abs(value) >= base * rounds) {
    value /= base;
    ++index;
  }
  return `${digits(value, significant)} ${units[index]}`;
}

const format = {
  time(ns, significant = 3) {
    if (Math.abs(ns) < 1000) return `${Math.round(ns)} ns`;
    if (Math.abs(ns) < 60e9) return withUnit(ns / 1000, ["µs", "ms", "s"], 1000, significant);
    return withUnit(ns / 60e9, ["min", "h"], 60, significant);
  },
  bytes(bytes) {
    return withUnit(bytes, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024, 3);
  },
  flops(flops) {
    return withUnit(flops, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"], 1000, 3);
  },
  rate(perSecond) {
    return `${format.flops(perSecond)}/s`;
  },
  percent(share) {
    if (share > 0 && share < 0.001) return "<0.1 %";
    return `${(100 * share).toFixed(share < 0.9995 ? 1 : 0)} %`;
  },
  count(value) {
    return value.toLocaleString("en-US");
  },
};

// Round numbers that divide [0, max] into at most `most` parts.
function ticks(max, most, steps = [1, 2, 5, 10], base = 10) {
  if (!(max > 0)) return [0];
  const raw = max / most;
  const power = base ** Math.floor(Math.log(raw) / Math.log(base));
  const step = power * steps.find((each) => each * power >= raw * (1 - 1e-9));
  const result = [];
  for (let i = 0; i * step <= max * (1 + 1e-9); ++i) result.push(i * step);
  return result;
}

function byteTicks(max, most) {
  return ticks(max, most, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024], 1024);
}
