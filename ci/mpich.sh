#!/usr/bin/env bash
#
# ci/mpich.sh: ranks that MPICH's mpiexec.hydra starts, over Gloo.
#
# What the library reads of PMI's variables, on one machine and on two hosts of even and uneven size
# (hydra's proxies, here forked on one machine); the launcher's --mpirun_hostfile with MPICH's mpirun; a
# rank that is killed, and the run that resumes. Programs of the ordinary build root run in that of
# tools/scheduler_packages.txt. Where MPICH cannot be installed the lane says so and ends well.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ -z ${ACCELERATE_INSIDE:-} ]]; then
  tools/dev bazel build --noshow_progress --ui_event_filters=-info \
    //launch:accelerate //integration_tests/schedulers:rank
  export ACCELERATE_PACKAGES=tools/scheduler_packages.txt
  tools/dev shell mpiexec.hydra --version >/dev/null ||
    { echo 'mpich: nothing was checked: MPICH cannot be installed here'; exit 0; }
  # shellcheck disable=SC2016 # expanded inside
  exec tools/dev shell bash -c 'ACCELERATE_BIN=$1 exec ci/mpich.sh' - "$(readlink -f bazel-bin)"
fi
readonly accelerate=$ACCELERATE_BIN/launch/accelerate rank=$ACCELERATE_BIN/integration_tests/schedulers/rank
readonly out=/tmp/mpich
mkdir -p "$out/bin"
export ACCELERATE_USE_CPU=1
# shellcheck source=ci/want.sh
. ci/want.sh mpich

# run NAME COMMAND...: its output and exit status are in $out/NAME.
run() {
  local name=$1 status=0
  shift
  timeout 120 "$@" >"$out/$name" 2>&1 || status=$?
  echo "ended with $status" >>"$out/$name"
}
# Proxies of both hosts are forked here; hydra would use ssh for the second one.
hydra() { run "$1" mpiexec.hydra -l -launcher fork "${@:2}"; }

hydra one_machine -n 4 "$rank" --dir "$out/one"
want 'four ranks of one machine, no variable set' "$out/one_machine" 'ended with 0' '\[0\] rank 0 of 4, local 0, sum 6' \
  '\[3\] rank 3 of 4, local 3, sum 6' 'trained 4 steps, weights .*'
weights=$(grep -Eo 'weights .*' "$out/one_machine" || echo 'no weights')

readonly two=(-hosts 127.0.0.1,127.0.0.2 -ppn 2 -n 4)
hydra no_address "${two[@]}" "$rank" --dir "$out/no_address"
want 'two hosts without an address' "$out/no_address" 'ended with [1-9]' '4 ranks \(MPICH/PMI\) of which 2 on this node, but MASTER_ADDR is not set'

address() { echo "-genv MASTER_ADDR 127.0.0.1 -genv MASTER_PORT $1"; }
# shellcheck disable=SC2046 # several words
hydra two_hosts $(address 23001) "${two[@]}" "$rank" --dir "$out/two"
want 'two ranks on each of two hosts' "$out/two_hosts" 'ended with 0' '\[1\] rank 1 of 4, local 1, sum 6' \
  '\[2\] rank 2 of 4, local 0, sum 6' '\[3\] rank 3 of 4, local 1, sum 6' "trained 4 steps, $weights"

# shellcheck disable=SC2046
hydra uneven $(address 23002) -hosts 127.0.0.1:3,127.0.0.2:1 -n 4 "$rank" --dir "$out/uneven_run"
want 'three ranks on one host, one on the other' "$out/uneven" 'ended with 0' '\[2\] rank 2 of 4, local 2, sum 6' \
  '\[3\] rank 3 of 4, local 0, sum 6' "trained 4 steps, $weights"

hydra contradiction -genv RANK 0 -genv WORLD_SIZE 4 -n 4 "$rank" --dir "$out/contradiction_run"
want 'RANK=0 for every process' "$out/contradiction" 'ended with [1-9]' 'RANK=0 WORLD_SIZE=4 .*contradict.*'

# shellcheck disable=SC2046
hydra killed $(address 23003) "${two[@]}" "$rank" --dir "$out/killed_run" --kill_rank 2 --kill_step 2
# Hydra names the host and no rank.
want 'rank 2 is killed' "$out/killed" 'ended with [1-9]' 'RUNNING AT 127.0.0.2' 'EXIT CODE: 9'
# shellcheck disable=SC2046
hydra resumed $(address 23004) "${two[@]}" "$rank" --dir "$out/killed_run" --kill_rank 2 --kill_step 2
want 'the run after it' "$out/resumed" 'ended with 0' 'resumed after step 2' "trained 4 steps, $weights"

# The launcher takes the mpirun of PATH, here MPICH's, which looks for its proxies beside its own file.
printf '#!/bin/sh\nexec mpiexec.hydra "$@"\n' >"$out/bin/mpirun"
chmod +x "$out/bin/mpirun"
printf '127.0.0.1\n127.0.0.2\n' >"$out/hosts"
launch=(env "PATH=$out/bin:$PATH" HYDRA_LAUNCHER=fork "$accelerate" launch --cpu --num_machines 2 --num_processes 4
  --main_process_ip 127.0.0.1 --main_process_port 23005 --mpirun_hostfile "$out/hosts")
run launcher "${launch[@]}" "$rank" --dir "$out/launcher_run"
want 'the launcher calls mpirun' "$out/launcher" 'ended with 0' 'rank 1 of 4, local 1, sum 6' 'rank 2 of 4, local 0, sum 6' \
  "trained 4 steps, $weights"
run launcher_killed "${launch[@]}" "$rank" --dir "$out/launcher_killed_run" --kill_rank 2 --kill_step 2
want 'the launcher calls mpirun, rank 2 is killed' "$out/launcher_killed" 'ended with [1-9]' 'RUNNING AT 127.0.0.2' 'EXIT CODE: 9'

((failures == 0)) || { echo "mpich: $failures checks failed"; exit 1; }
echo "mpich: all well, MPICH $(mpiexec.hydra --version | sed -n 's/^ *Version: *//p')"
