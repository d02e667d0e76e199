#!/usr/bin/env bash
#
# ci/lint.sh: what is right or wrong without running the project.
#
#   tidy      the rules of tools/lint/tidy.h hold for every file; links, names and marked blocks of the
#             documents are right (tools/documents/check.py)
#   format    clang-format has nothing to change in the C++ sources
#   floors    the includes of each folder lead downward (tools/build_defs/floors.bzl); draws them
#   layering  Bazel's graph has no path from a library to what it must not depend on
#
# All parts run; the last line names those that failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -z ${ACCELERATE_INSIDE:-} ]]; then
  exec tools/dev shell ci/lint.sh "$@"
fi

tidy() {
  bazel test --noshow_progress //tools/lint/... //tools/documents/...
}

floors() {
  bazel run --noshow_progress --ui_event_filters=-info //tools/lint:floors -- "$PWD"
}

# The C++ sources that git tracks or would track; without git, all of them.
cpp_sources() {
  if [[ -e .git ]]; then
    git -c safe.directory='*' ls-files -z --cached --others --exclude-standard -- '*.cc' '*.h' |
      while IFS= read -rd '' file; do [[ ! -f $file ]] || printf '%s\0' "$file"; done
  else
    find . -path './.*' -prune -o -path './bazel-*' -prune -o \
      -type f \( -name '*.cc' -o -name '*.h' \) -print0
  fi
}

format() {
  local files
  mapfile -td '' files < <(cpp_sources)
  if ((${#files[@]} == 0)); then
    echo 'no C++ sources found'
    return 1
  fi
  clang-format --dry-run -Werror "${files[@]}" && echo "${#files[@]} files are formatted"
}

# none_reach SENTENCE FROM TO: no path in Bazel's graph leads from FROM to TO.
none_reach() {
  local paths
  paths=$(bazel query --noshow_progress --ui_event_filters=-info "allpaths($2, $3)") || return
  if [[ -n $paths ]]; then
    printf 'NOT TRUE: %s. What lies between:\n%s\n' "$1" "$paths"
    return 1
  fi
  echo "$1"
}

# Examples are programs on top of the library; they may link the simulator. //launch:accelerate has the
# programs with it that it starts, which its code does not depend on.
layering() {
  local status=0
  none_reach 'accelerate reaches none of simulator, launch, trackers' \
    '//accelerate/... except //accelerate/examples/...' \
    '//simulator/...:* union //launch/...:* union //trackers/...:*' || status=1
  none_reach 'simulator reaches none of launch, trackers' \
    //simulator/... '//launch/...:* union //trackers/...:*' || status=1
  none_reach "simulator's core reaches neither accelerate nor LibTorch" \
    //simulator/core/... '//accelerate/...:* union @libtorch//:*' || status=1
  none_reach "launch reaches neither trackers nor LibTorch, and of simulator its models of hardware and network alone" \
    '//launch/... except //launch:accelerate' \
    '(//simulator/...:* except //simulator/hardware:* except //simulator/network/...:*) union //trackers/...:* union @libtorch//:*' || status=1
  none_reach 'nothing reaches integration_tests' \
    '(//accelerate/... union //simulator/... union //launch/... union //trackers/...:*) except //launch:accelerate' \
    '//integration_tests/...:*' || status=1
  return "$status"
}

failed=()
for part in tidy format floors layering; do
  echo "== $part"
  "$part" || failed+=("$part")
done
if ((${#failed[@]})); then
  echo "lint: failed: ${failed[*]}"
  exit 1
fi
echo 'lint: all well'
