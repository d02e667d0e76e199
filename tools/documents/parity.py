#!/usr/bin/env python3
"""parity.py REPO: prints accelerate/docs/parity.md, what HF Accelerate has and where it is here.
parity.py --check REPO: says which rows are not true, and counts them.

parity.txt has the rows, under the headings of their sections:

    state | what HF Accelerate has | C++ | tests | nearest equivalent, or why

C++ is `header: name, name; other_header: name`; a member is Class::name, and `name=text` is one whose initialiser is this
text. For accelerate/options/options.h a name is `--flag=default $VARIABLE`, of the rows beside it. A test is `file`, which has the row's last
name in it, or `file (word)`. `-` stands for nothing. A line that begins with four spaces goes on with the row before it.

What is done has proof: a source other than its own reads each field, enumeration and setting, and the named test uses the
word in code within six lines of an assertion, or in a helper that is used there. A field that its own source turns into
another thing is `name@thing`, and others read the thing. A name has the same state in every row that has it.

parity_parameters.txt has the functions of HF Accelerate with their parameters, all that hf_functions.txt lists:

    module | function | C++ | tests | parameters | nearest equivalent, or why

A parameter is `name` or `name=default`, both as in HF Accelerate. One that has a default must be a parameter of the first
C++ name, or a field of its options or of another C++ name of the row, with that default. `-> name=text` behind it says what it is here
instead, in C++; `-> -` that there is none. Parameters without a default are given by place, and not compared.
The state follows: done, nearest where anything differs, missing without C++.
"""
import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import declarations  # noqa: E402
import migration  # noqa: E402

PAGE = "accelerate/docs/parity.md"
ROWS = "tools/documents/parity.txt"
PARAMETERS = "tools/documents/parity_parameters.txt"
FUNCTIONS = "tools/documents/hf_functions.txt"
FLAGS = "accelerate/options/options.h"
OPTION_PAGES = {"accelerate/docs/sharding_options.md": "kFsdp", "accelerate/docs/deepspeed_options.md": "kDeepSpeed",
                "accelerate/docs/parallelism.md": "kParallelism"}
# The structs whose fields the rows of a section fill.
FILLED = {
    "kFsdp": {"accelerate/config/fsdp_plugin.h": ("FullyShardedDataParallelPlugin",)},
    "kDynamo": {"accelerate/config/dynamo_plugin.h": ("TorchDynamoPlugin",)},
    "kDeepSpeed": {"accelerate/config/deepspeed_plugin.h": ("DeepSpeedPlugin",)},
    "kFp8": {"accelerate/config/kwargs_handlers.h": ("TERecipeKwargs", "MSAMPRecipeKwargs", "AORecipeKwargs",
                                                     "FP8RecipeKwargs")},
    "kMegatron": {"accelerate/config/megatron_lm_plugin.h": ("MegatronLMPlugin",)},
    "kParallelism": {"accelerate/config/parallelism_config.h": ("ParallelismOptions", "TorchContextParallelConfig",
                                                                "DeepSpeedSequenceParallelConfig"),
                     "accelerate/config/pipeline_plan.h": ("PipelineVariables",)},
}
# The rows that need no reader: files of HF Accelerate have them, and their help says that they have no effect.
IDLE = {"no_python", "fsdp_forward_prefetch", "zero3_init_flag", "pytorch_version", "transformers_version", "py_version"}
STATES = ("done", "nearest", "missing")
PARAMETERS_TITLE = "25. Parameters and their defaults"
HEAD = """# Reference: parity with HF Accelerate

Use this when you want to know whether a name of HF Accelerate 1.15 is here, under which name, and which test proves it, if one does. `tools/documents/parity.py` writes
this page from `parity.txt` and `parity_parameters.txt` beside it; a test fails if the page is old, if a header lacks a name
or has another default, or if a test is gone. [migration_names.md](migration_names.md) is shorter, and
[differences.md](differences.md) has what behaves differently in a row that is done. Headers and tests are those of a
checkout; a release has only the public headers.

- **done**: it is there under this name, or under the one that C++ calls for.
- **nearest**: another thing takes its place, or a part is left out; the last column says what and why.
- **missing**: not built. Where a C++ name stands beside it, the setting is known and checked, and refused where it would need
  what is missing.

A default `std::nullopt` means that the environment is asked, and then HF Accelerate's default applies.

"""
PARAMETERS_HEAD = """Functions by HF Accelerate's module, with its parameters. A default is compared with the header's;
parameters without one are given by place. Behind an arrow is what a parameter is here.

"""


