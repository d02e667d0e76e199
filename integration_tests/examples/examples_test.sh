#!/usr/bin/env bash
#
# Runs every example of accelerate/examples in three modes, a shard for each: alone, as two processes
# of the launcher, and on a simulated cluster of two nodes with four ranks each.
set -euo pipefail

readonly examples=$PWD/accelerate/examples launcher=$PWD/launch/accelerate
failures=0 mode='' ranks=''
tried=()

fail() {
  echo "FAILED: $mode: $*" >&2
  failures=$((failures + 1))
}

# example NAME REGEX...: the program ends well, and prints a match of each.
example() {
  local name=$1 program=$examples/$1/${1##*/} folder=$TEST_TMPDIR/$mode/$1 said regex command=()
  shift
  tried+=("$name")
  case $mode in
    alone) ;;
    processes) command=("$launcher" launch --num_processes "$ranks") ;;
    simulated) command=("$launcher" launch --simulate 2x4) ;;
  esac
  mkdir -p "$folder"
  if ! said=$(cd "$folder" && "${command[@]}" "$program" 2>&1); then
    fail "$name ended with an error and printed: $said"
    return
  fi
  for regex in "$@"; do
    grep -Eq -- "$regex" <<<"$said" || fail "$name does not print \"$regex\" but: $said"
  done
  echo "$mode: $name: all well after $SECONDS s"
}

# Three passes over 1,024 samples in batches of 16 on each rank, each with an evaluation of 200
# samples, of which none counts twice where ranks get more.
run_all() {
  mode=$1 ranks=$2
  local learns='epoch 3: [89][0-9] % of 200 points' batches=$((3 * 1024 / 16 / ranks))
  example minimal "$learns"
  example by_feature/early_stopping 'stopped after [0-9]+ steps'
  example by_feature/gradient_accumulation "$learns" \
    "$batches batches, $((batches / 4)) optimizer steps"
}

readonly modes=('alone 1' 'processes 2' 'simulated 8')
if [[ -n ${TEST_SHARD_STATUS_FILE:-} ]]; then touch "$TEST_SHARD_STATUS_FILE"; fi
for index in "${!modes[@]}"; do
  if ((index % ${TEST_TOTAL_SHARDS:-1} == ${TEST_SHARD_INDEX:-0})); then
    # shellcheck disable=SC2086
    run_all ${modes[index]}
  fi
done

for program in "$examples"/*/* "$examples"/by_feature/*/*; do
  name=${program#"$examples"/}
  name=${name%/*}
  [[ ! -f $program || ${program##*/} != "${name##*/}" || " ${tried[*]} " == *" $name "* ]] ||
    fail "no line of this test runs $name"
done
((failures == 0))
