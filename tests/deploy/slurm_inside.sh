#!/bin/bash
# In namespaces of its own (slurm_test.sh): a Slurm of two nodes in folder $1, deploy/slurm/telar.sbatch of the tree $2 with the
# programs in $3. node1 is here; node2 has a name and a network of its own, a cable to node1, and its own local files. All else
# they share, as storage of a cluster. Exit 77: Slurm does not start here, and why.
set -euo pipefail
work=$1 root=$2 bin=$3
fail() { echo "slurm: $*"; tail -n 30 "$work"/{slurm*.log,*/*.log,*.out} "$work"/home/coordinator/logs/*/* 2>/dev/null; exit 1; }
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
mkdir -p "$work"/{state,munge,local}
printf '127.0.0.1 localhost\n10.99.0.1 node1\n10.99.0.2 node2\n' >"$work/hosts"
mount --bind "$work/hosts" /etc/hosts
ip link set lo up
hostname node1
# shellcheck disable=SC2016  # The inner shell expands them.
unshare --net --uts --mount sh -ec 'hostname node2; mount -t tmpfs local "$1/local"; ip link set lo up; : >"$1/node2"
  exec sleep infinity' _ "$work" &
second=$!
on2() { nsenter --target "$second" --net --uts --mount "$@"; }
until_true 10 test -e "$work/node2" || skip "no namespaces for a second node"
ip link add to2 type veth peer name to1 netns "$second" || skip "no veth devices"
ip address add 10.99.0.1/24 dev to2
ip link set to2 up
on2 ip address add 10.99.0.2/24 dev to1
on2 ip link set to1 up
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
SlurmdSpoolDir=$work/spool-%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd-%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd-%n.log
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
NodeName=node[1-2] CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$work/slurm.conf
munged --force --key-file="$work/munge/key" --socket="$work/munge/socket" --pid-file="$work/munge/pid" --num-threads=1 \
  --log-file="$work/munged.log" --seed-file="$work/munge/seed" || skip "munged does not start"
slurmctld -D >/dev/null 2>&1 &
slurmd -D >/dev/null 2>&1 &
on2 slurmd -D >/dev/null 2>&1 &
both_idle() { [ "$(timeout 2 sinfo --noheader --Node --format=%T | grep -c idle)" = 2 ]; }
until_true 20 both_idle || skip "slurmctld or a slurmd does not start"

for i in $(seq 400); do echo "$i bottles of beer on the wall, $i bottles of beer."; done >"$work/text.txt"
export TELAR_BIN=$bin TELAR_CA=$root/deploy/dev-ca.sh TELAR_WORKER_OPTIONS='--device-kind cpu --cpu-devices 2' TELAR_LOCAL=$work/local
# submit NAME [option of sbatch]... -- [option of telar submit]...: the id of the Slurm job; its output is NAME.out.
submit() {
  local name=$1 options=()
  shift
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  sbatch --parsable --output="$work/$name.out" "${options[@]}" "$root/deploy/slurm/telar.sbatch" \
    "$root/deploy/examples/quickstart.yaml" --set "data.train=$work/text.txt" --set resources.kind=cpu --set resources.threads=1 \
    --set resources.devices=4 --set parallel.data=4 --set precision.compute=fp32 --set schedule.warmup_steps=0 \
    --set model.layers=1 --set model.hidden=32 \
    --set model.heads=2 --set model.kv_heads=1 --set model.ffn=64 --set batch.global=8 --set batch.micro=2 --set batch.sequence_length=32 --set eval.sequences=4 --set sample.tokens=4 "$@"
}
ended() { ! timeout 5 squeue --noheader --jobs="$1" 2>/dev/null | grep -q .; }
field() { scontrol show job "$1" | sed -n "s/.*\<$2=\([^ ]*\).*/\1/p"; }  # field ID NAME
nothing_left() { ! pgrep telar- && [ ! -e "$work/local/telar-$1" ] && on2 [ ! -e "$work/local/telar-$1" ]; }
check_end() {  # check_end ID NAME CODE
  until_true 60 ended "$1" || fail "$2 does not end"
  [ "$(field "$1" ExitCode)" = "$3:0" ] || fail "$2 ended with $(field "$1" ExitCode), not $3: $(cat "$work/$2.out")"
  until_true 5 nothing_left "$1" || fail "$2 left processes or a worker's folder: $(pgrep --list-full telar-)"
}
steps_done() { cat "$work/home"/runs/*/metrics.jsonl 2>/dev/null | grep -c '"grad_norm"' || true; }
check_more_steps() {  # check_more_steps NAME: some more than there were.
  before=$(steps_done)
  has_more_steps() { [ "$(steps_done)" -gt $((before + 5)) ]; }
  until_true 60 has_more_steps || fail "$1: the job takes no steps: $(cat "$work/$1.out")"
}
check_goes_on() {  # check_goes_on NAME
  until_true 30 grep -q 'goes on' "$work/$1.out" || fail "$1.out does not say that a job goes on"
  check_more_steps "$1"
}

echo "== a job that fails says so"
wrong=$(submit wrong --nodes=1 -- --set model.heads=7)
check_end "$wrong" wrong 2

echo "== a gang over both nodes, seen from the other one"
export TELAR_HOME=$work/home
steps=1500
both=(--nodes=2 -- --set "schedule.steps=$steps")
long=$(submit long "${both[@]}")
check_more_steps long
line=$(sed -n 's/.*from another node: //p' "$work/long.out")
# shellcheck disable=SC2016  # The inner shell expands it.
placed=$(on2 bash -c "$line"'; exec "$TELAR_BIN/telar" list -o name | xargs "$TELAR_BIN/telar" describe -o json') ||
  fail "node2 cannot ask the coordinator at $line"
for node in node1 node2; do
  [ "$(grep -c "\"node\": \"$node\"" <<<"$placed")" -ge 2 ] || fail "$node has no two ranks: $placed"
done

echo "== asked to end, the ranks save, and the next allocation goes on from there"
scancel --batch --signal=USR1 "$long"
check_end "$long" long 75
compgen -G "$work/home/runs/*/ckpt/step-*" >/dev/null || fail "nothing was saved"

echo "== so they do when it is cancelled, and it stays cancelled"
export TELAR_REQUEUE=1
saved() { find "$work/home/runs" -path '*/ckpt/step-*' -prune -print | sort | tail -n 1; }
cut=$(submit cut "${both[@]}")
check_goes_on cut
before=$(saved)
scancel "$cut"
until_true 60 ended "$cut" || fail "cut does not end"
[ "$(field "$cut" JobState)" = CANCELLED ] || fail "cut is $(field "$cut" JobState)"
[[ $(saved) > $before ]] || fail "cut saved nothing: $(cat "$work/cut.out")"
until_true 5 nothing_left "$cut" || fail "cut left processes or a worker's folder: $(pgrep --list-full telar-)"
grep -q 'asked to end' "$work/cut.out" || fail "cut.out does not say that it was asked to end"

echo "== before the time limit, and Slurm starts it again"
again=$(submit again --time=1 --signal=B:USR1@30 "${both[@]}")  # Slurm looks every 30 s, and warns who has less than a minute.
check_goes_on again
pkill -STOP -x telar-rank  # Nobody is done before Slurm has looked.
until_true 60 grep -q 'asked to end' "$work/again.out" || fail "again.out does not say that it was asked to end"
pkill -CONT -x telar-rank
waits_again() { [ "$(field "$again" JobState)" = PENDING ] && [ "$(field "$again" Restarts)" = 1 ]; }
until_true 60 waits_again || fail "Slurm does not start it again: $(scontrol show job "$again")"
scontrol update jobid="$again" starttime=now+3seconds  # Slurm would wait two minutes, as it still holds the ended job's credential.
check_end "$again" again 0
grep -q 'SUCCEEDED' "$work/again.out" || fail "again.out does not say SUCCEEDED"
! grep -q 'node restart' "$work/again.out" || fail "an allocation's end costs the job a restart"
[ "$(find "$work/home/runs" -mindepth 1 -maxdepth 1 | wc -l)" = 1 ] || fail "a second job was made"
[ "$(steps_done)" = "$steps" ] || fail "steps are missing or there twice: $(steps_done)"
echo "slurm: all well, in $SECONDS s"
