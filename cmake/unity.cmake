# A unity build: several sources of a library are compiled as one, so the compiler reads their headers
# and instantiates their templates once. That halves the release build. -DFABRIC_UNITY=OFF compiles
# each source alone, which is quicker after a small change. clang-tidy reads each source alone
# (lab/lint.sh): it finds a source that lacks an include. CMake leaves a source with compile options
# of its own out of the batches.
option(FABRIC_UNITY "Compile the sources of a library in batches" ON)
set(FABRIC_UNITY_BATCH 8)

# fabric_unity(TARGET...): no two sources of a target may use one name in an anonymous namespace.
function(fabric_unity)
  if(FABRIC_UNITY)
    set_target_properties(${ARGN} PROPERTIES
      UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${FABRIC_UNITY_BATCH})
  endif()
endfunction()
