#!/bin/bash
# One run on several hosts, without ssh and without a queue: the same command on each of them.
#
#   RENDEZVOUS=10.0.0.1:29500 RUN_ID=first HOST_INDEX=0 scripts/torchrun_multinode.sh [PROGRAM.py] [overrides]    # on 10.0.0.1
#   RENDEZVOUS=10.0.0.1:29500 RUN_ID=first HOST_INDEX=1 scripts/torchrun_multinode.sh [PROGRAM.py] [overrides]    # on another
#
# PROGRAM.py is train.py unless it is given. The run directory must be on storage that all hosts see.
#
#   RENDEZVOUS    HOST:PORT, or [ADDRESS]:PORT for IPv6, where host 0 serves the rendezvous: it must outlive the others
#   HOST_INDEX    0 on that host; 1, 2, ... on the others
#   RUN_ID        a name for the run: while it has not finished, the same command under the same name goes on with it
#   HOSTS         how many, or MIN:MAX for hosts that may come and go (default: 2)
#   PROCESSES     on each host (default: auto, one per GPU, or per core)
#   MAX_RESTARTS  times the processes are started again when one has died or a host was lost (default: 3)
#   ADDRESS       of this host, for the others (default: the one from which it reaches host 0)
#   INTERFACE     that ADDRESS is on, for gloo and NCCL (default: looked up by `ip`)
#   RDZV_CONF     more settings of the rendezvous, say last_call_timeout=10,join_timeout=120 (seconds)
#   PYTHON        (default: that of .venv)

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

refuse() {
  echo "$1" >&2
  exit 2
}

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  exit
fi
[[ ${RENDEZVOUS:-} =~ ^(\[[0-9A-Fa-f:.]+\]|[^:]+):[0-9]+$ ]] ||
  refuse "RENDEZVOUS=${RENDEZVOUS:-}: use HOST:PORT of host 0, [ADDRESS]:PORT for IPv6, the same on every host"
[[ ${HOST_INDEX:-} =~ ^[0-9]+$ ]] || refuse "HOST_INDEX=${HOST_INDEX:-}: use 0 on the host of RENDEZVOUS; 1, 2, ... on the others"
[[ ${RUN_ID:-} =~ ^[A-Za-z0-9._-]+$ ]] || refuse "RUN_ID=${RUN_ID:-}: use a name of letters, digits and . _ -, the same on every host"
[[ ${HOSTS:=2} =~ ^[1-9][0-9]*(:[1-9][0-9]*)?$ ]] || refuse "HOSTS=$HOSTS: use a number, or MIN:MAX"
[[ ${MAX_RESTARTS:=3} =~ ^[0-9]+$ ]] || refuse "MAX_RESTARTS=$MAX_RESTARTS: use a number"
python=${PYTHON:-$root/.venv/bin/python}
command -v "$python" >/dev/null || refuse "PYTHON=$python: there is no such program; use the Python that has Lockstep's packages"

if [[ -z ${ADDRESS:-} ]]; then
  # a datagram socket that is connected sends nothing, and knows its own address
  host=${RENDEZVOUS%:*} && host=${host#[} && host=${host%]}
  ADDRESS=$("$python" -c 'import socket, sys
family, kind, *_, address = socket.getaddrinfo(sys.argv[1], 9, type=socket.SOCK_DGRAM)[0]
link = socket.socket(family, kind)
link.connect(address)
print(link.getsockname()[0])' "$host" 2>/dev/null) || refuse "RENDEZVOUS=$RENDEZVOUS: there is no way to that host from here"
fi
if [[ -z ${INTERFACE:-} ]]; then
  INTERFACE=$(PATH=$PATH:/usr/sbin:/sbin ip -o address show to "$ADDRESS" 2>/dev/null | awk 'NR == 1 { print $2 }') || true
fi
if [[ -n ${INTERFACE:-} ]]; then
  export GLOO_SOCKET_IFNAME=$INTERFACE NCCL_SOCKET_IFNAME=$INTERFACE
fi
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # without it a restart may wait for addresses of ranks that died (pytorch issue 135712)

if [[ ${1:-} == *.py ]]; then
  program=("$@")
else
  program=("$root/train.py" trainer.devices=auto trainer.num_nodes=auto "$@")
fi
is_host=$([[ $HOST_INDEX == 0 ]] && echo 1 || echo 0)
exec "$python" -m torch.distributed.run --nnodes="$HOSTS" --nproc-per-node="${PROCESSES:-auto}" --max-restarts="$MAX_RESTARTS" \
  --rdzv-backend=c10d --rdzv-endpoint="$RENDEZVOUS" --rdzv-id="$RUN_ID" --rdzv-conf="is_host=$is_host${RDZV_CONF:+,$RDZV_CONF}" \
  --local-addr="$ADDRESS" "${program[@]}"
