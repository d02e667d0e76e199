#!/usr/bin/env bash
#
# The documents of the checkout are right, and each kind of mistake is found in a copy of a small one.
set -euo pipefail
repo=$(dirname "$(realpath .clang-format)")
tools=$repo/tools/documents
work=$TEST_TMPDIR
readonly repo tools work

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

python3 "$tools/check.py" "$repo" || fail 'documents are wrong'

# ---- check.py on a checkout of a few files.
small=$work/small
mkdir -p "$small/accelerate/docs"
printf '```cpp file=train.cc\nint main() {}\n```\n' >"$small/README.md"
echo 'void train_all();  // "rank 5 does " "not exist: \"x\""' >"$small/accelerate/train.cc"

# finds TEXT PAGE: the page in which PAGE (printf's format) stands is refused with TEXT.
finds() {
  printf '```cpp file=train.cc\nint main() {}\n```\n' >"$small/accelerate/docs/quicktour.md"
  # shellcheck disable=SC2059
  printf "$2" >>"$small/accelerate/docs/${3:-quicktour}.md"
  local said
  if said=$(python3 "$tools/check.py" "$small"); then fail "nothing is found in: $2"; fi
  [[ $said == *"$1"* ]] || fail "found \"$said\" instead of \"$1\""
  rm -f "$small/accelerate/docs/${3:-quicktour}.md"
}

finds 'there is no accelerate/docs/gone.md' '[a](gone.md)\n'
finds 'there is no accelerate/docs/gone.png' '<img src="gone.png">\n'
finds 'has no heading #gone' '[a](../../README.md#gone)\n'
finds 'no source has the name train_none' 'Call `train_none`.\n'
finds 'no source has the flag --no_such_flag' '    accelerate launch --no_such_flag x\n'
finds 'there is no folder gone' 'Run `tools/dev test //gone:test`.\n'
finds 'accelerate has no gone' 'Run `tools/dev test //accelerate:gone`.\n'
finds 'no source has the name Train' 'Call `Train::all()`.\n'
finds 'no source says "rank 6 does"' '### `rank 6 does ... exist`\n' troubleshooting
finds 'an indented block has no mark' 'x\n\n    ls\n'
finds '"bash" is not a kind of block' '```bash\nls\n```\n'
finds 'unknown marks: maybe' '```sh maybe\nls\n```\n'
finds 'does not say "not tried"' '```sh not-tried\nls\n```\n'
finds 'there is no ci/gone.sh' '```sh by=ci/gone.sh\nls\n```\n'
finds 'no command before this output' '```output\nls\n```\n'
finds 'nothing uses this block' '```python\nls\n```\n'
finds '.ci/run does not run: ls -l' '```sh by=.ci/run\nls -l\n```\n'
finds 'does not say "by hand"' '```sh by-hand\nls\n```\n'
finds 'unknown marks: fast' '```cpp fast\nint i;\n```\n'
finds 'the launcher has no option --num_process' '```sh by-hand\naccelerate launch --num_process 2 x\n```\nBy hand.\n'
finds 'there is no accelerate/gone.cc' 'See `accelerate/gone.cc`.\n'
finds 'no source has the variable ACCELERATE_GONE' 'Set `ACCELERATE_GONE=1`.\n'
finds 'the library has no accelerate::gone' 'It is accelerate::gone() here.\n'
finds 'by the table, "1 pages are covered, 1 partly"' '| A | yes |\n| B | partly: few |\n\n2 pages are covered, 1 partly.\n' hf_pages
finds 'a page has at most 120' "$(printf 'x\\n%.0s' {1..120})"

# A page says when to use it, and the list of pages leads to it.
printf '# Documents\n\n[a](quicktour.md)\n' >"$small/accelerate/docs/README.md"
printf '# A page\n\nUse this when in doubt.\n' >"$small/accelerate/docs/forgotten.md"
finds 'quicktour.md: the first line below the title begins with "Use this when"' '# B\n\nThis page is about b.\n'
finds 'forgotten.md: accelerate/docs/README.md has no link to this page' '\n'
printf '## Concepts\n\n- [a](quicktour.md)\n- [b](forgotten.md)\n' >"$small/accelerate/docs/README.md"
finds 'quicktour.md: a page below "Concepts" has a title that begins with "Concept:"' '# B\n\nUse this when in doubt.\n'
rm "$small/accelerate/docs/README.md" "$small/accelerate/docs/forgotten.md"

