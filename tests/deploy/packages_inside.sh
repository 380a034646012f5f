#!/bin/bash
# As a service of a booted test root (boot.sh), with the packages beside it: installed, started, hardened, used, upgraded,
# stuck, removed, purged. Says what it looked at; anything else than exit 0 is a failure.
set -euo pipefail
cd /srv/test
export DEBIAN_FRONTEND=noninteractive PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
fail() {
  echo "packages: $*"
  systemctl status --no-pager telar-coordinator telar-worker || true
  journalctl --no-pager -n 60 -u telar-coordinator -u telar-worker -o short-monotonic || true
  exit 1
}
trap 'fail "line $LINENO: $BASH_COMMAND"' ERR
until_true() {  # until_true SECONDS WHAT COMMAND...
  local tries=$(($1 * 10)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || fail "not in time: $what"
    sleep 0.1
  done
}
main_pid() { systemctl show --value --property MainPID "$1"; }
page() { python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode(), end="")' "$1"; }
state_of() { telar describe "$1" -o json | grep -m1 '"state"' | cut -d'"' -f4; }
is_state() { [ "$(state_of "$1")" = "$2" ]; }
has_steps() { [ "$(wc -l <"/var/lib/telar/runs/$1/metrics.jsonl")" -gt 3 ]; }
rank_pid() { pgrep --uid telar --exact telar-rank; }

rm -f /usr/sbin/policy-rc.d  # Machines that test have one that lets no service start.

echo "== install"
dpkg --install ./*.deb >dpkg.log 2>&1 || { cat dpkg.log; fail "dpkg --install"; }
for daemon in coordinator worker; do
  unit=telar-$daemon
  until_true 20 "$unit is active" systemctl is-active "$unit"
  systemctl is-enabled --quiet "$unit" || fail "$unit is not enabled"
  status=/proc/$(main_pid "$unit")/status
  [ "$(stat -c %U "${status%/status}")" = telar ] || fail "$unit is not telar's"
  grep -q '^CapEff:[[:space:]]*0*$' "$status" || fail "$unit has capabilities"
  grep -q '^NoNewPrivs:[[:space:]]*1' "$status" || fail "$unit may gain privileges"
  grep -q '^Seccomp:[[:space:]]*2' "$status" || fail "$unit may make any system call"
done
[ "$(page http://127.0.0.1:7071/healthz)" = ok ] || fail "the coordinator's /healthz"
[ "$(page http://127.0.0.1:7072/readyz)" = ready ] || fail "the worker's /readyz"
until_true 10 "the node is READY" sh -c 'telar nodes --no-headers | grep -q READY'

before=$(main_pid telar-coordinator)
systemctl reload telar-coordinator
[ "$(main_pid telar-coordinator)" = "$before" ] || fail "a reload restarts the coordinator"

echo "== train, restart, upgrade"
for i in $(seq 400); do echo "$i bottles of beer on the wall, $i bottles of beer."; done >/srv/text.txt
submit() {
  telar submit /usr/share/doc/telar-client/examples/quickstart.yaml --set data.train=/srv/text.txt --set resources.kind=cpu \
    --set resources.devices=1 --set parallel.data=1 --set precision.compute=fp32 --set eval.sequences=4 --set sample.tokens=4 "$@"
}
job=$(submit --set schedule.steps=1000000)
job=${job##*/}
until_true 30 "$job takes steps" has_steps "$job"
rank=$(rank_pid)
systemctl restart telar-worker
echo '# a line of the site' >>/etc/telar/worker.env
worker=$(main_pid telar-worker) coordinator=$(main_pid telar-coordinator)
dpkg --install ./*.deb >dpkg.log 2>&1 || { cat dpkg.log; fail "dpkg --install, again"; }
until_true 20 "both daemons are back" systemctl is-active telar-coordinator telar-worker
[ "$(main_pid telar-worker)" != "$worker" ] || fail "the upgrade left the old worker running"
[ "$(main_pid telar-coordinator)" != "$coordinator" ] || fail "the upgrade left the old coordinator running"
grep -q 'a line of the site' /etc/telar/worker.env || fail "the upgrade took the site's settings away"
until_true 20 "the job is known as RUNNING" is_state "$job" RUNNING
[ "$(rank_pid)" = "$rank" ] || fail "the rank did not live through it"

echo "== a daemon that hangs is restarted"
for unit in telar-coordinator telar-worker; do
  mkdir -p "/run/systemd/system/$unit.service.d"
  printf '[Service]\nWatchdogSec=2\nRestartSec=100ms\n' >"/run/systemd/system/$unit.service.d/soon.conf"
done
systemctl daemon-reload
systemctl restart telar-coordinator telar-worker
for unit in telar-coordinator telar-worker; do
  systemctl kill --kill-whom=main --signal=SIGSTOP "$unit"
done
for unit in telar-coordinator telar-worker; do
  until_true 20 "the watchdog restarts $unit" sh -c "[ \$(systemctl show --value --property NRestarts $unit) = 1 ]"
  until_true 20 "$unit is active again" systemctl is-active "$unit"
done
until_true 20 "the job is known as RUNNING" is_state "$job" RUNNING
[ "$(rank_pid)" = "$rank" ] || fail "the rank did not live through it"

echo "== backup and restore, as docs/operations.md has it"
database=/var/lib/telar/coordinator/telar.db
runuser -u telar -- sqlite3 "$database" ".backup /var/lib/telar/telar-backup.db"
later=$(submit)
later=${later##*/}
systemctl stop telar-coordinator
rm -rf /var/lib/telar/coordinator
install -d -o telar -g telar -m 750 /var/lib/telar/coordinator
install -o telar -g telar -m 640 /var/lib/telar/telar-backup.db "$database"
rm /var/lib/telar/telar-backup.db
systemctl start telar-coordinator
until_true 20 "the job is known as RUNNING" is_state "$job" RUNNING
[ "$(rank_pid)" = "$rank" ] || fail "the rank did not live through it"
! telar describe "$later" >/dev/null 2>&1 || fail "a job that is younger than the backup is known"
before=$(wc -l <"/var/lib/telar/runs/$job/metrics.jsonl")
has_later_steps() { [ "$(wc -l <"/var/lib/telar/runs/$job/metrics.jsonl")" -gt $((before + 3)) ]; }
until_true 20 "the job goes on" has_later_steps

