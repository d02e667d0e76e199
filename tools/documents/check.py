#!/usr/bin/env python3
"""check.py REPO: the documents are true about files and names. Prints what is wrong, by page and line.

  links    a relative link leads to a file of the checkout, and its #fragment to a heading
  commands a --flag_name stands in the sources, and //folder:target is there
  names    a C++ name in `code` stands somewhere in the sources (pages of NAMES_OF_OTHERS aside)
  errors   each error text of troubleshooting.md (### `text`) stands in the sources
  table    migration.md is what migration.py prints
  program  README.md and the quick tour have the same train.cc, which //integration_tests/outside compiles
  blocks   README.md and pages of READERS_PAGES have marked blocks alone (run_page.py) and at most 120 lines
"""
import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import migration  # noqa: E402
import run_page  # noqa: E402

DOCS = "accelerate/docs"
MAX_LINES = 120

# Pages that a reader follows from top to bottom, or reads for a task.
READERS_PAGES = ("install", "quicktour", "simulator", "debug_a_hang", "from_cluster_to_simulator", "find_oom",
                 "slurm", "weights_from_python", "write_a_simulated_test", "troubleshooting", "performance",
                 "concepts_runtime", "concepts_collectives", "concepts_device", "concepts_residency",
                 "concepts_seed")

# They speak of names of other projects, which our sources do not have.
NAMES_OF_OTHERS = ("differences", "deepspeed", "launch_options", "migration", "performance_log")

# Names of HF Accelerate that status.md lists as missing here.
NAMES_NOT_BUILT = {"maybe_context_parallel", "deepspeed_ulysses_dl_adapter", "prepare_pippy"}

FLAGS_OF_BAZEL = {"noenable_bzlmod", "enable_workspace"}

SOURCES = (".h", ".cc", ".py", ".sh", ".bzl", ".cmake", ".txt", ".js", ".in", ".yaml", ".json")


def files_of(repo):
    """The paths of the checkout's files, without dot-folders, links (Bazel's) and what Python leaves."""
    paths = []
    for folder, folders, names in os.walk(repo):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__" and
                            not os.path.islink(os.path.join(folder, name)))
        paths += [os.path.relpath(os.path.join(folder, name), repo) for name in sorted(names)]
    return [path for path in paths if os.path.isfile(os.path.join(repo, path))]


def read(repo, path):
    with open(os.path.join(repo, path), encoding="utf-8", errors="replace") as file:
        return file.read()


def text_lines(text):
    """Lines with their numbers, without those of fenced and indented blocks."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            inside = not inside
        elif not inside and not line.startswith("    "):
            yield number, line


def anchors(text):
    """The fragments that GitHub gives the headings."""
    names = set()
    for _, line in text_lines(text):
        if match := re.match(r"#+ +(.*)", line):
            title = re.sub(r"[^\w\- ]", "", match[1].lower()).replace(" ", "-")
            names.add(title)
    return names


def check_links(repo, page, text):
    folder = os.path.dirname(page)
    for number, line in text_lines(text):
        for target in re.findall(r"\]\(([^()\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, fragment = target.partition("#")
            file = os.path.normpath(os.path.join(folder, path)) if path else page
            if not os.path.exists(os.path.join(repo, file)):
                yield f"{page}:{number}: there is no {file}"
            elif fragment and file.endswith(".md") and fragment not in anchors(read(repo, file)):
                yield f"{page}:{number}: {file} has no heading #{fragment}"


def names_in_code(line):
    """C++ names that a line has in `code`: qualified, called, or made of several words."""
    for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", line):
        if match := re.fullmatch(r"([A-Za-z_](?:\w|::\w)*)(\(\))?", code):
            for name in match[1].split("::"):
                if match[2] or "::" in match[1] or re.search(r"[a-z]_[a-z]|[a-z][A-Z]", name):
                    yield name


def check_names(words, page, text):
    for number, line in text_lines(text):
        for name in names_in_code(line):
            if name and name not in words:
                yield f"{page}:{number}: no source has the name {name}"


def code_lines(text):
    """Lines of indented and fenced blocks, and the code in other lines, with their numbers."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            inside = not inside
        elif inside or line.startswith("    "):
            yield number, line
        else:
            for code in re.findall(r"`([^`]+)`", line):
                yield number, code


