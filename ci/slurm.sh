#!/usr/bin/env bash
#
# ci/slurm.sh: jobs of a real Slurm.
#
# A controller and four slurmd on this machine, in a build root of their own
# (tools/scheduler_packages.txt) with programs of the ordinary one. srun and sbatch start four ranks on
# two nodes without our launcher, with it as what calls srun, and with one launcher for each node; a rank
# is killed, with and without a restart; a running job is put back into the queue. Interrupted jobs must
# end with the weights of one that was not. The batch scripts of accelerate/docs/slurm.md and of
# accelerate/examples/slurm run with fewer ranks; their GPUs are only counted. Where Slurm cannot be
# installed or started the lane says so and ends well.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

skip() {
  echo "slurm: nothing was checked: $*"
  exit 0
}

if [[ -z ${ACCELERATE_INSIDE:-} ]]; then
  tools/dev bazel build --noshow_progress --ui_event_filters=-info //launch:accelerate //integration_tests/schedulers:rank
  export ACCELERATE_PACKAGES=tools/scheduler_packages.txt
  tools/dev shell true || skip 'Slurm cannot be installed here'
  # shellcheck disable=SC2016 # expanded inside
  exec tools/dev shell bash -c 'ACCELERATE_BIN=$1 exec ci/slurm.sh' - "$(readlink -f bazel-bin)"
fi
readonly accelerate=$ACCELERATE_BIN/launch/accelerate rank=$ACCELERATE_BIN/integration_tests/schedulers/rank

# Everything below ends with this call of tools/dev, which has process ids and a /tmp of its own.
readonly home=/tmp/slurm
mkdir -p "$home"/{log,state,out}
export SLURM_CONF=$home/slurm.conf

# Nodes are called by addresses: names that resolve without a change of /etc/hosts.
configure() {
  cat >"$SLURM_CONF" <<END
ClusterName=accelerate
SlurmctldHost=$HOSTNAME(127.0.0.1)
SlurmctldPort=17000
AuthType=auth/munge
AuthInfo=socket=$home/munge.socket,cred_expire=5
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
StateSaveLocation=$home/state
SlurmdSpoolDir=$home/spool-%n
SlurmctldPidFile=$home/slurmctld.pid
SlurmdPidFile=$home/slurmd-%n.pid
SlurmctldLogFile=$home/log/slurmctld
SlurmdLogFile=$home/log/slurmd-%n
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
KillWait=5
SchedulerParameters=batch_sched_delay=0,sched_interval=1
GresTypes=gpu
NodeName=127.0.0.[1-4] NodeHostname=$HOSTNAME Port=[17001-17004] CPUs=128 Gres=gpu:8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
END
  echo CgroupPlugin=disabled >"$home/cgroup.conf"
  touch "$home"/gpu{0..7}
  echo "Name=gpu File=$home/gpu[0-7]" >"$home/gres.conf"
}

start() {
  dd if=/dev/urandom of="$home/munge.key" bs=1k count=1 status=none
  chmod 400 "$home/munge.key"
  munged --force --key-file="$home/munge.key" --socket="$home/munge.socket" --pid-file="$home/munged.pid" \
    --log-file="$home/log/munged" --seed-file="$home/munge.seed" || return 1
  slurmctld || return 1
  local node
  for node in 127.0.0.{1..4}; do slurmd -N "$node" || return 1; done
  for _ in {1..120}; do
    [[ $(timeout 5 sinfo --noheader --format %D --states idle 2>/dev/null) != 4 ]] || return 0
    sleep 0.5
  done
  return 1
}

# shellcheck source=ci/want.sh
. ci/want.sh slurm

# batch NAME LINES...: runs a job of two nodes with two ranks each; its output is in $home/out/NAME.
batch() {
  local name=$1 folder=$home/$1
  mkdir -p "$folder"
  printf '%s\n' '#!/bin/bash' "${@:2}" >"$folder/job.sh"
  status=0
  timeout 120 sbatch --wait --job-name "$name" --nodes 2 --ntasks-per-node 2 --output "$home/out/$name" --open-mode append \
    --chdir "$folder" "$folder/job.sh" >/dev/null || status=$?
  echo "job ended with $status" >>"$home/out/$name"
}

configure
start || skip "Slurm does not start: $(grep -h -m1 -E 'fatal|error' "$home"/log/slurm* 2>/dev/null || echo "see $home/log")"
export ACCELERATE_USE_CPU=1

readonly ranks=('rank 0 of 4, local 0, sum 6' 'rank 1 of 4, local 1, sum 6' 'rank 2 of 4, local 0, sum 6' 'rank 3 of 4, local 1, sum 6')
timeout 120 srun --nodes 2 --ntasks-per-node 2 "$rank" --dir "$home/plain" >"$home/out/srun" 2>&1 || true
want 'srun alone, two ranks on each of two nodes' "$home/out/srun" "${ranks[@]}" 'trained 4 steps, weights .*'
weights=$(grep -Eo 'weights .*' "$home/out/srun" || echo 'no weights')