class Row:
    def __init__(self, state, name, places, tests, note, line, parameters=()):
        self.state, self.name, self.places, self.tests, self.note, self.line = state, name, places, tests, note, line
        self.parameters = parameters


def cells(repo, path, number):
    """(line number, heading or None, cells) of a file of rows."""
    with open(os.path.join(repo, path), encoding="utf-8") as file:
        lines = file.read().splitlines()
    rows = []
    for line, text in enumerate(lines, 1):
        if text.startswith("    "):
            rows[-1][1] += " " + text.strip()
        elif text and not text.startswith("# "):
            rows.append([line, text])
    for line, text in rows:
        if text.startswith("## "):
            yield line, text[3:], None
            continue
        row = [each.strip() for each in text.split(" | ")]
        if len(row) != number:
            raise ValueError(f"{path}:{line}: {len(row)} cells instead of {number}")
        yield line, None, ["" if each == "-" else each for each in row]


def places_of(text):
    """[(header, [(name, initialiser or None, what others read)])]"""
    found = []
    for part in declarations.split(text, ";"):
        header, _, names = part.partition(": ")
        entries = []
        for each in [names] if header == FLAGS else declarations.split(names):
            name, equals, default = each.partition("=")
            name, _, reader = name.strip().partition("@")
            entries.append((name, default.strip() if equals else None, reader or name.split("::")[-1]))
        found.append((header, entries))
    return found


def tests_of(text):
    return [re.fullmatch(r"(\S+)(?: \((.+)\))?", each).groups() for each in declarations.split(text)]


def sections(repo):
    """[(title, rows)] of parity.txt."""
    found = []
    for line, title, row in cells(repo, ROWS, 5):
        if title:
            found.append((title, []))
        else:
            state, name, places, tests, note = row
            found[-1][1].append(Row(state, name, places_of(places), tests_of(tests), note, f"{ROWS}:{line}"))
    return found


def functions(repo):
    """Rows of parity_parameters.txt; `parameters` are (name, default, here) with `here` (name, text), "-" or None."""
    found = []
    for line, _, row in cells(repo, PARAMETERS, 6):
        module, name, places, tests, parameters, note = row
        parsed = []
        for each in declarations.split(parameters):
            left, arrow, right = each.partition(" -> ")
            parameter, equals, default = left.partition("=")
            here = None
            if arrow:
                here = "-" if right == "-" else tuple(part.strip() for part in right.partition("=")[::2])
            parsed.append((parameter, default if equals else None, here))
        places = places_of(places)
        differs = any(here for _, _, here in parsed) or note
        state = "missing" if not places else "nearest" if differs else "done"
        found.append(Row(state, f"{module}: {name}", places, tests_of(tests), note, f"{PARAMETERS}:{line}", parsed))
    return found


def same(python, cpp):
    """Whether a default of Python is what a C++ initialiser says."""
    if cpp is None:
        return python in ("None", "{}", "()")
    known = {"None": ("std::nullopt", "{}", "nullptr"), "False": ("false",), "True": ("true",), "''": ("{}", '""'),
             "()": ("{}",), "{}": ("{}",)}
    if python in known:
        return cpp in known[python] or python == "None" and re.fullmatch(r"std::optional<.*>\(\)", cpp) is not None
    if python.startswith("'"):
        text = python.strip("'")
        enumerator = re.fullmatch(r"(?:\w+::)+k(\w+)", cpp)
        return cpp == f'"{text}"' or enumerator is not None and enumerator[1].lower() == text.replace("_", "").lower()
    try:
        return float(python) == float(cpp.replace("'", ""))
    except ValueError:
        return python == cpp


