#!/usr/bin/env python3
"""migration.py REPO: prints accelerate/docs/migration.md, from the `Mirrors:` lines of the headers.

hf_names.txt has the public classes and functions of HF Accelerate. One that a header declares has the same name here; a
header with a `Mirrors:` sentence comes first. One that only a `Mirrors:` sentence names has the name that stands there as
`(here NAME)`, else the most similar name of that header. Names that are in neither are left out.
check.py compares the page with what this prints; `tools/documents/migration.py . >accelerate/docs/migration.md`
writes it again.
"""
import os
import re
import sys

ROOTS = ("accelerate", "launch/settings", "trackers", "simulator/run")
HEAD = """# From HF Accelerate to C++

Names are HF Accelerate's, in LibTorch's types: `accelerator.prepare(model, optimizer, loader)` is the same call, keyword
arguments are fields of an options struct (`Accelerator({.mixed_precision = Precision::kBf16})`), and what a function returns
as a tuple is taken by `auto [model, optimizer, loader]`. `accelerate/accelerate.h` includes what a loop needs; other headers
stand in the table. [differences.md](differences.md) lists what behaves otherwise, and [status.md](status.md) what is not built.

| Python | C++ |
| --- | --- |
| `accelerator = Accelerator()` | `accelerate::Accelerator accelerator;` |
| `for x, y in loader:` | `for (auto& [x, y] : loader)` |
| `with accelerator.accumulate(model):` | `auto scope = accelerator.accumulate(model);` until the end of the block |
| `loss.backward()` becomes `accelerator.backward(loss)` | the same |
| `accelerate launch script.py` | `accelerate launch ./program` |
| `if __name__ == "__main__": main()` | `int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }` |

`Accelerator` has the methods of HF Accelerate's under the same names, in `accelerate/accelerator.h`:
"""
TABLE = """
Classes and functions, by HF Accelerate's module. A name that is missing has no counterpart.

| Python | C++, if another name | header |
| --- | --- | --- |
"""
AVAILABILITY = "accelerate/report/availability.h"
NAMES = "tools/documents/hf_names.txt"


def headers(repo):
    for root in ROOTS:
        for folder, folders, names in os.walk(os.path.join(repo, root)):
            folders[:] = sorted(name for name in folders if name not in ("testing", "examples", "docs", "fuzz"))
            for name in sorted(names):
                if name.endswith(".h"):
                    yield os.path.relpath(os.path.join(folder, name), repo)


def without_arguments(line):
    """The line without template arguments, so that a parenthesis behind a name is a function's."""
    while (shorter := re.sub(r"(?<=\w)<[^<>]*>", "", line)) != line:
        line = shorter
    return line


def declarations(text):
    """The names that a header declares outside of classes, and members of classes, in order, with their lines."""
    found = []
    for number, line in enumerate(text.splitlines()):
        line = without_arguments(line)
        if match := re.match(r"(?:template <.*> *)?(?:class|struct|enum class) (\w+)(?: final)?(?: *[:{]|$)", line):
            found.append((number, match[1]))
        elif match := re.match(r"(?: {2})?(?!return|using|static_assert|#|//|TORCH_|namespace)[\w:<>&*,\[\] ]*?[\w>&*] ?(\w+)\(", line):
            found.append((number, match[1]))
        elif match := re.match(r"using (\w+) =", line):
            found.append((number, match[1]))
        elif match := re.match(r"(?:inline )?constexpr .* (\w+)(?:\[\])? *[={]", line):
            found.append((number, match[1]))
    return found


def sentences(text):
    """(line, sentence) of each `Mirrors:`; it ends with the comment, an empty line or the next such word."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if (at := line.find("Mirrors:")) < 0 or not line.lstrip().startswith("//"):
            continue
        parts = [line[at + len("Mirrors:"):]]
        for after in lines[number + 1:]:
            content = after.strip()
            if not content.startswith("//") or re.match(r"/{2,3} *($|[A-Z]\w+: )", content):
                break
            parts.append(content.lstrip("/ "))
        sentence = " ".join(part.strip() for part in parts)
        yield number, re.split(r"(?<![A-Z])\.(?: |$)", sentence)[0]


def plain(name):
    return name.replace("_", "").lower()


def rows(repo):
    """(HF Accelerate's module, name, C++ name, header) of each name that the library has; the C++ name is empty where
    the header has none, which is an error of its `Mirrors:` line."""
    same, given, similar = {}, {}, {}
    for header in headers(repo):
        with open(os.path.join(repo, header), encoding="utf-8") as file:
            text = file.read()
        lines = text.splitlines()
        declared = declarations(text)
        found = list(sentences(text))
        for line, name in declared:
            # A free function comes before a member, and a header that says whom it mirrors before others.
            rank = (not lines[line].startswith("  "), bool(found))
            if name not in same or rank > same[name][0]:
                same[name] = (rank, header)
        for _, sentence in found:
            for name, cpp in re.findall(r"\b([A-Za-z_]\w+) \(here (\w[\w:]*)", sentence):
                is_there = all(re.search(rf"^[^/]*\b{part}\b", text, re.M) for part in cpp.split("::"))
                given.setdefault(name, (cpp if is_there else "", header))
            for name in re.findall(r"\b[A-Za-z_]\w+\b", sentence):
                like = [each for _, each in declared if plain(name) in plain(each)]
                similar.setdefault(name, (min(like, key=len, default=""), header))
    with open(os.path.join(repo, NAMES), encoding="utf-8") as file:
        names = [line.split() for line in file if not line.startswith("#")]
    for module, name in sorted(names, key=lambda line: (line[1].lower(), line)):
        if name in same:
            yield module, name, name, same[name][1]
        elif name in given or name in similar:
            yield module, name, *given.get(name, similar.get(name))


def methods(repo):
    """The public methods of Accelerator."""
    with open(os.path.join(repo, "accelerate/accelerator.h"), encoding="utf-8") as file:
        text = file.read()
    body = text[text.index("class Accelerator"):]
    body = body[:body.index("\n private:")]
    names = {match[1] for line in body.splitlines()
             if (match := re.match(r" {2}(?!return|if|else|//|TORCH_)[\w:<>&*,\[\]() ]*?[\w>&*)] ?\b([a-z]\w*)\(", line))}
    return sorted(names - {"decltype"})


def page(repo):
    lines = [HEAD, ", ".join(f"`{name}`" for name in methods(repo)) + ".\n", TABLE]
    checks = 0
    for module, name, cpp, header in rows(repo):
        if module == "utils.imports" and name.startswith("is_") and header == AVAILABILITY:
            checks += 1
            continue
        other = "" if cpp == name else f"`{cpp}`" if cpp else "see the header"
        lines.append(f"| `{module}.{name}` | {other} | `{header}` |\n")
    lines.append(f"| `utils.imports.is_..._available`, {checks} functions | | `{AVAILABILITY}` |\n")
    return "".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page(os.path.realpath(sys.argv[1])))
