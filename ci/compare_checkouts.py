#!/usr/bin/env python3
"""Whether two checkouts compute the same, bit for bit: compare_checkouts.py BEFORE AFTER [OPTIONS]

For a change that moves code and is to change nothing else. Builds the launcher and the example programs of both
checkouts, runs each program in both, and compares what it prints and every file that it leaves: summary.json of
simulated runs, trained weights, checkpoints. The two runs have the same folder, one after the other, so that no path
differs. PROGRAMS, WAYS and OTHER_RUNS say what runs; MASKED and LEFT_OUT say what may differ, and why.

  --no-build     the programs in bazel-bin are those to compare
  --only TEXT    only runs whose names contain TEXT; several times: any of them
  --list         print the commands of the runs, and run nothing
  --keep DIR     keep what runs print and leave, in DIR/before and DIR/after; DIR must not be there yet
  --jobs N       so many runs at a time (1)
  --plant TEXT   NAME=VALUE, a variable for AFTER alone, as in ACCELERATE_SIMULATE_SEED=7; or FILE, a file of the
                 folder in which AFTER's runs end, in which one bit is turned: the comparison must find it

A program that one of the checkouts does not have is named, and its runs are left out. A run has LIMIT seconds. It does
not count as equal if it fails in both, unless REFUSED says so, if it prints nothing, or if a file is missing that it is
to write. A line a run tells the first difference. The last line is

  N runs: N equal

Exit code: 0 if all are equal, 1 if one is not, 2 for wrong arguments or a checkout that does not build.
"""

import argparse
import concurrent.futures
import json
import os
import queue
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 300

# Programs of accelerate/examples: their flags, and files that they must leave. Programs without files show what they
# learnt by what they print. Those of programs/ that are about a data set of their own are not among them.
PROGRAMS = [
    ("minimal", "", []),
    ("quickstart", "", ["model/model.safetensors"]),
    ("complete", "", ["out/model/model.safetensors", "out/checkpoints/checkpoint_2/manifest.json"]),
    ("by_feature/activation_checkpointing", "", []),
    ("by_feature/automatic_gradient_accumulation", "", []),
    ("by_feature/checkpoint_resume", "", ["out/checkpoints/*/manifest.json"]),
    ("by_feature/comm_hook", "", []),
    ("by_feature/cross_validation", "", []),
    ("by_feature/custom_tracker", "", []),
    ("by_feature/deepspeed", "--max_steps 6", []),
    ("by_feature/early_stopping", "", []),
    ("by_feature/fsdp", "--max_steps 3 --weights weights.pt", ["weights.pt"]),
    ("by_feature/gradient_accumulation", "", []),
    ("by_feature/local_sgd", "", []),
    ("by_feature/long_sequences", "--max_steps 3 --sequence_length 64", []),
    ("by_feature/memory", "", []),
    ("by_feature/multi_process_metrics", "", []),
    ("by_feature/pipeline", "", []),
    ("by_feature/profiler", "", []),
    ("by_feature/quantization", "--load_in_8bit --layers 1 --sequence_length 32 --evaluation_sequences 4 --generate 2"
     " --max_steps 2 --train_adapters 2", ["quantization_out/model/model.safetensors"]),
    ("by_feature/save_hooks", "", ["checkpoint/manifest.json"]),
    ("by_feature/schedule_free", "", []),
    ("by_feature/stream_dataset", "", []),
    ("by_feature/tensor_parallel", "--max_steps 3 --print_layout", []),
    ("by_feature/tracking", "", ["logs/tracking/metrics.jsonl"]),
    ("by_feature/weights_from_python", "", ["trained/model.safetensors"]),
    ("big_model_load", "--layers 1 --checkpoint model --write --offload_folder offload --device_map {\"\":\"cpu\"}"
     " --generate 2", ["model/model.safetensors"]),
    ("digits", "--max_steps 20 --output_dir out", ["out/model/model.safetensors"]),
    ("lm", "--max_steps 6 --output_dir out --checkpointing_steps 4 --evaluation_sequences 16",
     ["out/model/model.safetensors"]),
]

# Clusters of their own, which run alone.
ALONE = ["simulator/compare_networks", "simulator/crash_sweep", "simulator/debug_a_hang", "simulator/find_oom",
         "simulator/straggler"]

SIMULATED = "--simulate 2x4:h100 --report report"

