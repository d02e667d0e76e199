#!/usr/bin/env python3
"""time_report.py PROFILE BUDGET: where a run of Bazel spent its time, compared with a budget.

PROFILE is what --profile wrote, BUDGET a JSON file that a change raises openly:

    {"reference": {"action": "Precompiling //tools/build_defs:libtorch_headers", "seconds": 18},
     "tolerance": 1.25,
     "seconds": {"compile": 2600, "link": 120, "test": 1400, "sim_sweep": 300},
     "tests": {"//launch/agent:network_test": 14.0}}

Seconds are those of single actions, added up. Tests that run several times (--runs_per_test) are a
sweep; its seconds are those of one run of each test. A kind without an entry is not compared.

Machines differ in speed, so seconds are brought to the budget's machine first. A run that compiled
everything has the reference, an action that always costs the same: the sums are compared. In a run
without it objects and tests came from a cache. Then the tests that ran and have an entry are
compared, together, at the speed of the median one: it finds tests that grew more than others did.
That is a hint, since other work on the machine shows there, too. A sweep, whose objects mostly come
from a cache, is then compared at this machine's own speed.

Prints the sums, the ten slowest of each kind and the comparison. The exit status is 1 if a sum of a
run that compiled everything, or of a sweep, is more than `tolerance` times its budget.
"""
import gzip
import json
import re
import statistics
import sys

KINDS = {"Compiling ": "compile", "Precompiling ": "compile", "Linking ": "link", "Testing ": "test"}
RUNS = re.compile(r"run \d+ of (\d+)\)")  # in the name of a test that runs several times
MIN_TESTS = 5  # so that one test is not compared with itself


def read_profile(path):
    """The actions of each kind: (seconds, name), the slowest first."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    actions = {kind: [] for kind in ["compile", "link", "test", "sim_sweep"]}
    for event in events:
        if event.get("cat") != "action processing":
            continue
        for prefix, kind in KINDS.items():
            if event["name"].startswith(prefix):
                runs = RUNS.search(event["name"]) if kind == "test" else None
                seconds = event["dur"] / 1e6 / (int(runs[1]) if runs else 1)
                actions["sim_sweep" if runs else kind].append((seconds, event["name"]))
    for each in actions.values():
        each.sort(reverse=True)
    return actions


def reference_scale(actions, reference):
    """By how much to multiply seconds, or None where the reference came from a cache."""
    measured = [seconds for each in actions.values() for seconds, name in each if name == reference["action"]]
    if not measured or measured[0] <= reference["seconds"] / 4:
        return None
    return reference["seconds"] / measured[0]


def tests_with_budget(actions, budgets):
    """(seconds, budget) of each test that ran; the shards of one are added up."""
    seconds = {}
    for each, name in actions["test"]:
        label = name.split(" ")[1]
        if label in budgets:
            seconds[label] = seconds.get(label, 0) + each
    return [(each, budgets[label]) for label, each in seconds.items()]


def main(profile, budget_file):
    actions = read_profile(profile)
    with open(budget_file) as file:
        budget = json.load(file)
    too_much = (f": MORE THAN {budget['tolerance']} TIMES THE BUDGET; what grew is won back, "
                f"or {budget_file} is raised")
    scale = reference_scale(actions, budget["reference"])
    over = False
    for kind, each in actions.items():
        if kind == "sim_sweep" and not each:
            continue
        total = sum(seconds for seconds, _ in each)
        line = f"{kind}: {total:.0f} s in {len(each)} actions"
        limit = budget["seconds"].get(kind)
        if limit is not None and (scale is not None or kind == "sim_sweep"):
            scaled = total * (scale or 1)
            line += f"; {scaled:.0f} s at {'this machine' if scale is None else 'the reference'}'s speed, budget {limit} s"
            if scaled > limit * budget["tolerance"]:
                line += too_much
                over = True
        print(line)
        for seconds, name in each[:10]:
            print(f"  {seconds:6.1f} s  {name.split(' ', 1)[1]}")
    if scale is None:
        tests = tests_with_budget(actions, budget.get("tests", {}))
        if len(tests) < MIN_TESTS:
            print(f"objects came from a cache, and of the tests with a budget {len(tests)} ran: not compared")
            return 1 if over else 0
        speed = statistics.median(limit / max(seconds, 0.001) for seconds, limit in tests)
        total = sum(seconds for seconds, _ in tests) * speed
        limit = sum(limit for _, limit in tests)
        line = (f"objects came from a cache; {len(tests)} tests with a budget: {total:.0f} s at the speed of "
                f"the median one, budget {limit:.0f} s")
        if total > limit * budget["tolerance"]:
            line += f": more than {budget['tolerance']} times the budget; a run that compiles everything decides"
        print(line)
    return 1 if over else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
