#!/usr/bin/env python3
"""time_report.py PROFILE BUDGET: where a run of Bazel spent its time, compared with a budget.

PROFILE is what --profile wrote, BUDGET a JSON file that a change raises openly:

    {"reference": {"action": "Precompiling //tools/build_defs:libtorch_headers", "seconds": 16},
     "tolerance": 1.5, "seconds": {"compile": 900, "link": 100, "test": 600}}

Seconds are those of single actions, added up. Machines differ in speed, so that the run's seconds
are divided by those of one action that always costs the same, the reference, where the run has it;
a run without it had its objects from a cache, and is not compared.

Prints the sums, the ten slowest of each kind and the comparison. The exit status is 1 if a sum is
more than `tolerance` times its budget.
"""
import gzip
import json
import sys

KINDS = {"Compiling ": "compile", "Precompiling ": "compile", "Linking ": "link", "Testing ": "test"}


def read_profile(path):
    """The actions of each kind: (seconds, name), the slowest first."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    actions = {kind: [] for kind in KINDS.values()}
    for event in events:
        if event.get("cat") != "action processing":
            continue
        for prefix, kind in KINDS.items():
            if event["name"].startswith(prefix):
                actions[kind].append((event["dur"] / 1e6, event["name"]))
    for each in actions.values():
        each.sort(reverse=True)
    return actions


def main(profile, budget_file):
    actions = read_profile(profile)
    with open(budget_file) as file:
        budget = json.load(file)
    reference = budget["reference"]
    measured = [seconds for each in actions.values() for seconds, name in each if name == reference["action"]]
    scale = reference["seconds"] / measured[0] if measured and measured[0] > reference["seconds"] / 4 else None
    over = False
    for kind, each in actions.items():
        total = sum(seconds for seconds, _ in each)
        line = f"{kind}: {total:.0f} s in {len(each)} actions"
        if scale is not None:
            limit = budget["seconds"][kind]
            line += f"; {total * scale:.0f} s at the reference's speed, budget {limit} s"
            if total * scale > limit * budget["tolerance"]:
                line += f": MORE THAN {budget['tolerance']} TIMES THE BUDGET; what grew is won back, or {budget_file} is raised"
                over = True
        print(line)
        for seconds, name in each[:10]:
            print(f"  {seconds:6.1f} s  {name.split(' ', 1)[1]}")
    if scale is None:
        print("objects came from a cache: not compared with the budget")
    return 1 if over else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
