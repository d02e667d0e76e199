#!/usr/bin/env python3
"""check.py REPO: the documents are true about files and names. Prints what is wrong, by page and line.

  links    a relative link leads to a file of the checkout, and its #fragment to a heading
  commands a --flag_name stands in the sources, and //folder:target is there; after `accelerate` or `accelerate launch`
           it is an option of the launcher's tables
  paths    a file in `code` that begins with a folder of the checkout is there
  names    a C++ name in `code` stands somewhere in the sources (pages of NAMES_OF_OTHERS aside), and
           accelerate::name in the sources of the library
  settings a variable in `code`, as ACCELERATE_NAME, stands in the sources
  errors   each error text of troubleshooting*.md (### `text`, `text`) stands in the sources
  table    migration_names.md is what migration.py prints, from `Mirrors:` lines whose headers have a name for each;
           README.md's table says what the rows of status.md say, and each of these belongs to one of its rows
  changes  CHANGELOG.md has each entry once, below a part of the product, in lines of 120 characters
  program  README.md and the quick tour have the same train.cc, which //integration_tests/outside compiles
  blocks   every page has marked blocks alone (run_page.py); pages of READERS_PAGES have at most 120 lines; a test
           runs each page that has C++ or commands of its own
  pages    each page of accelerate/docs says below its title when to use it, and README.md there has it in one of its lists;
           the title begins with the kind of the list's group: "Guide:" or "Tutorial:", "Concept:", "Reference:"
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
LINE_WIDTH = 120

# Pages that a reader follows from top to bottom, or reads for a task.
READERS_PAGES = ("install", "install_other", "quicktour", "migration", "simulator", "simulator_accuracy", "debug_a_hang",
                 "from_cluster_to_simulator", "find_oom", "plan_a_cluster", "perf_ci", "perf_bench", "slurm", "weights_from_python",
                 "write_a_simulated_test", "troubleshooting", "troubleshooting_runs", "troubleshooting_simulator",
                 "performance",
                 "pipelines", "tensor_parallelism", "long_sequences", "process_control", "evaluation", "inference",
                 "deferred_execution", "comparing_setups", "fsdp_or_deepspeed", "logging", "sharding", "sharding_options",
                 "sharding_calls", "sharding_precision", "offload", "launching", "launch_settings", "launch_failures",
                 "big_models", "big_model_rules", "quantization", "quantization_rules", "hf_pages",
                 "launch_from_a_program", "sagemaker", "releases", "plan_from_python",
                 "checkpoints", "checkpoint_rules", "commands", "estimate_memory", "examples", "example_programs", "deepspeed",
                 "parallelism", "concepts_shares", "README",
                 "concepts_runtime", "concepts_collectives", "concepts_device", "concepts_dispatch", "concepts_forward",
                 "concepts_gradients", "concepts_prepare", "concepts_residency", "concepts_seed", "concepts_sequences",
                 "concepts_sharding")

# They speak of names of other projects, which our sources do not have.
NAMES_OF_OTHERS = ("CHANGELOG", "differences", "deepspeed_options", "launch_options", "migration", "migration_names",
                   "parity", "performance_log")

# Names of HF Accelerate that status.md lists as missing here.
NAMES_NOT_BUILT = set()

# The rows of status.md's table of features, by their beginnings, that a row of README.md's table sums up. Each row of
# status.md stands in one list, or in STATUS_ALONE.
STATUS = {
    "The training loop, data-parallel training": ["The loop", "Data parallel training", "Collectives on tensors"],
    "Data, metrics, optimizers, schedules, checkpoints, trackers, profiler": [
        "Map-style data", "Streams, shared and sharded", "`gather_for_metrics`", "Metrics", "Process control",
        "Operations on trees",
        "Random states", "Optimizers, fused", "LOMO and AdaLomo", "Learning-rate schedulers",
        "Optimizers and schedules that", "Activation checkpointing", "`save_state`", "`load_state`", "`save_model`",
        "Trackers", "Profiler"],
    "bf16, fp16, fp8": ["bf16", "fp16 with", "DeepSpeed's scaler", "fp8"],
    "Sharded models (FSDP 2)": ["Sharded data parallel training"],
    "ZeRO; options of FSDP, offload, checkpoints of shards": [
        "ZeRO: stages", "FSDP's strategies", "ZeRO in fp8", "Sharded models in fp8", "Sharded models built empty",
        "Offload of shards", "Checkpoints of sharded models", "`fully_shard`"],
    "Models larger than a device, weights in 8 and 4 bits": [
        "`infer_auto_device_map`", "`init_empty_weights`", "`dispatch_model`", "`load_checkpoint_in_model`",
        "`load_and_quantize_model`", "`replace_with_bnb_layers`", "Hooks of modules", "Layers stored in a narrow dtype"],
    "Launcher": [
        "`accelerate launch` on one machine", "`accelerate launch` on several machines", "`accelerate::launch`"],
    "Tensor parallelism": ["Tensor parallelism (`tp`)"],
    "Long sequences: context parallelism, Ulysses": ["Context parallelism (`cp`)", "Ulysses (`sp`)"],
    "Expert parallelism": ["Experts (`ep`)"],
    "Pipelines": ["Pipelines (`pp`)"],
}
STATUS_ALONE = [
    "Modules of `torch.jit`", "A mesh of replicas and `tp`", "Gradient compression", "`join_uneven_inputs`", "`LocalSGD`",
    "`MegatronEngine`", "Pinned loading",
    "`find_executable_batch_size`", "Report of a failed collective", "Example programs", "TPUs", "Kernels of simulated",
    "Collectives of simulated", "Memory of simulated", "`accelerate simulate --sweep`",
    "`accelerate perf`", "`accelerate perf bench`", "Fused training kernels and"]

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
        plain = re.sub(r"`[^`]*`", "", line)
        for target in re.findall(r"\]\(([^()\s]+)\)", plain) + re.findall(r'(?:src|srcset|href)="([^"]+)"', plain):
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


# Options that the launcher's tables lack: of its commands besides launch, of programs of HF Accelerate, and of CLI11.
OPTIONS = re.compile(r'"--([a-z][\w-]*)')
LAUNCH_LINE = re.compile(r"(?:^|[/ ])accelerate (?:launch|simulate|config|test|env|estimate-memory|plan|merge-weights|preprocess|"
                         r"to-fsdp2|compile|tpu-config|man|completion)\b(.*)")


def options_of(code):
    """The launcher's options: the names in the table of options and in its sources, there also after "--"."""
    names = set()
    for path, text in code.items():
        if path.startswith(("launch/", "accelerate/options/")) and path.endswith((".cc", ".h")):
            names |= {name.replace("-", "_") for name in OPTIONS.findall(text)}
            names |= set(re.findall(r'"([a-z][a-z0-9_]*)"', text))
    return names


