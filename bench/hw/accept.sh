#!/usr/bin/env bash
# Acceptance of fabricd on two real hosts with 2 to 8 NICs and GPUs: bus bandwidth beside NCCL's own
# IB transport, GPUDirect from NCCL's log, and a switch port that is disabled in mid-run.
# docs/operate/hardware.md says what was proved with it. Exit status: 0 every row holds, 1 one does
# not, 2 refused: something is missing or the usage is wrong.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)

usage() {
  cat <<'EOF'
usage: bench/hw/accept.sh --hosts H1,H2 --nccl-tests DIR --plugin FILE
         --port-down COMMAND --port-up COMMAND [OPTIONS]

  --hosts H1,H2         two hosts, reached by ssh without a password
  --nccl-tests DIR      where all_reduce_perf lies, at the same path on both hosts
  --plugin FILE         libnccl-net-fabric.so, at the same path on both hosts
  --port-down COMMAND   disables a switch port of H1; runs in a shell here, in mid-run
  --port-up COMMAND     enables it again
  --launcher NAME       mpirun (Open MPI, the default) or srun (inside an allocation)
  --gpus N              GPUs of each host to use (default: all that nvidia-smi lists)
  --nics N              verbs ports that each host must have, 2 to 8 (default: as found)
  --fabricctl COMMAND   fabricctl on the hosts (default: fabricctl)
  --fault-after S       seconds of the last run before the port is disabled (default 30)
  --fault-for S         seconds until it is enabled again (default 30)
  --min-ratio R         bus bandwidth to hold beside NCCL's own (default 0.95)
  --env NAME=VALUE      for every rank of every run; repeat it
  --out DIR             reports and logs (default: out/accept/TIME)
  --dry-run             print what would be run and change nothing; contacts no host

example: bench/hw/accept.sh --hosts gpu-01,gpu-02 --nccl-tests /opt/nccl-tests/build \
           --plugin /opt/fabricd/lib/libnccl-net-fabric.so \
           --port-down 'ssh admin@leaf1 "ifdown swp7"' --port-up 'ssh admin@leaf1 "ifup swp7"'
EOF
}

refuse() {
  printf 'accept.sh: refused: %s\n' "$1" >&2
  exit 2
}

hosts='' tests='' plugin='' port_down='' port_up='' launcher=mpirun gpus='' nics=''
fabricctl=fabricctl fault_after=30 fault_for=30 min_ratio=0.95 out='' dry_run=0
extra_env=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --dry-run) dry_run=1; shift; continue ;;
    --hosts | --nccl-tests | --plugin | --port-down | --port-up | --launcher | --gpus | --nics | \
      --fabricctl | --fault-after | --fault-for | --min-ratio | --env | --out) ;;
    *) usage >&2; refuse "unknown option '$1'" ;;
  esac
  [ $# -ge 2 ] || refuse "$1 needs a value"
  case $1 in
    --hosts) hosts=$2 ;;
    --nccl-tests) tests=$2 ;;
    --plugin) plugin=$2 ;;
    --port-down) port_down=$2 ;;
    --port-up) port_up=$2 ;;
    --launcher) launcher=$2 ;;
    --gpus) gpus=$2 ;;
    --nics) nics=$2 ;;
    --fabricctl) fabricctl=$2 ;;
    --fault-after) fault_after=$2 ;;
    --fault-for) fault_for=$2 ;;
    --min-ratio) min_ratio=$2 ;;
    --env) extra_env+=("$2") ;;
    --out) out=$2 ;;
  esac
  shift 2
done

[ -n "$hosts" ] || refuse '--hosts H1,H2 is missing'
[[ $hosts =~ ^([A-Za-z0-9_][A-Za-z0-9_.-]*),([A-Za-z0-9_][A-Za-z0-9_.-]*)$ ]] ||
  refuse "--hosts '$hosts': two names of hosts with a comma between them"
