#!/bin/bash
# The packages on a Debian that has nothing else, as the images are built: bare_test.sh BUILD_DIR. What they depend on has to be
# enough. Some 300 MB come from Debian's mirror, so it is for those who ask: TELAR_DEPLOY_BARE=1. Exit 77: not asked for.
set -euo pipefail
build=$(cd "${1:?the build folder}" && pwd)
[ "${TELAR_DEPLOY_BARE:-}" = 1 ] || { echo "skipped: TELAR_DEPLOY_BARE=1 runs it; it loads a whole Debian"; exit 77; }
for program in debootstrap dpkg-shlibdeps; do command -v "$program" >/dev/null || { echo "skipped: no $program"; exit 77; }; done
[ "$(id -u)" = 0 ] || { echo "skipped: not root"; exit 77; }

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
(cd "$build" && cpack -G DEB -B "$work/packages") >"$work/cpack.log" 2>&1 || { cat "$work/cpack.log"; exit 1; }
debootstrap --variant=minbase bookworm "$work/root" >"$work/debootstrap.log" 2>&1 || { tail "$work/debootstrap.log"; exit 1; }
cp "$work"/packages/telar-{client,coordinator,worker}_*.deb "$work/root/srv/"
cat >"$work/root/srv/inside" <<'END'
set -eu
export DEBIAN_FRONTEND=noninteractive
mount -t proc none /proc
for one in client coordinator worker; do
  apt-get -qq install -y --no-install-recommends systemd-standalone-sysusers systemd-standalone-tmpfiles /srv/telar-${one}_*.deb >/srv/log 2>&1 ||
    { tail -n 20 /srv/log; exit 1; }
done
telar version >/dev/null 2>&1 || [ $? = 5 ]  # No coordinator.
telar-coordinator --version
telar-worker --version
telar-rank --help 2>/dev/null || [ $? = 21 ]  # What it says of any argument but a plan.
for module in /usr/lib/telar/*.so; do ! ldd "$module" | grep 'not found'; done
getent passwd telar
END
unshare --mount --pid --fork --kill-child chroot "$work/root" /bin/sh /srv/inside
echo "bare: all well, $(du -sm --one-file-system "$work/root" | cut -f1) MB with everything"