# What the launcher gets; None: the program runs without it.
WAYS = {
    "alone": None,
    "2x4": SIMULATED,
    "fsdp": SIMULATED + " --use_fsdp --fsdp_version 2",
    "zero1": SIMULATED + " --use_deepspeed --zero_stage 1",
    "zero2": SIMULATED + " --use_deepspeed --zero_stage 2",
    "zero3": SIMULATED + " --use_deepspeed --zero_stage 3 --zero3_save_16bit_model true",
}

# Runs of programs that do not go together with the way: what both must print when they refuse it.
REFUSALS = {
    "by_feature/comm_hook": "comm_hook and comm_wrapper are for the gradients of replicas",
    "by_feature/local_sgd": "cannot train independently",
}
REFUSED = {f"{program}/{way}": text
           for program, text in REFUSALS.items() for way in ("fsdp", "zero1", "zero2", "zero3")}

# The main rank alone generates text, so the model must be whole on it.
WHOLE_MODELS = ["by_feature/quantization"]

SMALL = ("lm --layers 2 --hidden 64 --heads 4 --sequence_length 32 --evaluation_sequences 8 --log_every 1"
         " --output_dir out")
LM = f"{SMALL} --checkpointing_steps 2 --max_steps 4"
RESUMED = f"{LM} && {SMALL} --checkpointing_steps 2 --max_steps 6 --resume"
SAVED = ["out/model/model.safetensors", "out/checkpoints/*/manifest.json"]

# Names, the launcher's flags, a program and its flags, and files that must be there. After && the same launcher's
# flags hold again.
OTHER_RUNS = [
    # Checkpoints of 2x4, and going on from them.
    ("checkpoints/replicas", SIMULATED, RESUMED, SAVED),
    ("checkpoints/sharded", SIMULATED + " --use_fsdp --fsdp_version 2 --fsdp_state_dict_type SHARDED_STATE_DICT",
     RESUMED, SAVED),
    ("checkpoints/full", SIMULATED + " --use_fsdp --fsdp_version 2 --fsdp_state_dict_type FULL_STATE_DICT",
     RESUMED, SAVED),
    ("checkpoints/program", SIMULATED, "programs/checkpointing --data ../examples/digits/digits.safetensors"
     " --checkpointing_steps 3 --max_steps 5 && programs/checkpointing --data ../examples/digits/digits.safetensors",
     ["out/checkpoints/*/manifest.json"]),
    ("checkpoints/zero1", WAYS["zero1"], RESUMED, SAVED),
    ("checkpoints/zero2", WAYS["zero2"], RESUMED, SAVED),
    ("checkpoints/zero3", WAYS["zero3"], RESUMED, SAVED),
    # Meshes, precisions and places of what is sharded.
    ("sharded/hybrid", SIMULATED + " --use_parallelism_config --parallelism_config_dp_replicate_size 2"
     " --parallelism_config_dp_shard_size 4", RESUMED, SAVED),
    ("sharded/units", SIMULATED + " --use_fsdp --fsdp_version 2 --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"
     " --fsdp_activation_checkpointing true --mixed_precision bf16",
     "by_feature/fsdp --max_steps 3 --weights weights.pt", ["weights.pt"]),
    ("sharded/grad_op", SIMULATED + " --use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP", LM, SAVED),
    ("sharded/offload", SIMULATED + " --use_fsdp --fsdp_version 2 --fsdp_offload_params true", LM, SAVED),
    ("sharded/fp16", SIMULATED + " --use_fsdp --fsdp_version 2 --mixed_precision fp16", LM, SAVED),
    ("sharded/fp8", SIMULATED + " --use_fsdp --fsdp_version 2 --mixed_precision fp8", LM + " --blocks llama", SAVED),
    ("sharded/accumulated", SIMULATED + " --use_fsdp --fsdp_version 2 --gradient_accumulation_steps 3", LM, SAVED),
    ("replicas/bf16", SIMULATED + " --mixed_precision bf16", LM + " --blocks llama", SAVED),
    ("replicas/fp16", SIMULATED + " --mixed_precision fp16", LM, SAVED),
    ("replicas/fp8", SIMULATED + " --mixed_precision fp8", LM + " --blocks llama", SAVED),
    ("replicas/accumulated", SIMULATED + " --gradient_accumulation_steps 3", LM, SAVED),
    ("replicas/checkpointed", SIMULATED, LM + " --activation_checkpointing", SAVED),
    ("zero/fp16", SIMULATED + " --use_deepspeed --zero_stage 2 --mixed_precision fp16 --gradient_accumulation_steps 2",
     LM, SAVED),
    ("zero/clipped", WAYS["zero3"] + " --gradient_clipping 0.5 --mixed_precision bf16", LM, SAVED),
    ("zero/host", WAYS["zero3"] + " --offload_optimizer_device cpu --offload_param_device cpu", LM, SAVED),
    ("zero/disk", WAYS["zero3"] + " --offload_optimizer_device nvme --offload_optimizer_nvme_path nvme", LM, SAVED),
    ("zero/configured", SIMULATED + " --use_deepspeed --mixed_precision bf16"
     " --deepspeed_config_file ../examples/by_feature/deepspeed/zero2_adamw.json",
     "by_feature/deepspeed --max_steps 6", []),
    ("quantised/4bit", SIMULATED, "by_feature/quantization --load_in_4bit --bnb_4bit_quant_type nf4 --layers 1"
     " --sequence_length 32 --evaluation_sequences 8 --generate 2 --max_steps 2 --save saved", ["saved/*.safetensors"]),
    ("dispatched/devices", "--simulate 1x1:h100,devices=2 --report report",
     "big_model_load --layers 2 --checkpoint model --write --offload_folder offload --generate 2"
     " --device_map {\"\":0,\"blocks.1\":1,\"head\":\"disk\"} --blocks llama", ["model/model.safetensors"]),
    ("shapes/folded", "--simulate 16x8:h100 --report report --simulate_numerics shapes --simulate_unknown_values nan"
     " --simulate_fold --mixed_precision bf16 --use_parallelism_config --parallelism_config_dp_shard_size 128",
     "lm --blocks llama --model 1b --batch_size 1 --activation_checkpointing --max_steps 3", []),
    ("stages/megatron", "--simulate 1x2 --report report --use_megatron_lm --megatron_lm_pp_degree 2"
     " --megatron_lm_num_micro_batches 4", "programs/megatron_lm_gpt_pretraining", []),
    # Two real processes on Gloo.
    ("gloo/replicas", "--num_processes 2", RESUMED, SAVED),
    ("gloo/fsdp", "--num_processes 2 --use_fsdp --fsdp_version 2", RESUMED, SAVED),
    ("gloo/zero2", "--num_processes 2 --use_deepspeed --zero_stage 2", RESUMED, SAVED),
    ("gloo/zero3", "--num_processes 2 --use_deepspeed --zero_stage 3 --zero3_save_16bit_model true", RESUMED,
     SAVED),
]

