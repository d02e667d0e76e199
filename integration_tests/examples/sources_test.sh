#!/usr/bin/env bash
#
# An example is a program that a reader understands at once and copies with its folder: one short
# source that includes nothing of the other examples, and a BUILD and a CMakeLists.txt that differ
# from minimal's by the name. An example of one feature is `minimal` and that feature.
set -euo pipefail

readonly most_lines=80 most_differences=50
repo=$(dirname "$(realpath CMakeLists.txt)")
readonly repo
cd "$repo/accelerate/examples"
# Larger programs, in several files.
readonly programs=' big_model_load digits lm by_feature/deepspeed by_feature/fsdp by_feature/quantization '
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# is_minimals FILE NAME: the file is minimal's, for an example of this name.
is_minimals() {
  local copy=minimal/${1##*/}
  diff <(sed "s/\\<minimal\\>/${2##*/}/g" "$copy") "$1" || fail "$1 is not $copy with another name"
}

for source in */main.cc by_feature/*/main.cc; do
  name=${source%/main.cc}
  grep -q "^| \`$name\`" "$repo/accelerate/docs/examples.md" || fail "docs/examples.md does not list $name"
  [[ $programs != *" $name "* ]] || continue
  grep -q "\"$name\"" "$repo/integration_tests/examples/BUILD" || fail "examples_test does not run $name"
  files=$(ls "$name" | sort | tr '\n' ' ')
  [[ $files == 'BUILD CMakeLists.txt main.cc ' ]] || fail "$name consists of $files"
  lines=$(wc -l <"$source")
  ((lines <= most_lines)) || fail "$source has $lines lines, not at most $most_lines"
  ! grep -n '#include "accelerate/examples' "$source" || fail "$source needs other examples"
  is_minimals "$name/BUILD" "$name"
  is_minimals "$name/CMakeLists.txt" "$name"
  [[ $name == by_feature/* ]] || continue
  differences=$({ diff minimal/main.cc "$source" || true; } | grep -c "^[<>]")
  ((differences <= most_differences)) ||
    fail "$source differs from minimal/main.cc in $differences lines, not at most $most_differences"
  echo "$name: $lines lines, $differences differ from minimal"
done
((failures == 0))
