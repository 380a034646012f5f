#!/bin/bash
# In namespaces of its own (slurm_test.sh): a one-machine Slurm in folder $1, deploy/slurm/telar.sbatch of the tree $2 with the
# programs in $3. Exit 77: Slurm does not start here, and why.
set -euo pipefail
work=$1 root=$2 bin=$3
fail() { echo "slurm: $*"; tail -n 30 "$work"/slurm*.log "$work"/*/*.log "$work"/*.out 2>/dev/null; exit 1; }
skip() { echo "skipped: $*"; tail -n 5 "$work"/*.log 2>/dev/null; exit 77; }
until_true() {  # until_true SECONDS COMMAND...
  local tries=$(($1 * 10))
  shift
  until "$@" >/dev/null 2>&1; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || return 1
    sleep 0.1
  done
}

cd "$work"  # Where what a job makes by default belongs.
ip link set lo up
ip address add 10.99.0.1/32 dev lo  # Slurm binds nothing on a machine that has no address but 127.0.0.1.
hostname node1
mkdir -p "$work"/{state,spool,munge}
printf '127.0.0.1 localhost\n10.99.0.1 node1\n' >"$work/hosts"
mount --bind "$work/hosts" /etc/hosts
head -c 1024 /dev/urandom >"$work/munge/key"
chmod 400 "$work/munge/key"
cat >"$work/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=node1
SlurmUser=root
SlurmdUser=root
SlurmctldPort=6817
SlurmdPort=6818
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
CredType=cred/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=1,sched_interval=2
ReturnToService=2
KillWait=30
MailProg=/bin/true
NodeName=node1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$work/slurm.conf
munged --force --key-file="$work/munge/key" --socket="$work/munge/socket" --pid-file="$work/munge/pid" --num-threads=1 \
  --log-file="$work/munged.log" --seed-file="$work/munge/seed" || skip "munged does not start"
slurmctld -D >/dev/null 2>&1 &
slurmd -D >/dev/null 2>&1 &
until_true 20 sh -c 'timeout 2 sinfo --noheader --format=%T | grep -q idle' || skip "slurmctld or slurmd does not start"

for i in $(seq 400); do echo "$i bottles of beer on the wall, $i bottles of beer."; done >"$work/text.txt"
export TELAR_BIN=$bin TELAR_CA=$root/deploy/dev-ca.sh TELAR_WORKER_OPTIONS='--device-kind cpu --cpu-devices 2' TELAR_LOCAL=$work
# submit NAME [option of sbatch]... -- [option of telar submit]...: the id of the Slurm job; its output is NAME.out.
submit() {
  local name=$1 options=()
  shift
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  sbatch --parsable --output="$work/$name.out" "${options[@]}" "$root/deploy/slurm/telar.sbatch" \
    "$root/deploy/examples/quickstart.yaml" --set "data.train=$work/text.txt" --set resources.kind=cpu --set resources.threads=1 \
    --set resources.devices=2 --set parallel.data=2 --set precision.compute=fp32 --set schedule.warmup_steps=0 \
    --set model.layers=1 --set model.hidden=32 \
    --set model.heads=2 --set model.kv_heads=1 --set model.ffn=64 --set batch.global=4 --set batch.micro=2 --set batch.sequence_length=32 --set eval.sequences=4 --set sample.tokens=4 "$@"
}
ended() { ! timeout 5 squeue --noheader --jobs="$1" 2>/dev/null | grep -q .; }
exit_code() { scontrol show job "$1" | sed -n 's/.*ExitCode=\([0-9]*\):.*/\1/p'; }
nothing_left() { ! pgrep telar- && [ ! -e "$work/telar-$1" ]; }
check_end() {  # check_end ID NAME CODE
  until_true 60 ended "$1" || fail "$2 does not end"
  [ "$(exit_code "$1")" = "$3" ] || fail "$2 ended with $(exit_code "$1"), not $3: $(cat "$work/$2.out")"
  until_true 5 nothing_left "$1" || fail "$2 left processes or the worker's folder: $(pgrep --list-full telar-)"
}
steps_done() { cat "$work/home"/runs/*/metrics.jsonl 2>/dev/null | grep -c '"grad_norm"'; }
has_steps() { [ "$(steps_done)" -gt 5 ]; }

echo "== a job that fails says so"
wrong=$(submit wrong -- --set model.heads=7)
check_end "$wrong" wrong 2

echo "== before the time limit the ranks save, and the next allocation goes on from there"
export TELAR_HOME=$work/home
steps=1000
long=$(submit long --signal=B:USR1@300 -- --set schedule.steps="$steps")
until_true 60 has_steps || fail "the long job takes no steps"
scancel --batch --signal=USR1 "$long"  # As Slurm does 300 s before the limit.
check_end "$long" long 75
compgen -G "$work/home/runs/*/ckpt/step-*" >/dev/null || fail "nothing was saved"
TELAR_REQUEUE=1
export TELAR_REQUEUE
again=$(submit again -- --set schedule.steps="$steps")
until_true 30 grep -q 'goes on' "$work/again.out" || fail "again.out does not say that a job goes on"
before=$(steps_done)
has_more_steps() { [ "$(steps_done)" -gt $((before + 5)) ]; }
until_true 60 has_more_steps || fail "the job does not go on"
scancel --batch --signal=USR1 "$again"
waits_again() { scontrol show job "$again" | grep -q 'JobState=PENDING' && scontrol show job "$again" | grep -q 'Restarts=1'; }
until_true 60 waits_again || fail "Slurm does not start it again: $(scontrol show job "$again")"
scontrol update jobid="$again" starttime=now+3seconds  # Slurm would wait two minutes, as it still holds the ended job's credential.
check_end "$again" again 0
grep -q 'SUCCEEDED' "$work/again.out" || fail "again.out does not say SUCCEEDED"
! grep -q 'node restart' "$work/again.out" || fail "an allocation's end costs the job a restart"
[ "$(find "$work/home/runs" -mindepth 1 -maxdepth 1 | wc -l)" = 1 ] || fail "a second job was made"
[ "$(steps_done)" = "$steps" ] || fail "steps are missing or there twice: $(steps_done)"
echo "slurm: all well"