# Runs that the machine's clock times, and whose random numbers beside the seed are the machine's.
REAL = r".*/alone|gloo/.*"

# What differs between two runs of one build, as patterns: of the runs' names, of the files, of what is masked in them
# (all but its first group), and why. stdout and stderr are files, too.
MASKED = [
    (r".*", r"stderr", rb"(\[W)\d{4} [0-9:.]+ \w+\.c(?:c|pp):\d+", "a warning begins with time and line of the source"),
    (r".*", r".*\.json", rb'("(?:version of )?accelerate": ?")[0-9.]+', "files name the version that wrote them"),
    (r".*", r".*/manifest\.json", rb'("(?:checksum|id)": ")[0-9a-f]+',
     "a manifest's checksum covers the version, and a save of a real process draws a number for itself"),
    (REAL, r".*\.jsonl", rb'("_run":"|"_timestamp":)[-0-9a-f.+]+', "a run is named and dated by the clock"),
    (REAL, r"stdout", rb"(?m)^((?:\[rank 0\])? +\d+ +[0-9.]+) +\d+$", "tokens in a second, beside step and loss"),
    (REAL, r"stdout", rb"(?m)^((?:bf16|int8) .*[0-9]) +[0-9.]+$", "the time of a generated token"),
    (REAL, r"stdout", rb"(MB in |tokens, )[0-9.]+ s(?:, [0-9.]+ GB/s)?", "the times of a load and of a token"),
    (r"by_feature/profiler/alone", r"stdout", rb"(?ms)(^-----).*", "the table of operators is of their times"),
]
# Files that are not compared: the runs, the files, and why.
LEFT_OUT = [
    (r"by_feature/profiler/alone", r"traces/.*", "traces are of the clock's times"),
    (REAL, r"(.*/)?events\.out\.tfevents\..*|logs/tracking/[0-9.]+/.*",
     "events for TensorBoard are named and dated by the clock"),
]


def fail(message):
    print(f"compare_checkouts: {message}", file=sys.stderr)
    sys.exit(2)


# ---- The runs.


def built(program):
    return f"accelerate/examples/{program}/{program.split('/')[-1]}"