class Headers:
    def __init__(self, repo):
        self.repo = repo
        self.parsed = {header: declarations.read(repo, header) for header in migration.headers(repo)}
        self.classes = {}
        for header, found in self.parsed.items():
            for name in found.fields:
                if name:
                    self.classes.setdefault(name, found.fields[name])
        for found in self.parsed.values():
            for name, base in found.bases.items():
                self.inherit(found, f"{name}::", f"{base}::")

    def inherit(self, found, own, base):
        """Gives a class the functions of its base, which may be in another header."""
        for other in self.parsed.values():
            for name in [each for each in other.functions if each.startswith(base)]:
                found.names.add(own + name[len(base):])
                found.functions.setdefault(own + name[len(base):], other.functions[name])

    def has(self, header, name):
        found = self.parsed[header]
        return name in found.names or name in found.fields.get("", {})

    def initialiser(self, header, name):
        scope, _, member = name.rpartition("::")
        return self.parsed[header].fields.get(scope, {}).get(member, ("", None))[1]

    def parameters(self, places):
        """{name: default} of the functions and classes of a row, and of the options among their parameters."""
        pool = {}
        for header, entries in places:
            found = self.parsed.get(header)
            for name, _, _ in entries if found else ():
                kind = found.fields.get("", {}).get(name, ("", None))[0].split("::")[-1]
                functions = (found.functions.get(name, []) + found.functions.get(f"{name}::{name.split('::')[-1]}", []) +
                             found.functions.get(f"{kind}::operator()", []))
                for parameter_type, parameter, default in (each for function in functions for each in function):
                    if parameter and (parameter not in pool or default is not None):
                        pool[parameter] = default
                    for word in re.findall(r"\w+", parameter_type):
                        if word in self.classes and word.endswith(("Options", "Kwargs")):
                            for field, (_, initialiser) in self.classes[word].items():
                                pool.setdefault(field, initialiser)
                for field, (_, initialiser) in found.fields.get(name, {}).items():
                    pool.setdefault(field, initialiser)
        return pool


class Option:
    """A row of the table of options: its texts, whether it works and has an effect, the plug-in's field that it fills."""

    def __init__(self, name, default, variable, works, is_idle, section, field, field_default):
        self.name, self.default, self.variable, self.works, self.is_idle = name, default, variable, works, is_idle
        self.section, self.field, self.field_default = section, field, field_default

    def defaults(self):
        """What a page about the field says: its default, and the launcher's where that is another one."""
        yield self.default if self.field_default is None else self.field_default
        if self.field_default and self.default and self.field_default != self.default:
            yield f"flag: {self.default}"


def quoted(text):
    return None if text in (None, "", "nullptr") else text.strip('"')


def flags(repo):
    """{flag: option} of the files of rows."""
    folder, found = os.path.dirname(FLAGS), {}
    with open(os.path.join(repo, folder, "options.cc"), encoding="utf-8") as file:
        prefixes = dict(re.findall(r'\{Section::(\w+), "\w+", "(\w*)"\}', file.read()))
    for path in sorted(os.listdir(os.path.join(repo, folder))):
        if path.endswith("_rows.cc"):
            with open(os.path.join(repo, folder, path), encoding="utf-8") as file:
                found.update(flags_of(declarations.without_comments(file.read()), prefixes))
    return found


def flags_of(text, prefixes):
    families = {match[0]: match[1:] for match in
                re.findall(r'constexpr Family (\w+) = \{\w+, Section::(\w+), ("\w*"|nullptr)(?:,\s*(true))?\}', text)}
    for match in re.finditer(r"^    (\w+)\(\s*(?:k\w+, )?\"(\w+)\"", text, re.M):
        end = declarations.closing(text, text.index("(", match.start()))
        values = declarations.split(text[text.index("(", match.start()) + 1:end - 1])
        calls, name = {}, match[2]
        while text[end:].lstrip().startswith("."):
            call = re.compile(r"\s*\.(\w+)\(").match(text, end)
            end = declarations.closing(text, call.end() - 1)
            calls[call[1]] = text[call.end():end - 1]
        section, variables, is_of_field = families.get(match[1], ("", None, ""))
        default = values[2] if match[1] in families else None
        if is_of_field:
            if quoted(default) is not None:
                calls["field_or"] = default
            default = None
        if "kFlag" in values[:3]:
            default = '"false"'
        variable = calls.get("exchanged_by", calls.get("written_to"))
        if variable is None and variables not in (None, "nullptr") and "without_variable" not in calls:
            variable = variables.strip('"') + name.upper()
        field = quoted(calls.get("fills")) or name.removeprefix(prefixes.get(section, ""))
        option = Option(name, quoted(calls.get("or_else", default)), quoted(variable),
                        "absent" not in calls, any("has no effect" in each for each in values),
                        section, field if match[1] in families else None,
                        calls["field_or"].strip('"') if "field_or" in calls else None)
        for flag in (name, quoted(calls.get("spelt"))):
            if flag:
                yield flag, option


