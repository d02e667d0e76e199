#!/usr/bin/env bash
#
# An example is a program that a reader understands at once and copies with its folder: one short
# source that includes nothing of the other examples, and a BUILD and a CMakeLists.txt that differ
# from minimal's by the name, and by the trackers or the cluster where it has them; the target of
# `memory` has another name than its program. An example of one feature is `minimal` and that feature: few
# lines differ, not counting those that are only indented further. Those in programs/ do a whole task, may be longer,
# and name their counterpart.
set -euo pipefail

readonly most_differences=40
repo=$(dirname "$(realpath CMakeLists.txt)")
readonly repo launch_folder=$PWD/launch
cd "$repo/accelerate/examples"
# Larger programs, in several files.
readonly programs=' big_model_load digits lm by_feature/deepspeed by_feature/fsdp by_feature/long_sequences by_feature/quantization by_feature/tensor_parallel '
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# is_minimals FILE NAME: the file is minimal's, for an example of this name.
is_minimals() {
  local copy=minimal/${1##*/} parts='/"@accelerate_cpp\/\/\(trackers\|accelerate:megatron_lm\)",$/d; s/ Accelerate::trackers//'
  parts+='; s#//simulator/cluster"#//simulator/run"#'
  parts+='; s/\<memory_example\>/memory/; /^# A target called memory /d; / OUTPUT_NAME memory)$/d'
  diff <(sed "s/\\<minimal\\>/${2##*/}/g" "$copy") <(sed "$parts" "$1") || fail "$1 is not $copy with another name"
}

for source in */main.cc */*/main.cc; do
  name=${source%/main.cc}
  grep -q "^| \`$name\`" "$repo/accelerate/docs/examples.md" || fail "docs/examples.md does not list $name"
  grep -q "\"$name\"" "$repo/integration_tests/examples/BUILD" || fail "examples_test does not run $name"
  [[ -f $name/BUILD && -f $name/CMakeLists.txt ]] || fail "$name has no BUILD or no CMakeLists.txt"
  [[ $programs != *" $name "* ]] || continue
  files=$(ls "$name" | sort | tr '\n' ' ')
  [[ $files == 'BUILD CMakeLists.txt main.cc ' ]] || fail "$name consists of $files"
  lines=$(wc -l <"$source") most_lines=80
  if [[ $name == programs/* ]]; then
    most_lines=150
    grep -q "^//.* HF Accelerate's counterpart: " "$source" || fail "$source names no program of HF Accelerate"
  fi
  ((lines <= most_lines)) || fail "$source has $lines lines, not at most $most_lines"
  ! grep -n '#include "accelerate/examples' "$source" || fail "$source needs other examples"
  is_minimals "$name/BUILD" "$name"
  # This one has tests besides.
  [[ $name == quickstart ]] || is_minimals "$name/CMakeLists.txt" "$name"
  [[ $name == by_feature/* ]] || continue
  differences=$({ diff -w minimal/main.cc "$source" || true; } | grep -c "^[<>]")
  ((differences <= most_differences)) ||
    fail "$source differs from minimal/main.cc in $differences lines, not at most $most_differences"
  echo "$name: $lines lines, $differences differ from minimal"
done

# The launcher takes each configuration as it is, and each batch script in a job of two machines.
readonly launcher=$launch_folder/accelerate
for file in config/*.yaml; do
  said=$("$launcher" launch --config_file "$file" --dry_run ./train 2>&1) || fail "$file: $said"
done
batch_variables=(
  "PATH=$launch_folder:$PATH" HOME=/tmp SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2
  SLURM_NTASKS=16 SLURM_NTASKS_PER_NODE=8 'SLURM_TASKS_PER_NODE=8(x2)' 'SLURM_JOB_NODELIST=node[1-2]'
  SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
)
for file in slurm/*.sbatch; do
  bash -n "$file" || fail "$file is not a script"
  grep -q '^#SBATCH --nodes=' "$file" || fail "$file does not say how many machines"
  grep -q '^accelerate launch ' "$file" || continue
  said=$(sed 's/^accelerate launch/& --dry_run/' "$file" | env -i "${batch_variables[@]}" bash 2>&1) ||
    fail "$file: $said"
  [[ $file == *one_machine* || $said == *'command: srun '* ]] || fail "$file does not start srun: $said"
done
((failures == 0))
