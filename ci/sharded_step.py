#!/usr/bin/env python3
"""What ci/sharded_step.sh measures: medians of several turns, and a profile of a sharded step by part. And what
ci/tensor_step.sh measures, in the same way.

    sharded_step.py compare TURNS OURS... -- [THEIRS...]
    sharded_step.py beside NAME TURNS OURS... -- [THEIRS...]
    sharded_step.py profile FOLDER PROGRAM...

compare runs the two commands in turn, TURNS times each, and reads the tables that they print. Its last line is

  sharded step: ours 598.0 ms, 1.32 of replicas; fully_shard 560.0 ms, 1.25 of DDP; ours 1.07 of fully_shard

beside has one time for each row, and its last line is

  NAME: ours 70.1 ms, PyTorch 150.2 ms; ours 0.47 of PyTorch

profile counts the instructions of a step under `valgrind --tool=callgrind`, by part (PARTS), with its outputs in FOLDER.
The first argument of PROGRAM is the number of rounds, in which two runs differ. Instructions repeat, whatever else the machine does;
what a rank waits, and how long its copies take, are in the table of compare.
"""
import glob
import os
import re
import shutil
import statistics
import subprocess
import sys

ROWS = ("step", "forward and backward pass", "waits in them")

# The parts of a step: functions that are counted with all that they call, and what of it is a part of its own.
GATHERS = ["gather: copies of rows", "gather: call of the collective", "gather: begin, all else", "gather: end"]
REDUCTIONS = ["reduction: copies into flat buffers", "reduction: call of the collective", "reduction: shards' gradients",
              "reduction: all else"]
PARTS = [
    (GATHERS[0], ["internal::RowsToGather::begin"], []),
    (GATHERS[1], ["CallBackend::allgather_into_tensor_coalesced"], []),
    (GATHERS[2], ["internal::GatheredGroup::start"], GATHERS[:2]),
    (GATHERS[3], ["internal::GatheredGroup::end"], []),
    ("order of groups, releases", ["Residency::use"], GATHERS),
    (REDUCTIONS[0], ["ShardedGradients::extract_gradient"], []),
    (REDUCTIONS[1], ["CallBackend::reduce_scatter_tensor_coalesced"], []),
    (REDUCTIONS[2], ["ShardedGradients::advance_reductions"], []),
    (REDUCTIONS[3], ["ShardedGradients::reduce"], REDUCTIONS[:3]),
    ("hooks of gradients", ["ShardedGradients::gradient_is_ready", "ShardedGradients::make_place"], REDUCTIONS),
]
WHOLE = ["(anonymous namespace)::measure"]


def is_called(function, name):
    return function.startswith(f"accelerate::{name}(")


def fail(message):
    sys.exit(f"sharded step: {message}")