def wrong_pages(repo, options):
    """Tables of fields with a default, or a variable, that is not the row's."""
    variables = {option.variable for option in options.values()}
    for page, section in OPTION_PAGES.items():
        fields, columns = {option.field: option for option in options.values() if option.section == section}, []
        lines = []
        if os.path.exists(os.path.join(repo, page)):
            with open(os.path.join(repo, page), encoding="utf-8") as file:
                lines = file.read().splitlines()
        for number, line in enumerate(lines, 1):
            cells = [each.strip() for each in re.split(r"(?<!\\)\|", line)[1:-1]]
            columns = cells and (columns or cells)
            if "default" not in columns or columns[0] not in ("option", "`ParallelismOptions`"):
                continue
            cell = dict(zip(columns, cells))
            for option in (fields[name] for name in re.findall(r"`(\w+)`", cells[0]) if name in fields):
                yield from (f"{page}:{number}: the default of {option.field} is {default}"
                            for default in option.defaults() if default and default not in cell["default"])
            yield from (f"{page}:{number}: there is no variable {name}"
                        for name in re.findall(r"`([A-Z]\w+)", cell.get("variable", "")) if name not in variables)


def wrong_place(repo, headers, known_flags, header, name, default):
    """What is wrong with a name in a header, or nothing."""
    if header == FLAGS:
        flag = name.lstrip("-")
        default, _, variable = (part.strip() for part in default.partition("$"))
        if flag not in known_flags:
            return f"there is no setting {flag}"
        option = known_flags[flag]
        if option.default != (default or None):
            return f"the default of {flag} is {option.default}, not {default}"
        return "" if option.variable == (variable or None) else f"{flag} has the variable {option.variable}, not {variable}"
    if not os.path.exists(os.path.join(repo, header)):
        return f"there is no {header}"
    if header not in headers.parsed:
        with open(os.path.join(repo, header), encoding="utf-8") as file:
            return "" if re.search(rf"\b{re.escape(name)}\b", file.read()) else f"{header} has no {name}"
    if not headers.has(header, name):
        return f"{header} has no {name}"
    if default is not None and headers.initialiser(header, name) != default:
        return f"{header}: the default of {name} is {headers.initialiser(header, name)}, not {default}"
    return ""


def wrong_parameters(headers, row):
    pool = headers.parameters(row.places)
    for name, default, here in row.parameters:
        if here == "-" or not row.places:
            continue
        if here:
            if here[0] not in pool:
                yield f"{row.name} has no {here[0]}"
            elif (pool[here[0]] or "") != here[1]:
                yield f"{row.name}: the default of {here[0]} is {pool[here[0]]}, not {here[1]}"
        elif default is not None:
            if name not in pool:
                yield f"{row.name} has no {name}"
            elif not same(default, pool[name]):
                yield f"{row.name}: the default of {name} is {pool[name]}, not {default}"


class Sources:
    """The sources that are not tests, and what each of them reads."""

    FOLDERS = ("accelerate", "launch", "simulator", "trackers")
    APART = re.compile(r"_test\.cc$|_benchmark\.cc$|/(?:testing|examples|fuzz|benchmarks|topology_tests)/")

    def __init__(self, repo):
        self.members, self.words, self.literals = {}, {}, {}
        for folder in self.FOLDERS:
            for place, _, files in os.walk(os.path.join(repo, folder)):
                for name in files:
                    path = os.path.relpath(os.path.join(place, name), repo)
                    if path.endswith((".cc", ".h")) and not self.APART.search(path):
                        self.add(repo, path)

    def add(self, repo, path):
        with open(os.path.join(repo, path), encoding="utf-8") as file:
            text = declarations.without_comments(file.read())
        self.members[path] = set(re.findall(r"(?:\.|->|::)(\w+)\b(?!\s*=[^=])", text))
        self.words[path] = set(re.findall(r"\w+", text))
        self.literals[path] = set(re.findall(r'"(\w+)"', text))

    def others(self, found, header):
        return (words for path, words in found.items() if path not in (header, header[:-2] + ".cc"))

    def reads_option(self, headers, option):
        """Whether a field that its section fills has its value, or a source apart from the table names it or its variable."""
        fields = (headers.parsed[header].fields.get(each, {}) for header, structs in FILLED.get(option.section, {}).items()
                  if header in headers.parsed for each in structs)
        return any(option.field in each for each in fields) or any(
            {option.name, option.variable} & words for path, words in self.literals.items()
            if os.path.dirname(path) != os.path.dirname(FLAGS))

    def reads(self, headers, known_flags, header, name, reader):
        """Whether a source other than the header's own reads the field, the enumeration or the setting; true for the rest."""
        if header == FLAGS:
            return self.reads_option(headers, known_flags[name.lstrip("-")])
        found = headers.parsed.get(header)
        if not found:
            return True
        scope, _, member = name.rpartition("::")
        if scope and member in found.fields.get(scope, {}):
            found = self.members if reader == member else self.words
            return any(reader in words for words in self.others(found, header))
        if name in found.enumerations:
            return any(name.split("::")[-1] in words for words in self.others(self.words, header))
        return True


