#!/usr/bin/env bash
#
# bazel_workspace.sh REPO WORKSPACE|MODULE.bazel analyse|compile|build [OPTIONS]: a Bazel workspace of somebody
# else's, which has the project as an external repository by a WORKSPACE (Bazel 4) or as a module (Bazel 7).
# Its files are those that accelerate/docs/bazel.md tells its reader to write, the program of README.md,
# the test of accelerate/docs/write_a_simulated_test.md and copies of examples. It builds them, runs the
# programs on one rank, on two processes and on a simulated cluster, and the test. With `compile`, only the
# workspace's own sources are compiled, which shows that flags and include paths are right. With `analyse`,
# Bazel only loads and analyses the targets: labels, visibility and repositories are right then, and it
# takes seconds. OPTIONS are Bazel's, for all its builds.
set -euo pipefail
repo=$(dirname "$(realpath "$1/CMakeLists.txt")")
readonly repo file=$2 mode=$3 options=(--noshow_progress --ui_event_filters=-info "${@:4}")
work=$(mktemp -d)
readonly work
bazel=(bazel "--output_base=$work/output" --max_idle_secs=10)
trap '"${bazel[@]}" shutdown >/dev/null 2>&1; chmod -R u+w "$work" && rm -rf "$work"' EXIT

# cut_from FILE PAGE: writes the file as the page has it.
cut_from() {
  python3 "$repo/tools/documents/run_page.py" --cut "$1" "$repo/$2" >"${PWD}/$1"
}

# prints EXPECTED COMMAND...: the command ends well and its output has the text.
prints() {
  local expected=$1 said
  shift
  said=$("$@" 2>&1) || { echo "FAILED: $* said: $said" >&2; return 1; }
  [[ $said == *"$expected"* ]] || { echo "FAILED: $* does not say \"$expected\": $said" >&2; return 1; }
  echo "$expected: ${*##*/}"
}

# What Bazel 9 has no rules and providers of its own for: C++ is loaded from rules_cc, other languages are not there.
ready_for_bazel_9() {
  local rules
  local -r name='(^|[^._[:alnum:]])' cc='(cc_(binary|import|library|shared_library|test)\(|CcInfo|cc_common\.)'
  while read -r rules; do
    if grep -qE "$name$cc" "$rules" && ! grep -q 'load("@rules_cc//' "$rules"; then
      echo "FAILED: $rules loads nothing from rules_cc" >&2
      return 1
    fi
    ! grep -nE "$name(java|proto|py|sh)_(binary|library|test)\\(" "$rules" || { echo "FAILED: $rules" >&2; return 1; }
  done < <(find "$repo"/{accelerate,simulator,launch,trackers,tools/{build_defs,third_party},integration_tests/self_test} \
    -name BUILD -o -name '*.BUILD' -o -name '*.bzl')
}
ready_for_bazel_9

ln -s "$repo" "$work/accelerate-cpp"
mkdir "$work/my_training"
cd "$work/my_training"
for name in "$file" .bazelrc BUILD; do cut_from "$name" accelerate/docs/bazel.md; done
cut_from train.cc README.md
cut_from topology_test.cc accelerate/docs/write_a_simulated_test.md
examples=()
for example in minimal by_feature/gradient_accumulation simulator/straggler; do
  cp -r "$repo/accelerate/examples/$example" .
  examples+=("//${example##*/}")
done

readonly launcher=@accelerate_cpp//launch:accelerate
if [[ $mode == analyse ]]; then
  "${bazel[@]}" build "${options[@]}" --nobuild //:all "${examples[@]}" "$launcher"
elif [[ $mode == compile ]]; then
  "${bazel[@]}" build "${options[@]}" --output_groups=compilation_outputs //:train //:topology_test "${examples[@]}"
else
  "${bazel[@]}" run "${options[@]}" //:train_costs.accept
  "${bazel[@]}" build "${options[@]}" //:all "${examples[@]}" "$launcher"
  "${bazel[@]}" test "${options[@]}" --test_summary=short --test_output=errors //:topology_test
  "${bazel[@]}" test "${options[@]}" --test_summary=short --test_output=errors \
    //:topology_test --test_env=ACCELERATE_TEST_TOPOLOGIES='1x8 2x4:h100' --runs_per_test=20
  # As it was accepted; then the program takes twice the samples.
  "${bazel[@]}" test "${options[@]}" --test_summary=short --test_output=errors //:train_costs
  sed -i 's/rand({1024, 8})/rand({2048, 8})/' train.cc
  "${bazel[@]}" test "${options[@]}" //:train_costs >/dev/null 2>&1 &&
    { echo 'FAILED: another program costs the same' >&2; exit 1; }
  grep -q 'bazel run //:train_costs.accept' bazel-testlogs/train_costs/test.log ||
    { echo "FAILED: the test says: $(<bazel-testlogs/train_costs/test.log)" >&2; exit 1; }
  echo 'train_costs: a change is found'
  accelerate=$(echo bazel-bin/external/accelerate_cpp*/launch/accelerate)  # Bazel 7 calls it accelerate_cpp~.
  prints 'ranks: 1, loss ' bazel-bin/train
  prints 'ranks: 2, loss ' "$accelerate" launch --num_processes 2 bazel-bin/train
  prints 'ranks: 8, loss ' "$accelerate" launch --simulate 2x4:h100 bazel-bin/train
  prints 'The self-test passed' "$accelerate" test
  for example in "${examples[@]}"; do
    bazel-bin/"${example#//}/${example##*/}" >example.log 2>&1 || { cat example.log; echo "FAILED: $example" >&2; exit 1; }
    echo "$example: $(tail -n 1 example.log)"
  done
fi
version=$(dpkg-query -W -f '${Version}' bazel-bootstrap 2>/dev/null || "${bazel[@]}" --version)
echo "Bazel $version, $file: a workspace outside, $mode: all well"
