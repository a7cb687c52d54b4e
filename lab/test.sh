# shellcheck shell=bash
# The tiers of `./run test`; sourced by bootstrap.sh with its functions in scope.
TIER=core
case ${1:-} in unit | native | threads | booted | lab | vm | all | nightly) TIER=$1; shift ;; esac

# What the tiers leave to `lab.testrun.totals`.
REPORTS=$PWD/build/log/reports
rm -rf "$REPORTS"
mkdir -p "$REPORTS"

export ASAN_OPTIONS=detect_leaks=1:abort_on_error=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1

lint() {
  ensure_apt dev
  bash lab/lint.sh --fast
}

# $1: a tier; runs it. Its wall time and exit status go into the totals.
tier() {
  local rc=0 began=$SECONDS
  "$@" || rc=$?
  echo "$1 $((SECONDS - began)) $rc" >>"$REPORTS/tiers"
  return $rc
}

# The last lines of every run, also of one that is stopped.
finish() {
  local rc=$?
  trap - EXIT
  local group
  for group in ${MACHINES:-} ${BESIDE:-}; do kill -- -"$group" 2>/dev/null || true; done
  python -m lab.testrun.totals "$REPORTS" "$SECONDS" "$rc" || true
  exit "$rc"
}
trap finish EXIT

# Tests at a time: one a core where they compute or emulate a guest's processor, one more where much
# of a test is waiting. With twice as many as cores the lab was no faster, and single tests came near
# their time limits.
CORES=$(nproc)
COMPUTING=(-n "$CORES" --dist loadfile) # what the tests of a file share is made once
WAITING=(-n $((CORES + 1)) --dist loadgroup)
GUESTS=(-n "$CORES" --dist loadgroup)

# What tests are started through; `booted` sets it.
WITHIN=()

# $1: a name in the totals; further arguments are pytest's. All that fails is a failure.
strict() {
  FABRIC_REPORT=$REPORTS/$1.json "${WITHIN[@]}" python -m pytest "${@:2}"
}

