#!/usr/bin/env bash
#
# time_report.py on made-up profiles: time_report_test.sh TIME_REPORT
set -uo pipefail

readonly report=$1 work=$TEST_TMPDIR
failed=0

cat >"$work/budget.json" <<'END'
{"reference": {"action": "Precompiling //:headers", "seconds": 10},
 "tolerance": 1.25,
 "seconds": {"compile": 100, "link": 10, "test": 50, "sim_sweep": 20},
 "tests": {"//a:t1": 10, "//a:t2": 10, "//a:t3": 10, "//a:t4": 10, "//a:t5": 10}}
END

# profile [SECONDS NAME]...: a profile with these actions, and one event of another category.
profile() {
  {
    printf '{"traceEvents": [{"cat": "general", "name": "Testing //a:none", "dur": 9e9}'
    while (($#)); do
      printf ', {"cat": "action processing", "name": "%s", "dur": %se6}' "$2" "$1"
      shift 2
    done
    printf ']}'
  } >"$work/profile.json"
}

# expect STATUS TEXT NAME: the report on the last profile exits so and prints the text.
expect() {
  local output status=0
  output=$(python3 "$report" "$work/profile.json" "$work/budget.json" 2>&1) || status=$?
  if ((status != $1)) || [[ $output != *"$2"* ]]; then
    printf 'FAILED: %s: expected exit status %d and "%s", got %d and:\n%s\n' "$3" "$1" "$2" "$status" "$output"
    failed=1
  fi
}

profile 20 'Precompiling //:headers' 180 'Compiling a.cc' 20 'Linking a' 100 'Testing //a:t1'
expect 0 'compile: 200 s in 2 actions; 100 s at the reference'"'"'s speed, budget 100 s' 'a machine of half the speed'

profile 10 'Precompiling //:headers' 116 'Compiling a.cc'
expect 1 '126 s at the reference'"'"'s speed, budget 100 s: MORE THAN 1.25 TIMES THE BUDGET' 'a sum beyond the tolerance'

profile 10 'Precompiling //:headers' 115 'Compiling a.cc'
expect 0 '125 s at the reference'"'"'s speed' 'a sum at the tolerance'

profile 10 'Precompiling //:headers' 63 'Testing //a:other'
expect 1 'test: 63 s in 1 actions; 63 s at the reference'"'"'s speed, budget 50 s: MORE' 'tests beyond the tolerance'

# Without the reference: at half the speed as before, one test that grew is found.
profile 20 'Testing //a:t1' 20 'Testing //a:t2' 20 'Testing //a:t3' 20 'Testing //a:t4' 20 'Testing //a:t5'
expect 0 '5 tests with a budget: 50 s at the speed of the median one, budget 50 s' 'a warm run'

profile 20 'Testing //a:t1' 20 'Testing //a:t2' 20 'Testing //a:t3' 20 'Testing //a:t4' \
  30 'Testing //a:t5 (shard 1 of 2)' 25 'Testing //a:t5 (shard 2 of 2)'
expect 0 '5 tests with a budget: 68 s at the speed of the median one, budget 50 s: more than' 'a warm run with a test that grew'

profile 90 'Testing //a:t1' 900 'Testing //a:other'
expect 0 'of the tests with a budget 1 ran: not compared' 'a warm run with few tests'

# A reference from the disk cache takes no time.
profile 0 'Precompiling //:headers' 900 'Compiling a.cc'
expect 0 'not compared' 'a reference from a cache'

profile 10 'Precompiling //:headers' 50 'Testing //a:t1 (run 1 of 2)' 2 'Testing //a:t2 (shard 1 of 1, run 2 of 2)'
expect 1 'sim_sweep: 26 s in 2 actions; 26 s at the reference'"'"'s speed, budget 20 s: MORE' 'a sweep beyond the tolerance'
expect 1 'test: 0 s in 0 actions' 'a sweep, which is not the tests'

profile 26 'Testing //a:t1 (run 1 of 1)'
expect 1 'sim_sweep: 26 s in 1 actions; 26 s at this machine'"'"'s speed, budget 20 s: MORE' 'a sweep with objects from a cache'

sed -i 's/, "sim_sweep": 20//' "$work/budget.json"
expect 0 'sim_sweep: 26 s in 1 actions' 'a kind without a budget'

exit "$failed"
