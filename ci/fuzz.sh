#!/usr/bin/env bash
#
# ci/fuzz.sh [SECONDS [TARGET]]: hostile files, found by libFuzzer with AddressSanitizer and
# UndefinedBehaviorSanitizer.
#
# All *_fuzzer.cc of the tree, each with what it includes of the project, share the given CPU time
# (600 s) evenly. With a target's name, as in offload_index, that target has all of it. A target starts
# from the corpus beside it, and the corpus does not change. What a target does
# not survive is left in .ci/out/fuzz/TARGET, to be added to its corpus with the fix.
#
# The compiler comes from a build root of its own (tools/fuzz_packages.txt), so that no other lane
# pays for it.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -z ${ACCELERATE_INSIDE:-} ]]; then
  ACCELERATE_PACKAGES=tools/fuzz_packages.txt exec tools/dev shell ci/fuzz.sh "$@"
fi
readonly seconds=${1:-600}
readonly out=$PWD/.ci/out/fuzz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Abseil is built without sanitizers, and knows nothing of their types.
readonly flags=(
  -std=c++20 -O1 -g1 -I. "-fsanitize=fuzzer,address,undefined" -fno-sanitize-recover=undefined
  "-fno-sanitize=vptr,function"
  -isystem /usr/include/torch/csrc/api/include
)
libraries=()
for library in /usr/lib/*/libabsl_*.so; do
  case $library in
    *test* | *flags_parse*) ;;
    *) libraries+=("$library") ;;
  esac
done
# Linked only to what uses them, as all libraries.
libraries+=(-lyaml-cpp -ltorch -ltorch_cpu -lc10)

# The project's sources that a source needs, itself included: those beside the headers it includes,
# directly or not.
sources_of() {
  local todo=("$1") found=" $1 " header
  while ((${#todo[@]})); do
    for header in $(clang++ -std=c++20 -I. -MM "${todo[0]}" | grep -Eo '[^ :]+\.h( |$)'); do
      if [[ $header != /* && -f ${header%.h}.cc && $found != *" ${header%.h}.cc "* ]]; then
        todo+=("${header%.h}.cc")
        found+="${header%.h}.cc "
      fi
    done
    todo=("${todo[@]:1}")
  done
  echo "$found"
}

# fuzz SOURCE SECONDS: builds a target and runs it.
fuzz() {
  local name corpus log sources
  name=$(basename "$1" _fuzzer.cc)
  corpus=${1%/*}/corpus/$name
  log=$work/$name.log
  mkdir -p "$work/$name" "$out/$name"
  read -ra sources <<<"$(sources_of "$1")"
  clang++ "${flags[@]}" "${sources[@]}" -o "$work/$name.fuzzer" -Wl,--as-needed "${libraries[@]}"
  if ! "$work/$name.fuzzer" -max_total_time="$2" -max_len=4096 -timeout=10 -rss_limit_mb=2048 \
    -malloc_limit_mb=256 -print_final_stats=1 -artifact_prefix="$out/$name/" \
    "$work/$name" "$corpus" >"$log" 2>&1; then
    tail -n 40 "$log"
    echo "$name: a finding, see $out/$name"
    return 1
  fi
  echo "$name: no finding in $2 s," \
    "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log") executions," \
    "$(find "$work/$name" -type f | wc -l) inputs kept"
}

mapfile -t targets < <(find accelerate simulator launch trackers -name "${2:-*}_fuzzer.cc" | sort)
((${#targets[@]})) || { echo "no fuzz targets ${2:-}" >&2; exit 1; }
running=()
failed=0
for target in "${targets[@]}"; do
  # As many at once as there are processors.
  while (($(jobs -rp | wc -l) >= $(nproc))); do wait -n || true; done
  fuzz "$target" $((seconds / ${#targets[@]})) &
  running+=($!)
done
for job in "${running[@]}"; do wait "$job" || failed=1; done
((failed == 0)) && echo "fuzz: no finding in ${#targets[@]} targets"
