#!/usr/bin/env python3
"""What one change may make dearer without a simulated run showing it, counted: instructions of hot paths, system
calls of a launch, and the sizes of programs.

    perf_counts.py BASELINE.json BIN [--accept]

BIN is bazel-bin. Counts differ from the baseline by less than TOLERANCE, or the program says which do and ends with 1.
Instructions are those of `valgrind --tool=callgrind`, of one iteration: the difference of two runs, divided by that of
their iterations. They are of the machine's kind and of its libraries, which the baseline names; on another kind of
machine they are shown, and not compared. What cannot be counted here (no valgrind, no strace, no right to trace) is left out with
one line.
"""
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

TOLERANCE = 0.02
# Iterations of the two runs.
HOT_PATHS = {"step": (20, 120), "gather": (50, 250), "collective": (50, 250), "operator": (200, 1200)}
PROGRAMS = ("launch/launcher", "accelerate/examples/digits/digits", "accelerate/examples/lm/lm")
# Those that do not depend on how long something takes.
CALLS = ("clone", "clone3", "execve", "fork", "openat", "pipe2", "socket", "vfork")


def say(text):
    print(f"perf: {text}")


def run(*words, **options):
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"perf: {' '.join(words)} ended with {done.returncode}: {done.stderr}")
    return done


def instructions(binary, path, times):
    said = run("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", binary, path, str(times),
               env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_SIMULATE_REPORT": ""}).stderr
    found = re.search(r"Collected\s*:\s*(\d+)", said)
    if not found:
        sys.exit(f"perf: valgrind did not say what it collected: {said}")
    return int(found.group(1))


def hot_paths(bazel_bin):
    if not shutil.which("valgrind"):
        say("no instructions are counted: valgrind is not installed")
        return {}
    binary = os.path.join(bazel_bin, "integration_tests/perf/hot_paths")
    runs = [(path, times) for path, pair in HOT_PATHS.items() for times in pair]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counted = dict(zip(runs, pool.map(lambda each: instructions(binary, *each), runs)))
    return {f"instructions of one {path}":
            (counted[path, pair[1]] - counted[path, pair[0]]) // (pair[1] - pair[0])
            for path, pair in HOT_PATHS.items()}


def system_calls(bazel_bin):
    if not shutil.which("strace"):
        say("no system calls are counted: strace is not installed")
        return {}
    launcher = os.path.join(bazel_bin, "launch/launcher")
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "calls")
        done = subprocess.run(["strace", "-f", "-c", "-o", log, launcher, "launch", "--num_processes", "2", "/bin/true"],
                              capture_output=True, text=True, check=False, cwd=folder)
        if not os.path.exists(log) or done.returncode != 0:
            say(f"no system calls are counted: strace says {done.stderr.strip()}")
            return {}
        with open(log, encoding="utf-8") as lines:
            words = [line.split() for line in lines]
    calls = {each[-1]: int(each[3]) for each in words if len(each) >= 5 and each[3].isdigit()}
    return {f"{name} of a launch of 2": calls[name] for name in CALLS if name in calls}


def sizes(bazel_bin):
    return {f"bytes of {each}": os.path.getsize(os.path.join(bazel_bin, each)) for each in PROGRAMS}


def machine():
    """Other processors and libraries take other instructions."""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    version = run("dpkg-query", "-W", "-f", "${Version}", "libtorch2.6").stdout
    return f"{platform.machine()}, {model}, LibTorch {version}"


def main():
    path, bazel_bin = sys.argv[1:3]
    here = machine()
    counts = {**hot_paths(bazel_bin), **system_calls(bazel_bin), **sizes(bazel_bin)}
    if "--accept" in sys.argv[3:]:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"machine": here, "counts": counts}, file, indent=1)
            file.write("\n")
        say(f"{len(counts)} counts are in {path}")
        return 0
    if not os.path.exists(path):
        sys.exit(f"perf: there is no {path}: ci/perf.sh --accept writes it")
    with open(path, encoding="utf-8") as file:
        baseline = json.load(file)
    width = max(map(len, counts))
    if baseline["machine"] != here:
        say(f"instructions are not compared: the baseline's are of {baseline['machine']}, this is {here}")
    changed = 0
    for name, count in counts.items():
        before = baseline["counts"].get(name)
        text = "new" if before is None else f"{100 * (count - before) / before:+.2f} %"
        differs = before is None or abs(count - before) > TOLERANCE * before
        if name.startswith("instructions") and baseline["machine"] != here:
            differs = False
        changed += differs
        print(f"{name:<{width}}  {before or '':>12}  {count:>12}  {text}{'  changed' if differs else ''}")
    say(f"{len(counts)} counts, {changed} differ by more than {100 * TOLERANCE:g} %")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
