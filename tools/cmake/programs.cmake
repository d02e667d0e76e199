# The launcher, which does without LibTorch so that it starts at once, and the examples.

accelerate_sources(launch_sources launch)
accelerate_reach(launch_reach SOURCES ${launch_sources} launch/main.cc)
list(FILTER launch_reach INCLUDE REGEX "\\.cc$")
list(REMOVE_ITEM launch_reach launch/main.cc)

if(built_launch)
  add_library(accelerate_launch INTERFACE)
  target_link_libraries(accelerate_launch INTERFACE -Wl,--start-group ${built_launch} -Wl,--end-group)
else()
  add_library(accelerate_launch STATIC ${launch_reach} "${PROJECT_BINARY_DIR}/kernel_table_texts.cc"
    "${PROJECT_BINARY_DIR}/compile_regions_text.cc")
  add_dependencies(accelerate_launch accelerate_kernel_table_texts accelerate_compile_regions_text)
  target_compile_options(accelerate_launch PRIVATE ${accelerate_copts})
  target_include_directories(accelerate_launch PRIVATE "${PROJECT_SOURCE_DIR}")
endif()
target_link_libraries(accelerate_launch INTERFACE
  accelerate_yaml accelerate_json accelerate_cli11 ${accelerate_absl} ${CMAKE_DL_LIBS})
if(NOT built_launch)
  target_link_libraries(accelerate_launch PRIVATE
    accelerate_yaml accelerate_json accelerate_cli11 ${accelerate_absl})
endif()

# What programs use of the launcher, as //launch/settings: a library that shows nothing else of its parts.
add_library(accelerate_launch_settings SHARED launch/settings/basic_config.cc)
target_compile_options(accelerate_launch_settings PRIVATE ${accelerate_copts})
target_compile_features(accelerate_launch_settings PUBLIC cxx_std_20)
target_include_directories(accelerate_launch_settings PUBLIC
  "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>" "$<INSTALL_INTERFACE:${accelerate_include_dir}>")
target_link_libraries(accelerate_launch_settings PRIVATE accelerate_launch)
target_link_options(accelerate_launch_settings PRIVATE -Wl,--exclude-libs,ALL)
set_target_properties(accelerate_launch_settings PROPERTIES EXPORT_NAME launch_settings
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION})
add_library(Accelerate::launch_settings ALIAS accelerate_launch_settings)

# accelerate_built(OUT SOURCE...): the sources of a program, or what Bazel made of them.
function(accelerate_built out)
  set(found "")
  foreach(source IN LISTS ARGN)
    if(DEFINED "built_main_${source}")
      set(source "${built_main_${source}}")
    endif()
    list(APPEND found "${source}")
  endforeach()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# accelerate_program(TARGET NAME MAIN LIBRARIES...): a program of the source MAIN, or of what Bazel made of it.
function(accelerate_program target name main)
  accelerate_built(main "${main}")
  add_executable(${target} ${main})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_options(${target} PRIVATE ${accelerate_copts})
  target_link_libraries(${target} PRIVATE ${ARGN})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} LINKER_LANGUAGE CXX
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
endfunction()

accelerate_program(accelerate_launcher accelerate launch/main.cc accelerate_launch)
accelerate_program(accelerate_module accelerate-module launch/module_loader/main.cc accelerate_launch)
# What `accelerate test` starts: a training program, beside the launcher.
accelerate_program(accelerate_self_test accelerate-self-test integration_tests/self_test/main.cc
  Accelerate::accelerate Accelerate::simulator)
# What `accelerate plan` starts: a language model of the examples on simulated clusters.
accelerate_program(accelerate_plan accelerate-plan accelerate/examples/lm/plan_main.cc
  Accelerate::accelerate Accelerate::simulator)
accelerate_built(plan_sources accelerate/examples/lm/layout_plan.cc
  accelerate/examples/lm/config.cc accelerate/examples/lm/model.cc)
target_sources(accelerate_plan PRIVATE ${plan_sources})
# What `accelerate simulate --from_dump` starts: a reader of dumps, whose calls a simulated cluster makes again.
accelerate_program(accelerate_dump_report accelerate-dump-report simulator/cluster/dump_report_main.cc
  Accelerate::accelerate Accelerate::simulator)
set(accelerate_programs accelerate_launcher accelerate_module accelerate_self_test accelerate_plan
  accelerate_dump_report)

if(ACCELERATE_EXAMPLES)
  # They are projects of their own, which find installed packages: here they find this one, and what it found.
  file(WRITE "${CMAKE_FIND_PACKAGE_REDIRECTS_DIR}/accelerate-config.cmake"
    "set(ACCELERATE_LAUNCHER \"${PROJECT_BINARY_DIR}/bin/accelerate\")\n")
  file(WRITE "${CMAKE_FIND_PACKAGE_REDIRECTS_DIR}/cli11-config.cmake" "")
  if(NOT TARGET CLI11::CLI11)
    add_library(CLI11::CLI11 ALIAS accelerate_cli11)
  endif()
  add_subdirectory(accelerate/examples)
endif()

if(ACCELERATE_DEVICE_TESTS)
  set(device_checks_sources
      attention_check.cc device_checks_main.cc placement_checks.cc cuda_graph_check.cc)
  list(TRANSFORM device_checks_sources PREPEND integration_tests/gpu/)
  set(loop_on_device_sources integration_tests/gpu/loop_main.cc)
  set(kernel_table_sources tools/kernel_table/main.cc tools/kernel_table/measure.cc)
  foreach(program device_checks loop_on_device kernel_table)
    add_executable(accelerate_${program} ${${program}_sources})
    target_compile_options(accelerate_${program} PRIVATE ${accelerate_copts})
    target_link_libraries(accelerate_${program} PRIVATE Accelerate::accelerate Accelerate::simulator)
    set_target_properties(accelerate_${program} PROPERTIES OUTPUT_NAME ${program})
  endforeach()
  target_link_libraries(accelerate_kernel_table PRIVATE accelerate_cli11)
endif()