def check_options(options, page, text):
    """An option of the launcher stands before the program that it starts."""
    lines = []
    for number, code in code_lines(text):
        if lines and lines[-1][1].endswith("\\"):
            lines[-1][1] = lines[-1][1][:-1] + code
        else:
            lines.append([number, code])
    for number, code in lines:
        if match := LAUNCH_LINE.search(code):
            for word in match[1].split():
                if word in ("--", "&&", "|", ";") or word.startswith(("./", "#", "bazel-bin/", "$")):
                    break
                if name := re.fullmatch(r"--([a-z][\w-]*)(=.*)?", word):
                    if name[1].replace("-", "_") not in options:
                        yield f"{page}:{number}: the launcher has no option --{name[1]}"
                elif word in ("lm", "digits", "train", "big_model_load", "quantization", "tensor_parallel",
                              "long_sequences"):
                    break


def check_paths(repo, tops, page, text):
    for number, line in text_lines(text):
        for path in re.findall(r"`([\w.-]+/[\w./-]*\w)`", line):
            if path.split("/")[0] in tops and "NAME" not in path and \
                    not any(os.path.exists(os.path.join(repo, each)) for each in (path, "accelerate/examples/" + path)):
                yield f"{page}:{number}: there is no {path}"


VARIABLES = re.compile(r"(?:ACCELERATE|FSDP|PARALLELISM_CONFIG|TORCHELASTIC|MS_AMP|FP8)_[A-Z0-9_]*[A-Z0-9]")


def check_variables(words, page, text):
    for number, line in text_lines(text):
        for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", line):
            for name in re.findall(r"\$?\{?([A-Z][A-Z0-9]*_[A-Z0-9_]+)", code.partition("=")[0]):
                if VARIABLES.fullmatch(name) and name not in words:
                    yield f"{page}:{number}: no source has the variable {name}"


def check_qualified(library, page, text):
    """accelerate::name and accelerate::space::name anywhere, and the names after them."""
    for number, line in enumerate(text.splitlines(), 1):
        for name in re.findall(r"\baccelerate::([\w:]*\w)", line):
            for part in name.split("::"):
                if part not in library:
                    yield f"{page}:{number}: the library has no accelerate::{name}"


def check_purpose(repo, page, text):
    """A page says first who needs it, and README.md of the folder leads to it."""
    if not re.match(r"# .+\n\nUse this when ", text):
        yield f'{page}: the first line below the title begins with "Use this when"'
    if f"]({os.path.basename(page)})" not in read(repo, f"{DOCS}/README.md"):
        yield f"{page}: {DOCS}/README.md has no link to this page"


