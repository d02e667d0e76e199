# For tests to source: the loop of README.md as a program, and the ways to run it that stand there.
# shellcheck shell=bash

# readme_loop REPO: prints the program: the first C++ of README.md, after what it leaves to its reader.
readme_loop() {
  cat "$1/integration_tests/outside/consumer/readme_prelude.cc"
  awk '/^```cpp$/ { inside = 1; next } inside && /^```$/ { exit } inside' "$1/README.md"
}

# has_ranks N COMMAND...: the program ends well, and each of N ranks has made its model.
has_ranks() {
  local ranks=$1 said rank
  shift
  said=$("$@" 2>&1) || { echo "FAILED: $* said: $said" >&2; return 1; }
  for ((rank = 0; rank < ranks; ++rank)); do
    if [[ $said != *"rank $rank of $ranks"* ]]; then
      echo "FAILED: $* does not name rank $rank of $ranks: $said" >&2
      return 1
    fi
  done
  echo "$ranks ranks: ${*##*/}"
}

# run_readme_loop PROGRAM LAUNCHER: on one rank, on two processes, on a simulated cluster of H100s.
run_readme_loop() {
  has_ranks 1 "$1" && has_ranks 2 "$2" launch --num_processes 2 "$1" &&
    has_ranks 8 "$2" launch --simulate 2x4:h100 "$1"
}