def rows_of(command):
    """The table that the command prints: times by row, replicas before shards, in ms."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    rows = {}
    for line in done.stdout.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[0] in ROWS:
            rows[cells[0]] = [float(cell) for cell in cells[1:3] if re.fullmatch(r"-?[0-9.]+", cell)]
    if any(row not in rows for row in ROWS[:2]):
        fail(f"{' '.join(command)} prints no table:\n{done.stdout}{done.stderr}")
    return rows, next((line for line in done.stdout.splitlines() if line.startswith("parameters: ")), "")


def measured_in_turn(turns, commands):
    """The titles of the commands, their tables by turn, and the size of the model."""
    titles = ["ours", "PyTorch"][:len(commands)]
    measured = [[] for _ in commands]
    sizes = set()
    for turn in range(turns):
        for title, command, results in zip(titles, commands, measured):
            rows, sizes_line = rows_of(command)
            sizes.add(sizes_line.split(";")[0])
            results.append(rows)
            print(f"turn {turn + 1}: {title}: " +
                  "; ".join(f"{row} {', '.join(f'{each:.0f}' for each in rows[row])}" for row in rows), flush=True)
    if len(sizes) != 1:
        fail(f"the models differ: {' and '.join(sorted(sizes))}")
    return titles, measured, sizes.pop()


def beside(name, turns, commands):
    titles, measured, size = measured_in_turn(turns, commands)
    print(f"\n| {size} | {', ms | '.join(titles)}, ms | ratio, its range over turns |\n| --- | {'---: | ' * len(titles)}--- |")
    for row in ROWS[:2]:
        times = [[rows[row][0] for rows in results] for results in measured]
        # Ratios of neighbouring turns, so that a machine that slows down counts for both.
        ratios = [ours / theirs for ours, theirs in zip(*times)] if len(times) > 1 else []
        text = f"{statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}" if ratios else "-"
        medians = [statistics.median(each) for each in times]
        print(f"| {row} | {' | '.join(f'{each:.1f}' for each in medians)} | {text} |")
        if row == "step":
            line = f"{name}: " + ", ".join(f"{title} {each:.1f} ms" for title, each in zip(titles, medians))
            line += f"; ours {statistics.median(ratios):.2f} of PyTorch" if ratios else ""
    print(f"\n{line}")


def compare(turns, commands):
    titles, measured, size = measured_in_turn(turns, commands)
    print(f"\n| {size} | replicas, ms | shards, ms | ratio, its range over turns |\n| --- | ---: | ---: | --- |")
    steps = []
    for title, results in zip(titles, measured):
        for row in ROWS:
            pairs = [rows[row] for rows in results if len(rows.get(row, [])) == 2]
            if not pairs:
                continue
            replicas, shards = (statistics.median(each) for each in zip(*pairs))
            ratios = [pair[1] / pair[0] for pair in pairs if pair[0] > 0]
            text = f"{statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}" if ratios else "-"
            print(f"| {title}: {row} | {replicas:.1f} | {shards:.1f} | {text} |")
            if row == "step":
                steps.append((shards, statistics.median(ratios)))
    line = f"sharded step: ours {steps[0][0]:.1f} ms, {steps[0][1]:.2f} of replicas"
    if len(steps) > 1:
        # Ratios of neighbouring turns, so that a machine that slows down counts for both.
        both = [ours["step"][1] / theirs["step"][1] for ours, theirs in zip(*measured)]
        line += (f"; fully_shard {steps[1][0]:.1f} ms, {steps[1][1]:.2f} of DDP; "
                 f"ours {statistics.median(both):.2f} of fully_shard")
    print(f"\n{line}")


def inclusive(path):
    """The instructions of each function with all that it calls, from an output of callgrind."""
    done = subprocess.run(["callgrind_annotate", "--inclusive=yes", "--threshold=100", "--auto=no", path],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"callgrind_annotate ended with {done.returncode}: {done.stderr}")
    counts = {}
    for line in done.stdout.splitlines():
        found = re.match(r"\s*([0-9,]+)\s*(?:\([^)]*%\))?\s+[^:]*:(.*)", line)
        if found:
            name = re.sub(r"\s*\[[^\]]*\]$", "", found.group(2))
            counts[name] = max(counts.get(name, 0), int(found.group(1).replace(",", "")))
    return counts


def counted(folder, name, command):
    """The counts of the command's ranks, by function: a rank's process is one that runs steps."""
    pattern = os.path.join(folder, name)
    done = subprocess.run(["valgrind", "--tool=callgrind", "--trace-children=yes", f"--callgrind-out-file={pattern}.%p",
                           *command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"{' '.join(command)} ended with {done.returncode} under valgrind:\n{done.stdout}{done.stderr}")
    ranks = [inclusive(path) for path in sorted(glob.glob(f"{pattern}.*"))]
    return [counts for counts in ranks if any(is_called(each, WHOLE[0]) for each in counts)]


def profile(folder, command):
    if not shutil.which("valgrind"):
        print("sharded step: no profile: valgrind is not installed")
        return
    few, many = 1, 3
    # The first process of each: ranks do the same.
    before, after = (counted(folder, f"rounds{rounds}", [*command[:1], str(rounds), *command[1:]])
                     for rounds in (few, many))
    if not before or not after:
        fail("no process has run a step; does the program have symbols?")

    def of(names):
        unknown = [name for name in names if not any(is_called(each, name) for each in after[0])]
        if unknown:
            fail(f"no function is called {' or '.join(unknown)}: PARTS names one that is gone, or is inlined")
        return sum(count * sign for counts, sign in ((after[0], 1), (before[0], -1))
                   for function, count in counts.items()
                   if any(is_called(function, name) for name in names)) / (many - few)

    whole = of(WHOLE)
    inside = {part: of(names) for part, names, _ in PARTS}
    own = {}
    for part, _, without in PARTS:
        # Those without parts of their own come first in PARTS, so what is taken out is there.
        own[part] = inside[part] - sum(own[each] for each in without)
    print("| part of a sharded step | million instructions | share |\n| --- | ---: | ---: |")
    for part, count in own.items():
        print(f"| {part} | {count * 1e-6:.1f} | {100 * count / whole:.1f} % |")
    rest = whole - sum(own.values())
    print(f"| computation, autograd, the optimizer | {rest * 1e-6:.1f} | {100 * rest / whole:.1f} % |")
    print(f"\nsharded step: {whole * 1e-6:.0f} million instructions, {100 * (1 - rest / whole):.1f} % of them for shards")


def main():
    what, *words = sys.argv[1:] or [""]
    if what == "profile" and len(words) > 1:
        return profile(words[0], words[1:])
    if what in ("compare", "beside") and "--" in words:
        name = [words.pop(0)] if what == "beside" else []
        cut = words.index("--")
        commands = [command for command in (words[1:cut], words[cut + 1:]) if command]
        return {"compare": compare, "beside": beside}[what](*name, int(words[0]), commands)
    return fail("usage: sharded_step.py compare TURNS OURS... -- [THEIRS...] | beside NAME TURNS OURS... -- [THEIRS...] | "
                "profile FOLDER PROGRAM...")


main()
