# The fuzz targets (libFuzzer, ASan + UBSan): `./run test nightly`, or this with the seconds.
# What they find stays in build/fuzz/found, what they have learnt in build/fuzz/corpus; the best of
# that is kept in <folder>/corpus (TARGET -merge=1 -max_len=2048 there from build/fuzz/corpus).
#   lab/fuzz.sh [SECONDS] [TARGET...]    with FUZZ_RUNS=N: until N inputs, at most SECONDS
# Exit status: 0: no finding; 1: a finding; 3: the build failed, so nothing was fuzzed.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
seconds=${1:-240}
only=" ${*:2} "
runs_limit=${FUZZ_RUNS:--1}
dir=build/fuzz
mkdir -p "$dir/found" build/log

# target, its folder in the build, longest input
targets=(fuzz_wire:nccl_plugin/fuzz:8192 prober_wire_fuzz:prober:4096 prober_control_fuzz:prober:4096
  prober_ports_fuzz:prober:4096)
if [ "$only" != "  " ]; then
  picked=()
  for target in "${targets[@]}"; do
    case $only in *" ${target%%:*} "*) picked+=("$target") ;; esac
  done
  targets=("${picked[@]}")
fi
names=("${targets[@]%%:*}")

build() {
  # Within a condition `set -e` does nothing.
  if [ ! -e "$dir/build.ninja" ]; then
    cmake -S . -B "$dir" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
      -DFABRIC_FUZZ=ON -DCMAKE_C_COMPILER=clang-14 -DCMAKE_CXX_COMPILER=clang++-14 || return
  fi
  ninja -C "$dir" "${names[@]}" "${names[@]/%/_seeds}"
}
# Several may be started at once (lab/fuzz/runner.py): one at a time configures and builds.
exec 9>"$dir/.lock"
flock 9
log=build/log/build-fuzz.log
if ! build >"$log" 2>&1; then
  tail -n 40 "$log" >&2
  echo "fuzz targets: THE BUILD FAILED; the log is $log" >&2
  exit 3
fi
exec 9>&-

# $1: an entry of targets. One line says how it ended.
fuzz() {
  local name where longest corpus kept log runs took
  took=$SECONDS
  IFS=: read -r name where longest <<<"$1"
  corpus=$dir/corpus/$name
  log=build/log/$name.log
  mkdir -p "$corpus"
  "$dir/$where/${name}_seeds" "$corpus"
  kept=()
  [ ! -d "$where/corpus" ] || kept=("$where/corpus")
  # -entropic=0: its bookkeeping would be half of the time where an input takes microseconds.
  # -timeout: one input that takes 10 s is a finding as well.
  if "$dir/$where/$name" -max_total_time="$seconds" -runs="$runs_limit" -entropic=0 -max_len="$longest" -timeout="${FUZZ_TIMEOUT:-10}" \
      -rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix="$dir/found/$name-" "$corpus" "${kept[@]}" \
      >"$log" 2>&1; then
    runs=$(awk '/number_of_executed_units/ {print $2}' "$log")
    printf '%s: no finding in %s inputs, %s s\n' "$name" "$runs" "$((SECONDS - took))"
  else
    tail -n 60 "$log"
    printf '%s: FOUND SOMETHING; the input is in %s/found, the log is %s\n' "$name" "$dir" "$log"
    return 1
  fi
}

rc=0
pids=()
for target in "${targets[@]}"; do
  fuzz "$target" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || rc=1; done
exit $rc
