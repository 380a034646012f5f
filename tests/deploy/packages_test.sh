#!/bin/bash
# The Debian packages of a build: made, installed on a booted systemd, used, purged: packages_test.sh BUILD_DIR. Takes the
# programs as they are. Exit 77: something of it cannot be done on this machine, and says what.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=${1:?the build folder}
# shellcheck source=boot.sh
. "$here/boot.sh"
command -v dpkg-shlibdeps >/dev/null || { echo "skipped: no dpkg-shlibdeps; Debian's package dpkg-dev has it"; exit 77; }
reason=$(can_boot) || { echo "skipped: $reason"; exit 77; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$build" && cpack -G DEB -B "$work") >"$work/cpack.log" 2>&1 || { cat "$work/cpack.log"; exit 1; }
for package in telar-client telar-coordinator telar-worker; do
  deb=$(echo "$work/$package"_*.deb)
  depends=$(dpkg-deb --field "$deb" Depends)
  [[ $depends == *libgrpc* && $depends == *libc6* ]] || { echo "$package depends on: $depends"; exit 1; }
  dpkg-deb --contents "$deb" >"$work/contents"
  ! grep -v 'root/root' "$work/contents" || { echo "$package: files that are not root's"; exit 1; }
done

# What is left of Telar in the root, once everything was purged.
# shellcheck disable=SC2016  # boot expands it.
AFTER_BOOT='left=$(find "$upper" -iname "*telar*" ! -type c; grep -l telar "$upper"/etc/{passwd,group,shadow} 2>/dev/null || true)
  [ -z "$left" ] || { echo "purging left:"; echo "$left"; exit 1; }' \
  boot "$here/packages_inside.sh" "$work"/*.deb
