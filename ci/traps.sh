#!/usr/bin/env bash
#
# ci/traps.sh [NAME...]: the tests of tensor, sequence, context, pipeline and expert parallelism notice planted defects.
#
# Each patch of ci/traps plants one defect that other libraries had, as a row's bias that each rank adds. Its head says
# what it is, the test target that has to fail (Target:) and the cases of it that are run (Filter:, as of GoogleTest).
# The lane runs the targets as they are, then applies one patch after the other to the checkout, runs its cases, expects
# them to fail, and takes it back, also when it is interrupted. NAME takes the patches that begin so.
#
# A patch that does not apply or compile, or whose cases pass or run for ten minutes, is named, and the lane fails. What
# Bazel printed stands in .ci/out/traps. The checkout must have no changes in files that git tracks.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
readonly folder=ci/traps logs=.ci/out/traps

# field NAME PATCH: what the patch's head says behind the name.
field() { sed -n "/^--- /q; s/^$1: //p" "$2"; }

bazel_test() { tools/dev bazel test --noshow_progress --test_output=errors --test_timeout=600 "$@"; }

applied=
take_back() {
  [[ -z $applied ]] || git apply -R "$applied"
  applied=
}

# noticed PATCH: whether its cases fail while the patch is applied; says so, or what happened instead.
noticed() {
  local patch=$1 name target filter status=0
  name=$(basename "$patch" .patch)
  target=$(field Target "$patch")
  filter=$(field Filter "$patch")
  if [[ -z $target || -z $filter ]]; then
    echo "traps: $patch: its head has no line \"Target:\" or \"Filter:\""
    return 1
  fi
  if ! git apply "$patch" 2>"$logs/$name.log"; then
    echo "traps: $patch: it does not apply any more (see $logs/$name.log)"
    return 1
  fi
  applied=$patch
  bazel_test "--test_filter=$filter" "$target" >"$logs/$name.log" 2>&1 || status=$?
  take_back
  if ((status == 0)); then
    echo "traps: $name: NOT noticed by $target $filter"
  elif ((status != 3)); then
    echo "traps: $patch: it does not compile, or Bazel failed with $status (see $logs/$name.log)"
  elif grep -q '^//.* TIMEOUT' "$logs/$name.log"; then
    echo "traps: $name: $target $filter does not end (see $logs/$name.log)"
  else
    echo "traps: $name: noticed by $target $filter"
    return 0
  fi
  return 1
}

if [[ -n $(git status --porcelain --untracked-files=no) ]]; then
  echo 'traps: the checkout has changes in files that git tracks; commit them, or put them aside by git stash' >&2
  exit 2
fi
patches=()
for name in "${@:-}"; do
  if ! compgen -G "$folder/$name*.patch" >/dev/null; then
    echo "traps: no patch begins with \"$name\"; there are:" >&2
    (cd "$folder" && printf '  %s\n' *.patch) | sed 's/\.patch$//' >&2
    exit 2
  fi
  patches+=("$folder/$name"*.patch)
done
mapfile -t patches < <(printf '%s\n' "${patches[@]}" | sort -u)

mkdir -p "$logs"
trap take_back EXIT
trap 'exit 130' INT TERM HUP
mapfile -t targets < <(for patch in "${patches[@]}"; do field Target "$patch"; done | sort -u)
if ! bazel_test "${targets[@]}" >"$logs/without.log" 2>&1; then
  echo "traps: without a defect the tests do not pass (see $logs/without.log)"
  exit 1
fi

count=0
for patch in "${patches[@]}"; do
  ! noticed "$patch" || count=$((count + 1))
done
echo "traps: $count of ${#patches[@]} defects are noticed"
((count == ${#patches[@]}))
