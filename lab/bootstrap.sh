# Sourced by nobody, executed by ./run: apt packages, the virtual environment, the native build.
# Every step leaves a stamp named by the hash of its inputs, so a second start skips it.
set -euo pipefail

BUILD=build
VENV=.venv
STAMPS=$BUILD/stamps
usage() {
  cat <<'EOF'
usage: ./run COMMAND [ARGS]

  demo [--no-failover]          4 hosts x 4 rails, a ring all-reduce, five faults, live view
  demo rdma                     the same story over RDMA, in a virtual machine with soft-RoCE
  test [unit|native|threads|booted|lab|vm|all|nightly] [PATH...] [PYTEST ARGS]
                                no word: unit + native + booted + lab + vm
  lab up|down|status|fault|...  a cluster of network namespaces (./run lab --help)
  lab vm up|ssh|fault|down|...  an RDMA cluster in virtual machines (./run lab vm --help)
  bench NAME [--quick]          one table, and bench/results/NAME.json
  lint                          ruff, mypy --strict, clang-format, clang-tidy
  build [release|asan|tsan] [FILE...]   the native parts, or these files of a build, alone
  package [DIRECTORY]           what a host is installed from: wheels, their hashes, a bill (SBOM)
  lock [--upgrade]              requirements/*.txt anew, after a change of dependencies
  shell                         a shell with the virtual environment and the build in PATH

As root; `sudo ./run …` where there is a sudo.  example: ./run demo
EOF
}

say() { printf '\033[2m[run] %s\033[0m\n' "$*" >&2; }
digest() { cat "$@" 2>/dev/null | sha256sum | cut -c1-16; }

need_root() {
  if [ "$(id -u)" != 0 ]; then
    echo "./run $1 needs root (network namespaces, apt); where there is a sudo: sudo ./run $1" >&2
    exit 2
  fi
}

# Once for each run.
apt_update() {
  [ -n "${APT_UPDATED:-}" ] || apt-get update -q || return
  APT_UPDATED=1
}

# $1: a name under lab/packages/; installs the Debian packages listed there.
ensure_apt() {
  local list=lab/packages/$1.txt stamp
  stamp=$STAMPS/apt-$1-$(digest "$list")
  [ -e "$stamp" ] && return
  local want missing=()
  mapfile -t want < <(grep -v '^#' "$list" | awk 'NF {print $1}')
  for p in "${want[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    need_root "${COMMAND:-test}"
    say "apt: ${missing[*]}"
    mkdir -p $BUILD/log
    export DEBIAN_FRONTEND=noninteractive
    local log=$BUILD/log/apt-$1.log
    if ! { apt_update && apt-get install -q -y --no-install-recommends "${missing[@]}"; } \
        >"$log" 2>&1; then
      tail -n 20 "$log" >&2
      echo "apt failed; the whole log is $log" >&2
      exit 1
    fi
  fi
  mkdir -p "$STAMPS"
  : >"$stamp"
}

# $1: a name under lab/packages/. Their programs alone, in build/unpacked. Installed, they would be
# services of this machine: chrony in place of what keeps its time, Prometheus on all addresses.
ensure_unpacked() {
  local list=lab/packages/$1.txt stamp log=$BUILD/log/unpack-$1.log
  stamp=$STAMPS/unpacked-$1-$(digest "$list")
  [ -e "$stamp" ] && return
  say "unpacking: $(grep -v '^#' "$list" | awk 'NF {print $1}' | xargs)"
  mkdir -p $BUILD/log "$STAMPS" "$BUILD/unpacked/$1.debs"
  if ! {
    # Within a condition `set -e` does nothing.
    apt_update && (
      cd "$BUILD/unpacked/$1.debs" && rm -f ./*.deb &&
        grep -v '^#' "../../../$list" | awk 'NF {print $1}' | xargs apt-get download -q || exit 1
      for package in ./*.deb; do dpkg -x "$package" .. || exit 1; done
    ) && rm -r "$BUILD/unpacked/$1.debs"
  } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "apt failed; the whole log is $log" >&2
    exit 1
  fi
  : >"$stamp"
}

# $1: a virtual environment; further words: pip's.
pip_in() {
  "$1/bin/python" -m pip install -q --disable-pip-version-check "${@:2}" >>$BUILD/log/pip.log 2>&1
}

# $1: a virtual environment; further words: files of requirements/. pip takes nothing whose hash is
# not in them, and wheels alone.
install_locked() {
  local lock files=()
  for lock in "${@:2}"; do files+=(-r "requirements/$lock.txt"); done
  pip_in "$1" --require-hashes "${files[@]}"
}

# PyTorch alone, for it comes as one of two: the CPU build, which few indexes have, or PyPI's.
install_torch() {
  install_locked $VENV torch-cpu && return
  say "no CPU build of PyTorch here: PyPI's, with 3 GB of GPU libraries"
  install_locked $VENV torch
}

pip_failed() {
  tail -n 20 $BUILD/log/pip.log >&2
  echo "pip failed; the whole log is $BUILD/log/pip.log" >&2
  exit 1
}

ensure_venv() {
  local stamp
  # The editable install keeps a list of modules: one that becomes a package is not found by it.
  stamp=$STAMPS/venv-$(digest pyproject.toml requirements/*.txt \
    <(printf '%s\n' ./*/__init__.py ./*/*/__init__.py))
  [ -e "$stamp" ] && [ -x $VENV/bin/python ] && return
  say "virtual environment (Debian's python3, so that python3-pyverbs is importable)"
  mkdir -p $BUILD/log "$STAMPS"
  [ -x $VENV/bin/python ] || /usr/bin/python3 -m venv --system-site-packages $VENV
  : >$BUILD/log/pip.log
  install_locked $VENV development || pip_failed
  install_torch || pip_failed
  # The project alone: what it needs, and is built with, is there by now. cmake off: the native build
  # is ensure_native's, one for each sanitizer.
  pip_in $VENV --no-deps --no-build-isolation --config-settings=wheel.cmake=false -e . || pip_failed
  rm -f "$STAMPS"/venv-*
  : >"$stamp"
}

