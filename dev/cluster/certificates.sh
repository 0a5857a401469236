#!/bin/bash
# certificates.sh FOLDER NODE IP[,IP...]: the keys and certificates of one cluster, in FOLDER. What is there is kept, so
# that a cluster which is started again is still the one its kubeconfigs know.
set -euo pipefail
folder=${1:?folder}
node=${2:?name of the node}
addresses=${3:?addresses of the API server}
mkdir -p "$folder"
cd "$folder"
[ -f complete ] && exit 0
umask 077
key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }
certificate() { # NAME SUBJECT [SUBJECT-ALTERNATIVE-NAMES]
  key "$1"
  openssl req -new -key "$1.key" -subj "$2" |
    openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -out "$1.crt" \
      -extfile <(printf 'extendedKeyUsage=serverAuth,clientAuth\n%s' "${3:+subjectAltName=$3}") 2> /dev/null
}
names=DNS:localhost
for suffix in "" .default .default.svc .default.svc.cluster.local; do names+=",DNS:kubernetes$suffix"; done
names+=",IP:${addresses//,/,IP:}"
key ca
openssl req -x509 -new -key ca.key -days 3650 -subj /CN=cluster-ca -out ca.crt
certificate apiserver /CN=kube-apiserver "$names"
certificate kubelet "/O=system:nodes/CN=system:node:$node" "DNS:$node,IP:${addresses%%,*}"
certificate admin /O=system:masters/CN=admin
certificate addons /O=system:masters/CN=addons
certificate aggregator /CN=aggregator
certificate controllers /CN=system:kube-controller-manager
certificate scheduler /CN=system:kube-scheduler
certificate proxy /CN=system:kube-proxy
key service-accounts
openssl ec -in service-accounts.key -pubout -out service-accounts.pub 2> /dev/null
touch complete
