#!/usr/bin/env python3
"""What ci/sharded_step.sh measures: medians of several turns, and a profile of a sharded step by part.

    sharded_step.py compare TURNS OURS... -- [THEIRS...]
    sharded_step.py profile FOLDER PROGRAM...

compare runs the two commands in turn, TURNS times each, and reads the tables that they print. Its last line is

  sharded step: ours 598.0 ms, 1.32 of replicas; fully_shard 560.0 ms, 1.25 of DDP; ours 1.07 of fully_shard

profile counts the instructions of a step under `valgrind --tool=callgrind`, by part (PARTS): PROGRAM gets a number of
rounds as its last words, and two runs differ by their rounds alone. Instructions repeat, whatever else the machine does;
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

# The parts of a step: what is counted with all that it calls, and what of it is a part of its own (by the names of
# functions). Where a function calls itself, the outermost call counts.
PARTS = [
    ("gather: copies of rows", [r"RowsToGather::begin\("], []),
    ("gather: call of the collective", [r"CallBackend::allgather_into_tensor_coalesced\("], []),
    ("gather: begin, all else", [r"GatheredGroup::start\("],
     ["gather: copies of rows", "gather: call of the collective"]),
    ("gather: end", [r"GatheredGroup::end\("], []),
    ("order of groups, releases", [r"Residency::use\("], ["gather: begin, all else", "gather: end",
                                                        "gather: copies of rows", "gather: call of the collective"]),
    ("reduction: copies into flat buffers", [r"ShardedGradients::take_gradient\("], []),
    ("reduction: call of the collective", [r"CallBackend::reduce_scatter_tensor_coalesced\("], []),
    ("reduction: shards' gradients", [r"ShardedGradients::advance_reductions\("], []),
    ("reduction: all else", [r"ShardedGradients::reduce\("],
     ["reduction: copies into flat buffers", "reduction: call of the collective", "reduction: shards' gradients"]),
    ("hooks of gradients", [r"ShardedGradients::gradient_is_ready\(", r"ShardedGradients::make_place\("],
     ["reduction: all else", "reduction: copies into flat buffers", "reduction: call of the collective",
      "reduction: shards' gradients"]),
]
WHOLE = r"accelerate::\(anonymous namespace\)::measure\("


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


def compare(turns, commands):
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
    print(f"\n| {sizes.pop()} | replicas, ms | shards, ms | ratio, its range over turns |\n| --- | ---: | ---: | --- |")
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
        # Of neighbouring turns, so that a machine that slows down counts for both.
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
    return [counts for counts in ranks if any(re.search(WHOLE, each) for each in counts)]


def profile(folder, command):
    if not shutil.which("valgrind"):
        print("sharded step: no profile: valgrind is not installed")
        return
    few, many = 1, 3
    # Of rank 0, or whichever process is the first: ranks do the same.
    before, after = (counted(folder, f"rounds{rounds}", [*command[:1], str(rounds), *command[1:]])
                     for rounds in (few, many))
    if not before or not after:
        fail("no process has run a step; does the program have symbols?")

    def of(patterns):
        return sum(count * sign for counts, sign in ((after[0], 1), (before[0], -1)) for function, count in counts.items()
                   if any(re.search(pattern, function) for pattern in patterns)) / (many - few)

    whole = of([WHOLE])
    inside = {part: of(patterns) for part, patterns, _ in PARTS}
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
    if what == "compare" and "--" in words:
        cut = words.index("--")
        return compare(int(words[0]), [command for command in (words[1:cut], words[cut + 1:]) if command])
    return fail("usage: sharded_step.py compare TURNS OURS... -- [THEIRS...] | profile FOLDER PROGRAM...")


main()
