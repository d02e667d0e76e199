#!/usr/bin/env python3
"""Follows a page of the documentation as its reader would: writes its files, runs its commands.

    run_page.py PAGE [FOLDER]           in FOLDER, which has what earlier pages left (a temporary folder)
    run_page.py --by SCRIPT PAGE FOLDER  the blocks alone that are marked by=SCRIPT, without those that stand in it
    run_page.py --check PAGE...         runs nothing: the marks are right, and each block has one
    run_page.py --cut FILE PAGE         prints the block that the page calls FILE

The first line of a fenced block says what becomes of it:

    ```cpp file=train.cc   the file train.cc consists of it; likewise cmake, python, yaml, json, text
    ```cpp                 a piece of a program: see pages_cpp.py
    ```sh                  bash runs it, and it succeeds
    ```sh fails            bash runs it, and it fails
    ```sh dry-run          bash runs it, with --dry_run added to every `accelerate launch`
    ```sh by=ci/slurm.sh   that script runs it: each command stands in it (or in one of several, with commas
                           between them), or it follows the page with --by; by=PAGE.md: who follows that page
    ```cmake by=FILE       likewise: its calls stand in that project
    ```sh by-hand          no lane runs it, as the page says in words ("by hand")
    ```sh not-tried        nobody has run it, as the page says in words ("not tried")
    ```output              what the command before it printed, standard error included
    ```text                something to look at

Commands of one page run one after the other in one folder. `output` may leave things out: a line `...`
stands for any lines, and `...` inside a line for any text. Lines before and after need no such mark.
A command stands in a script if the script has its words, options in any order and the others in theirs. A word
of the script may have variables: what stands beside them must be the page's, and a variable that is a whole
command must have the command's name ("$launcher" does not stand for accelerate, "${bazel[@]}" does for bazel).
install_test.sh follows the pages that have unmarked commands.
"""
import os
import re
import shlex
import subprocess
import sys
import tempfile

FILES = ("cpp", "cmake", "python", "yaml", "text", "json", "dockerfile")
MARKS_OF_SH = {"fails", "not-tried", "by-hand", "dry-run"}
MARKS_OF_CPP = {"not-run", "members", "declarations"}
TIME_LIMIT_S = 300


class Block:
    def __init__(self, page, line, language, words):
        self.where = f"{page}:{line}"
        self.language = language
        self.flags = [word for word in words if "=" not in word]
        self.values = dict(word.split("=", 1) for word in words if "=" in word)
        self.lines = []

    def text(self):
        return "".join(line + "\n" for line in self.lines)


def blocks_of(page):
    with open(page, encoding="utf-8") as file:
        text = file.read()
    blocks, current = [], None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```") and current is None:
            language, *words = line[3:].split() or [""]
            current = Block(page, number, language, words)
        elif line == "```" and current is not None:
            blocks.append(current)
            current = None
        elif current is not None:
            current.lines.append(line)
    if current is not None:
        raise SystemExit(f"{current.where}: the block does not end")
    return blocks, text


def repository():
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def commands_of(text):
    """The commands of a shell script as lists of words, without comments."""
    commands = []
    for line in re.sub(r"[()]", " ", text.replace("\\\n", " ")).splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # A string over several lines.
            words = line.split()
        command = []
        for word in words:
            if not command and re.match(r"[A-Z_]+=", word):
                continue  # a variable for the command
            if word in ("&&", "||", ";", "|"):
                commands.append(command)
                command = []
            else:
                command.append(word)
        commands.append(command)
    return [command for command in commands if command]


VARIABLE = r"\$(?:\{[^}]*\}|\w+|[@*#?])"


def stands_for(word, wanted):
    """Whether a script's word does what a page's does."""
    if word == wanted:
        return True
    if wanted.startswith("-"):
        name, is_value, _ = wanted.partition("=")
        return bool(is_value) and word.startswith(name + "=") and "$" in word
    literals = re.split(VARIABLE, word)
    pattern = ".+".join(map(re.escape, literals))  # A variable may be the folder that the page's reader is in.
    return len(literals) > 1 and any(re.fullmatch(pattern, path) for path in (wanted, "./" + wanted))


def is_command(word, wanted):
    """Whether a script's word names the page's command."""
    if not re.fullmatch(VARIABLE, word):
        return stands_for(word, wanted)
    name, command = re.sub(r"[^a-z]", "", word.lower()), re.sub(r"[^a-z]", "", os.path.basename(wanted).lower())
    return bool(name) and (name in command or command in name)


def has_command(script, command):
    """Whether a command of the script has the words of this one: options in any order, others in theirs."""
    operands = [wanted for wanted in command if not wanted.startswith("-")]
    options = [wanted for wanted in command if wanted.startswith("-")]
    for words in script:
        rest = iter(words)
        if not any(is_command(word, operands[0]) for word in rest):
            continue
        if all(any(stands_for(word, wanted) for word in rest) for wanted in operands[1:]) and \
                all(any(stands_for(word, wanted) for word in words) for wanted in options):
            return True
    return False


def problem_of_by(block, page):
    """Whether the scripts that a block names run it."""
    scripts, followed = [], False
    for name in block.values["by"].split(","):
        try:
            with open(os.path.join(repository(), name), encoding="utf-8") as file:
                text = file.read()
        except OSError:
            return f"there is no {name}"
        scripts += commands_of(text)
        lines = text.replace("\\\n", " ").splitlines()
        followed = followed or any("--by " + name in line for line in lines) and os.path.basename(page) in text
    for command in [] if followed else commands_of(block.text()):
        if command[:2] != ["sudo", "apt-get"] and not has_command(scripts, command):
            return f"{block.values['by']} does not run: {' '.join(command)}"
    return None


