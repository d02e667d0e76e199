R"python("
"""Makes the calls that a program writes to a socket, one JSON object a line, on Python packages.

It answers every line with {"ok": id} or {"id": id, "error": type, "message": text}, after one line
of {"bridge": 1}, its version. A path such as "clearml.Task.current_task().get_logger" begins at a
module, or at what the latest call of "clearml.Task.current_task" returned. A line of
{"finish": true} ends it; how is left to the packages. So does the end of its input, which the death
of the program is as well, but with exit status 1: the program did not come to its own end.

Its argument is the process id of the program.

bridge_process.cc embeds this file; the first line and the last are for that.
"""

import atexit
import base64
import importlib
import importlib.util
import io
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time

GRACE_SECONDS = 30

kept = {}
temporary_files = []


def resolve(path):
    """What `path` stands for, without its last name, and that name."""
    origin, called, rest = path.rpartition("().")
    names = rest.split(".")
    if called:
        if origin + "()" not in kept:
            raise LookupError(f"{origin}() has not succeeded")
        value = kept[origin + "()"]
    else:
        module = names.pop(0)
        value = importlib.import_module(module)
        for name in names[:-1]:
            module = f"{module}.{name}"
            if not hasattr(value, name):
                importlib.import_module(module)
            value = getattr(value, name)
        names = names[-1:]
    for name in names[:-1]:
        value = getattr(value, name)
    return value, names[-1]


def image(data):
    """As Pillow's, or as the path of a file where there is no Pillow."""
    png = base64.b64decode(data)
    try:
        from PIL import Image
    except ImportError:
        with tempfile.NamedTemporaryFile(suffix=".png", delete=False) as file:
            file.write(png)
        temporary_files.append(file.name)
        return file.name
    result = Image.open(io.BytesIO(png))
    result.load()
    return result


def tensor(sizes, dtype, values):
    """As NumPy's, or as nested lists where there is no NumPy; a scalar is a number."""
    values = [decode(value) for value in values]
    if dtype == "bool":
        values = [bool(value) for value in values]
    elif "float" not in dtype:
        values = [int(value) for value in values]
    if not sizes:
        return values[0]
    try:
        import numpy
    except ImportError:
        for size in reversed(sizes[1:]):
            count = len(values) // size if size else 0
            values = [values[i * size:(i + 1) * size] for i in range(count)]
        return values
    try:
        dtype = numpy.dtype(dtype)
    except TypeError:
        dtype = numpy.float32  # of bfloat16 and the like
    return numpy.array(values, dtype=dtype).reshape(sizes)


def decode(value):
    if isinstance(value, list):
        return [decode(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if "dict" in value:
        return {name: decode(entry) for name, entry in value["dict"]}
    if "float" in value:
        return float(value["float"])
    if "png" in value:
        return image(value["png"])
    if "tensor" in value:
        return tensor(value["tensor"], value["dtype"], value["values"])
    return call(value)


def call(request):
    path = request["call"]
    if "if_none" in request and kept.get(request["if_none"], False) is not None:
        return None
    try:
        owner, name = resolve(path)
        function = getattr(owner, name)
    except (AttributeError, LookupError):
        if request.get("optional"):
            return None
        raise
    args = [decode(entry) for entry in request.get("args", [])]
    kwargs = {name: decode(entry) for name, entry in request.get("kwargs", [])}
    kept.pop(path + "()", None)
    kept[path + "()"] = result = function(*args, **kwargs)
    return result


def load(path):
    """Makes the module of a file known under the file's name."""
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def perform(request):
    if "call" in request:
        call(request)
    elif "set" in request:
        owner, name = resolve(request["set"])
        setattr(owner, name, decode(request["value"]))
    elif "setitem" in request:
        path = request["setitem"]
        if path in kept:
            owner = kept[path]
        else:
            parent, name = resolve(path)
            owner = getattr(parent, name)
        owner[request["key"]] = decode(request["value"])
    else:
        load(request["load"])


def remove_temporary_files():
    for name in temporary_files:
        if os.path.exists(name):
            os.remove(name)


def watch_parent(parent, requests):
    """A package that hangs must not outlive the program by much, nor wait for what that forked."""
    while os.getppid() == parent:
        time.sleep(1)
    requests.shutdown(socket.SHUT_RD)  # what was written before is read
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def main():
    # The parent process says when this one ends: a terminal's Ctrl-C comes too early.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Packages print, and start programs: neither may touch the pipe.
    requests = socket.socket(fileno=os.dup(0))
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    atexit.register(remove_temporary_files)  # before the packages do, so that it comes last
    parent = int(sys.argv.pop())  # packages look at the arguments
    threading.Thread(target=watch_parent, args=[parent, requests], daemon=True).start()

    def answer(**fields):
        try:
            answers.write(json.dumps(fields).encode() + b"\n")
        except OSError:
            pass  # the program is gone; what it asked for is done all the same

    answer(bridge=1)
    for line in requests.makefile("rb"):
        if not line.endswith(b"\n"):
            break  # it died while it wrote
        request = json.loads(line)
        if "finish" in request:
            return
        try:
            perform(request)
            answer(ok=request["id"])
        except BaseException as error:
            answer(id=request["id"], error=type(error).__name__, message=str(error))
    sys.exit(1)


if __name__ == "__main__":
    main()

# )python"
