#!/usr/bin/env python3
"""Makes packages of recorded regions: accelerate/docs/compile.md.

compile_regions.py CACHE [--libtorch VERSION] [--again]

Compiles by TorchInductor, ahead of time, each region of the cache that has no package, and says
how long each took. This is the only part of Accelerate for C++ that needs Python with torch, whose
version must be that of the LibTorch that recorded the region; those of other releases are skipped,
with a line for each release. A package in the form of another version of Accelerate counts as none.
Training programs load what it makes and never wait for it. A region that cannot be compiled is one line, and the exit code is 1; 3 if
this Python cannot import torch, or has one of another version than all regions.
"""

import argparse
import hashlib
import json
import operator
import os
import platform
import shutil
import struct
import sys
import tempfile
import time

FORMAT = 2
# The extensions that the compiler, which makes code for this very CPU, may have used.
FEATURES = ("sse", "ssse", "avx", "fma", "bmi", "f16c", "popcnt", "abm", "lzcnt", "movbe", "adx", "amx", "gfni",
            "vaes", "vpclmulqdq", "aes", "pclmulqdq", "sha", "asimd", "fphp", "sve", "bf16", "i8mm", "dotprod")
# By the numbers of c10::ScalarType.
DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64",
          "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16")


def cpu_features():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith(("flags", "Features")):
                    return sorted({each for each in line.split(":", 1)[1].split() if each.startswith(FEATURES)})
    except OSError:
        pass
    return []


class Region:
    """A recorded region: the file's parts."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as lines:
            head, *rest = [json.loads(line) for line in lines if line.strip()]
        self.libtorch, self.cxx11_abi = head["libtorch"], head["cxx11_abi"]
        self.mode, self.options = head["mode"], head["options"] or {}
        self.inputs = rest[0]["inputs"]
        self.forward, self.backward, self.outputs, self.grads, self.gradients = [], [], None, None, None
        for line in rest[1:]:
            if "op" in line:
                (self.forward if self.outputs is None else self.backward).append(line)
            elif "outputs" in line:
                self.outputs = line["outputs"]
                self.differentiable = line["differentiable"]
            elif "gradients_of" in line:
                self.grads, self.grad_strides = line["gradients_of"], line["strides"]
            else:
                self.gradients = line["gradients"]
        if self.outputs is None or (self.grads is not None and self.gradients is None):
            raise ValueError("its text is cut off")
        devices = {each["device"] for each in self.inputs if each}
        if devices - {"cpu"}:
            raise ValueError(f"it was recorded on {', '.join(sorted(devices))}: packages are for CPUs")

    @property
    def has_backward(self):
        return self.grads is not None


def tensors_of(value):
    if isinstance(value, dict):
        if "t" in value:
            yield value["t"]
    elif isinstance(value, list):
        for each in value:
            yield from tensors_of(each)


def saved_tensors(region):
    """What the backward half reads and does not make, as region_program.cc finds it."""
    made, saved = set(region.grads), []

    def read(number):
        if number not in made:
            made.add(number)
            saved.append(number)

    for step in region.backward:
        for number in tensors_of(step["args"]):
            read(number)
        made.update(results_of(step))
    for each in region.gradients:
        if each["t"] is not None:
            read(each["t"])
    return saved


def results_of(step):
    for result in step["out"]:
        yield from (each for each in (result if isinstance(result, list) else [result]) if each is not None)


def argument(torch, value, schema, env):
    """An argument of an operator, from its JSON."""
    if isinstance(value, dict):
        if "t" in value:
            return env[value["t"]]
        if "number" in value or "f" in value:
            number = value.get("number", value.get("f"))
            return float(number) if isinstance(number, str) else number
        return torch.device(value["device"])
    if isinstance(value, list):
        return [argument(torch, each, None, env) for each in value]
    if schema is None or value is None or isinstance(value, bool) or not isinstance(value, int):
        return value
    if schema.name.endswith("dtype"):
        return getattr(torch, DTYPES[value])
    if schema.name == "layout":
        return torch.strided
    if schema.name == "memory_format":
        return (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)[value]
    return value


def graph_of(torch, steps, inputs, outputs):
    """The steps as a module of torch.fx: tensors of these numbers in, tensors of those out."""
    graph, env = torch.fx.Graph(), {}
    for number in inputs:
        env[number] = graph.placeholder(f"t{number}")
    for step in steps:
        namespace, name = step["op"].split("::")
        name, _, overload = name.partition(".")
        call = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
        positional, named = [], {}
        for schema, value in zip(call._schema.arguments, step["args"]):
            given = argument(torch, value, schema, env)
            if not schema.kwarg_only:
                positional.append(given)
            elif given is not None:
                named[schema.name] = given
        node = graph.call_function(call, tuple(positional), named)
        results = step["out"]
        if len(results) == 1 and not isinstance(results[0], list):
            if results[0] is not None:
                env[results[0]] = node
            continue
        for index, number in enumerate(results[0] if len(results) == 1 else results):
            if number is not None and not isinstance(number, list):
                env[number] = graph.call_function(operator.getitem, (node, index))
    graph.output(tuple(env[number] for number in outputs))
    graph.lint()
    return torch.fx.GraphModule({}, graph)


def example(torch, each):
    return torch.empty_strided(each["sizes"], each["strides"], dtype=getattr(torch, DTYPES[each["dtype"]])).zero_()


def like(torch, fake):
    return torch.empty_strided(tuple(fake.shape), fake.stride(), dtype=fake.dtype).zero_()


def results_in_shapes(torch, module, inputs):
    """The module's results for such inputs, by their shapes alone."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode() as mode, torch.no_grad():
        results = module(*[mode.from_tensor(each) for each in inputs])
    return [like(torch, each) for each in results]


