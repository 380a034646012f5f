# shellcheck shell=bash
# Sourced: boot SCRIPT [FILE]... starts a systemd of its own over a copy of this machine's files and runs SCRIPT there as a
# service; the FILEs lie in /srv/test with it. Its output comes out, its status is returned. What it wrote is in $upper.
# Nothing of it outlives the call or touches this machine: all writes go to a tmpfs in a mount namespace, the network is
# the container's own.

# Whether this machine can do that; else says why not.
can_boot() {
  [ "$(id -u)" = 0 ] || { echo "not root"; return 1; }
  command -v systemd-nspawn >/dev/null || { echo "no systemd-nspawn; Debian's package systemd-container has it"; return 1; }
  # shellcheck disable=SC2016  # The inner shell expands them.
  unshare --mount --net bash -c 'd=$(mktemp -d) && mount -t tmpfs none "$d" && mkdir "$d/u" "$d/w" "$d/m" &&
    mount -t overlay overlay -o "lowerdir=/,upperdir=$d/u,workdir=$d/w" "$d/m" && umount -l "$d" && rmdir "$d"' 2>/dev/null ||
    { echo "no overlay file system or no namespaces for us here"; return 1; }
  local said
  said=$(boot <(echo 'echo it boots') 2>&1) && [[ $said == *"it boots"* ]] || { echo "systemd does not boot in a container here: $said"; return 1; }
}

# boot, in the mount namespace that it made: boot_inside FOLDER SCRIPT [FILE]...
boot_inside() {
  local folder=$1 root=$1/root upper=$1/tmp/upper
  mount -t tmpfs none "$folder/tmp"
  mkdir -p "$upper/srv/test" "$upper/etc/systemd/system" "$folder/tmp/work"
  cp "$folder/in/"* "$upper/srv/test/"
  # Only what the test needs is started: no network, no other service of this machine.
  cat >"$upper/etc/systemd/system/telar-test-bed.service" <<'UNIT'
[Unit]
Requires=sysinit.target
After=sysinit.target
SuccessAction=poweroff-force
FailureAction=poweroff-force
[Service]
Type=oneshot
ExecStart=/bin/bash /srv/test/script
ExecStopPost=/bin/sh -c 'echo $EXIT_STATUS >/srv/test/status'
StandardOutput=file:/srv/test/said
StandardError=inherit
UNIT
  mount -t overlay overlay -o "lowerdir=/,upperdir=$upper,workdir=$folder/tmp/work" "$root"
  timeout 300 systemd-nspawn --quiet --register=no --keep-unit --private-network --console=pipe --directory "$root" \
    --boot systemd.unit=telar-test-bed.service systemd.show_status=no systemd.mask=systemd-journal-flush.service \
    >"$folder/console" 2>&1 </dev/null || true
  cat "$upper/srv/test/said" 2>/dev/null
  local status
  status=$(cat "$upper/srv/test/status" 2>/dev/null) || { cat "$folder/console"; return 1; }
  [ "$status" = 0 ] || return "$status"
  rm -rf "$upper/srv/test" "$upper/etc/systemd/system/telar-test-bed.service"
  [ -z "${AFTER_BOOT:-}" ] || upper=$upper bash -c "$AFTER_BOOT"
}

boot() {
  local folder status=0
  folder=$(mktemp -d)
  mkdir "$folder/root" "$folder/tmp" "$folder/in"
  cp "$1" "$folder/in/script"
  shift
  [ $# -eq 0 ] || cp "$@" "$folder/in/"
  export -f boot_inside
  # shellcheck disable=SC2016
  unshare --mount bash -c 'boot_inside "$@"' _ "$folder" || status=$?
  rm -rf "$folder"
  rmdir /sys/fs/cgroup/{systemd,unified}/{payload,supervisor} 2>/dev/null || true  # nspawn leaves them.
  return "$status"
}
