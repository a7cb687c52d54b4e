# What nearly every file includes, compiled once. With the sanitizers only, where it saves a third of
# the build: in the release build a file that forgot one of its includes shall fail.
set(FABRIC_COMMON_HEADERS
  <algorithm> <array> <atomic> <cerrno> <cstddef> <cstdint> <cstring> <functional> <map> <memory>
  <optional> <span> <string> <utility> <vector>)

# fabric_precompiled_set(NAME [HEADERS HEADER...] [OPTIONS OPTION...]): those and further headers, for
# all targets that are compiled with these options: a compiler takes no others.
function(fabric_precompiled_set name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "HEADERS;OPTIONS")
  if(FABRIC_SANITIZE)
    set(target fabric_precompiled_${name})
    file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/precompiled_${name}.cpp CONTENT "")
    add_library(${target} OBJECT EXCLUDE_FROM_ALL
      ${CMAKE_CURRENT_BINARY_DIR}/precompiled_${name}.cpp)
    target_link_libraries(${target} PRIVATE fabric_options)
    target_compile_options(${target} PRIVATE ${arg_OPTIONS})
    target_precompile_headers(${target} PRIVATE ${FABRIC_COMMON_HEADERS} ${arg_HEADERS})
  endif()
endfunction()

# fabric_precompiled(TARGET SET): for a library.
function(fabric_precompiled target name)
  if(FABRIC_SANITIZE)
    target_precompile_headers(${target} REUSE_FROM fabric_precompiled_${name})
  endif()
endfunction()

fabric_precompiled_set(plain)
fabric_precompiled_set(json HEADERS <nlohmann/json.hpp>)
fabric_precompiled_set(hidden OPTIONS -fvisibility=hidden)
fabric_precompiled_set(hidden_inlines OPTIONS -fvisibility=hidden -fvisibility-inlines-hidden)

# fabric_precompiled_tests(): one set for all tests that are not OPTIMIZED, used by fabric_test.
function(fabric_precompiled_tests)
  if(FABRIC_SANITIZE)
    file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/precompiled_tests.cpp CONTENT "")
    add_executable(fabric_precompiled_tests EXCLUDE_FROM_ALL # as the tests: -fPIE
      ${CMAKE_CURRENT_BINARY_DIR}/precompiled_tests.cpp)
    target_link_libraries(fabric_precompiled_tests PRIVATE fabric_doctest fabric_options)
    target_compile_options(fabric_precompiled_tests PRIVATE -O0)
    target_precompile_headers(fabric_precompiled_tests PRIVATE
      ${FABRIC_COMMON_HEADERS} <doctest/doctest.h>)
  endif()
endfunction()

# fabric_release_only(TARGET...): what tests and benches use of the release build alone.
function(fabric_release_only)
  if(FABRIC_SANITIZE)
    set_target_properties(${ARGN} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()