h1=${BASH_REMATCH[1]} h2=${BASH_REMATCH[2]}
[ "$h1" != "$h2" ] || refuse "--hosts '$hosts': one host twice"
[ -n "$tests" ] || refuse '--nccl-tests DIR is missing'
[ -n "$plugin" ] || refuse '--plugin FILE is missing'
[ -n "$port_down" ] || refuse '--port-down COMMAND is missing: nobody else knows the switch'
[ -n "$port_up" ] || refuse '--port-up COMMAND is missing: a port must not stay disabled'
case $launcher in mpirun | srun) ;; *) refuse "--launcher '$launcher': mpirun or srun" ;; esac
for pair in "--fault-after $fault_after" "--fault-for $fault_for"; do
  [[ ${pair#* } =~ ^[1-9][0-9]{0,3}$ ]] || refuse "$pair: whole seconds from 1 to 9999"
done
[[ $min_ratio =~ ^[0-9](\.[0-9]{1,4})?$ ]] ||
  refuse "--min-ratio '$min_ratio': a number such as 0.95"
[[ -z $nics || $nics =~ ^[2-8]$ ]] || refuse "--nics '$nics': 2 to 8"
[[ -z $gpus || $gpus =~ ^([1-9]|1[0-6])$ ]] || refuse "--gpus '$gpus': 1 to 16"
for pair in ${extra_env[@]+"${extra_env[@]}"}; do
  [[ $pair =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] || refuse "--env '$pair': NAME=VALUE"
done
out=${out:-out/accept/$(date -u +%Y%m%dT%H%M%SZ)}
program=$tests/all_reduce_perf

on() { # HOST WORD...: runs there; the words arrive as they are.
  local host=$1 words
  shift
  printf -v words '%q ' "$@"
  ssh -o BatchMode=yes -o ConnectTimeout=10 -- "$host" "$words"
}

fabric_on() { # HOST WORD...: fabricctl there; --fabricctl may be several words.
  local host=$1 words
  shift
  printf -v words '%q ' "$@"
  ssh -o BatchMode=yes -o ConnectTimeout=10 -- "$host" "$fabricctl $words"
}

# Sets $command to what runs all_reduce_perf on both hosts. $1: NAME=VALUE pairs, one a line; then
# its options.
launch_words() {
  local ranks=$((2 * gpus)) pair pairs
  mapfile -t pairs <<<"$1"
  shift
  if [ "$launcher" = mpirun ]; then
    command=(mpirun --allow-run-as-root --bind-to none -np "$ranks" -H "$h1:$gpus,$h2:$gpus")
    for pair in "${pairs[@]}"; do command+=(-x "$pair"); done
  else
    # Not in --export: values hold commas.
    command=(env "${pairs[@]}" srun -N2 --ntasks-per-node="$gpus" -w "$h1,$h2" --export=ALL)
  fi
  command+=("$program" "$@")
}

environment() { # stock or fabric
  printf 'NCCL_DEBUG=INFO\nNCCL_DEBUG_SUBSYS=INIT,NET,ENV\n'
  if [ "$1" = stock ]; then
    printf 'NCCL_NET_PLUGIN=none\nNCCL_NET=IB'
  else
    # NCCL_NET: NCCL fails, rather than fall back in silence, when the plugin cannot be used.
    printf 'NCCL_NET_PLUGIN=%s\nNCCL_NET=FABRIC\nFABRIC_VERBS=1\nFABRIC_GPUDIRECT=1' "$plugin"
  fi
  for pair in ${extra_env[@]+"${extra_env[@]}"}; do printf '\n%s' "$pair"; done
}

stamped() { # each line with the time at which it came
  local line
  while IFS= read -r line; do printf '%s %s\n' "$EPOCHREALTIME" "$line"; done
}

run_logged() { # NAME: runs $command; its log is $out/NAME.log, its status $out/NAME.status
  local status=0
  printf '+ %s\n' "${command[*]@Q}" >&2
  "${command[@]}" 2>&1 | stamped >"$out/$1.log" || status=${PIPESTATUS[0]}
  printf '%s\n' "$status" >"$out/$1.status"
}

sweep=(-b 8 -e 4G -f 4 -g 1 -w 5 -n 20 -c 1)
fault_size=268435456
fault_iterations=20

if [ "$dry_run" = 1 ]; then
  gpus=${gpus:-8}
  echo "# both hosts: fabricctl plugin check --hosts $hosts; fabricctl doctor --json; nvidia-smi -L"
  for kind in stock fabric; do
    launch_words "$(environment $kind)" "${sweep[@]}"
    printf '%q ' "${command[@]}"
    printf '> %q\n' "$out/$kind.log"
  done
  launch_words "$(environment fabric)" -b $fault_size -e $fault_size -g 1 -w 5 \
    -n $fault_iterations -c 1 -N CYCLES
  printf '%q ' "${command[@]}"
  printf '> %q &\n' "$out/fault.log"
  echo "sleep $fault_after; $port_down; sleep $fault_for; $port_up"
  printf 'python3 %q judge %q --min-ratio %s\n' "$here/report.py" "$out" "$min_ratio"
  exit 0
fi

# What is missing is told all at once.
missing=()
[ -n "${EPOCHREALTIME:-}" ] || missing+=('bash 5 or newer here')
for tool in ssh python3 pkill "$launcher"; do
  command -v "$tool" >/dev/null || missing+=("$tool here")
done
[ ${#missing[@]} = 0 ] || refuse "missing: $(printf '%s; ' "${missing[@]}")"
mkdir -p "$out"
for host in "$h1" "$h2"; do
  if ! on "$host" true 2>"$out/ssh.$host"; then
    missing+=("ssh to $host without a password ($(tail -n1 "$out/ssh.$host"))")
    continue
  fi
  on "$host" test -x "$program" || missing+=("$program on $host")
  on "$host" test -r "$plugin" || missing+=("$plugin on $host")
  on "$host" nvidia-smi -L >"$out/gpus.$host" 2>&1 || missing+=("nvidia-smi and GPUs on $host")
  fabric_on "$host" status --json >"$out/status.$host" 2>&1 ||
    missing+=("a running fabricd on $host ($fabricctl status: $(tail -n1 "$out/status.$host"))")
  # Its exit status says what it found; that is read from its JSON.
  fabric_on "$host" doctor --json --library "$plugin" >"$out/doctor.$host" 2>"$out/errors.$host" ||
    [ -s "$out/doctor.$host" ] || missing+=("$fabricctl doctor on $host")
  fabric_on "$host" plugin check --json --library "$plugin" >"$out/check.$host" 2>&1 || true
done
[ ${#missing[@]} = 0 ] || refuse "missing: $(printf '%s; ' "${missing[@]}")"
python3 "$here/report.py" preflight "$out" "$h1" "$h2" --nics "${nics:-0}" || exit 2
if [ -z "$gpus" ]; then
  gpus=$(grep -c '^GPU ' "$out/gpus.$h1" || true)
  other=$(grep -c '^GPU ' "$out/gpus.$h2" || true)
  [ "$gpus" = "$other" ] || refuse "$h1 has $gpus GPUs, $h2 has $other: name --gpus"
fi
[ "$gpus" -gt 0 ] || refuse 'nvidia-smi lists no GPU'

launch_words "$(environment stock)" "${sweep[@]}"
run_logged stock
launch_words "$(environment fabric)" "${sweep[@]}"
run_logged fabric
cycles=$(python3 "$here/report.py" cycles "$out/fabric.log" --size $fault_size \
  --iterations $fault_iterations --seconds $((fault_after + 2 * fault_for))) ||
  refuse "the plugin's run says no time for $fault_size bytes: $out/fabric.log"

started=$EPOCHREALTIME
port_is_down=0
job=''
clean_up() {
  restore_port
  # The launcher is a child of the background shell; it ends its ranks.
  [ -z "$job" ] || pkill -TERM -P "$job" || true
}
restore_port() {
  if [ "$port_is_down" = 1 ]; then
    port_is_down=0
    printf '+ %s\n' "$port_up" >&2
    bash -c "$port_up" || printf 'accept.sh: THE PORT IS STILL DISABLED: %s failed\n' "$port_up" >&2
  fi
}
trap clean_up EXIT
trap 'exit 130' INT TERM
launch_words "$(environment fabric)" -b $fault_size -e $fault_size -g 1 -w 5 \
  -n $fault_iterations -c 1 -N "$cycles"
run_logged fault &
job=$!
# The port is disabled so long after the first cycle: a start may take minutes.
until grep -qE "^[0-9.]+ +$fault_size " "$out/fault.log" 2>/dev/null; do
  kill -0 "$job" 2>/dev/null || break
  sleep 0.2
done
if kill -0 "$job" 2>/dev/null; then
  sleep "$fault_after"
  printf '+ %s\n' "$port_down" >&2
  port_is_down=1
  printf 'down %s\n' "$EPOCHREALTIME" >"$out/port"
  bash -c "$port_down" || refuse "--port-down failed: $port_down"
  sleep "$fault_for"
  restore_port
  printf 'up %s\n' "$EPOCHREALTIME" >>"$out/port"
fi
wait "$job" || true
job=''
for host in "$h1" "$h2"; do
  fabric_on "$host" timeline --json --since "${started%.*}" --limit 10000 >"$out/timeline.$host" ||
    echo '[]' >"$out/timeline.$host"
done
python3 "$here/report.py" judge "$out" --min-ratio "$min_ratio"