class Run:
    def __init__(self, name, launched, commands, files):
        self.name = name
        self.programs = []
        self.commands = []
        for command in commands.split(" && "):
            program, *flags = command.split(" ")
            self.programs.append(program)
            path = f"../built/{built(program)}"
            launcher = ["../built/launch/accelerate", "launch", *launched.split()] if launched else []
            self.commands.append([*launcher, path, *(flag for flag in flags if flag)])
        self.files = list(files)
        if launched and "--report" in launched:
            self.files.append("report/summary.json")


def all_runs():
    runs = []
    for program, flags, files in PROGRAMS:
        for way, launched in WAYS.items():
            if program in WHOLE_MODELS and way not in ("alone", "2x4"):
                continue
            runs.append(Run(f"{program}/{way}", launched, f"{program} {flags}", files))
    runs += [Run(f"{program}/alone", None, program, []) for program in ALONE]
    runs += [Run(*row) for row in OTHER_RUNS]
    names = [run.name for run in runs]
    assert len(set(names)) == len(names), "two runs have one name"
    return runs


def write_python_weights(folder):
    """The file that by_feature/weights_from_python reads, as a writer of safetensors in Python makes it."""
    header, data = {}, b""
    shapes = {"hidden.bias": [32], "hidden.weight": [32, 2], "output.bias": [2], "output.weight": [2, 32]}
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = struct.pack(f"<{count}f", *((i * 37 % 19 - 9) / 16 for i in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


class Checkout:
    def __init__(self, path, variables=()):
        self.path = Path(path).resolve()
        self.variables = dict(variables)
        if not (self.path / "tools/dev").is_file():
            fail(f"{path} has no tools/dev: it is not a checkout")

    def build(self):
        command = [self.path / "tools/dev", "bazel", "build", "--noshow_progress", "--ui_event_filters=-info",
                   "//launch:accelerate", "//accelerate/examples/..."]
        if subprocess.run(command, cwd=self.path, check=False).returncode != 0:
            fail(f"{self.path} does not build")

    def has(self, program):
        return (self.path / "accelerate/examples" / program).is_dir()

    def find_built(self, programs):
        self.built = (self.path / "bazel-bin").resolve()
        missing = [name for name in ["launch/accelerate", *map(built, programs)] if not (self.built / name).exists()]
        if missing:
            fail(f"{self.path}/bazel-bin has no {', '.join(missing)}: build them, or leave --no-build out")

    def execute(self, run, slot, result):
        """Runs the commands in slot/run and moves what they leave to `result`. Returns what went wrong, or None."""
        folder = slot / "run"
        folder.mkdir()
        for name, target in (("built", self.built), ("examples", self.path / "accelerate/examples")):
            (slot / name).unlink(missing_ok=True)
            (slot / name).symlink_to(target)
        if "weights_from_python" in run.name:
            write_python_weights(folder)
        # tools/dev passes on these alone, so that no other setting of the caller's reaches the programs.
        kept = ("ACCELERATE_CACHE", "ACCELERATE_SYSTEM_CACHE", "ACCELERATE_PACKAGES", "ACCELERATE_SUITE",
                "ACCELERATE_MIRROR")
        environment = {name: value for name, value in os.environ.items()
                       if name in kept or not name.startswith(("ACCELERATE_", "OMP_", "TEST_"))}
        environment |= {"OMP_NUM_THREADS": "1"} | self.variables
        trouble, printed = None, [b"", b""]
        end = time.monotonic() + LIMIT
        for command in run.commands:
            process = subprocess.Popen(
                [self.path / "tools/dev", "shell", "env", "-C", "run", *command], cwd=slot, env=environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
            try:
                texts = process.communicate(timeout=max(1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                # What it has started ends with the session of tools/dev.
                os.killpg(process.pid, signal.SIGKILL)
                texts = process.communicate()
                trouble = f"not done after {LIMIT} s"
            printed = [before + text for before, text in zip(printed, texts)]
            if trouble is None and process.returncode != 0:
                trouble = f"exit code {process.returncode}"
            if trouble is not None:
                break
        result.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(result)
        for name, text in zip(("stdout", "stderr"), printed):
            (result / name).write_bytes(text)
        return trouble


# ---- The comparison.


def short(text, most=120):
    if isinstance(text, bytes):
        text = text.decode(errors="backslashreplace")
    return text if len(text) <= most else text[:most] + "..."


def first_difference_of_json(before, after, where=""):
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            if key not in before or key not in after:
                return f"{where}/{key} only {'before' if key in before else 'after'}"
            if before[key] != after[key]:
                return first_difference_of_json(before[key], after[key], f"{where}/{key}")
    elif isinstance(before, list) and isinstance(after, list):
        for i, (one, other) in enumerate(zip(before, after)):
            if one != other:
                return first_difference_of_json(one, other, f"{where}/{i}")
        return f"{where}: {len(before)} elements, {len(after)}"
    return f"{where}: {short(json.dumps(before), 60)}, {short(json.dumps(after), 60)}"


ELEMENTS = {"F64": "<d", "F32": "<f", "I64": "<q", "I32": "<i", "I16": "<h", "I8": "<b", "U8": "<B", "BOOL": "<?"}
SIZES = {"F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1}


def tensors_of(data):
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return header, data[8 + size:]


def element_text(dtype, data):
    return str(struct.unpack(ELEMENTS[dtype], data)[0]) if dtype in ELEMENTS else f"0x{data[::-1].hex()}"


def first_difference_of_tensors(before, after):
    """The tensor and the element of two files in the format safetensors; None where only the header's text differs."""
    (header, values), (other_header, other_values) = tensors_of(before), tensors_of(after)
    for name in [*header, *(name for name in other_header if name not in header)]:
        if name not in header or name not in other_header:
            return f"tensor {name} only {'before' if name in header else 'after'}"
        dtype, shape = header[name]["dtype"], header[name]["shape"]
        if (dtype, shape) != (other_header[name]["dtype"], other_header[name]["shape"]):
            return f"tensor {name}: {dtype} {shape}, {other_header[name]['dtype']} {other_header[name]['shape']}"
        one, other = (data[slice(*entry[name]["data_offsets"])]
                      for entry, data in ((header, values), (other_header, other_values)))
        if one != other:
            size = struct.calcsize(ELEMENTS[dtype]) if dtype in ELEMENTS else SIZES.get(dtype, 1)
            i = next(i for i in range(0, len(one), size) if one[i:i + size] != other[i:i + size])
            return (f"tensor {name}, element {i // size}: {element_text(dtype, one[i:i + size])}, "
                    f"{element_text(dtype, other[i:i + size])}")
    return None


def first_difference(name, before, after):
    """Text for two contents that differ."""
    try:
        if name.endswith(".json"):
            return first_difference_of_json(json.loads(before), json.loads(after))
        if name.endswith(".safetensors"):
            found = first_difference_of_tensors(before, after)
            if found:
                return found
    except (ValueError, KeyError, struct.error):
        pass  # A damaged file: by its bytes.
    if b"\0" not in before + after:
        lines, other_lines = before.split(b"\n"), after.split(b"\n")
        for i, (line, other) in enumerate(zip(lines, other_lines)):
            if line != other:
                return f"line {i + 1}: {short(line)} | {short(other)}"
        return f"{len(lines) - 1} lines, {len(other_lines) - 1}"
    least = min(len(before), len(after))
    at = next((i for i in range(least) if before[i] != after[i]), least)
    return f"byte {at} of {len(before)} and {len(after)}"


def contents_of(run, folder, name):
    data = (folder / name).read_bytes()
    if b"\0" in data:
        return data
    for runs, files, pattern, _ in MASKED:
        if re.fullmatch(runs, run.name) and re.fullmatch(files, name):
            data = re.sub(pattern, rb"\g<1>0", data)
    return data


def files_of(run, folder):
    names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
    left_out = [files for runs, files, _ in LEFT_OUT if re.fullmatch(runs, run.name)]
    return [name for name in names if not any(re.fullmatch(files, name) for files in left_out)]


def difference_of(run, troubles, folders):
    """None if the run is equal in both folders; else what is wrong first."""
    sides = list(zip(("before", "after"), troubles, folders))
    refusal = REFUSED.get(run.name)
    for side, trouble, folder in sides:
        printed = (folder / "stderr").read_bytes() + (folder / "stdout").read_bytes()
        if refusal is not None:
            if trouble is None or refusal.encode() not in printed:
                return f"{side}: is not refused with \"{refusal}\" ({trouble or 'ends well'})"
            continue
        if trouble is not None:
            lines = printed.strip().splitlines() or [b"nothing printed"]
            told = next((line for line in lines if b" failed: " in line), lines[-1])
            both = " (and after)" if troubles[0] == troubles[1] else ""
            return f"{side}{both}: did not run: {trouble}: {short(told)}"
        if not (folder / "stdout").read_bytes().strip():
            return f"{side}: printed nothing"
        for files in run.files:
            if not any(path.stat().st_size for path in folder.glob(files)):
                return f"{side}: there is no {files}"
    names = [files_of(run, folder) for folder in folders]
    # What tells most comes first: what is printed, the summary, then weights and the rest.
    order = sorted(set(names[0] + names[1]),
                   key=lambda name: (name != "stdout", not name.endswith("summary.json"), name))
    for name in order:
        if name not in names[0] or name not in names[1]:
            return f"{name} only {'before' if name in names[0] else 'after'}"
        before, after = (contents_of(run, folder, name) for folder in folders)
        if before != after:
            return f"{name}: {first_difference(name, before, after)}"
    return None


# ---- All of it.


def plant(folder, pattern):
    for path in sorted(folder.glob(pattern)):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        return


def compare(run, checkouts, slots, work, planted):
    slot = slots.get()
    try:
        folders = [work / side / run.name for side in ("before", "after")]
        troubles = [checkout.execute(run, slot, folder) for checkout, folder in zip(checkouts, folders)]
    finally:
        slots.put(slot)
    if planted:
        plant(folders[1], planted)
    return difference_of(run, troubles, folders), folders


def parse():
    parser = argparse.ArgumentParser(add_help=False, usage="compare_checkouts.py BEFORE AFTER [OPTIONS]")
    parser.add_argument("before", metavar="BEFORE")
    parser.add_argument("after", metavar="AFTER")
    parser.add_argument("--no-build", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--plant", default="")
    if any(word in ("-h", "--help") for word in sys.argv[1:]):
        print(__doc__)
        sys.exit(0)
    flags = parser.parse_args()
    if flags.jobs < 1:
        fail("--jobs must be 1 or more")
    if flags.keep and flags.keep.exists():
        fail(f"{flags.keep} is there already")
    return flags


def main():
    flags = parse()
    unknown = set(REFUSED) - {run.name for run in all_runs()}
    assert not unknown, f"REFUSED has no such run: {unknown}"
    runs = [run for run in all_runs() if not flags.only or any(text in run.name for text in flags.only)]
    if not runs:
        fail(f"no run has a name with {' or '.join(flags.only)}")
    if flags.list:
        for run in runs:
            print(f"{run.name}: {' && '.join(shlex.join(command) for command in run.commands)}")
        return 0
    variable = re.fullmatch(r"([A-Z_0-9]+)=(.*)", flags.plant)
    checkouts = [Checkout(flags.before), Checkout(flags.after, [variable.groups()] if variable else [])]
    programs = sorted({program for run in runs for program in run.programs})
    absent = {}
    for program in programs:
        lacking = [checkout for checkout in checkouts if not checkout.has(program)]
        if len(lacking) == len(checkouts):
            fail(f"neither checkout has {program}")
        for checkout in lacking:
            absent[program] = checkout
            print(f"{program}: left out: {checkout.path} does not have it")
    runs = [run for run in runs if not absent.keys() & run.programs]
    if not runs:
        fail("there is no run whose programs both checkouts have")
    for checkout in checkouts:
        if not flags.no_build:
            checkout.build()
        checkout.find_built([program for program in programs if program not in absent])

    out = Path(__file__).resolve().parent.parent / ".ci/out"
    out.mkdir(parents=True, exist_ok=True)
    if flags.keep:
        flags.keep.mkdir(parents=True)
    work = (flags.keep or Path(tempfile.mkdtemp(prefix="compare-", dir=out))).resolve()
    slots = queue.Queue()
    for i in range(flags.jobs):
        (work / f"slot{i}").mkdir()
        slots.put(work / f"slot{i}")
    equal = 0
    try:
        with concurrent.futures.ThreadPoolExecutor(flags.jobs) as pool:
            planted = "" if variable else flags.plant
            results = [(run, pool.submit(compare, run, checkouts, slots, work, planted)) for run in runs]
            for run, result in results:
                difference, folders = result.result()
                equal += difference is None
                print(f"{run.name}: {'equal' if difference is None else f'DIFFERS: {difference}'}", flush=True)
                if not flags.keep:
                    for folder in folders:
                        shutil.rmtree(folder, ignore_errors=True)
    finally:
        for slot in work.glob("slot*"):
            shutil.rmtree(slot, ignore_errors=True)
        if not flags.keep:
            shutil.rmtree(work, ignore_errors=True)
    print(f"{len(runs)} runs: {equal} equal")
    return 0 if equal == len(runs) else 1


sys.exit(main())
