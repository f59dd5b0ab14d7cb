#!/bin/bash
# Process 1 of a node: it has its own mounts, process ids, network, host name and IPC, and ends with everything in them.
#
#   NODE NODE_DIR ADDRESS GATEWAY ROUTES="SUBNET=VIA ..." KUBELET KUBE_PROXY KUBECONFIG
set -eu
hostname "$NODE"
mount --make-rshared /
mount -t proc proc /proc
mount --bind "$NODE_DIR/var" /var
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/netns /run/containerd /run/lock

# the host lays the cable
until [ -e /proc/sys/net/ipv4/conf/eth0 ]; do sleep 0.02; done
ip link set lo up
ip addr add "$ADDRESS/24" dev eth0
ip link set eth0 up
ip route add default via "$GATEWAY"
for route in $ROUTES; do ip route add "${route%=*}" via "${route#*=}"; done
# the second: answers of a service whose pod is on the client's own node pass the translation, too
sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1

containerd --config "$NODE_DIR/containerd.toml" >> /var/log/containerd.log 2>&1 &
echo $! > /run/containerd.pid
until ctr version > /dev/null 2>&1; do sleep 0.05; done
"$KUBE_PROXY" --config "$NODE_DIR/kube-proxy.yaml" >> /var/log/kube-proxy.log 2>&1 &

kubelet() {
  "$KUBELET" --config "$NODE_DIR/kubelet.yaml" --kubeconfig "$KUBECONFIG" --node-ip "$ADDRESS" \
    --hostname-override "$NODE" >> /var/log/kubelet.log 2>&1 &
  echo $! > /run/kubelet.pid
}
kubelet
trap kubelet USR1 # start it again

set +e
while :; do wait -n || sleep 1; done # reaps what pods leave behind
