#!/bin/bash
# Installs the Debian packages that are not here yet, as root or through sudo.
#   install-packages.sh [LIST|PACKAGE]...
# A LIST is a file with a package a line and comments after '#'; without arguments, packages.txt beside this script.
# Nothing missing: nothing asked, nothing done. Exit 0: all there; 1: not, and which, on stderr.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# -gt 0 ] || set -- "$here/packages.txt"

fail() { echo "install-packages.sh: $*" >&2; exit 1; }

wanted=()
for argument in "$@"; do
  case $argument in
    */*|*.txt)
      [ -r "$argument" ] || fail "cannot read the list $argument"
      mapfile -t -O "${#wanted[@]}" wanted < <(sed 's/#.*//' "$argument" | awk 'NF { print $1 }') ;;
    *) wanted+=("$argument") ;;
  esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  fail "no apt-get here; install what brings these Debian packages: ${wanted[*]}"
fi

is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null | head -c 9)" = installed ]; }
missing_of() { for package in "$@"; do is_installed "$package" || echo "$package"; done; }

mapfile -t missing < <(missing_of "${wanted[@]}")
[ ${#missing[@]} -gt 0 ] || exit 0
echo "Installing: ${missing[*]}"

as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || fail "not root and no sudo; missing packages: ${missing[*]}"
  as_root=(sudo)
fi
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@"; }

apt update || echo "install-packages.sh: apt-get update failed; trying with the lists there are" >&2
unknown=()
for package in "${missing[@]}"; do
  apt-cache show "$package" >/dev/null 2>&1 || unknown+=("$package")
done
[ ${#unknown[@]} -eq 0 ] || fail "apt knows no package named: ${unknown[*]} (Debian 12 has them; see /etc/apt/sources.list)"
apt install -y --no-install-recommends "${missing[@]}" >/dev/null || true
mapfile -t missing < <(missing_of "${missing[@]}")
[ ${#missing[@]} -eq 0 ] || fail "apt-get could not install: ${missing[*]}"
