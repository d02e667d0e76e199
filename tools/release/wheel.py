#!/usr/bin/env python3
"""wheel.py TREE OUT: makes a wheel of an installed tree, and prints its path.

TREE is what `cmake --install` laid down with CMAKE_INSTALL_LIBDIR=lib, so that programs and libraries find LibTorch in the
folder of Python's torch (ACCELERATE_TORCH_RPATH). The wheel has the tree as the folder of the Python package accelerate_cpp,
and that package's modules. It is made from the standard library alone, and the same tree gives the same bytes.

Wheels have no links. A library's file has the name that programs load it by; its other names are texts for the linker that
lead there. Links to programs are left out.
"""
import base64
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import zipfile

PACKAGE = "accelerate_cpp"
TEXT = "Distributed training on LibTorch in C++, and a simulator of clusters"
DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip knows
MODULES = os.path.join(os.path.dirname(os.path.realpath(__file__)), PACKAGE)


def loaded_name(path):
    """The name by which programs load a library."""
    run = subprocess.run(["readelf", "-d", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    found = re.search(r"\(SONAME\).*\[(.+)\]", run.stdout)
    return found[1] if found else os.path.basename(path)


def files_of(tree):
    """(path in the package, contents, whether it is a program), without links."""
    for folder, folders, names in os.walk(tree):
        folders.sort()
        links = {}
        for name in sorted(names):
            path = os.path.join(folder, name)
            inside = os.path.relpath(path, tree)
            if os.path.islink(path):
                links[name] = os.path.realpath(path)
                continue
            with open(path, "rb") as file:
                contents = file.read()
            loaded = loaded_name(path) if contents.startswith(b"\x7fELF") and ".so" in name else name
            if loaded != name:
                yield inside, f"INPUT ( {loaded} )\n".encode(), False
            yield os.path.join(os.path.dirname(inside), loaded), contents, os.access(path, os.X_OK)
        for name, target in links.items():
            if ".so" in name and os.path.dirname(target) == os.path.realpath(folder):
                loaded = loaded_name(target)
                if loaded != name:
                    yield os.path.relpath(os.path.join(folder, name), tree), f"INPUT ( {loaded} )\n".encode(), False


def modules():
    for name in sorted(os.listdir(MODULES)):
        if name.endswith(".py"):
            with open(os.path.join(MODULES, name), "rb") as file:
                yield name, file.read()


def main(tree, out):
    with open(os.path.join(tree, "share", "accelerate-cpp", "release.json"), encoding="utf-8") as file:
        release = json.load(file)
    version = f"{release['version']}+torch{release['libtorch']}"
    tag = f"py3-none-linux_{platform.machine()}"
    info = f"{PACKAGE}-{version}.dist-info"
    entries = {f"{PACKAGE}/{name}": (contents, False) for name, contents in modules()}
    for path, contents, is_program in files_of(tree):
        entries.setdefault(f"{PACKAGE}/{path}", (contents, is_program))
    entries[f"{info}/METADATA"] = (f"""Metadata-Version: 2.1
Name: accelerate-cpp
Version: {version}
Summary: {TEXT}
License: Apache-2.0
Requires-Python: >=3.9
Provides-Extra: torch
Requires-Dist: torch=={release['libtorch']}; extra == "torch"
""".encode(), False)
    entries[f"{info}/WHEEL"] = (f"""Wheel-Version: 1.0
Generator: accelerate-cpp
Root-Is-Purelib: false
Tag: {tag}
""".encode(), False)
    entries[f"{info}/entry_points.txt"] = (f"""[console_scripts]
accelerate = {PACKAGE}.__main__:main
accelerate-cpp = {PACKAGE}.__main__:main
""".encode(), False)
    record = []
    os.makedirs(out, exist_ok=True)
    wheel = os.path.join(out, f"{PACKAGE}-{version}-{tag}.whl")
    # Under its name when all of it is there: a wheel that was cut off looks like one.
    with zipfile.ZipFile(wheel + ".part", "w", zipfile.ZIP_DEFLATED) as archive:
        def add(path, contents, mode):
            entry = zipfile.ZipInfo(path, DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, contents)
        for path in sorted(entries):
            contents, is_program = entries[path]
            digest = base64.urlsafe_b64encode(hashlib.sha256(contents).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(contents)}\n")
            add(path, contents, 0o755 if is_program else 0o644)
        add(f"{info}/RECORD", "".join([*record, f"{info}/RECORD,,\n"]).encode(), 0o644)
    os.replace(wheel + ".part", wheel)
    print(wheel)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
