# The `./run test` tiers; sourced by bootstrap.sh with its functions in scope.
TIER=core
case ${1:-} in unit|lab|vm|all|nightly) TIER=$1; shift ;; esac

unit() {
  ensure_native release
  ctest --test-dir build/release --output-on-failure -j2 || return
  python -m pytest tests/unit "$@"
}

# The lab tier runs on the sanitized build: each fault is also a memory and UB check.
lab() {
  need_root test
  ensure_native asan
  ASAN_OPTIONS=detect_leaks=1:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
    FABRIC_BUILD=${FABRIC_BUILD:-asan} python -m pytest tests/lab -m 'not nightly' "$@"
}

vm() {
  need_root test
  ensure_apt vm
  ensure_native release
  FABRIC_BUILD=release python -m pytest tests/vm -m 'not nightly' "$@"
}

nightly() {
  need_root test
  ensure_apt vm
  ensure_native release
  ensure_native tsan
  python -m pytest tests -m nightly "$@"
}

case $TIER in
  core) unit "$@" && lab "$@" && vm "$@" ;;
  all) unit "$@" && lab "$@" && vm "$@" && nightly "$@" ;;
  *) $TIER "$@" ;;
esac
