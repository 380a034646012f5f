#!/bin/bash
# A certificate authority for development: its certificate, those of the coordinator and of nodes, and an admin's token.
#   deploy/dev-ca.sh DIR [--host NAME]... [--days N] [NODE]...
#     --host NAME  a name or address by which the coordinator is dialled, besides localhost, 127.0.0.1 and this host's
#     --days N     how long certificates are valid (30); the CA's ten times that
# Makes, where not there yet, DIR/ca.pem and DIR/ca.key, and DIR/tokens with DIR/admin.token; and always anew
# DIR/coordinator.pem and .key, and DIR/nodes/NODE.pem and .key. Called again it so renews certificates, each file by a
# rename, and running programs take them up within seconds. Keys and the token are readable by their owner only.
set -euo pipefail
fail() { echo "dev-ca.sh: $*" >&2; exit 1; }
usage() { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }

dir='' days=30 hosts=(localhost 127.0.0.1 "$(hostname)") nodes=()
while [ $# -gt 0 ]; do
  case $1 in
    --host) hosts+=("${2:?--host needs a name}"); shift ;;
    --days) days=${2:?--days needs a number}; shift ;;
    -*) usage ;;
    *) if [ -z "$dir" ]; then dir=$1; else nodes+=("$1"); fi ;;
  esac
  shift
done
[ -n "$dir" ] || usage
[[ $days =~ ^[1-9][0-9]*$ ]] || fail "--days: '$days' is no number of days"
command -v openssl >/dev/null || fail "openssl is not installed"
umask 077
mkdir -p "$dir/nodes"
work=$(mktemp -d "$dir/.work-XXXXXX")
trap 'rm -rf "$work"' EXIT

new_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>/dev/null; }

if [ ! -s "$dir/ca.pem" ]; then
  new_key "$work/ca.key"
  openssl req -x509 -new -key "$work/ca.key" -sha256 -days $((days * 10)) -subj "/O=Telar development/CN=CA" \
    -addext basicConstraints=critical,CA:TRUE,pathlen:0 -addext keyUsage=critical,keyCertSign,cRLSign \
    -out "$work/ca.pem"
  mv "$work/ca.key" "$dir/ca.key"
  chmod 644 "$work/ca.pem"
  mv "$work/ca.pem" "$dir/ca.pem"
fi

# issue PATH NAME USE SAN: a key and a certificate, in place by one rename each; the key first.
issue() {
  new_key "$work/key"
  openssl req -new -key "$work/key" -subj "/O=Telar development/CN=$2" -out "$work/request"
  printf 'basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=%s\nsubjectAltName=%s\n' \
    "$3" "$4" >"$work/extensions"
  openssl x509 -req -in "$work/request" -CA "$dir/ca.pem" -CAkey "$dir/ca.key" -sha256 -days "$days" \
    -set_serial "0x$(openssl rand -hex 16)" -extfile "$work/extensions" -out "$work/pem" 2>/dev/null
  mv "$work/key" "$1.key"
  mv "$work/pem" "$1.pem"
}

names=
for host in "${hosts[@]}"; do
  kind=DNS
  [[ $host =~ ^[0-9.]+$ || $host == *:* ]] && kind=IP
  names+=,$kind:$host
done
issue "$dir/coordinator" coordinator serverAuth "${names#,}"
for node in "${nodes[@]}"; do
  [[ $node =~ ^[A-Za-z0-9._-]{1,63}$ ]] || fail "node '$node' is not 1 to 63 of A-Z, a-z, 0-9, '.', '-' and '_'"
  issue "$dir/nodes/$node" "$node" clientAuth "URI:telar://node/$node"
done

if [ ! -s "$dir/tokens" ]; then
  printf 'telar_%s' "$(openssl rand -hex 32)" >"$dir/admin.token"
  digest=$(openssl dgst -sha256 -r "$dir/admin.token")
  printf '# user  SHA-256 of the token  roles  expiry; see docs/security.md\nadmin  %s  *=admin  never\n' \
    "${digest%% *}" >"$dir/tokens"
fi
echo "dev-ca.sh: $dir has ca.pem, coordinator.pem, ${#nodes[@]} nodes, tokens and admin.token"
