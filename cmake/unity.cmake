# Several sources of a library compiled as one: what they include and instantiate, they do once. That
# is a third of a build. Who changes C++ all day configures with -DFABRIC_UNITY=OFF: then one source
# is compiled for one change. clang-tidy reads each source alone (lab/lint.sh), so one that forgot an
# include is found there. A source with compile options of its own is compiled alone in any case.
option(FABRIC_UNITY "Compile the sources of a library in batches" ON)
set(FABRIC_UNITY_BATCH 8)

# fabric_unity(TARGET...): these have no two equal names in anonymous namespaces.
function(fabric_unity)
  if(FABRIC_UNITY)
    set_target_properties(${ARGN} PROPERTIES
      UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${FABRIC_UNITY_BATCH})
  endif()
endfunction()