# README.md's table follows that of status.md.
mkdir -p "$work/status/accelerate/docs"
python3 - "$tools" "$work/status" <<'END'
import sys
sys.path.insert(0, sys.argv[1])
import check
repo = sys.argv[2]
check.STATUS = {"Loop": ["The loop", "Data parallel"], "Formats": ["bf16", "fp8"], "Not built": []}
check.STATUS_ALONE = ["Pinned loading"]
NAMES = ["The loop: all of it", "Data parallel training", "bf16", "fp8: arithmetic", "Pinned loading"]
def say(readme, names=NAMES):
    with open(f"{repo}/accelerate/docs/status.md", "w") as file:
        file.write("| feature | CPU | Gloo | seen |\n| --- |\n" + "".join(
            f"| {name} | tested | {'same code' if name.startswith('fp8') else 'tested'} | 2026-01-01 |\n" for name in names))
    with open(f"{repo}/README.md", "w") as file:
        file.write("| | CPU | Gloo | seen |\n| --- |\n" + readme)
    return list(check.check_status(repo))
right = ("| Loop | tested | tested | 2026-01-01 |\n| Formats | tested | same code | 2026-01-01 |\n"
         "| Not built | no | no | not yet |\n")
assert say(right) == [], say(right)
wrong = say(right.replace("same code", "tested"))
assert len(wrong) == 1 and "by status.md it is same code" in wrong[0], wrong
assert len(say(right.replace("2026-01-01", "not yet"))) == 2, say(right.replace("2026-01-01", "not yet"))
assert "its table has the rows" in say(right.partition("\n")[2])[0]
# A new row, a row that is gone, and one that two rows of README.md could mean.
assert say(right, [*NAMES, "A new feature"]) == [
    'accelerate/docs/status.md: the row "A new feature" stands 0 times in STATUS and STATUS_ALONE of check.py']
assert say(right, NAMES[:-1]) == ['accelerate/docs/status.md: 0 rows begin with "Pinned loading", which check.py names']
check.STATUS_ALONE += ["The"]
assert [each for each in say(right) if '"The loop: all of it" stands 2 times' in each], say(right)
END

python3 - "$tools" <<'END'
import sys
sys.path.insert(0, sys.argv[1])
import check
say = lambda text: list(check.check_changes("# Changes\n\n## Unreleased\n\n" + text))
assert say("### One\n\n- a\n  b\n- c\n\n### Two\n\n- d\n") == []
assert say("### One\n\n- a\n  b\n- a b\n") == ["CHANGELOG.md:9: the entry of line 7 once more"]
assert say("- a\n\n### One\n") == ["CHANGELOG.md:5: an entry stands below a part of the product (###)"]
assert say(f"### One\n\n- {'a' * 119}\n") == ["CHANGELOG.md:7: 121 characters; a line has at most 120"]
END

# The table of names follows the headers: a renamed class leaves the page old. A name that only a Mirrors line has needs one of
# the header's, and methods are sorted into those of HF Accelerate, those of this library and those that are missing.
mkdir -p "$small/tools/documents"
cat >"$small/tools/documents/hf_names.txt" <<'END'
state GradientState
launchers notebook_launcher
other retied
other absent
accelerator.Accelerator print
accelerator.Accelerator flush
END
cat >"$small/accelerate/accelerator.h" <<'END'
class Accelerator : public Control<Accelerator> {
 public:
  // ---- Process control: see Control in accelerate/control.h.
  void survivors() {
    void within(1);
  }
 private:
  void hidden();
};
END
cat >"$small/accelerate/control.h" <<'END'
class Control {
 public:
  void print();
 private:
  void hidden();
};
END
cat >"$small/accelerate/state.h" <<'END'
/// Mirrors: state.py, GradientState; launchers.py, notebook_launcher (here launch).
class GradientState {
};
void launch();
std::function<void(Module&)> retied(
    std::function<void(Module&)> function);