def problem_of(block, before, page, text):
    """What is wrong with a block's marks, or nothing."""
    if block.language == "sh":
        if unknown := set(block.flags) - MARKS_OF_SH or set(block.values) - {"by"}:
            return f"unknown marks: {', '.join(sorted(unknown))}"
        for mark in ("not-tried", "by-hand"):
            if mark in block.flags and mark.replace("-", " ") not in text.lower():
                return f'the page does not say "{mark.replace("-", " ")}"'
        if "by" in block.values:
            return problem_of_by(block, page)
    elif block.language == "output":
        if block.flags or block.values:
            return "output has no marks"
        if before is None or before.language != "sh":
            return "there is no command before this output"
    elif block.language == "cpp" and "file" not in block.values:
        if unknown := set(block.flags) - MARKS_OF_CPP or set(block.values) - {"on", "with"}:
            return f"unknown marks: {', '.join(sorted(unknown))}"
    elif block.language == "cmake" and "by" in block.values:
        return problem_of_by(block, page)
    elif block.language in FILES:
        if block.flags or set(block.values) - {"file"}:
            return "the only mark of a file is file=NAME"
        if block.language != "text" and not block.values:
            return "nothing uses this block: it has no file=NAME"
    else:
        return f'"{block.language}" is not a kind of block; known: sh, output, {", ".join(FILES)}'
    return None


def is_followed(block):
    """Whether a block of commands is run by who follows the page."""
    return not {"not-tried", "by-hand"} & set(block.flags) and "by" not in block.values


def check(page):
    blocks, text = blocks_of(page)
    problems = []
    before = None
    for block in blocks:
        if problem := problem_of(block, before, page, text):
            problems.append(f"{block.where}: {problem}")
        before = block
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            inside = not inside
        elif line.startswith("    ") and line.strip() and not inside:
            problems.append(f"{page}:{number}: an indented block has no mark; use a fenced one")
    return problems


def missing_line(expected, printed):
    """The first expected line that was not printed after those before it, or nothing."""
    at = 0
    gap = True  # Whether the next line may stand anywhere below.
    for line in expected:
        if line.strip() == "...":
            gap = True
            continue
        pattern = re.compile(r".*".join(re.escape(part) for part in line.strip().split("...")))
        end = len(printed) if gap else min(at + 1, len(printed))
        for index in range(at, end):
            if pattern.fullmatch(printed[index].strip()):
                at = index + 1
                break
        else:
            return line
        gap = False
    return None


# Stands before the commands of a block that is marked dry-run.
DRY_RUN = """accelerate() {
  if [[ $1 == launch ]]; then command accelerate launch --dry_run "${@:2}"; else command accelerate "$@"; fi
}
"""


def run(page, folder, by=None):
    blocks, _ = blocks_of(page)
    own = []  # The commands that the script has itself.
    if by is not None:
        with open(os.path.join(repository(), by), encoding="utf-8") as file:
            own = commands_of(file.read())
    directory_file = os.path.join(folder, ".directory")
    directory, printed = folder, None
    for block in blocks:
        if "file" in block.values and by is None:
            path = os.path.join(directory, block.values["file"])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if not os.path.exists(path) or open(path, encoding="utf-8").read() != block.text():  # Make goes by times.
                with open(path, "w", encoding="utf-8") as file:
                    file.write(block.text())
        elif block.language == "sh":
            printed = None
            if not is_followed(block) if by is None else by not in block.values.get("by", "").split(","):
                continue
            if by is not None and all(has_command(own, command) for command in commands_of(block.text())):
                continue
            # The folder that a block ends in is where the next one begins.
            script = f'trap \'pwd >"{directory_file}"\' EXIT\nset -e\n' + \
                (DRY_RUN if "dry-run" in block.flags else "") + block.text()
            try:
                result = subprocess.run(
                    ["bash", "-c", script], cwd=directory, stdin=subprocess.DEVNULL, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIME_LIMIT_S, check=False)
            except subprocess.TimeoutExpired as error:
                raise SystemExit(f"{block.where}: not done after {TIME_LIMIT_S} s:\n{error.stdout}") from error
            if (result.returncode != 0) != ("fails" in block.flags):
                raise SystemExit(f"{block.where}: exit code {result.returncode}; printed:\n{result.stdout}")
            with open(directory_file, encoding="utf-8") as file:
                directory = file.read().strip()
            printed = result.stdout
        elif block.language == "output" and printed is not None:
            if line := missing_line(block.lines, printed.splitlines()):
                raise SystemExit(f"{block.where}: not printed there:\n{line}\nprinted:\n{printed}")
    print(f"{os.path.basename(page)}: followed to its end")


def main(arguments):
    if arguments[:1] == ["--check"]:
        problems = [problem for page in arguments[1:] for problem in check(page)]
        raise SystemExit("\n".join(problems) or None)
    if arguments[:1] == ["--cut"]:
        for block in blocks_of(arguments[2])[0]:
            if block.values.get("file") == arguments[1]:
                print(block.text(), end="")
                return
        raise SystemExit(f"{arguments[2]} has no {arguments[1]}")
    if arguments[:1] == ["--by"]:
        run(os.path.realpath(arguments[2]), os.path.realpath(arguments[3]), arguments[1])
        return
    page = os.path.realpath(arguments[0])
    if len(arguments) > 1:
        run(page, os.path.realpath(arguments[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            run(page, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
