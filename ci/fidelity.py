#!/usr/bin/env python3
"""Compares simulated steps with measured ones: fidelity.py LAUNCHER ROWS.csv

ROWS.csv has a line a run, behind a line of names:

  name              of the run, for the table
  cluster           as in --simulate: 4x8:h100
  options           of accelerate launch, as a shell reads them: --simulate_numerics shapes --mixed_precision bf16
  program           and its arguments, as a shell reads them
  step_seconds      measured; empty: not known
  memory_bytes      measured, the peak of a device's tensors, as torch.cuda.max_memory_allocated tells; empty: not known
  kind              published, measured (by somebody who has the program and the cluster) or assumed
  source            where the figures are from

Each row is simulated as its cluster says, and with perfect kernels (efficiency=ideal). A run that does not fit predicts
nothing, and is counted. The third prediction is that of one
constant: the floating-point operations of the step at one share of the devices' bfloat16 peak, the share that fits these
rows best. Errors are relative to what was measured.
"""

import csv
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

NAMES = ["name", "cluster", "options", "program", "step_seconds", "memory_bytes", "kind", "source"]
KINDS = ("published", "measured", "assumed")


def fail(message):
    sys.exit(f"fidelity: {message}")


def number(row, name, where):
    text = row[name].strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        fail(f"{where}: {name} is \"{text}\", not a positive number")
    return value


def read_rows(path):
    try:
        with open(path, newline="", encoding="utf-8") as file:
            lines = csv.DictReader(file)
            if lines.fieldnames != NAMES:
                fail(f"{path}: the first line must be {','.join(NAMES)}")
            rows = list(lines)
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    for i, row in enumerate(rows):
        where = f"{path}, row {i + 1}"
        if None in row or None in row.values():
            fail(f"{where}: it has not {len(NAMES)} fields")
        if row["kind"] not in KINDS:
            fail(f"{where}: kind is \"{row['kind']}\", not one of {', '.join(KINDS)}")
        row["step"] = number(row, "step_seconds", where)
        row["memory"] = number(row, "memory_bytes", where)
        if not re.match(r"[^:]+:[^:]+$", row["cluster"]):
            fail(f"{where}: \"{row['cluster']}\" names no device, as in 4x8:h100")
        if row["step"] is None and row["memory"] is None:
            fail(f"{where}: it has neither step_seconds nor memory_bytes")
    if not rows:
        fail(f"{path}: no rows")
    return rows


def simulate(launcher, row, cluster):
    """The line of the table that the launcher writes: names to texts."""
    with tempfile.TemporaryDirectory() as folder:
        table = os.path.join(folder, "sweep.csv")
        command = [launcher, "simulate", "--sweep", cluster, "--csv", table]
        command += shlex.split(row["options"]) + shlex.split(row["program"])
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if run.returncode != 0 or not os.path.exists(table):
            fail(f"{row['name']}: {shlex.join(command)} failed with {run.returncode}:\n{run.stdout}")
        with open(table, newline="", encoding="utf-8") as file:
            line = next(csv.DictReader(file))
    if line["fits"] != "yes":
        print(run.stdout, end="")
    return line


def value(line, name):
    return float(line[name]) if line[name] and line["fits"] == "yes" else None


def ideal(cluster):
    """The cluster with perfect kernels: a key may stand in it once only."""
    return re.sub(r",efficiency=[^,]*", "", cluster) + ",efficiency=ideal"


def error(predicted, measured):
    return None if predicted is None or measured is None else predicted / measured - 1


def percent(share):
    return "-" if share is None else f"{100 * share:+.1f} %"


def ranks_of(values):
    """1 for the smallest; equal values have the mean of their places."""
    ordered = sorted(values)
    return [ordered.index(each) + (ordered.count(each) + 1) / 2 for each in values]


def rank_correlation(pairs):
    """Spearman's, or None if it is not defined."""
    if len(pairs) < 2:
        return None
    first, second = (ranks_of(each) for each in zip(*pairs))
    if len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return statistics.correlation(first, second)


