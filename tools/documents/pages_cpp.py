#!/usr/bin/env python3
"""pages_cpp.py READER PAGE...: prints the C++ of the pages as a GoogleTest program.

A block of C++ without file=NAME (run_page.py) is a piece of a program. Each becomes a test, named after its page and line:

    ```cpp                  statements, which run on one simulated rank
    ```cpp on=1x8:h100      they run on each rank of that cluster
    ```cpp on=              they run once, outside of a cluster
    ```cpp with=Prepared    they have the names of that struct in READER, where others have those of Reader
    ```cpp not-run          they are compiled
    ```cpp members          members of a class; compiled
    ```cpp declarations     of a namespace; compiled

READER is the header that declares what the reader of a block has. A line `...` leaves something out.
"""
import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import run_page  # noqa: E402


def name_of(page):
    """accelerate/docs/hooks.md is hooks, and simulator/disk/README.md is simulator_disk."""
    name = page.removesuffix(".md").removesuffix("/README").removeprefix("accelerate/docs/")
    return re.sub(r"\W", "_", name)


def test_of(page, block, run):
    line = int(block.where.rpartition(":")[2])
    test = f"Line{line}"
    rows = [row for row in block.lines if row.strip() != "..." and not row.startswith("#include")]
    code = f'#line {line + 1} "{page}"\n' + "\n".join("" if row not in rows else row for row in block.lines)
    parts = [f"namespace {name_of(page)} {{"]
    if "declarations" in block.flags:
        parts.append(code.replace("int main(", "int program_main("))
    elif "members" in block.flags:
        parts.append(f"struct {test} : {block.values.get('with', 'Reader')} {{\n{code}\n}};")
    else:
        parts.append(f"struct {test} : {block.values.get('with', 'Reader')} {{\nvoid follow() {{\n{code}\n}}\n}};")
        if "not-run" not in block.flags:
            topology = block.values.get("on", "1x1")
            run.append(f'{{"{name_of(page)}", "{test}", "{topology}", follow<{name_of(page)}::{test}>}}')
    return "\n".join(parts) + "\n}"


def main(reader, pages):
    includes, tests, run = [], [], []
    for page in pages:
        for block in run_page.blocks_of(page)[0]:
            if block.language == "cpp" and "file" not in block.values:
                includes += [line for line in block.lines if line.startswith("#include")]
                tests.append(test_of(page, block, run))
    print(f"// What tools/documents/pages_cpp.py has cut out of {len(pages)} pages.")
    print("\n".join(sorted({"#include <torch/torch.h>", *includes})))
    print(f'#include "{reader}"\n\nnamespace accelerate::documents {{\n')
    print("using namespace simulator;\n")
    print("\n\n".join(tests))
    print("\nconst bool kRegistered = register_tests({\n    " + ",\n    ".join(run) + "});")
    print("\n}  // namespace accelerate::documents")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
