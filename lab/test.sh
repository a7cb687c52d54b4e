# shellcheck shell=bash
# The tiers of `./run test`; sourced by bootstrap.sh with its functions in scope.
TIER=core
case ${1:-} in unit | native | lab | vm | all | nightly) TIER=$1; shift ;; esac

export ASAN_OPTIONS=detect_leaks=1:abort_on_error=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1

lint() {
  ensure_apt dev
  bash lab/lint.sh --fast
}

# $1: a build, further arguments are ctest's. Its C++ tests, in the background beside something
# else: many of them wait.
ctest_begin() {
  local flavour=$1 prefix=()
  shift
  # GCC 12's TSan cannot place its shadow under the address randomization of newer kernels.
  [ "$flavour" = tsan ] && prefix=(setarch -R)
  "${prefix[@]}" ctest --test-dir "build/$flavour" --output-on-failure -j2 "$@" \
    >"build/log/ctest-$flavour.log" 2>&1 &
  CTEST=$!
}

ctest_end() {
  local rc=0 log=build/log/ctest-$1.log
  wait "$CTEST" || rc=$?
  if [ $rc = 0 ]; then tail -n 3 "$log"; else cat "$log"; fi
  return $rc
}

# The cores alone: no root, no sleep, no network.
unit() {
  local rc=0
  ensure_native release
  ctest_begin release -LE processes
  # What the tests of a file share is made once.
  FABRIC_BUILD=release python -m pytest tests/unit -m 'not nightly' -n 2 --dist loadfile "$@" || rc=$?
  ctest_end release && return $rc
}

# C++ under the sanitizers; with the release build only the processes of fabric-perf.
native() {
  local rc=0
  ensure_native release
  ctest_begin release -L processes
  ensure_native asan
  ctest_end release || return
  # The release build has played all of the simulator's schedules; here memory is what is looked at.
  # fabric-perf is what most lab tests run with this build, and the nightly matrix with TSan.
  FABRIC_SIM_RUNS=3000 ctest_begin asan -LE processes
  ensure_native tsan fabric_checks
  ctest_end asan || return
  ctest_begin tsan -LE processes
  simulators || rc=$?
  ctest_end tsan && return $rc
}

# What the benchmarks measure with: worlds in virtual time, scores, tables.
simulators() {
  FABRIC_BUILD=release python -m pytest tests/bench -m 'not nightly' -n 2 --dist loadfile
}

# The system and the product for the virtual machines, in the background: downloads, and work on
# what the tests beside it leave of the cores. What fails here is said by the VM tier itself.
machines_begin() {
  need_root test
  ensure_apt vm
  set -m # a process group of its own, to be ended as one
  chrt --idle 0 python -c 'from lab.vm import image, payload; payload.disk(image.base())' \
    >build/log/vm-prepare.log 2>&1 &
  MACHINES=$!
  set +m
  trap 'kill -- -$MACHINES 2>/dev/null || true' EXIT
}

machines_end() {
  [ -z "${MACHINES:-}" ] || wait "$MACHINES" || true
  MACHINES=
  trap - EXIT
}

# On the ASan + UBSan build: each injected fault is also a memory check. Most of a test is waiting,
# so two run at a time (tests/conftest.py says which stay together); those that measure the machine
# come afterwards, alone.
lab() {
  need_root test
  ensure_unpacked lab-unpacked
  ensure_native release
  ensure_native asan
  local beside=0 alone=0
  export FABRIC_BUILD=asan
  again tests/lab -m 'not nightly and not alone' -n 2 --dist loadgroup "$@" || beside=$?
  [ $beside = 2 ] && return 2 # stopped by hand
  machines_end
  again tests/lab -m 'alone and not nightly' "$@" || alone=$?
  unset FABRIC_BUILD
  # 5: the arguments select none of these. Of neither is a mistake.
  [ $beside = 5 ] && return $alone
  [ $alone = 5 ] && return $beside
  return $((beside ? beside : alone))
}

# pytest; the few that failed are run again by themselves, which tells more and excuses nothing.
again() {
  local rc=0 failed=build/log/failed.json
  rm -f $failed
  FABRIC_FAILED=$failed python -m pytest "$@" || rc=$?
  [ $rc = 1 ] || return $rc
  python -m lab.again $failed
}

vm() {
  need_root test
  machines_end
  ensure_apt vm
  ensure_native release
  FABRIC_BUILD=release again tests/vm -m 'not nightly' "$@"
}

# An hour and a half on two cores; lab/nightly.py has the steps and keeps their results.
nightly() {
  need_root test
  ensure_apt dev
  ensure_apt vm
  for flavour in release asan tsan; do ensure_native $flavour; done
  python -m lab.nightly "$@"
}

core() { lint && unit "$@" && machines_begin && native && lab "$@" && vm "$@"; }

case $TIER in
  all) core "$@" && nightly "$@" ;;
  *) "$TIER" "$@" ;;
esac