# The kinds of pages in the groups of README.md, by the beginnings of their titles.
KINDS = {"How to": ("Guide: ", "Tutorial: "), "Concepts": ("Concept: ",), "Reference": ("Reference: ",)}


def check_kinds(repo):
    """The title of a page says the kind of its group."""
    group = ""
    for line in read(repo, f"{DOCS}/README.md").splitlines():
        if line.startswith("## "):
            group = line[3:].strip()
        for name in re.findall(r"\]\((\w+\.md)\)", line) if line.startswith("- ") and group in KINDS else []:
            page = f"{DOCS}/{name}"
            titles = tuple(f"# {kind}" for kind in KINDS[group])
            if os.path.exists(os.path.join(repo, page)) and not read(repo, page).startswith(titles):
                yield f'{page}: a page below "{group}" has a title that begins with "{KINDS[group][0].strip()}"'


def check_followed(repo, pages):
    """A page with C++ is in the test of pages, one with commands in the test of installations."""
    documents = read(repo, "integration_tests/documents/BUILD")
    followed = set()
    for line in re.findall(r"^for page in ((?:.*\\\n)*.*)", read(repo, "integration_tests/outside/install_test.sh"), re.M):
        for word in line.replace("\\\n", " ").rstrip("; do").split():
            head, brace, names = word.partition("{")
            followed |= {head + name for name in names.rstrip("}").split(",")} if brace else {word}
    for page in pages:
        blocks, _ = run_page.blocks_of(os.path.join(repo, page))
        name, folder = page.removesuffix(".md"), os.path.dirname(page)
        if any(block.language == "cpp" and "file" not in block.values for block in blocks) and folder != DOCS and \
                f"//{folder}:{os.path.basename(page)}" not in documents:
            yield f"{page}: //integration_tests/documents does not have this page with C++"
        if name not in followed and any(block.language == "sh" and run_page.is_followed(block) for block in blocks):
            yield f"{page}: install_test.sh does not follow this page, which has unmarked commands"


# What a cell promises, the least first. "no" is none of them: a part that does not apply weakens no row.
CELLS = ["not yet", "compiled", "same code", "tested"]


def summary_of(cells):
    """The weakest cell; of the column with dates all dates, since a run saw one part or another."""
    dates = [cell for cell in cells if re.search(r"\d{4}-\d\d-\d\d", cell)]
    if dates:
        return dates
    return [min((cell for cell in cells if cell in CELLS), key=CELLS.index, default="no")]


def table_of(text, first):
    """The rows of the table whose head begins with `first`, as lists of cells."""
    rows, inside = [], False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and line.startswith(first):
            inside = True
        elif inside and not line.startswith("|"):
            return rows
        elif inside and not line.startswith("| ---"):
            rows.append(cells)
    return rows


def check_status(repo):
    """A cell of README.md's table promises what the weakest of the rows does which STATUS names for it; each row of
    status.md's table of features is named once."""
    status = {row[0]: row[1:] for row in table_of(read(repo, f"{DOCS}/status.md"), "| feature | CPU ")}
    rows = table_of(read(repo, "README.md"), "| | CPU ")
    if not status:
        return
    if {row[0] for row in rows} != set(STATUS):
        yield f"README.md: its table has the rows {', '.join(row[0] for row in rows)}; check.py knows {', '.join(STATUS)}"
        return
    beginnings = [each for names in [*STATUS.values(), STATUS_ALONE] for each in names]
    for name in status:
        if (count := sum(name.startswith(each) for each in beginnings)) != 1:
            yield f'{DOCS}/status.md: the row "{name}" stands {count} times in STATUS and STATUS_ALONE of check.py'
    for each in beginnings:
        if (count := sum(name.startswith(each) for name in status)) != 1:
            yield f'{DOCS}/status.md: {count} rows begin with "{each}", which check.py names'
    for row in rows:
        sources = [cells for name, cells in status.items() if any(name.startswith(each) for each in STATUS[row[0]])]
        for column, cell in enumerate(row[1:]):
            wanted = summary_of([cells[column] for cells in sources]) if sources else ["no", "not yet"]
            if not any(each in cell for each in wanted):
                yield f'README.md: "{row[0]}" has "{cell}" in column {column + 1}; by status.md it is {" or ".join(wanted)}'


def check_changes(text):
    """Changes are grouped by the part of the product, no entry stands twice, and lines are as long as elsewhere."""
    group, entries, entry = None, {}, None
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if len(line) > LINE_WIDTH:
            yield f"CHANGELOG.md:{number}: {len(line)} characters; a line has at most {LINE_WIDTH}"
        if entry and not line.startswith("  "):
            words = " ".join(entry[1].split())
            if words in entries:
                yield f"CHANGELOG.md:{entry[0]}: the entry of line {entries[words]} once more"
            entries.setdefault(words, entry[0])
            entry = None
        if line.startswith("#"):
            group = line if line.startswith("### ") else None
        elif line.startswith("- "):
            if group is None:
                yield f"CHANGELOG.md:{number}: an entry stands below a part of the product (###)"
            entry = [number, line[2:]]
        elif entry:
            entry[1] += line