class Test:
    """A file of tests: where it uses a word, and whether an assertion is near."""

    NEAR = 6
    ASSERTION = re.compile(r"\b(?:EXPECT|ASSERT)_\w+|\bADD_FAILURE\b|\b(?:expect|check(?!point)|want|fail|same|compare)\w*\b|\[\[ |\bassert\b")
    HEADER = re.compile(r"^ {0,2}(?!TEST|TYPED_TEST|TOPOLOGY|return|if|for|else|EXPECT|ASSERT)[A-Za-z_][^;]*?\b(\w+)(?:\(|\[\] = \{|\{$| = \{$)")

    def __init__(self, repo, path):
        self.path, self.lines = path, None
        try:
            with open(os.path.join(repo, path), encoding="utf-8") as file:
                text = file.read()
        except OSError:
            return
        if path.endswith((".cc", ".h")):
            text = re.sub(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/',
                          lambda found: found[0] if found[0].startswith('"') else re.sub(r"[^\n]", " ", found[0]), text,
                          flags=re.S)
        self.lines = text.split("\n")
        self.near = set()
        for number, line in enumerate(self.lines):
            if self.ASSERTION.search(line):
                last = number
                while last + 1 < len(self.lines) and not self.lines[last].rstrip().endswith((";", "}", "{")):
                    last += 1
                self.near.update(range(number - self.NEAR, last + self.NEAR + 1))

    def places(self, word):
        pattern = re.compile(rf"(?:(?<!\w)|\\n){re.escape(word)}(?!\w)")
        return [number for number, line in enumerate(self.lines) if pattern.search(line)]

    def uses(self, word):
        return bool(self.places(word))

    def helper(self, number):
        """The name of the helper function or table around a line, if it is in one."""
        for line in range(number, -1, -1):
            if re.match(r"(?:TEST|TYPED_TEST|TOPOLOGY)\w*\(", self.lines[line]):
                return None
            if match := self.HEADER.match(self.lines[line]):
                return match[1]
        return None

    def asserts(self, word):
        if "/golden/" in self.path and self.path.endswith("_family.cc"):
            return True  # The replayer compares all that a family answers.
        places = self.places(word)
        helpers = {self.helper(number) for number in places} - {None, word}
        return any(number in self.near for number in places) or any(
            number in self.near for helper in helpers for number in self.places(helper))


def double_states(repo):
    """Names that have one state in a row of a section and another one among the functions."""
    states = {}
    for row in functions(repo):
        module, _, name = row.name.partition(": ")
        states.setdefault(name, {})[module] = row
    for title, rows in sections(repo):
        methods = re.match(r"[23]\. Accelerator", title)
        for row in rows:
            for part in declarations.split(row.name) if ": " not in row.name else ():
                name = re.match(r"[\w.]*", part)[0] if re.match(r"[\w.]+(?:\(.*\))?(?:=.*)?$", part) else ""
                known = states.get(f"Accelerator.{name}" if methods else name, {})
                if known and all(other.state != row.state for other in known.values()):
                    other = next(iter(known.values()))
                    yield f"{row.line}: {name} is {row.state} here and {other.state} in {other.line}"


