"""The floors: which rooms there are, and which may include which.

A room may include the rooms on floors below its own, never one above or on the same floor. Bazel
refuses a wrong dependency (visibility), and tools/lint reads this list and compares it with the
includes. One floor a line, the lowest first; "" is the folder itself.
"""

FLOORS = {
    "accelerate": [
        ["base"],
        ["platform", "values"],
        ["checkpoint/formats", "tracking", "runtime"],
        ["config", "tensors"],
        ["comm/backends"],
        ["comm/backends/gloo", "comm/backends/nccl"],
        ["comm/watch"],
        ["comm/backends/mpi", "comm"],
        ["process", "state"],
        ["operators", "report"],
        ["data", "optim/schedulers", "precision"],
        ["optim"],
        ["parallel"],
        ["step"],
        ["checkpoint/tensor_files"],
        ["checkpoint/objects"],
        ["checkpoint/folder", "profiling", "tracking/run"],
        [""],
    ],
    "simulator": [
        ["core", "hardware"],
        ["disk", "network", "trace"],
        ["device", "report"],
        ["c10d"],
        ["cluster"],
        ["run"],
    ],
    "launch": [
        ["process"],
        ["estimate", "settings", "supervise"],
        ["agent", "dialogue"],
        ["plan"],
        ["commands"],
        ["", "module_loader"],
    ],
    "trackers": [
        ["common"],
        ["bridge"],
        [
            "aim",
            "clearml",
            "comet_ml",
            "csv",
            "dvclive",
            "jsonl",
            "mlflow",
            "prometheus",
            "python",
            "swanlab",
            "tensorboard",
            "trackio",
            "wandb",
        ],
        [""],
    ],
}

# What other top-level folders see of a folder: "*" is everything.
OPEN_TO = {
    "accelerate": {
        "launch": ["base", "platform", "checkpoint/formats"],
        "simulator": ["*"],
        "trackers": ["base", "platform", "tracking"],
    },
    # What a tracker writes is tested on a disk that fails.
    "simulator": {
        "trackers": ["disk"],
    },
}

# Folders that see every room of their top-level folder and that no room sees.
_BESIDE = ["testing", "examples", "checkpoint/fuzz"]

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
    visibility += ["//%s/%s:__subpackages__" % (top, each) for each in _BESIDE]
    for other, open in OPEN_TO.get(top, {}).items():
        if "*" in open or room in open:
            visibility.append("//%s:__subpackages__" % other)
    return visibility