class Halves:
    """Two modules with what they take and give, as package.json says it."""

    def __init__(self, torch, region):
        self.inputs = sorted({index for index, each in enumerate(region.inputs) if each})
        examples = {index: example(torch, region.inputs[index]) for index in self.inputs}
        self.forward_examples = [examples[index] for index in self.inputs]
        results, self.outputs, self.saved, self.gradients = [], [], [], None

        def source(number):
            if number is None:
                return None
            if number in examples:
                return {"from": "input", "index": number}
            if number not in results:
                results.append(number)
            return {"from": "result", "index": results.index(number)}

        self.outputs = [source(number) for number in region.outputs]
        saved = saved_tensors(region) if region.has_backward else []
        self.saved = [source(number) for number in saved]
        self.forward = graph_of(torch, region.forward, self.inputs, results)
        if not region.has_backward:
            return
        shapes = dict(zip(results, results_in_shapes(torch, self.forward, self.forward_examples)))
        outputs = [number for number, has in zip(region.outputs, region.differentiable) if has]
        grads = [torch.empty_strided(tuple(shapes[number].shape), strides, dtype=shapes[number].dtype).zero_()
                 for number, strides in zip(outputs, region.grad_strides)]
        self.backward_examples = [examples.get(number, shapes.get(number)) for number in saved] + grads
        gradients = []
        self.gradients = []
        for each in region.gradients:
            number = each["t"]
            if number is None:
                self.gradients.append(None)
            elif number in saved:
                self.gradients.append({"from": "saved", "index": saved.index(number)})
            elif number in region.grads:
                self.gradients.append({"from": "grad", "index": region.grads.index(number)})
            else:
                if number not in gradients:
                    gradients.append(number)
                self.gradients.append({"from": "result", "index": gradients.index(number)})
        self.backward = graph_of(torch, region.backward, saved + region.grads, gradients)

    def keep_less(self, torch, budget):
        """Divides the work anew: the backward half computes again what does not fit into the budget, a share of what
        the forward half would keep, 0 to 1."""
        from torch._functorch import config
        from torch._functorch.partitioners import min_cut_rematerialization_partition
        from torch.fx.experimental.proxy_tensor import make_fx
        size, taken = len(self.inputs), [each["index"] for each in self.outputs if each]
        num_grads = len(self.backward_examples) - len(self.saved)

        def joint(*values):
            primals, tangents = values[:size], values[size:]
            results = self.forward(*primals)
            by_number = dict(zip(self.inputs, primals))
            saved = [by_number[each["index"]] if each["from"] == "input" else results[each["index"]]
                     for each in self.saved]
            return [results[index] for index in taken] + list(self.backward(*saved, *tangents))

        examples = self.forward_examples + self.backward_examples[len(self.saved):]
        with torch.no_grad():
            module = make_fx(torch.func.functionalize(joint, remove="mutations"), tracing_mode="fake")(*examples)
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        if any(node.target is torch.ops.aten.copy_.default for node in module.graph.nodes):
            raise ValueError("memory_budget, but it changes buffers in place")
        for index, node in enumerate(placeholders):
            name = f"primals_{index + 1}" if index < size else f"tangents_{index - size + 1}"
            node.name = node.target = name
        module.recompile()
        with config.patch(activation_memory_budget=budget):
            forward, backward = min_cut_rematerialization_partition(module, examples, num_fwd_outputs=len(taken))
        results = list(next(node for node in forward.graph.nodes if node.op == "output").args[0])
        primals = {node.name: number for node, number in
                   zip((node for node in forward.graph.nodes if node.op == "placeholder"), self.inputs)}
        places, kept, kept_results = {}, results[len(taken):], results[:len(taken)]
        for node in kept:
            if node.name in primals:
                places[node.name] = {"from": "input", "index": primals[node.name]}
            else:
                places[node.name] = {"from": "result", "index": len(kept_results)}
                kept_results.append(node)
        # The halves take and give in the order that package.json has.
        next(node for node in forward.graph.nodes if node.op == "output").args = (tuple(kept_results),)
        forward.recompile()
        names = [node.name for node in backward.graph.nodes if node.op == "placeholder"]
        tangents = [f"tangents_{index + 1}" for index in range(num_grads)]
        order = [name for name in names if name in places]
        first = next(iter(backward.graph.nodes))
        with backward.graph.inserting_before(first):
            for name in tangents:
                if name not in names:
                    backward.graph.placeholder(name)
        by_name = {node.name: node for node in backward.graph.nodes if node.op == "placeholder"}
        for name in reversed(order + tangents):
            next(iter(backward.graph.nodes)).prepend(by_name[name])
        backward.recompile()
        self.outputs = [each and {"from": "result", "index": place} for each, place in
                        zip(self.outputs, numbered(self.outputs))]
        self.saved = [places[name] for name in order]
        self.forward = forward
        shapes = results_in_shapes(torch, forward, self.forward_examples)
        self.backward_examples = [
            self.forward_examples[self.inputs.index(each["index"])] if each["from"] == "input" else shapes[each["index"]]
            for each in self.saved] + self.backward_examples[-num_grads:]
        self.backward = backward


