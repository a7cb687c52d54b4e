# shellcheck shell=bash
# The tiers of `./run test`; sourced by bootstrap.sh with its functions in scope.
TIER=core
case ${1:-} in unit | lab | vm | all | nightly) TIER=$1; shift ;; esac

export ASAN_OPTIONS=detect_leaks=1:abort_on_error=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1

lint() {
  ensure_apt dev
  bash lab/lint.sh --fast
}

# The cores alone: no root, no sleep, no network.
unit() {
  ensure_native release
  ctest --test-dir build/release --output-on-failure -j2 || return
  FABRIC_BUILD=release python -m pytest tests/unit -m 'not nightly' -n 2 "$@"
}

sanitized_unit() {
  ensure_native asan
  # The release build has played all of the simulator's schedules; here memory is what is looked at.
  FABRIC_SIM_RUNS=3000 ctest --test-dir build/asan --output-on-failure -j2 || return
  ensure_native tsan
  # -R: GCC 12's TSan cannot place its shadow under the address randomization of newer kernels.
  # The simulator has one thread; a few of its schedules are enough here.
  FABRIC_SIM_RUNS=500 setarch -R ctest --test-dir build/tsan --output-on-failure -j2
}

# On the ASan + UBSan build: each injected fault is also a memory check.
lab() {
  need_root test
  ensure_native release
  ensure_native asan
  FABRIC_BUILD=asan python -m pytest tests/lab -m 'not nightly' "$@"
}

vm() {
  need_root test
  ensure_apt vm
  ensure_native release
  FABRIC_BUILD=release python -m pytest tests/vm -m 'not nightly' "$@"
}

# An hour and a half on two cores; lab/nightly.py has the steps and keeps their results.
nightly() {
  need_root test
  ensure_apt dev
  ensure_apt vm
  for flavour in release asan tsan; do ensure_native $flavour; done
  python -m lab.nightly "$@"
}

core() { lint && unit "$@" && sanitized_unit && lab "$@" && vm "$@"; }

case $TIER in
  all) core "$@" && nightly "$@" ;;
  *) "$TIER" "$@" ;;
esac