def sizes(errors):
    return [abs(each) for each in errors if each is not None]


def summary(errors):
    errors = sizes(errors)
    if not errors:
        return "nothing to compare"
    return f"mean {100 * statistics.mean(errors):.1f} %, worst {100 * max(errors):.1f} %"


def constant_predictions(rows):
    """Of the share for which the mean error is least: that is a corner of a sum of absolute values."""
    known = [(row["peak_seconds"], row["step"]) for row in rows if row["step"] and row["peak_seconds"]]
    if not known:
        return [None] * len(rows), None
    shares = [at_peak / step for at_peak, step in known]
    best = min(shares, key=lambda share: sum(abs(at_peak / share / step - 1) for at_peak, step in known))
    return [row["peak_seconds"] / best if row["peak_seconds"] else None for row in rows], best


def table(lines):
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        cells = [line[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
        print("  ".join(cells).rstrip())


def main():
    if len(sys.argv) != 3:
        fail("usage: fidelity.py LAUNCHER ROWS.csv")
    launcher, path = sys.argv[1:]
    rows = read_rows(path)
    for row in rows:
        line = simulate(launcher, row, row["cluster"])
        row["time"] = value(line, "step_seconds")
        row["peak_seconds"] = row["time"] * value(line, "hfu") if row["time"] and line["hfu"] else None
        row["bytes"] = value(line, "peak_tensor_bytes")
        row["fits"] = line["fits"]
        row["ideal"] = value(simulate(launcher, row, ideal(row["cluster"])), "step_seconds")
    constants, share = constant_predictions(rows)
    for row, constant in zip(rows, constants):
        row["constant"] = constant
    errors = {name: [error(row[name], row["step"]) for row in rows] for name in ("time", "ideal", "constant")}
    errors["memory"] = [error(row["bytes"], row["memory"]) for row in rows]

    seconds = lambda each: "-" if each is None else f"{each:.4g} s"
    gigabytes = lambda each: "-" if each is None else f"{each / 2**30:.2f} GiB"
    lines = [["row", "kind", "measured", "predicted", "error", "ideal", "error", "constant", "error", "memory",
              "predicted", "error", "fits"]]
    for i, row in enumerate(rows):
        lines.append([row["name"], row["kind"], seconds(row["step"]), seconds(row["time"]), percent(errors["time"][i]),
                      seconds(row["ideal"]), percent(errors["ideal"][i]), seconds(row["constant"]),
                      percent(errors["constant"][i]), gigabytes(row["memory"]), gigabytes(row["bytes"]),
                      percent(errors["memory"][i]), row["fits"]])
    table(lines)
    print()
    for row in rows:
        print(f"{row['name']}: {row['kind']}, {row['source']}")
    print()
    lines = [["prediction of the time", "mean", "median", "worst", "rank correlation"]]
    titles = (("time", "simulated"), ("ideal", "perfect kernels"),
              ("constant", "one constant" if share is None else f"one constant, {100 * share:.1f} % of the peak"))
    for name, title in titles:
        known = sizes(errors[name])
        correlation = rank_correlation([(row[name], row["step"]) for row in rows if row[name] and row["step"]])
        lines.append([title] + ([f"{100 * each:.1f} %" for each in
                                 (statistics.mean(known), statistics.median(known), max(known))] if known else ["-"] * 3)
                     + ["-" if correlation is None else f"{correlation:.3f}"])
    table(lines)
    counts = ", ".join(f"{sum(row['kind'] == kind for row in rows)} {kind}" for kind in KINDS)
    print(f"\n{counts}; {sum(row['fits'] != 'yes' for row in rows)} do not fit")
    constant = sizes(errors["constant"])
    constant = f"{100 * statistics.mean(constant):.1f} %" if constant else "nothing to compare"
    print(f"{len(rows)} rows: time {summary(errors['time'])}; memory {summary(errors['memory'])}; "
          f"constant model {constant}")


main()
