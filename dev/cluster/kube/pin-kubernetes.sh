#!/bin/bash
# Writes go.mod for the Kubernetes version given (e.g. 1.35.4). Kubernetes' own staging modules have no version in its
# go.mod, only a path, so that each has to be pinned here by a replace.
set -euo pipefail
version=${1:?version without v, for example 1.35.4}
minor=${version#1.}
cd "$(dirname "$0")"
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
(cd "$probe" && go mod init probe > /dev/null 2>&1)
theirs=$(cd "$probe" && go mod download -json "k8s.io/kubernetes@v$version" |
  python3 -c 'import json, sys; print(json.load(sys.stdin)["GoMod"])')
{
  echo "module sandbox-operator.dev/cluster/kube"
  echo
  sed -n 's/^go /go /p' "$theirs"
  echo
  echo "require k8s.io/kubernetes v$version"
  echo
  echo "replace ("
  grep -oE '^\s+k8s.io/[a-z0-9-]+ => ' "$theirs" | awk '{print $1}' | sort -u |
    while read -r module; do echo "	$module => $module v0.$minor"; done
  echo ")"
} > go.mod
go mod tidy