def check_commands(repo, words, page, text):
    for number, code in code_lines(text):
        for flag in re.findall(r"(?<![\w-])--([a-z]\w*_\w*)\b", code):
            if flag not in words and flag not in FLAGS_OF_BAZEL:
                yield f"{page}:{number}: no source has the flag --{flag}"
        for folder, target in re.findall(r"(?<![\w@:])//([a-z][\w/]*):([\w.-]+)", code):
            if not os.path.isdir(os.path.join(repo, folder)):
                yield f"{page}:{number}: there is no folder {folder}"
            elif target not in ("all",) and not any(target in words_of(repo, folder, name) for name in ("BUILD", "")):
                yield f"{page}:{number}: {folder} has no {target}"
        for folder in re.findall(r"(?<![\w@:])//([a-z][\w/]*)/\.\.\.", code):
            if not os.path.isdir(os.path.join(repo, folder)):
                yield f"{page}:{number}: there is no folder {folder}"


def words_of(repo, folder, name):
    """The words of a BUILD file, or the names of the folder's files without their ends, and its own."""
    path = os.path.join(repo, folder)
    if not name:
        return {os.path.splitext(each)[0] for each in os.listdir(path)} | set(os.listdir(path)) | {os.path.basename(folder)}
    return set(re.findall(r"[\w.-]+", read(repo, os.path.join(folder, name)))) if os.path.exists(os.path.join(path, name)) else set()


def check_errors(sources, page, text):
    """A text is cut at `...`; each part must be in a source, where strings may go on over lines."""
    for number, line in text_lines(text):
        if match := re.match(r"### +`(.*)`", line):
            for part in match[1].split("..."):
                if (part := part.strip()) and part not in sources:
                    yield f'{page}:{number}: no source says "{part}"'


def joined_strings(text):
    """C++ text with neighbouring literals joined and escaped quotes plain."""
    return re.sub(r'"\s*\n\s*"', "", text).replace('\\"', '"')


def findings(repo):
    files = files_of(repo)
    pages = [path for path in files if path.endswith(".md")]
    code = {path: read(repo, path) for path in files
            if path.endswith(SOURCES) and not path.startswith("tools/documents/") and
            os.path.getsize(os.path.join(repo, path)) < 2**20}
    words = {word for text in [*code.values(), *files] for word in re.findall(r"\w+", text)} | NAMES_NOT_BUILT
    strings = "\n".join(joined_strings(text) for path, text in code.items()
                        if path.endswith((".cc", ".h", ".cmake.in")) and "_test.cc" not in path)
    for page in pages:
        text = read(repo, page)
        name = os.path.basename(page)[:-len(".md")]
        yield from check_links(repo, page, text)
        if name not in ("CHANGELOG", "deepspeed"):
            yield from check_commands(repo, words, page, text)
        if page.startswith(DOCS) and name not in NAMES_OF_OTHERS and "decisions/" not in page:
            yield from check_names(words, page, text)
        if page == "README.md":
            yield from run_page.check(os.path.join(repo, page))
        elif os.path.dirname(page) == DOCS and name in READERS_PAGES:
            yield from run_page.check(os.path.join(repo, page))
            if (lines := text.count("\n")) > MAX_LINES:
                yield f"{page}: {lines} lines; a page has at most {MAX_LINES}"
        if page == f"{DOCS}/troubleshooting.md":
            yield from check_errors(strings, page, text)


def file_of(repo, page, name):
    blocks, _ = run_page.blocks_of(os.path.join(repo, page))
    return next((block.text() for block in blocks if block.values.get("file") == name), None)


def main(repo):
    found = list(findings(repo))
    if file_of(repo, "README.md", "train.cc") != file_of(repo, f"{DOCS}/quicktour.md", "train.cc"):
        found.append("README.md: its train.cc is not that of accelerate/docs/quicktour.md")
    if os.path.exists(os.path.join(repo, migration.NAMES)) and \
            migration.page(repo) != read(repo, f"{DOCS}/migration.md"):
        found.append(f"{DOCS}/migration.md is old: tools/documents/migration.py . >{DOCS}/migration.md")
    print("\n".join(found) if found else "documents: links, names, errors and blocks are right")
    sys.exit(bool(found))


if __name__ == "__main__":
    main(os.path.realpath(sys.argv[1]))
