#!/usr/bin/env python3
"""What one change may make dearer without a simulated run showing it, counted: instructions of hot paths, system
calls of a launch, and the sizes of programs.

    perf_counts.py BASELINE.json BIN [--accept]

BIN is bazel-bin. Counts differ from the baseline by less than TOLERANCE, or the program says which do and ends with 1.
Instructions are those of `valgrind --tool=callgrind`, of one iteration. They are of the machine's kind and of its
libraries, which the baseline names; on another kind of machine they are shown, and not compared. What cannot be counted
here (no valgrind, no strace, no right to trace) is left out with one line.
"""
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile

TOLERANCE = 0.02
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


def hot_paths(bazel_bin):
    """Of one iteration: the last two calls of each path differ by their iterations alone."""
    if not shutil.which("valgrind"):
        say("no instructions are counted: valgrind is not installed")
        return {}
    with tempfile.TemporaryDirectory() as folder:
        done = run("valgrind", "--tool=callgrind", "--dump-before=hot_path", "--dump-after=hot_path",
                   f"--callgrind-out-file={folder}/counts", os.path.join(bazel_bin, "integration_tests/perf/hot_paths"),
                   env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_SIMULATE_REPORT": ""})
        calls = [line.split() for line in done.stdout.splitlines()]
        counted = [total_of(os.path.join(folder, f"counts.{2 * number}")) for number in range(1, len(calls) + 1)]
    counts = {}
    for (name, times), count in zip(calls, counted):
        counts.setdefault(name, []).append((int(times), count))
    return {f"instructions of one {name}": (many[1] - few[1]) // (many[0] - few[0])
            for name, (_, few, many) in counts.items()}


def total_of(path):
    """What was counted between two dumps of callgrind, of which the one at `path` is the later."""
    with open(path, encoding="utf-8") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(("summary:", "totals:")))


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
