#!/bin/bash
# Process 1 of a node: it has its own mounts, process ids, network, host name and IPC, and ends with everything in them.
#
#   NODE NODE_DIR ADDRESS GATEWAY ROUTES="SUBNET=VIA ..." KUBELET KUBE_PROXY KUBECONFIG
set -eu
trap 'echo "line $LINENO: $BASH_COMMAND: exit status $?" >&2' ERR
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

# Starts a program again when it has ended, as systemd does: kubelet exits where a call takes it 2 s while it starts.
# What it ended with is in /var/log/ended. While /run/NAME.off is there, it stays off.
keep() {
  local name=$1 code
  shift
  while :; do
    "$@" >> "/var/log/$name.log" 2>&1 &
    echo $! > "/run/$name.pid"
    wait $! && code=0 || code=$?
    if [ -e "/run/$name.off" ]; then
      while [ -e "/run/$name.off" ]; do sleep 0.1; done
    else
      echo "$name $code" >> /var/log/ended
      sleep 1
    fi
  done
}
keep containerd containerd --config "$NODE_DIR/containerd.toml" &
until ctr version > /dev/null 2>&1; do sleep 0.05; done
keep kube-proxy "$KUBE_PROXY" --config "$NODE_DIR/kube-proxy.yaml" &
keep kubelet "$KUBELET" --config "$NODE_DIR/kubelet.yaml" --kubeconfig "$KUBECONFIG" --node-ip "$ADDRESS" \
  --hostname-override "$NODE" &

set +e
while :; do wait -n || sleep 1; done # reaps what pods leave behind