# $1: a folder of tests; further arguments are those of the command line. SELECTED are pytest's.
select_tests() {
  mapfile -d '' SELECTED < <(python -m lab.testrun.selection "$@")
  [ ${#SELECTED[@]} -gt 0 ] # none: it failed, and pytest would take all tests there are
}

# As `strict`, but a test that passes three times of three alone is flaky
# (lab/testrun/retry_alone.py).
retried() {
  local rc=0
  strict "$@" || rc=$?
  [ $rc = 1 ] || return $rc
  machines_end
  beside_wait
  python -m lab.testrun.retry_alone "$REPORTS/$1.json"
}

# $1: a build, further arguments are ctest's. Its C++ tests, in the background beside something
# else: many of them wait.
ctest_begin() {
  local flavour=$1 prefix=()
  shift
  CTEST_RUNS=$((${CTEST_RUNS:-0} + 1))
  # GCC 12's TSan cannot place its shadow under the address randomization of newer kernels.
  [ "$flavour" = tsan ] && prefix=(setarch -R)
  "${WITHIN[@]}" "${prefix[@]}" ctest --test-dir "build/$flavour" --output-on-failure -j "$CORES" \
    --output-junit "$REPORTS/ctest-$CTEST_RUNS-$flavour.xml" "$@" \
    >"build/log/ctest-$flavour.log" 2>&1 &
  CTEST=$!
}

ctest_end() {
  local rc=0 log=build/log/ctest-$1.log
  wait "$CTEST" || rc=$?
  if [ $rc = 0 ]; then tail -n 3 "$log"; else cat "$log"; fi
  return $rc
}

# Unit tests that take no seconds.
QUICK='not virtual_time and not patient'

# Tests of both tiers: those that are marked `lab` have processes of their own.
ATTACKS=tests/attack

# Tests of pure cores: no root, no sleep, no network. Long worlds in virtual time run in the native
# tier. Words of the command line select tests: then only these run, long ones included, one at a
# time, without C++ tests. A selected test builds the native files that it needs
# (tests/unit/conftest.py).
unit() {
  local rc=0
  if [ $# != 0 ]; then
    select_tests tests/unit "$@"
    FABRIC_BUILD=release strict unit -m 'not nightly' "${SELECTED[@]}"
    return
  fi
  ensure_native release
  ctest_begin release -LE 'processes|patient'
  FABRIC_BUILD=release FABRIC_BUILT=release \
    strict unit tests/unit $ATTACKS -m "not lab and not nightly and $QUICK" "${COMPUTING[@]}" ||
    rc=$?
  ctest_end release && return $rc
}

# C++ under ASan and UBSan; with the release build what takes long.
native() {
  local rc=0
  ensure_native release
  ctest_begin release -L 'processes|patient' -LE nightly
  ensure_native asan
  ctest_end release || return
  # The release build has played all of the simulator's schedules; here memory is what is looked at.
  # fabric-perf is what most lab tests run with this build, and the nightly matrix with TSan.
  FABRIC_SIM_RUNS=1000 ctest_begin asan -LE processes
  simulators || rc=$?
  ctest_end asan && return $rc
}

under_tsan() {
  ensure_native tsan fabric_checks
  ctest_begin tsan -LE processes
  ctest_end tsan
}

# Two tiers in the background, one after the other, on what the lab tests beside them leave of the
# cores.
beside_begin() {
  rm -f build/log/under_tsan.status build/log/booted.status
  set -m # as machines_begin
  (
    renice -n 10 $BASHPID >/dev/null
    for part in under_tsan booted; do
      rc=0
      $part >"build/log/$part.log" 2>&1 || rc=$?
      echo $rc >"build/log/$part.status"
    done
  ) &
  BESIDE=$!
  set +m
}

beside_wait() {
  [ -z "${BESIDE:-}" ] || wait "$BESIDE" || true
  BESIDE=
}

# $1: one of them; says how it went.
beside_end() {
  beside_wait
  cat "build/log/$1.log"
  # None: it was ended.
  return "$(cat "build/log/$1.status" || echo 1)"
}

threads() { under_tsan; }
threads_beside() { beside_end under_tsan; }

# What the benchmarks measure with, and the unit tests that take seconds.
simulators() {
  local rc=0
  export FABRIC_BUILD=release FABRIC_BUILT=release
  strict simulators tests/bench -m 'not nightly' "${COMPUTING[@]}" || rc=$?
  strict worlds tests/unit -m "not ($QUICK) and not nightly" "${COMPUTING[@]}" || rc=$?
  unset FABRIC_BUILD FABRIC_BUILT
  return $rc
}

# Whether anything needs a machine that has been up for long: native and unit tests once more, in a
# time namespace whose clocks since boot begin near 0. What reads no clock is left out.
booted() {
  need_root test
  ensure_native asan
  local rc=0 tests WITHIN=(python -m lab.testrun.just_booted)
  ctest_begin asan -L clock
  # Tests of the product: documents and the lab's description do not depend on the machine's uptime.
  mapfile -t tests < <(python -m lab.testrun.clock_readers \
    tests/unit/{clocksync,compute,fabric_train,fabricd,telemetry})
  FABRIC_BUILD=release FABRIC_BUILT=release strict booted "${tests[@]}" -m "not nightly and $QUICK" \
    "${COMPUTING[@]}" "$@" || rc=$?
  ctest_end asan || return
  # The tests of the system calls are the release build's.
  ctest_begin release -R plugin_syscalls_test
  ctest_end release && return $rc
}

booted_beside() { beside_end booted; }

# The system and the product for the virtual machines, in the background: downloads, and work on
# what the tests beside it leave of the cores. What fails here is said by the VM tier itself.
machines_begin() {
  need_root test
  ensure_apt vm
  set -m # a process group of its own, to be ended as one
  local prepare='from lab.vm import image, kernel, payload; payload.disk(image.base()); kernel.newer()'
  nice -n 10 python -c "$prepare" \
    >build/log/vm-prepare.log 2>&1 &
  MACHINES=$!
  set +m
}

machines_end() {
  [ -z "${MACHINES:-}" ] || wait "$MACHINES" || true
  MACHINES=
}

# On the ASan + UBSan build: each injected fault is also a memory check. tests/conftest.py says which
# tests stay together; those that measure the machine come afterwards, alone.
lab() {
  need_root test
  ensure_native release
  ensure_native asan
  local beside=0 alone=0
  export FABRIC_BUILD=asan
  select_tests tests/lab,$ATTACKS "$@"
  retried lab -m 'lab and not nightly and not alone' "${WAITING[@]}" "${SELECTED[@]}" || beside=$?
  [ $beside = 2 ] && return 2 # stopped by hand
  machines_end
  beside_wait
  retried lab-alone -m 'lab and alone and not nightly' "${SELECTED[@]}" || alone=$?
  unset FABRIC_BUILD
  # 5: the arguments select none of these. Of neither is a mistake.
  [ $beside = 5 ] && return $alone
  [ $alone = 5 ] && return $beside
  return $((beside ? beside : alone))
}

# Guests that share no machine run beside each other.
vm() {
  need_root test
  machines_end
  ensure_apt vm
  ensure_native release
  select_tests tests/vm "$@"
  FABRIC_BUILD=release retried vm -m 'not nightly' "${GUESTS[@]}" "${SELECTED[@]}"
}

# Some eight hours on two cores, step by step with --only; lab/testrun/nightly.py has the steps and keeps their results.
nightly() {
  need_root test
  ensure_apt dev
  ensure_apt vm
  for flavour in release asan tsan; do ensure_native $flavour; done
  python -m lab.testrun.nightly "$@"
}

core() {
  tier lint && tier unit "$@" && machines_begin && tier native && beside_begin &&
    tier lab "$@" && tier threads_beside && tier booted_beside && tier vm "$@"
}

case $TIER in
  core) core "$@" ;;
  native) tier native && tier threads ;;
  all) core "$@" && tier nightly "$@" ;;
  *) tier "$TIER" "$@" ;;
esac
