#!/bin/bash
# Shows systemd the units of deploy/systemd as if the programs were installed, and wants no complaint; a planted mistake must
# be found, and the coordinator must stay well locked in. Exit 77: no systemd-analyze here.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
command -v systemd-analyze >/dev/null || { echo "skipped: no systemd-analyze; Debian's package systemd has it"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# verify FILE: systemd-analyze exits 0 on many mistakes, so any word about the unit counts.
verify() {
  local said
  said=$(SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no --recursive-errors=no "$1" 2>&1) || { echo "$said"; return 1; }
  [ -z "$said" ] || { echo "$said"; return 1; }
}

for unit in telar-coordinator telar-worker; do
  # Only the programs' place differs: they are not installed where tests run.
  sed 's|^ExecStart=/usr/bin/telar-[a-z]*|ExecStart=/bin/true|' "$root/deploy/systemd/$unit.service" >"$work/$unit.service"
  grep -q '^ExecStart=/bin/true --' "$work/$unit.service" || { echo "$unit.service starts no program of ours"; exit 1; }
  verify "$work/$unit.service" || { echo "$unit.service: systemd complains"; exit 1; }
  for planted in 's/^Type=notify/Type=notified/' 's/^WatchdogSec=/WatchDogSec=/' 's|^ExecStart=.*|ExecStart=/no/such/program|'; do
    sed "$planted" "$work/$unit.service" >"$work/planted.service"
    if verify "$work/planted.service" >/dev/null; then
      echo "systemd.sh: a planted mistake passed in $unit.service: $planted"
      exit 1
    fi
  done
  env=$root/deploy/systemd/etc-telar/${unit#telar-}.env
  while IFS='=' read -r name _; do
    grep -q "^Environment=.*\b$name=" "$work/$unit.service" || { echo "$env: $name is unknown to $unit.service"; exit 1; }
  done < <(grep -E '^[A-Z_]+=' "$env")
done

systemd-analyze security --offline=true --threshold=20 "$work/telar-coordinator.service" >"$work/security" 2>&1 ||
  { cat "$work/security"; echo "telar-coordinator.service: exposure above 2.0"; exit 1; }

if command -v systemd-sysusers >/dev/null; then
  mkdir -p "$work/tree/etc" "$work/tree/usr/lib/sysusers.d"
  cp "$root/deploy/systemd/telar.sysusers.conf" "$work/tree/usr/lib/sysusers.d/telar.conf"
  systemd-sysusers --root="$work/tree" >/dev/null 2>&1
  grep -q '^telar:.*:/var/lib/telar:' "$work/tree/etc/passwd" || { echo "telar.sysusers.conf makes no user telar"; exit 1; }
fi
echo "units clean"