END
table=$small/accelerate/docs/migration_names.md
printf '```cpp file=train.cc\nint main() {}\n```\n' >"$small/accelerate/docs/quicktour.md"
cp "$small/accelerate/docs/quicktour.md" "$small/README.md"
python3 "$tools/migration.py" "$small" >"$work/names.md"
for line in '| `state.GradientState` |  | `accelerate/state.h` |' '| `launchers.notebook_launcher` | `launch` | `accelerate/state.h` |' \
  '| `other.retied` |  | `accelerate/state.h` |' '- `other`: `absent`.' '- Process control: `print`.' \
  'Those that HF Accelerate lacks: `survivors`.' 'Methods and attributes that are not here: `flush`.'; do
  grep -qxF -- "$line" "$work/names.md" || fail "the table has no line $line"
done
sed 's/GradientState/GradientStates/' "$work/names.md" >"$table"
if said=$(python3 "$tools/check.py" "$small"); then fail 'an old table is not found'; fi
[[ $said == *'migration_names.md is old'* ]] || fail "found \"$said\" instead of an old table"
sed -i 's/here launch/here lunch/' "$small/accelerate/state.h"
python3 "$tools/migration.py" "$small" >"$table"
if said=$(python3 "$tools/check.py" "$small"); then fail 'a Mirrors line with a wrong name is not found'; fi
[[ $said == *'accelerate/state.h: "Mirrors: ... notebook_launcher" needs "(here NAME)"'* ]] || fail "found \"$said\" instead of a wrong name"

# ---- run_page.py: a page that works, and pages that promise what does not happen.
# A script has a command if it has its words in their order, with variables in the places of operands.
python3 - "$tools" <<'END'
import sys
sys.path.insert(0, sys.argv[1])
import run_page
def has(script, command):
    return run_page.has_command(run_page.commands_of(script), run_page.commands_of(command)[0])
assert has('cmake -S . -B "$build" -G Ninja -DX=ON', "cmake -S . -B build -G Ninja")
assert has('if ! "$bin/pip" install --quiet \\\n  torch; then :; fi', "pip install torch;")
assert has('x && cmake "-DA=$place" -S .', "cmake -DA=~/there -S .")
assert not has('# cmake -S .\necho', "cmake -S .")
assert not has('cmake -S "$build"', "cmake -S . -G Ninja")
assert not has('cmake "$options"', "cmake --install")
assert not has('cmake --build "$build"', "cmake --build build --target x")
assert has('"${bazel[@]}" build "$all"', "bazel build //:all")
assert has('cp "$work/a/b" .', "cp a/b .")
assert not has('cp "$work/a/c" .', "cp a/b .")
assert not has('"$launcher" "$program"', "frobnicate now")
assert not has('rm -f "$events" "$profile"', "tools/dev demo")
END

page() {
  cat >"$work/page.md"
}
page <<'END'
```text file=notes/a.txt
one
two 3.14159
three
```

```sh
cd notes
cat a.txt
```

```output
one
two 3.1...
```

```sh fails
pwd
cat b.txt
```

```output
.../notes
...b.txt...
```
END
mkdir "$work/folder"
python3 "$tools/run_page.py" "$work/page.md" "$work/folder" >"$work/said" || fail "a right page: $(cat "$work/said")"

# refuses TEXT: the page on stdin does not do what it says.
refuses() {
  page
  local said
  if said=$(python3 "$tools/run_page.py" "$work/page.md" "$work/folder" 2>&1); then fail "followed: $(cat "$work/page.md")"; fi
  [[ $said == *"$1"* ]] || fail "said \"$said\" instead of \"$1\""
}
refuses 'exit code 1' <<<$'```sh\nfalse\ntrue\n```'
refuses 'exit code 0' <<<$'```sh fails\ntrue\n```'
refuses 'not printed there' <<<$'```sh\necho a\n```\n```output\nb\n```'
refuses 'not printed there' <<<$'```sh\nprintf "a\\nb\\nc\\n"\n```\n```output\na\nc\n```'
refuses 'the block does not end' <<<$'```sh\necho a'
[[ $(python3 "$tools/run_page.py" --cut train.cc "$small/README.md") == 'int main() {}' ]] || fail 'a file is cut out wrongly'
echo 'check: all well'