batch calls_srun "$accelerate launch $rank --dir \$PWD"
want 'sbatch, the launcher calls srun' "$home/out/calls_srun" "${ranks[@]}" 'job ended with 0' "trained 4 steps, $weights"

batch launchers "$accelerate launch --max_restarts 1 $rank --dir \$PWD"
want 'sbatch, a launcher on each node' "$home/out/launchers" "${ranks[@]}" 'job ended with 0' "trained 4 steps, $weights"

batch killed "srun --kill-on-bad-exit=1 $rank --dir \$PWD --kill_rank 2 --kill_step 2"
want 'srun alone, rank 2 is killed' "$home/out/killed" 'job ended with [1-9]' 'task 2: Killed'

batch killed_under_launcher "$accelerate launch $rank --dir \$PWD --kill_rank 2 --kill_step 2"
want 'the launcher calls srun, rank 2 is killed' "$home/out/killed_under_launcher" 'job ended with [1-9]' 'task 2: Killed'

batch killed_with_launchers "$accelerate launch --log_dir \$PWD/logs $rank --dir \$PWD --kill_rank 2 --kill_step 2"
want 'a launcher on each node, rank 2 is killed' "$home/out/killed_with_launchers" 'job ended with [1-9]' 'rank 2 \(.*was killed by signal 9'

batch restarted "$accelerate launch --max_restarts 1 $rank --dir \$PWD --kill_rank 2 --kill_step 2"
want 'a launcher on each node, rank 2 is killed and restarted' "$home/out/restarted" 'resumed after step 2' \
  'job ended with 0' "trained 4 steps, $weights"

# Hydra's proxies are tasks of Slurm's step, and their ranks inherit its variables.
batch mpich "export MASTER_ADDR=127.0.0.1; mpiexec.hydra -l -ppn 2 -n 4 $rank --dir \$PWD"
want "sbatch, MPICH's mpiexec starts the ranks through srun" "$home/out/mpich" "${ranks[@]}" 'job ended with 0' "trained 4 steps, $weights"

# Slurm ends a job that runs and starts it again: it goes on from its checkpoint.
requeue() {
  local name=$1 job
  { while ! grep -q 'waits at step 2' "$home/out/$name" 2>/dev/null; do sleep 0.2; done
    job=$(squeue --noheader --format %i --name "$name")
    scontrol requeue "$job"; } &
  batch "$name" "${@:2}"
  wait $! || true
  want "$name: put back into the queue at step 2" "$home/out/$name" 'resumed after step 2' 'job ended with 0' "trained 4 steps, $weights"
}
requeue requeue_srun "srun $rank --dir \$PWD --wait_at 2"
requeue requeue_launcher "$accelerate launch $rank --dir \$PWD --wait_at 2"
requeue requeue_launchers "$accelerate launch --max_restarts 1 $rank --dir \$PWD --wait_at 2"

# script FILE RANKS OPTIONS...: a batch script as it is written, in a folder with the programs that it
# names. Options of the command line come before those of the file.
script() {
  local name=${1##*/} folder=$home/${1##*/}.run
  local output=$home/out/$name
  mkdir -p "$folder/build" "$folder/accelerate/bin"
  ln -sf "$accelerate" "$folder/accelerate/bin/"
  printf '#!/bin/sh\nexec %s --dir %s/run\n' "$rank" "$folder" | tee "$folder/train" >"$folder/build/train"
  chmod +x "$folder/train" "$folder/build/train"
  status=0
  HOME=$folder PATH=$folder/accelerate/bin:$PATH timeout 300 sbatch --wait --output "$output" --chdir "$folder" "${@:3}" "$1" \
    >/dev/null 2>"$output.sbatch" || status=$?
  { cat "$output.sbatch"; echo "job ended with $status"; } >>"$output"
  want "$1" "$output" "rank $(($2 - 1)) of $2" 'job ended with 0' 'trained 4 steps'
}
page=$home/train.sbatch
sed -n '/ file=train.sbatch$/,/^```$/p' accelerate/docs/slurm.md | sed '1d;$d' >"$page"
script "$page" 4 --ntasks-per-node 2 --cpus-per-task 1
readonly examples=accelerate/examples/slurm
script $examples/cpu.sbatch 4 --ntasks-per-node 1 --cpus-per-task 1
script $examples/one_machine.sbatch 8 --cpus-per-task 8
script $examples/two_machines.sbatch 4 --ntasks-per-node 2
script $examples/restarts.sbatch 4 --ntasks-per-node 2

((failures == 0)) || { echo "slurm: $failures checks failed"; exit 1; }
echo "slurm: all well, $(slurmctld -V)"
