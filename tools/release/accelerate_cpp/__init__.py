"""Accelerate for C++ from Python: planning on simulated clusters, by the launcher's own commands.

    import accelerate_cpp
    run = accelerate_cpp.simulate("2x4:h100", ["./train", "--epochs", "1"])   # the report's summary.json
    rows = accelerate_cpp.plan("llama-7b", "2x8:h100", batch_size=64)         # pandas.DataFrame(rows)
    rows = accelerate_cpp.sweep(["1x8:h100", "2x8:h100"], ["./train"])
    rows = accelerate_cpp.table({"first": run, "second": other_run})

No function loads LibTorch: each starts the launcher, which starts the program. PREFIX is the folder for CMAKE_PREFIX_PATH.
"""
import csv
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

PREFIX = str(pathlib.Path(__file__).resolve().parent)
RELEASE = json.loads(pathlib.Path(PREFIX, "share", "accelerate-cpp", "release.json").read_text(encoding="utf-8"))
LAUNCHER = os.path.join(PREFIX, "bin", "accelerate")
EXAMPLES = os.path.join(PREFIX, "examples")
TORCH = pathlib.Path(PREFIX).parent / "torch"  # where programs of the wheel look for LibTorch

__version__ = RELEASE["version"]
__all__ = ["PREFIX", "RELEASE", "LauncherError", "example", "libtorch_problem", "plan", "simulate", "sweep", "table"]


class LauncherError(RuntimeError):
    """The launcher failed. `exit_code` is its own, and `output` what it and the program wrote."""

    def __init__(self, command, exit_code, output):
        super().__init__(f"{' '.join(command)}: exit code {exit_code}\n{output}")
        self.exit_code, self.output = exit_code, output


def example(name):
    """The path of a program or file that the wheel has: digits, lm, digits.safetensors, kjv.txt."""
    path = os.path.join(EXAMPLES, name)
    if not os.path.exists(path):
        known = ", ".join(sorted(os.listdir(EXAMPLES)))
        raise ValueError(f"there is no example {name}; known: {known}")
    return path


def libtorch_problem():
    """Which LibTorch this release wants and which is beside it, if that is another; nothing if it fits."""
    wanted = f"Accelerate for C++ {__version__} is built for LibTorch {RELEASE['libtorch']} (C++11 ABI: {RELEASE['cxx11_abi']})"
    version = TORCH / "version.py"
    if not version.exists():
        return f"{wanted}, and there is no torch in {TORCH.parent}: pip install torch=={RELEASE['libtorch']}"
    # Importing torch would load LibTorch.
    said = re.search(r"__version__ = [\"']([^\"'+]+)", version.read_text(encoding="utf-8"))
    number = said[1] if said else "of an unknown version"
    flags = TORCH / "share" / "cmake" / "Torch" / "TorchConfig.cmake"
    old_abi = flags.exists() and "_GLIBCXX_USE_CXX11_ABI=0" in flags.read_text(encoding="utf-8")
    if number == RELEASE["libtorch"] and int(not old_abi) == RELEASE["cxx11_abi"]:
        return None
    return (f"{wanted}, and torch {number} (C++11 ABI: {int(not old_abi)}) is in {TORCH}: "
            f"pip install torch=={RELEASE['libtorch']}, or take the release for torch {number}")


def starts_own_program(words):
    """Whether the launcher, called with these words, starts a program of the wheel, which loads LibTorch."""
    command, *others = words or [""]
    if command in ("test", "plan"):
        return True
    if command == "simulate" and any(word.partition("=")[0] in ("--from-dump", "--from_dump") for word in others):
        return True
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), EXAMPLES])
    programs = [shutil.which(word, path=places) for word in others]
    return any(os.path.dirname(os.path.realpath(program)) == EXAMPLES for program in programs if program)


def simulate(cluster, argv, seed=0, options=(), report=None):
    """Runs a program on a simulated cluster and returns the summary of its report as a dict.

    cluster  as `accelerate launch --simulate` takes it: "2x4:h100"
    argv     the program and its arguments
    options  further options of `accelerate launch`, as ["--mixed_precision", "bf16"]
    report   the folder that keeps report.html, trace.json and summary.json; none: they are not kept

    A run whose ranks fail, or whose program did not simulate, is a LauncherError; the report of a failed run is in `report`.
    A program of the wheel, as an example is, with another LibTorch than that of the release is a RuntimeError.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = os.fspath(report) if report is not None else temporary
        _run(["launch", "--simulate", cluster, "--simulate_seed", str(seed), "--report", folder,
              *options, *map(os.fspath, argv)])
        with open(os.path.join(folder, "summary.json"), encoding="utf-8") as file:
            return json.load(file)


def plan(model, cluster, **options):
    """The layouts of a language model on a cluster, those that fit first, as a list of dicts.

    options are those of `accelerate plan`: batch_size=64, mixed_precision="fp8", exact=True.
    """
    return json.loads(_run(["plan", model, "--on", cluster, "--json", *_flags(options)]))


def sweep(clusters, argv, options=()):
    """Runs a program on several clusters and returns a dict for each: the table of `accelerate simulate --sweep`."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "sweep.csv")
        _run(["simulate", "--sweep", ";".join(clusters), "--csv", path, *options, *map(os.fspath, argv)])
        with open(path, encoding="utf-8", newline="") as file:
            return [{name: _number(text) for name, text in row.items()} for row in csv.DictReader(file)]


def table(summaries):
    """A flat dict for each of {name: summary}, with the numbers of the summary by their paths, as "steps/median_step"."""
    return [{"name": name, **dict(_leaves(summary, ""))} for name, summary in summaries.items()]


def _run(arguments):
    problem = libtorch_problem()
    if problem and starts_own_program(arguments):
        raise RuntimeError(problem)
    command = [LAUNCHER, *arguments]
    run = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         errors="replace", check=False)
    if run.returncode != 0:
        note = f"note: {problem}\n" if problem and TORCH.exists() else ""
        raise LauncherError(command, run.returncode, run.stdout + run.stderr + note)
    return run.stdout


def _flags(options):
    words = []
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words += [f"--{name}", str(value)]
    return words


def _number(text):
    for convert in (int, float):
        try:
            return convert(text)
        except (TypeError, ValueError):
            pass
    return text


def _leaves(value, path):
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(each, f"{path}/{key}" if path else key)
    elif isinstance(value, (bool, int, float, str)):
        yield path, value
