# ruff, mypy --strict, shellcheck, clang-format, the docs' site, clang-tidy: no warnings. --fast leaves clang-tidy out, which
# takes minutes: `./run test` does, `./run lint` and `./run test nightly` do not.
set -uo pipefail
rc=0
step() { printf '== %s\n' "$1"; shift; "$@" || rc=1; }
mapfile -t cxx < <(git ls-files --cached --others --exclude-standard 'prober/*' 'nccl_plugin/*' | grep -E '\.(cpp|cc|h|hpp|c)$')
mapfile -t units < <(printf '%s\n' "${cxx[@]}" | grep -E '\.(cpp|cc)$' | grep -v -E '/fuzz/|/tests?/')
step 'ruff check' ruff check .
step 'ruff format' ruff format --check .
step 'mypy --strict' mypy
step 'shellcheck' shellcheck bench/hw/*.sh
step 'mkdocs' env NO_MKDOCS_2_WARNING=1 mkdocs build --strict
step 'clang-format' clang-format --dry-run --Werror "${cxx[@]}"
if [ "${1:-}" != --fast ]; then
  # xargs returns 123 when one of them did not return 0.
  # More steps than clang's own limit: a large table of atomic words is initialized before the start.
  # Each source alone: one that forgot an include fails (cmake/unity.cmake).
  tidy() {
    cmake -S . -B build/tidy -G Ninja -DFABRIC_UNITY=OFF >/dev/null &&
      printf '%s\n' "${units[@]}" | xargs -P"$(nproc)" -n1 clang-tidy -p build/tidy --quiet \
      --extra-arg=-fconstexpr-steps=100000000
  }
  step 'clang-tidy' tidy
fi
[ $rc -eq 0 ] && echo 'lint: no findings'  # the last line: clang-tidy counts those of system headers
exit $rc