def numbered(values):
    """For each value that there is how many there are before it."""
    count = 0
    for value in values:
        yield count
        count += bool(value)


def forbid_executable_stack(path):
    """Takes the mark off a shared object (ELF, 64 bits) that wants a stack that can be executed.

    TorchInductor's object of constants says nothing of it, which the linker takes for such a wish, and the C library
    since glibc 2.41 does not load it. No code of it needs that.
    """
    stack, executable = 0x6474E551, 1  # PT_GNU_STACK, PF_X
    with open(path, "r+b") as file:
        order = {1: "<", 2: ">"}[file.read(6)[5]]
        file.seek(32)
        offset, = struct.unpack(order + "Q", file.read(8))
        file.seek(54)
        size, count = struct.unpack(order + "HH", file.read(4))
        for number in range(count):
            file.seek(offset + number * size)
            kind, flags = struct.unpack(order + "II", file.read(8))
            if kind == stack:
                file.seek(offset + number * size + 4)
                file.write(struct.pack(order + "I", flags & ~executable))


def compile_half(torch, module, examples, options, folder, name):
    """Writes NAME.so, and NAME.json where the code calls operators by name."""
    with torch.no_grad():
        code = torch._inductor.aot_compile(module, tuple(examples), options=options)
    shutil.copyfile(code, os.path.join(folder, f"{name}.so"))
    forbid_executable_stack(os.path.join(folder, f"{name}.so"))
    calls = os.path.splitext(code)[0] + ".json"
    if os.path.exists(calls):
        shutil.copyfile(calls, os.path.join(folder, f"{name}.json"))