echo "== remove"
dpkg --remove telar-worker-cuda >/dev/null 2>&1 || true
dpkg --remove telar-worker >dpkg.log 2>&1 || { cat dpkg.log; fail "dpkg --remove"; }
! rank_pid || fail "the rank outlives its package"
! pgrep --uid telar --exact telar-worker || fail "a process of the worker outlives its package"
[ -s /etc/telar/worker.env ] && [ -d /var/lib/telar/worker ] || fail "removal took settings or state"
find "/var/lib/telar/runs/$job/ckpt" -name 'step-*' | grep -q . || fail "the rank did not save when it was ended"
dpkg --purge telar-worker >/dev/null 2>&1
[ ! -e /var/lib/telar/worker ] && [ ! -e /etc/telar/worker.env ] || fail "purging the worker left something of it"
systemctl is-active --quiet telar-coordinator || fail "purging the worker ended the coordinator"

echo "== purge"
dpkg --purge telar-coordinator >dpkg.log 2>&1
grep -q '/var/lib/telar/runs is not empty and stays' dpkg.log || fail "does not say that checkpoints stay"
[ -d "/var/lib/telar/runs/$job" ] && getent passwd telar >/dev/null || fail "purging took checkpoints or their owner"
[ ! -e /var/lib/telar/coordinator ] || fail "purging left the database"
dpkg --install telar-coordinator_*.deb >/dev/null 2>&1
rm -rf /var/lib/telar/runs/*
dpkg --purge telar-coordinator telar-client >/dev/null 2>&1
! getent passwd telar || fail "the user is left"
! pgrep telar || fail "a process is left"
echo "inside: all well"
