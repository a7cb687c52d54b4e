# What the wheel ships besides Python: programs into bin/, the plugin and the collectives into lib/, units into share/
# of the environment that it is installed into. Included last, with FABRIC_WHEEL=ON.

set(wheel_programs fabric-prober fabric-perf)
set(wheel_libraries nccl-net-fabric fabric-collectives)

# Tests, fuzzers and layout dumps are nobody's business at the place of installation: not even built.
function(fabric_exclude_others directory)
  get_property(targets DIRECTORY ${directory} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(type MATCHES "EXECUTABLE|SHARED_LIBRARY|MODULE_LIBRARY"
       AND NOT target IN_LIST wheel_programs AND NOT target IN_LIST wheel_libraries)
      set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
  endforeach()
  get_property(children DIRECTORY ${directory} PROPERTY SUBDIRECTORIES)
  foreach(child IN LISTS children)
    fabric_exclude_others(${child})
  endforeach()
endfunction()
fabric_exclude_others(${CMAKE_CURRENT_SOURCE_DIR})

foreach(target IN LISTS wheel_programs)
  if(TARGET ${target})
    # A wheel may be built on one machine and installed on another: libc is all it may ask for.
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc)
    install(TARGETS ${target} RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR})
  endif()
endforeach()
foreach(target IN LISTS wheel_libraries)
  if(TARGET ${target})
    install(TARGETS ${target} LIBRARY DESTINATION ${SKBUILD_DATA_DIR}/lib)
  endif()
endforeach()
# RCCL looks for names of its own. A wheel holds no symbolic links: this is a library of nothing but
# the other's name, in whose symbols dlsym looks, too.
if(TARGET nccl-net-fabric)
  file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/rccl_alias.c CONTENT "typedef int nothing;\n")
  add_library(rccl-net-fabric SHARED ${CMAKE_CURRENT_BINARY_DIR}/rccl_alias.c)
  target_link_libraries(rccl-net-fabric PRIVATE nccl-net-fabric)
  target_link_options(rccl-net-fabric PRIVATE -nostdlib -Wl,--no-as-needed)
  set_target_properties(rccl-net-fabric PROPERTIES
    INSTALL_RPATH "$ORIGIN" BUILD_WITH_INSTALL_RPATH ON)
  install(TARGETS rccl-net-fabric LIBRARY DESTINATION ${SKBUILD_DATA_DIR}/lib)
endif()
install(FILES
  ${CMAKE_CURRENT_SOURCE_DIR}/clocksync/include/fabric/clock.h
  ${CMAKE_CURRENT_SOURCE_DIR}/clocksync/include/fabric/tai.h
  DESTINATION ${SKBUILD_DATA_DIR}/include/fabric)
install(DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/systemd/
  DESTINATION ${SKBUILD_DATA_DIR}/share/fabricd/systemd
  FILES_MATCHING PATTERN "*.service" PATTERN "*.socket" PATTERN "*.mount" PATTERN "*.conf" PATTERN "*.toml"
                 PATTERN "*.rules" PATTERN "*.sed")
