#!/bin/bash
# The inside of a native cluster: started by dev/local/native.py as the first process of a PID, a mount and a network
# namespace of the cluster's own. Ending this process ends every other one, and all mounts and interfaces go with it.
# The settings come as environment variables: STATE, CGROUP, BRIDGE, NODE, NODE_IP, POD_CIDR, SERVICE_CIDR, and the folders of
# the binaries KUBE, ADDONS, RUNTIME.
set -euo pipefail
logs=$STATE/log
pki=$STATE/pki
start() { # COMPONENT FLAGS... of the Kubernetes binary
  "$KUBE/kube" "$@" > "$logs/$1.log" 2>&1 &
}
until_true() { # SECONDS WHAT COMMAND...
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    if [ "$SECONDS" -ge "$end" ]; then
      echo "gave up waiting for $what" >&2
      exit 1
    fi
    sleep 0.1
  done
}

# Mounts: none of another cluster's (they would be held busy here), a /run of its own, the fixed paths of kubelet and CNI.
awk '$3 ~ /^(nsfs|overlay)$/ && $2 != "/" || $2 ~ "/volumes/kubernetes.io~" {print $2}' /proc/self/mounts |
  tac | xargs -r -n 1 umount -l 2> /dev/null || true
mount --make-rshared /
mount -t tmpfs -o mode=755 run /run
mkdir -p /run/netns /run/lock
for d in kubelet cni containerd; do mount --bind "$STATE/lib/$d" "/var/lib/$d"; done
for d in containers pods; do mount --bind "$logs/$d" "/var/log/$d"; done

# Control groups: everything of the pods is below $CGROUP, in the one hierarchy of version 2 or in each of version 1.
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  mkdir -p "/sys/fs/cgroup/$CGROUP"
  for folder in /sys/fs/cgroup "/sys/fs/cgroup/$CGROUP"; do
    # shellcheck disable=SC2013 # one word each
    for c in $(cat /sys/fs/cgroup/cgroup.controllers); do
      echo "+$c" > "$folder/cgroup.subtree_control" 2> /dev/null || true
    done
  done
