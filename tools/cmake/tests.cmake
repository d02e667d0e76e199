# The tests of the folders that use LibTorch's inner parts, so that a release of it, or a compiler, can be tried without
# Bazel (ci/newest_torch.sh). One program each, which ctest runs; GoogleTest is the system's.

find_package(GTest REQUIRED)
enable_testing()

file(GLOB helper_sources CONFIGURE_DEPENDS accelerate/testing/*.cc simulator/testing/topology_suite.cc)
add_library(accelerate_testing STATIC EXCLUDE_FROM_ALL ${helper_sources})
target_link_libraries(accelerate_testing PUBLIC
  Accelerate::accelerate Accelerate::simulator accelerate_backends GTest::gtest_main GTest::gmock)
target_precompile_headers(accelerate_testing PRIVATE ${precompiled_headers})

set(test_programs accelerate_testing)
foreach(folder accelerate/tensors accelerate/runtime accelerate/operators accelerate/comm
    accelerate/comm/backends accelerate/comm/watch accelerate/optim accelerate/parallel
    accelerate/parallel/residency accelerate/precision accelerate/hooks accelerate/step
    simulator/device simulator/c10d simulator/cluster)
  file(GLOB sources RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS ${folder}/*_test.cc)
  foreach(source IN LISTS sources)
    string(REGEX REPLACE "\\.cc$" "" test "${source}")
    string(REPLACE "/" "." program "${test}")
    add_executable(${program} ${source})
    target_link_libraries(${program} PRIVATE accelerate_testing)
    if(precompiled_headers)
      target_precompile_headers(${program} REUSE_FROM accelerate_testing)
    endif()
    add_test(NAME ${test} COMMAND ${program})
    set_tests_properties(${test} PROPERTIES TIMEOUT 300)
    list(APPEND test_programs ${program})
  endforeach()
endforeach()

# As with Bazel: the compiler reads a test more often than anybody runs it. All read the headers precompiled once, so
# all are compiled alike.
foreach(program IN LISTS test_programs)
  target_compile_options(${program} PRIVATE ${accelerate_copts} -O0 -U_FORTIFY_SOURCE -fPIC)
  set_target_properties(${program} PROPERTIES POSITION_INDEPENDENT_CODE OFF
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
endforeach()
add_custom_target(accelerate_all_tests DEPENDS ${test_programs})