def words_of(repo, folder, name):
    """The words of a BUILD file, or the names of the folder's files without their ends, and its own."""
    path = os.path.join(repo, folder)
    if not name:
        return {os.path.splitext(each)[0] for each in os.listdir(path)} | set(os.listdir(path)) | {os.path.basename(folder)}
    return set(re.findall(r"[\w.-]+", read(repo, os.path.join(folder, name)))) if os.path.exists(os.path.join(path, name)) else set()


def check_errors(sources, page, text):
    """A text is cut at `...`; each part must be in a source, where strings may go on over lines."""
    for number, line in text_lines(text):
        for text_of_error in re.findall(r"`([^`]*)`", line) if line.startswith("### ") else []:
            for part in text_of_error.split("..."):
                if (part := part.strip()) and part not in sources:
                    yield f'{page}:{number}: no source says "{part}"'


def check_covered(page, text):
    """The sentence below the table of HF Accelerate's pages counts the rows by their last cells."""
    kinds = [line.strip("| ").split("|")[-1].split(":")[0].strip() for line in text.splitlines() if line.startswith("|")]
    sentence = f"{kinds.count('yes')} pages are covered, {kinds.count('partly')} partly"
    if sentence not in text:
        yield f'{page}: by the table, "{sentence}"'


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
    options = options_of(code)
    tops = {path.split("/")[0] for path in files if "/" in path}
    library = {word for path, text in code.items() if path.startswith(("accelerate/", "simulator/", "launch/", "trackers/"))
               for word in re.findall(r"\w+", text)}
    strings = "\n".join(joined_strings(text) for path, text in code.items()
                        if path.endswith((".cc", ".h", ".cmake.in")) and "_test.cc" not in path)
    for page in pages:
        text = read(repo, page)
        name = os.path.basename(page)[:-len(".md")]
        yield from check_links(repo, page, text)
        if name not in ("CHANGELOG", "deepspeed_options"):
            yield from check_commands(repo, words, page, text)
        if name not in NAMES_OF_OTHERS and "decisions/" not in page:
            yield from check_names(words, page, text)
        if name != "CHANGELOG":
            yield from check_options(options, page, text)
        if name not in ("CHANGELOG", "differences"):
            yield from check_paths(repo, tops, page, text)
            yield from check_variables(words, page, text)
            yield from check_qualified(library, page, text)
        yield from run_page.check(os.path.join(repo, page))
        if os.path.dirname(page) == DOCS and name != "README" and os.path.exists(os.path.join(repo, DOCS, "README.md")):
            yield from check_purpose(repo, page, text)
        if os.path.dirname(page) == DOCS and name in READERS_PAGES:
            if (lines := text.count("\n")) > MAX_LINES:
                yield f"{page}: {lines} lines; a page has at most {MAX_LINES}"
        if page.startswith(f"{DOCS}/troubleshooting"):
            yield from check_errors(strings, page, text)
        if page == f"{DOCS}/hf_pages.md":
            yield from check_covered(page, text)
    if os.path.exists(os.path.join(repo, "integration_tests/outside/install_test.sh")):
        yield from check_followed(repo, pages)
    if os.path.exists(os.path.join(repo, DOCS, "README.md")):
        yield from check_kinds(repo)
    if os.path.exists(os.path.join(repo, DOCS, "status.md")):
        yield from check_status(repo)
    if os.path.exists(os.path.join(repo, "CHANGELOG.md")):
        yield from check_changes(read(repo, "CHANGELOG.md"))


def file_of(repo, page, name):
    blocks, _ = run_page.blocks_of(os.path.join(repo, page))
    return next((block.text() for block in blocks if block.values.get("file") == name), None)


def main(repo):
    found = list(findings(repo))
    if file_of(repo, "README.md", "train.cc") != file_of(repo, f"{DOCS}/quicktour.md", "train.cc"):
        found.append("README.md: its train.cc is not that of accelerate/docs/quicktour.md")
    if os.path.exists(os.path.join(repo, migration.NAMES)):
        found += migration.nameless(repo)
        if migration.page(repo) != read(repo, migration.PAGE):
            found.append(f"{migration.PAGE} is old: tools/documents/migration.py . >{migration.PAGE}")
    print("\n".join(found) if found else "documents: links, names, errors and blocks are right")
    sys.exit(bool(found))


if __name__ == "__main__":
    main(os.path.realpath(sys.argv[1]))
