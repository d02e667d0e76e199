"""culprits.py FOLDER: does PyTorch's analyser of Flight Recorders name the ranks that went wrong?

FOLDER is what planted_dumps_test writes: a folder for each job, with the dumps in flight_recorder/ and the rank that
went wrong, of how many, in culprit. The analyser takes the first rank that it reads for a good one; where that is the
wrong one, it names all others.
"""

import pathlib
import re
import subprocess
import sys


def named(folder, world):
    """The ranks that the analyser names."""
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", "--prefix", "", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout + done.stderr
    if done.returncode != 0:
        sys.exit(f"faults: fr_trace failed on {folder}:\n{said}")
    # What comes behind the first wrong call is not compared.
    first = re.search(r"missing ranks: \{([0-9, ]*)\}|error msg: (.*)", said)
    if first is None:
        return set()
    if first[1] is not None:
        return {int(rank) for rank in first[1].split(",")}
    ranks = {int(rank) for rank in re.findall(r"Culprit rank (\d+)", first[2])}
    return set(range(world)) - ranks if len(ranks) == world - 1 else ranks


def main():
    jobs = sorted(pathlib.Path(sys.argv[1]).glob("*/culprit"), key=lambda path: int(path.parent.name))
    wrong = 0
    for job in jobs:
        culprit, world = (int(word) for word in job.read_text().split(" of "))
        ranks = named(job.parent / "flight_recorder", world)
        if ranks != {culprit}:
            print(f"faults: dump {job.parent.name}: the analyser names {sorted(ranks)}, and rank {culprit} went wrong")
            wrong += 1
    if len(jobs) < 20 or wrong:
        sys.exit(f"faults: {wrong} of {len(jobs)} dumps differ")
    print(f"faults: PyTorch's analyser names the rank of each of {len(jobs)} dumps")


main()
