# For every C++ test. Included from the root, before the parts.
find_package(doctest REQUIRED)

# doctest's own code and main(), compiled once: it takes longer than most tests do.
add_library(fabric_doctest OBJECT EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/doctest_main.cpp)
target_link_libraries(fabric_doctest PUBLIC doctest::doctest PRIVATE fabric_options)
target_compile_options(fabric_doctest PRIVATE -O0)
target_compile_definitions(fabric_doctest PUBLIC DOCTEST_CONFIG_SUPER_FAST_ASSERTS)
target_include_directories(fabric_doctest PUBLIC ${CMAKE_CURRENT_LIST_DIR}/testing)

fabric_precompiled_tests()

# What the tests of a build need.
add_custom_target(fabric_checks)

# fabric_test(NAME SOURCE... [OPTIMIZED] [COST SECONDS] [BUILDS BUILD...]): an executable, and a test
# of that name in these builds; by default asan: what goes wrong without the sanitizers does so with
# them. Hundreds of asserts a function: optimizing them takes minutes, so only what computes a lot is
# OPTIMIZED. Without a COST a test begins after those that have one. A test has the label `clock`
# if its sources read a clock or wait: `./run test booted` runs these tests.
set(FABRIC_CLOCK_WORDS
  "steady_clock::now|system_clock::now|clock_gettime|monotonic_ns|sleep_for|[^A-Za-z]::poll\\(|std::j?thread")
function(fabric_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg OPTIMIZED COST BUILDS)
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE fabric_doctest fabric_options)
  if(NOT arg_OPTIMIZED)
    target_compile_options(${name} PRIVATE -O0)
    if(TARGET fabric_precompiled_tests)
      target_precompile_headers(${name} REUSE_FROM fabric_precompiled_tests)
    endif()
  endif()
  if(NOT arg_BUILDS)
    set(arg_BUILDS asan)
  endif()
  if(NOT FABRIC_BUILD IN_LIST arg_BUILDS)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    return()
  endif()
  add_dependencies(fabric_checks ${name})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 COST "${arg_COST}")
  foreach(source IN LISTS arg_UNPARSED_ARGUMENTS)
    if(IS_ABSOLUTE ${source})
      continue() # made by the build
    endif()
    file(STRINGS ${source} words REGEX "${FABRIC_CLOCK_WORDS}" LIMIT_COUNT 1)
    if(words)
      set_property(TEST ${name} APPEND PROPERTY LABELS clock)
      break()
    endif()
  endforeach()
endfunction()
