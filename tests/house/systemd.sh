#!/bin/bash
# Shows systemd the units of deploy/systemd as if the programs were installed, and wants no complaint; a planted mistake must
# be found, and both daemons must stay well locked in. Exit 77: no systemd-analyze here.
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
  env=$root/deploy/systemd/${unit#telar-}.env
  grep -q '^#TELAR_[A-Z]*=' "$env" || { echo "$env: shows no setting"; exit 1; }
  while IFS='=' read -r name value; do
    grep -q "^Environment=.*\b$name=" "$work/$unit.service" || { echo "$env: $name is unknown to $unit.service"; exit 1; }
    # What is commented out is said to be the unit's value; TELAR_OPTIONS has an example.
    [ "$name" = TELAR_OPTIONS ] || grep -qE "^Environment=(.* )?$name=$value( |\$)" "$work/$unit.service" ||
      { echo "$env: $name is not $value in $unit.service"; exit 1; }
  done < <(grep -E '^#?[A-Z_]+=' "$env" | tr -d '#')
done

# exposure UNIT TENTHS: how much of the system it could reach, as systemd counts it.
exposure() {
  systemd-analyze security --offline=true --threshold="$2" "$work/$1.service" >"$work/security" 2>&1 && return
  grep -q 'Overall exposure level' "$work/security" || { cat "$work/security"; exit 1; }
  return 1
}
# What is left open, and why, is in the units.
for limit in 'telar-coordinator 15' 'telar-worker 30'; do
  read -r unit most <<<"$limit"
  exposure "$unit" "$most" || { cat "$work/security"; echo "$unit.service: exposure above $most tenths"; exit 1; }
done
sed -i '/^ProtectSystem=/d' "$work/telar-coordinator.service"
if exposure telar-coordinator 12; then echo "systemd.sh: a file system left open passed"; exit 1; fi

tree=$work/tree
for kind in sysusers tmpfiles; do
  mkdir -p "$tree/etc" "$tree/usr/lib/$kind.d"
  for daemon in coordinator worker; do
    cp "$root/deploy/systemd/telar-$daemon.$kind.conf" "$tree/usr/lib/$kind.d/telar-$daemon.conf"
  done
done
said=$(systemd-sysusers --root="$tree" 2>&1) || { echo "$said"; exit 1; }
grep -q '^telar:.*:/var/lib/telar:' "$tree/etc/passwd" || { echo "the sysusers files make no user telar: $said"; exit 1; }
grep -q '^render:.*telar' "$tree/etc/group" || { echo "telar-worker.sysusers.conf: telar is not in group render: $said"; exit 1; }
if [ "$(id -u)" = 0 ]; then
  systemd-tmpfiles --root="$tree" --create || { echo "the tmpfiles files are wrong"; exit 1; }
  for folder in var/lib/telar/runs var/lib/telar/worker etc/telar/tls; do
    [ -d "$tree/$folder" ] || { echo "the tmpfiles files make no /$folder"; exit 1; }
  done
fi
echo "units clean"