else
  for hierarchy in /sys/fs/cgroup/*/; do
    mkdir -p "$hierarchy$CGROUP"
    for f in cpus mems; do # empty in a new group, and then nothing can run in it
      if [ -e "${hierarchy}cpuset.$f" ]; then cat "${hierarchy}cpuset.$f" > "$hierarchy$CGROUP/cpuset.$f"; fi
    done
  done
fi

# Network: the node's address and the way to the services are on lo, so that no other interface is needed.
ip link set lo up
ip addr replace "$NODE_IP/32" dev lo
ip route replace "$SERVICE_CIDR" dev lo src "$NODE_IP"
# Without this module what pods say to each other over the bridge is seen neither by services nor by policies.
modprobe -a br_netfilter overlay nf_conntrack nfnetlink_queue xt_NFQUEUE 2> /dev/null || true # or they are built in
for setting in net.ipv4.ip_forward net.bridge.bridge-nf-call-iptables; do
  if ! sysctl -qw "$setting=1"; then
    echo "The kernel has no $setting: load the module br_netfilter." >&2
    exit 1
  fi
done

# NetworkPolicy: each new connection of a pod is put before "addons netpol", also those to the node itself (INPUT).
# By xtables, since a kernel may lack NFT_QUEUE; nothing is held up while no one listens on the queue (bypass).
mangle() { iptables -w -t mangle "$@"; }
mangle -N policies
mangle -A policies -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN
mangle -A policies -s "$POD_CIDR" -j NFQUEUE --queue-num 100 --queue-bypass
mangle -A policies -d "$POD_CIDR" -j NFQUEUE --queue-num 100 --queue-bypass
mangle -A INPUT -i "$BRIDGE" -j policies
mangle -A POSTROUTING -m addrtype ! --src-type LOCAL -j policies
# Pods have no IPv6 address that a policy could judge, but interfaces give themselves link-local ones: nothing goes there.
if [ -d /proc/sys/net/ipv6 ]; then
  sysctl -qw net.bridge.bridge-nf-call-ip6tables=1
  ip6tables -w -P FORWARD DROP
  ip6tables -w -A INPUT -i "$BRIDGE" -j DROP
fi

PATH=$RUNTIME:$PATH "$RUNTIME/containerd" -c "$STATE/conf/containerd.toml" > "$logs/containerd.log" 2>&1 &

# The last two flags of the API server: what 1.36 serves without being asked.
etcd=http://$NODE_IP:2379
start etcd --data-dir "$STATE/etcd" --listen-client-urls "$etcd" --advertise-client-urls "$etcd" \
  --listen-peer-urls "http://$NODE_IP:2380" --initial-advertise-peer-urls "http://$NODE_IP:2380" \
  --initial-cluster "default=http://$NODE_IP:2380" --unsafe-no-fsync --log-level warn
start kube-apiserver --etcd-servers "$etcd" --bind-address "$NODE_IP" --advertise-address "$NODE_IP" \
  --service-cluster-ip-range "$SERVICE_CIDR" --client-ca-file "$pki/ca.crt" \
  --tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key" \
  --service-account-key-file "$pki/service-accounts.pub" \
  --service-account-signing-key-file "$pki/service-accounts.key" \
  --service-account-issuer https://kubernetes.default.svc.cluster.local \
  --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --allow-privileged \
  --kubelet-client-certificate "$pki/admin.crt" --kubelet-client-key "$pki/admin.key" \
  --kubelet-certificate-authority "$pki/ca.crt" --kubelet-preferred-address-types InternalIP \
  --requestheader-client-ca-file "$pki/ca.crt" --requestheader-allowed-names aggregator \
  --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
  --requestheader-extra-headers-prefix X-Remote-Extra- \
  --proxy-client-cert-file "$pki/aggregator.crt" --proxy-client-key-file "$pki/aggregator.key" \
  --feature-gates MutatingAdmissionPolicy=true --runtime-config admissionregistration.k8s.io/v1beta1=true

kubectl() { timeout 90 "$KUBE/kube" kubectl --kubeconfig "$pki/admin.conf" "$@"; }
api_ready() { kubectl get --raw /readyz --request-timeout 2s > /dev/null 2>&1; }
until_true 90 "the API server (see $logs/kube-apiserver.log)" api_ready

as() { # the flags by which a controller knows the API server
  echo --kube-api-qps 300 --kube-api-burst 600 --kubeconfig "$pki/$1.conf" \
    --authentication-kubeconfig "$pki/$1.conf" --authorization-kubeconfig "$pki/$1.conf"
}
# Pods of DNS left from an earlier run are dead, whatever the store says.
kubectl -n kube-system delete pod -l k8s-app=kube-dns --force --grace-period=0 > /dev/null 2>&1 || true
# shellcheck disable=SC2046 # the words of "as" are meant to be split
start kube-controller-manager $(as controllers) --bind-address "$NODE_IP" --leader-elect=false \
  --cluster-cidr "$POD_CIDR" --allocate-node-cidrs=false --use-service-account-credentials --root-ca-file "$pki/ca.crt" \
  --service-account-private-key-file "$pki/service-accounts.key" \
  --cluster-signing-cert-file "$pki/ca.crt" --cluster-signing-key-file "$pki/ca.key"
# shellcheck disable=SC2046
start kube-scheduler $(as scheduler) --bind-address "$NODE_IP" --leader-elect=false
start kube-proxy --config "$STATE/conf/proxy.yaml"

until_true 60 "containerd (see $logs/containerd.log)" test -S /run/containerd/containerd.sock
until_true 60 "the import of the pause image" "$RUNTIME/ctr" -n k8s.io images import --local "$STATE/pause.tar"
start kubelet --config "$STATE/conf/kubelet.yaml" --kubeconfig "$pki/kubelet.conf" \
  --hostname-override "$NODE" --node-ip "$NODE_IP"
# The policies' enforcer learns of pods' addresses from containerd's socket, before the API server knows them.
until_true 60 "containerd's plugin socket (see $logs/containerd.log)" test -S /run/nri/nri.sock
for addon in netpol volumes; do
  "$ADDONS/addons" $addon --kubeconfig "$pki/addons.conf" --node "$NODE" --dir "$STATE/volumes" > "$logs/$addon.log" 2>&1 &
done
until_true 60 "the cluster's own manifests" kubectl apply -f "$STATE/conf/manifests.yaml"
until_true 60 "the node to register (see $logs/kubelet.log)" kubectl get node "$NODE" -o name
# After a crash the store still says that all is well: ask the kubelet itself, and have DNS come up anew.
kubelet_answers() { kubectl get --raw "/api/v1/nodes/$NODE/proxy/healthz" --request-timeout 2s > /dev/null 2>&1; }
dns_ready() { kubectl -n kube-system wait --for=condition=Ready pod -l k8s-app=kube-dns --timeout=20s 2> /dev/null; }
until_true 60 "the kubelet to answer (see $logs/kubelet.log)" kubelet_answers
kubectl wait --for=condition=Ready "node/$NODE" --timeout=60s
until_true 90 "DNS to be ready (see $logs/kubelet.log)" dns_ready
touch "$STATE/ready"
wait
