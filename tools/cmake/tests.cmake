# The tests of the folders that use LibTorch's inner parts, so that a release of it, or a compiler, can be tried without
# Bazel (ci/newest_torch.sh). One program each, which ctest runs; GoogleTest is the system's.

find_package(GTest REQUIRED)
enable_testing()

file(GLOB helper_sources CONFIGURE_DEPENDS accelerate/testing/*.cc simulator/testing/topology_suite.cc)
add_library(accelerate_testing STATIC EXCLUDE_FROM_ALL ${helper_sources})
target_link_libraries(accelerate_testing PUBLIC
  Accelerate::accelerate Accelerate::simulator accelerate_backends GTest::gtest_main GTest::gmock)
target_precompile_headers(accelerate_testing PRIVATE ${precompiled_headers})

# The tests of a contract are in the programs that say who is to keep it.
file(GLOB contract_sources CONFIGURE_DEPENDS accelerate/testing/collective_contract/*.cc)
add_library(accelerate_collective_contract OBJECT EXCLUDE_FROM_ALL ${contract_sources})
target_link_libraries(accelerate_collective_contract PUBLIC accelerate_testing)

set(test_programs accelerate_testing accelerate_collective_contract)
foreach(folder accelerate/tensors accelerate/runtime accelerate/operators accelerate/comm
    accelerate/comm/backends accelerate/comm/watch accelerate/optim accelerate/parallel
    accelerate/parallel/replicated accelerate/parallel/sharded accelerate/techniques
    accelerate/parallel/residency accelerate/precision accelerate/forward accelerate/hooks accelerate/step
    accelerate/compile
    simulator/device simulator/c10d simulator/cluster integration_tests/collectives)
  file(GLOB sources RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS ${folder}/*_test.cc)
  foreach(source IN LISTS sources)
    string(REGEX REPLACE "\\.cc$" "" test "${source}")
    string(REPLACE "/" "." program "${test}")
    add_executable(${program} ${source})
    target_link_libraries(${program} PRIVATE accelerate_testing)
    if(folder STREQUAL integration_tests/collectives)
      target_link_libraries(${program} PRIVATE accelerate_collective_contract)
    endif()
    # What Bazel gives a test: the tree to read data from, and a name.
    string(REGEX REPLACE "/([^/]*)$" ":\\1" label "//${test}")
    add_test(NAME ${test} COMMAND ${program} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    set_tests_properties(${test} PROPERTIES TIMEOUT 300 ENVIRONMENT "TEST_TARGET=${label}")
    list(APPEND test_programs ${program})
  endforeach()
endforeach()

# For ci/compile.sh, which calls it with packages of this LibTorch.
add_executable(compile_packages integration_tests/compile/packages_main.cc)
target_link_libraries(compile_packages PRIVATE accelerate_testing)
list(APPEND test_programs compile_packages)

# As with Bazel: the compiler reads a test more often than anybody runs it. All read the headers precompiled once, so
# all are compiled alike.
foreach(program IN LISTS test_programs)
  if(precompiled_headers AND NOT program STREQUAL accelerate_testing)
    target_precompile_headers(${program} REUSE_FROM accelerate_testing)
  endif()
  target_compile_options(${program} PRIVATE ${accelerate_copts} -O0 -U_FORTIFY_SOURCE -fPIC)
  set_target_properties(${program} PROPERTIES POSITION_INDEPENDENT_CODE OFF
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
endforeach()
add_custom_target(accelerate_all_tests DEPENDS ${test_programs})