# $1: a file of requirements/, which gets an environment of its own, build/$1.
ensure_tools() {
  local stamp
  stamp=$STAMPS/$1-$(digest "requirements/$1.txt")
  [ -e "$stamp" ] && [ -x "$BUILD/$1/bin/python" ] && return
  mkdir -p $BUILD/log "$STAMPS"
  /usr/bin/python3 -m venv --clear "$BUILD/$1"
  : >$BUILD/log/pip.log
  install_locked "$BUILD/$1" "$1" || pip_failed
  rm -f "$STAMPS/$1"-*
  : >"$stamp"
}

# $1: release, asan or tsan; further words: targets, else all. ninja decides what is stale, one of
# them in a build at a time.
ensure_native() {
  local flavour=$1 dir=$BUILD/$1 options=() log=$BUILD/log/build-$1.log lock
  shift
  case $flavour in
    release) ;;
    asan) options=(-DFABRIC_SANITIZE=address,undefined) ;;
    tsan) options=(-DFABRIC_SANITIZE=thread) ;;
    *) echo "unknown build '$flavour': release, asan or tsan" >&2; exit 2 ;;
  esac
  mkdir -p $BUILD/log
  exec {lock}>"$BUILD/$flavour.lock"
  flock "$lock"
  if [ ! -e "$dir/build.ninja" ]; then
    say "configuring $flavour"
    cmake -S . -B "$dir" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DFABRIC_CCACHE=ON \
      "${options[@]}" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
  fi
  if ! ninja -C "$dir" -n "$@" 2>/dev/null | grep -q 'no work to do'; then
    say "building $flavour"
    ninja -C "$dir" "$@" >"$log" 2>&1 {lock}>&- || { tail -n 60 "$log" >&2; exit 1; }
  fi
  exec {lock}>&-
}

# One cache beside the builds, for all of them, whatever their directory. The compiler says what a
# file includes (depend mode): to preprocess each one first would be a seventh of a build.
export CCACHE_DIR=$PWD/$BUILD/ccache CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
export CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_BASEDIR=$PWD
# Without it each daemon of a lab would compile its sources anew: half of the time to its start.
unset PYTHONDONTWRITEBYTECODE

COMMAND=${1:-}
[ $# -gt 0 ] && shift
case $COMMAND in
  ''|-h|--help|help) usage; [ -n "$COMMAND" ]; exit ;;
  demo|lab|bench|shell|test|lint|build|lock|package) ;;
  *) echo "unknown command '$COMMAND'" >&2; usage >&2; exit 2 ;;
esac

# Whether the command needs the whole release build. Selected unit tests build what they need
# (tests/unit/conftest.py).
needs_release() {
  case $COMMAND in
    build | lint) false ;;
    test) [ "${1:-}" != unit ] || [ $# = 1 ] ;;
  esac
}

# Further words: those of `build`.
build() {
  local flavours=() files=() word
  for word in "$@"; do
    case $word in
      release | asan | tsan) flavours+=("$word") ;;
      -*) echo "unknown option '$word'" >&2; exit 2 ;;
      *) files+=("$word") ;;
    esac
  done
  for word in "${flavours[@]:-release}"; do ensure_native "$word" "${files[@]}"; done
}

# Neither needs the rest: the first one works where a lock cannot be installed.
case $COMMAND in
  lock | package)
    ensure_apt package
    ensure_tools "$COMMAND"
    ;;&
  lock) PATH="$PWD/$BUILD/lock/bin:$PATH" exec $BUILD/lock/bin/python -m lab.supply.locking "$@" ;;
  package) exec $BUILD/package/bin/python -m lab.supply.wheelhouse "$@" ;;
esac

ensure_apt base
# None needs another, and two wait for the network.
if needs_release "$@"; then ensure_native release & native=$!; else native=; fi
ensure_unpacked unpacked
ensure_venv
[ -z "$native" ] || wait "$native"
PATH="$PWD/$VENV/bin:$PATH:$PWD/$BUILD/unpacked/usr/bin:$PWD/$BUILD/unpacked/usr/sbin"
export PATH VIRTUAL_ENV="$PWD/$VENV" FABRIC_REPO="$PWD" PYTHONUNBUFFERED=1
case $COMMAND in
  build) build "$@" ;;
  lint) ensure_apt dev; exec bash lab/lint.sh "$@" ;;
  shell) ensure_native release; exec "${SHELL:-bash}" "$@" ;;
  demo)
    need_root demo
    [ "${1:-}" != rdma ] || ensure_apt vm
    ensure_native release
    exec python -m lab.demo "$@" ;;
  lab)
    need_root lab
    [ "${1:-}" != vm ] || ensure_apt vm
    ensure_native release
    exec python -m lab "$@" ;;
  bench)
    need_root bench
    ensure_apt bench
    [ "${1:-}" != verbs ] || ensure_apt vm
    ensure_native release
    exec python -m bench "$@" ;;
  test)
    # shellcheck source=lab/test.sh
    source lab/test.sh ;;
esac