def wrong_rows(repo):
    """Errors of the rows, as texts with the file and line of the row."""
    headers, known_flags, sources = Headers(repo), flags(repo), Sources(repo)
    tests = {}
    all_rows = [each for _, rows in sections(repo) for each in rows] + functions(repo)
    named = {word for row in all_rows for word in re.findall(r"\w+", row.name)}
    for module, name in migration.names(repo):
        if name not in named:
            yield f"{migration.NAMES}: no row has {name} of {module}"
    yield from wrong_pages(repo, known_flags)
    for option in known_flags.values():
        if option.is_idle != (option.name in IDLE):
            yield f"{FLAGS}: {option.name} {'says' if option.is_idle else 'does not say'} that it has no effect"
        if option.works and option.name not in IDLE and not sources.reads_option(headers, option):
            yield f"{FLAGS}: nothing reads {option.name}"
    have_rows = {row.name for row in all_rows}
    with open(os.path.join(repo, FUNCTIONS), encoding="utf-8") as file:
        for line in file:
            if not line.startswith("#") and line.strip().replace(" ", ": ") not in have_rows:
                yield f"{FUNCTIONS}: no row has {line.strip()}"
    for row in all_rows:
        if row.state not in STATES:
            yield f"{row.line}: {row.state} is not a state"
        if row.state != "missing" and not (row.places and (row.tests or row.note)):
            yield f"{row.line}: {row.name} needs a header, and a test or a word about its absence"
        if row.state != "done" and not row.note:
            yield f"{row.line}: {row.name} needs a reason"
        for header, entries in row.places:
            for name, default, reader in entries:
                if wrong := wrong_place(repo, headers, known_flags, header, name, default):
                    yield f"{row.line}: {wrong}"
                elif header == FLAGS and row.state == "done" and not known_flags[name.lstrip("-")].works:
                    yield f"{row.line}: {name} is not in this version"
                elif row.state == "done" and not sources.reads(headers, known_flags, header, name, reader):
                    yield f"{row.line}: no source but its own reads {reader} of {header}"
        for error in wrong_parameters(headers, row):
            yield f"{row.line}: {error}"
        for path, word in row.tests:
            if path not in tests:
                tests[path] = Test(repo, path)
            if tests[path].lines is None:
                yield f"{row.line}: there is no {path}"
                continue
            if not word and not row.places:
                yield f"{row.line}: {path} needs a word"
                continue
            word = word or row.places[-1][1][-1][0].lstrip("-").split("::")[-1]
            if not tests[path].uses(word):
                yield f"{row.line}: {path} does not use {word}"
            elif row.state == "done" and not tests[path].asserts(word):
                yield f"{row.line}: {path} asserts nothing about {word}"
    yield from double_states(repo)


def code(text):
    return f"`{text}`" if text else ""


def place_cell(places):
    return "<br>".join(f"{code(header)}: " + ", ".join(code(name if default is None else f"{name}={default}")
                                                       for name, default, _ in entries) for header, entries in places)


def parameter_text(parameter):
    name, default, here = parameter
    text = code(name if default is None else f"{name}={default}")
    if here == "-":
        return f"{text} → none"
    return text if here is None else f"{text} → {code('='.join(each for each in here if each))}"


def cell(text):
    return text.replace("|", "\\|")


def table(rows, second):
    yield f"| HF Accelerate | {second} | test | state | nearest equivalent, or why |\n| --- | --- | --- | --- | --- |\n"
    for row in rows:
        name = row.name.replace("*", "\\*") if row.parameters == () else code(row.name.partition(": ")[2])
        parameters = ", ".join(map(parameter_text, row.parameters))
        name = f"{name}<br>{parameters}" if parameters else name
        tests = "<br>".join(code(path) for path, _ in row.tests)
        yield "| " + " | ".join(cell(each) for each in (name, place_cell(row.places), tests, row.state, row.note)) + " |\n"


def counts(rows):
    return ", ".join(f"{sum(row.state == state for row in rows)} {state}" for state in STATES)


def summary(repo):
    return f"parity: {counts([row for _, rows in sections(repo) for row in rows] + functions(repo))}"


def page(repo):
    lines = [HEAD, f"{summary(repo)[len('parity: '):].capitalize()}.\n"]
    for title, rows in sections(repo):
        lines += [f"\n## {title}\n\n{counts(rows).capitalize()}.\n\n", *table(rows, "C++")]
    rows = functions(repo)
    lines.append(f"\n## {PARAMETERS_TITLE}\n\n{PARAMETERS_HEAD}{counts(rows).capitalize()}.\n")
    modules = dict.fromkeys(row.name.partition(": ")[0] for row in rows)
    for module in modules:
        lines += [f"\n### `{module}`\n\n", *table([row for row in rows if row.name.startswith(module + ": ")], "C++")]
    return "".join(lines)


def errors(repo):
    yield from wrong_rows(repo)
    with open(os.path.join(repo, PAGE), encoding="utf-8") as file:
        if file.read() != page(repo):
            yield f"{PAGE} is old: tools/documents/parity.py . >{PAGE}"


if __name__ == "__main__":
    if sys.argv[1] != "--check":
        sys.stdout.write(page(os.path.realpath(sys.argv[1])))
    else:
        found = list(errors(os.path.realpath(sys.argv[2])))
        print("".join(f"{error}\n" for error in found) + summary(os.path.realpath(sys.argv[2])))
        sys.exit(bool(found))
