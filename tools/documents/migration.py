#!/usr/bin/env python3
"""migration.py REPO: prints accelerate/docs/migration_names.md, from the `Mirrors:` lines of the headers.

hf_names.txt has the public names of HF Accelerate. A class or function that a header declares has the same name here; a
header with a `Mirrors:` sentence comes first. One that only a `Mirrors:` sentence names has the name that stands there as
`(here NAME)`, else the most similar name of that header. Names that are in neither are listed at the end.
check.py compares the page with what this prints; `tools/documents/migration.py . >accelerate/docs/migration_names.md`
writes it again.
"""
import os
import re
import sys
import textwrap

PAGE = "accelerate/docs/migration_names.md"
ROOTS = ("accelerate", "launch/settings", "trackers", "simulator/run")
WIDTH = 120
HEAD = """# Reference: HF Accelerate's names, and where they are

Use this when you look up one name of HF Accelerate; [migration.md](migration.md) is the page to read. It has the public names of HF
Accelerate 1.15, but for its commands, its test utilities and the parts of Megatron-LM. `tools/documents/migration.py`
makes it from the headers. Headers below `trackers/` are in a build that has the trackers, not in a release.

## Methods and attributes of `Accelerator`

They are methods of the same names in `accelerate/accelerator.h`, in its order:

"""
ONLY_HERE = "Those that HF Accelerate lacks: "
NO_METHODS = "Methods and attributes that are not here: "
# What a program calls in the place of a method that is not here.
INSTEAD = {"trackers": "get_tracker"}
TABLE = """
## Classes and functions

| Python | C++, if another name | header |
| --- | --- | --- |
"""
NOT_HERE = """
## Names that are not names here

These names serve Python itself (its enumerations, imports and tuples), another library, or what C++ does in another way.
[parity.md](parity.md) says what takes their place.

"""
AVAILABILITY = "accelerate/report/availability.h"
NAMES = "tools/documents/hf_names.txt"
CLASS = "accelerator.Accelerator"


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
    for module, name in names(repo):
        if module == CLASS:
            continue
        if name in same:
            yield module, name, name, same[name][1]
        elif name in given or name in similar:
            yield module, name, *given.get(name, similar.get(name))
        else:
            yield module, name, None, None


def names(repo):
    """(module, name), by name."""
    with open(os.path.join(repo, NAMES), encoding="utf-8") as file:
        lines = [line.split() for line in file if not line.startswith("#")]
    return sorted(lines, key=lambda line: (line[1].lower(), line))


def public_lines(repo, header, name):
    """The lines of a class before its private part. Behind a title that ends with "see BASE in HEADER." are those of BASE."""
    with open(os.path.join(repo, header), encoding="utf-8") as file:
        body = file.read().partition(f"class {name}")[2].partition("\n private:")[0]
    for line in body.splitlines():
        yield line
        if match := re.match(r" {2}// -{4} .* see (\w+) in (\S+)\.$", line):
            yield from public_lines(repo, match[2], match[1])


def methods(repo):
    """(title, names) of the parts of class Accelerator, each name where it stands first."""
    parts, seen = [], {"decltype"}
    for line in public_lines(repo, "accelerate/accelerator.h", "Accelerator"):
        if match := re.match(r" {2}// -{4} (.*?)[.:,](?: |$)", line):
            parts.append((match[1], []))
        elif parts and (match := re.match(r" {2}(?! |return|if|else|//|TORCH_)[\w:<>&*,\[\]() ]*?[\w>&*)] ?\b([a-z]\w*)\(", line)):
            if match[1] not in seen:
                parts[-1][1].append(match[1])
                seen.add(match[1])
    return parts


def listed(head, words, indent=""):
    text = head + ", ".join(f"`{word}`" + (f" (here `{INSTEAD[word]}`)" if word in INSTEAD else "") for word in words) + "."
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) + "\n"


def page(repo):
    mirrored = {name for module, name in names(repo) if module == CLASS}
    parts = methods(repo)
    here = {name for _, part in parts for name in part}
    lines = [HEAD]
    for title, part in parts:
        if both := [name for name in part if name in mirrored]:
            lines.append(listed(f"- {title}: ", both, "  "))
    if only_here := sorted(here - mirrored):
        lines.append("\n" + listed(ONLY_HERE, only_here))
    if missing := sorted(mirrored - here):
        lines.append("\n" + listed(NO_METHODS, missing))
    lines.append(TABLE)
    checks, absent = 0, {}
    for module, name, cpp, header in rows(repo):
        if header is None:
            absent.setdefault(module, []).append(name)
        elif module == "utils.imports" and name.startswith("is_") and header == AVAILABILITY:
            checks += 1
        else:
            lines.append(f"| `{module}.{name}` | {'' if cpp == name else f'`{cpp}`'} | `{header}` |\n")
    lines.append(f"| `utils.imports.is_..._available`, {checks} functions | | `{AVAILABILITY}` |\n")
    if absent:
        lines.append(NOT_HERE)
        lines += [listed(f"- `{module}`: ", absent[module], "  ") for module in sorted(absent)]
    return "".join(lines)


def nameless(repo):
    """`Mirrors:` lines whose header has no such name: each must say `(here NAME)`."""
    for module, name, cpp, header in rows(repo):
        if header and not cpp:
            yield f'{header}: "Mirrors: ... {name}" needs "(here NAME)", a name of this header'


if __name__ == "__main__":
    sys.stdout.write(page(os.path.realpath(sys.argv[1])))
