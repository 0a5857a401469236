#!/bin/bash
# build.sh COMPONENT FOLDER: compiles one part of the native cluster (kube, addons or runtime) into FOLDER.
# -trimpath and fixed flags make the build cache serve every clone of the repository.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
component=${1:?component}
folder=${2:?folder for the binaries}
compile() { # LDFLAGS ARGUMENTS...
  local ldflags=$1
  shift
  (cd "$here/$component" && nice go build -trimpath -ldflags "-s -w $ldflags" -o "$folder/" "$@")
}
case $component in
  kube) # without a version set like this the node calls itself v0.0.0-master
    version=$(cd "$here/kube" && go list -m -f '{{.Version}}' k8s.io/kubernetes)
    compile "-X k8s.io/component-base/version.gitVersion=$version -X k8s.io/client-go/pkg/version.gitVersion=$version" .
    printf '#!/bin/sh\nexec "%s" kubectl "$@"\n' "\${0%/*}/kube" > "$folder/kubectl"
    chmod +x "$folder/kubectl"
    ;;
  addons)
    CGO_ENABLED=0 compile "" .
    ;;
  runtime) # libseccomp needs cgo; the snapshotters left out need headers that few machines have
    CGO_ENABLED=1 compile "" -tags "seccomp no_btrfs no_devmapper no_zfs" tool
    gcc -static -Os -s -o "$folder/pause" "$here/pause/pause.c"
    ;;
  *)
    echo "unknown component $component" >&2
    exit 2
    ;;
esac