def package(torch, region, number, folder):
    """Writes the package of a region into an empty folder."""
    options = dict(region.options)
    budget = options.pop("memory_budget", None)
    options.pop("package", None)
    if region.mode == "max-autotune" or region.mode == "max-autotune-no-cudagraphs":
        options.setdefault("max_autotune", True)
    # Two shared objects, and random numbers that operators draw without a compiler.
    options.update({"fallback_random": True, "aot_inductor.package": False})
    # Roundings to bf16 and back stay, where this release can keep them; as many threads as the program has.
    for name in ("emulate_precision_casts", "cpp.dynamic_threads"):
        if name in torch._inductor.config.get_config_copy():
            options.setdefault(name, True)
    # The C++11 ABI is that of the program's LibTorch, which Python's need not have.
    torch._C._GLIBCXX_USE_CXX11_ABI = bool(region.cxx11_abi)
    halves = Halves(torch, region)
    if budget is not None and region.has_backward:
        halves.keep_less(torch, float(budget))
    compile_half(torch, halves.forward, halves.forward_examples, options, folder, "forward")
    made = {"format": FORMAT, "region": number, "libtorch": region.libtorch, "cxx11_abi": region.cxx11_abi,
            "machine": platform.machine(), "features": cpu_features(),
            "forward": {"inputs": halves.inputs, "outputs": halves.outputs, "saved": halves.saved}}
    if region.has_backward:
        if any(each and each["from"] == "result" for each in halves.gradients):
            compile_half(torch, halves.backward, halves.backward_examples, options, folder, "backward")
        else:
            raise ValueError("its backward half computes nothing")
        made["backward"] = {"gradients": halves.gradients}
    made["files"] = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        os.chmod(path, 0o644)
        with open(path, "rb") as file:
            contents = file.read()
        made["files"][name] = {"bytes": len(contents), "sha256": hashlib.sha256(contents).hexdigest()}
    return made


def has_package(folder):
    """Whether the folder has a package in this version's form."""
    try:
        with open(os.path.join(folder, "package.json"), encoding="utf-8") as file:
            return json.load(file)["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        return False


def add_package(torch, folder, number):
    """Gives the region in the folder its package: all of it, or nothing that counts."""
    region = Region(os.path.join(folder, "region"))
    with tempfile.TemporaryDirectory(dir=folder) as work:
        made = package(torch, region, number, work)
        # Files of an earlier package, which may have had more.
        for name in ("package.json", "forward.so", "forward.json", "backward.so", "backward.json"):
            if os.path.lexists(os.path.join(folder, name)):
                os.remove(os.path.join(folder, name))
        for name in made["files"]:
            os.replace(os.path.join(work, name), os.path.join(folder, name))
        text = os.path.join(work, "package.json")
        with open(text, "w", encoding="utf-8") as file:
            json.dump(made, file, indent=1)
        os.chmod(text, 0o644)
        os.replace(text, os.path.join(folder, "package.json"))
    os.chmod(folder, 0o755)


def say(text):
    print(f"compile_regions: {text}", flush=True)


def regions_in(cache, release, again):
    for version in sorted(os.listdir(cache)) if os.path.isdir(cache) else []:
        if release and version != release:
            continue
        for number in sorted(os.listdir(os.path.join(cache, version))):
            folder = os.path.join(cache, version, number)
            if len(number) != 64 or not os.path.exists(os.path.join(folder, "region")):
                continue
            if again or not has_package(folder):
                yield version, number, folder


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("cache", help="the folder of regions")
    parser.add_argument("--libtorch", help="regions of this release only")
    parser.add_argument("--again", action="store_true", help="also regions that have a package")
    options = parser.parse_args()
    regions = list(regions_in(options.cache, options.libtorch, options.again))
    if not regions:
        say("every region has a package")
        return 0
    try:
        import torch
        import torch._inductor
        import torch.fx
    except ImportError as error:
        say(f"{len(regions)} regions have no package: {sys.executable} cannot import torch ({error})")
        return 3
    version = torch.__version__.split("+")[0]
    fitting = [each for each in regions if each[0] == version]
    for other in sorted({each[0] for each in regions} - {version}):
        say(f"skipped: regions of LibTorch {other} need torch {other}, and {sys.executable} has {torch.__version__}")
    failed = 0
    for _, number, folder in fitting:
        start = time.time()
        try:
            add_package(torch, folder, number)
            say(f"{number[:12]}: compiled in {time.time() - start:.0f} s")
        except Exception as error:  # whatever the compiler says, the others are tried
            failed += 1
            lines = str(error).strip().splitlines() or [""]
            say(f"{number[:12]}: not compiled: {type(error).__name__}: {lines[0]}")
    if not fitting:
        return 3
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
