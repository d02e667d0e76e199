"""The floors: which rooms there are, and which may include which.

A room may include the rooms on floors below its own, never one above or on the same floor. Each
stands on the lowest floor that its includes and its tests' dependencies need. Bazel refuses a wrong
dependency: by visibility and, since rooms that other workspaces use are public, by `check_deps` as
well. tools/lint reads this list and compares it with the includes. One floor a line, the lowest
first; "" is the folder itself.
"""

FLOORS = {
    "accelerate": [
        ["base", "comm/backends", "metrics", "tensors"],
        ["device_map", "forward", "options", "pipeline", "platform", "values"],
        [
            "comm/backends/gloo",
            "comm/watch",
            "compile/packages",
            "files/formats",
            "quantization",
            "runtime",
            "tracking",
        ],
        ["comm", "comm/backends/mpi", "comm/backends/nccl", "config", "report"],
        ["mesh", "operators", "optim/schedulers", "process"],
        ["files", "modules", "parallel/layout", "plan", "state", "swap"],
        [
            "big_model",
            "data",
            "dumps",
            "megatron",
            "parallel",
            "parallel/residency",
            "parallel/sequence",
            "parallel/tensor",
            "parallel/ulysses",
            "precision",
            "profiling",
            "tracking/run",
        ],
        [
            "hooks",
            "optim",
            "parallel/experts",
            "parallel/pipeline",
            "parallel/replicated",
            "parallel/sharded",
            "script",
        ],
        ["compile", "dispatch", "inference", "step"],
        ["checkpoint/objects", "quantization/models"],
        ["checkpoint/folder", "techniques"],
        [""],
    ],
    "simulator": [
        ["core", "hardware", "shape_rules"],
        ["faults", "network/nccl", "trace"],
        ["disk", "network", "report"],
        ["device"],
        ["c10d"],
        ["cluster"],
        ["run"],
    ],
    "launch": [
        ["perf", "process"],
        ["estimate", "settings", "supervise"],
        ["agent", "dialogue"],
        ["plan"],
        ["commands"],
        ["", "module_loader"],
    ],
    "trackers": [
        ["common"],
        [
            "bridge",
            "csv",
            "dvclive",
            "jsonl",
            "mlflow",
            "prometheus",
            "tensorboard",
            "trackio",
            "wandb",
        ],
        ["aim", "clearml", "comet_ml", "python", "swanlab"],
        [""],
    ],
}

# What other top-level folders see of a folder: "*" is everything.
OPEN_TO = {
    "accelerate": {
        "launch": ["base", "compile/packages", "options", "platform", "files/formats", "device_map", "pipeline"],
        "simulator": ["*"],
        "tools/kernel_table": ["runtime", "process", "state"],
        "tools/lint": ["platform"],
        "trackers": ["base", "platform", "tracking"],
    },
    "simulator": {
        "accelerate/examples": ["*"],
        "launch": ["hardware", "network"],
        "tools/kernel_table": ["*"],
    },
}

# As OPEN_TO, for tests alone: what a tracker writes is tested on a disk that fails.
OPEN_TO_TESTS = {
    "simulator": {
        "trackers": ["disk"],
    },
}

# Rooms that must not include LibTorch, tests included; a top-level folder stands for all that is in it.
WITHOUT_LIBTORCH = [
    "accelerate/base",
    "accelerate/compile/packages",
    "accelerate/options",
    "accelerate/platform",
    "accelerate/files/formats",
    "accelerate/device_map",
    "accelerate/pipeline",
    "accelerate/tracking",
    "launch",
    "simulator/core",
    "simulator/disk",
    "simulator/faults",
    "simulator/hardware",
    "simulator/network",
    "simulator/network/nccl",
    "simulator/report",
    "simulator/trace",
    "tools/lint",
    "trackers",
]

# Folders that see every room of their top-level folder and that no room sees.
BESIDE = ["testing", "examples", "files/fuzz"]

def _sees(package, visibility):
    """Whether visibility to single packages and to folders with what is below them has the package."""
    for each in visibility:
        label, _, kind = each.partition(":")
        folder = label[2:]
        if each == "//visibility:public" or package == folder:
            return True
        if kind == "__subpackages__" and package.startswith(folder + "/"):
            return True
    return False

def check_deps(package, deps):
    """Fails where a library depends on a room that is not below it, be that room public or not."""
    for dep in deps:
        if not dep.startswith("//"):
            continue
        other = dep[2:].partition(":")[0]
        top = other.partition("/")[0]
        if other == package or not [floor for floor in FLOORS.get(top, []) if other[len(top) + 1:] in floor]:
            continue
        if not _sees(package, rooms_above(other)):
            fail("%s depends on %s, which is not below it: see tools/build_defs/floors.bzl" % (package, dep))

def rooms_above(package):
    """The visibility of a room: the rooms on floors above, tests, and folders that it is open to."""
    top = package.split("/")[0]
    room = package[len(top) + 1:]
    visibility = ["//%s:__pkg__" % package, "//integration_tests:__subpackages__"]
    if "testing" in package.split("/") or top not in FLOORS:
        return ["//visibility:public"]
    below = True
    for floor in FLOORS[top]:
        if not below:
            visibility += ["//%s:__pkg__" % (top + "/" + above if above else top) for above in floor]
        if room in floor:
            below = False
    if below:
        fail("%s is on no floor: name it in tools/build_defs/floors.bzl" % package)
    visibility += ["//%s/%s:__subpackages__" % (top, each) for each in BESIDE]
    for opened in [OPEN_TO, OPEN_TO_TESTS]:
        for other, rooms in opened.get(top, {}).items():
            if "*" in rooms or room in rooms:
                visibility.append("//%s:__subpackages__" % other)
    return visibility
