# What `cmake --install` lays down, and find_package(Accelerate) finds.

include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Accelerate")
# What is not said otherwise belongs to the package of headers (package.cmake).
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME headers)

# The headers that programs include, as the examples do and as migration_names.md says, and those that these need.
file(GLOB schedulers RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS
  accelerate/optim/*.h accelerate/optim/schedulers/*.h)
set(installed_libraries accelerate accelerate_simulator_library accelerate_simulator accelerate_launch_settings)
set(tracker_headers "")
if(with_trackers)
  list(APPEND installed_libraries accelerate_trackers_library accelerate_trackers)
  file(GLOB tracker_headers RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS
    trackers/*/*_tracker.h)
endif()
file(GLOB_RECURSE example_sources RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS accelerate/examples/*.cc)
accelerate_reach(public_headers HEADERS
  accelerate/accelerate.h accelerate/megatron_lm.h accelerate/process/launchers.h simulator/cluster/cluster.h
  accelerate/big_model/infer_device_map.h accelerate/comm/watch/watched_backend.h accelerate/config/model_config.h
  accelerate/device_map/infer.h
  accelerate/precision/fp8_model.h accelerate/runtime/host.h accelerate/values/byte_sizes.h
  simulator/report/report.h ${schedulers} ${tracker_headers} ${example_sources})
list(FILTER public_headers EXCLUDE REGEX "^accelerate/examples/")
foreach(header IN LISTS public_headers)
  get_filename_component(folder "${header}" DIRECTORY)
  install(FILES "${header}" DESTINATION "${accelerate_include_dir}/${folder}")
endforeach()
# It includes none of the others.
install(FILES launch/settings/basic_config.h DESTINATION "${accelerate_include_dir}/launch/settings")

install(TARGETS ${installed_libraries} EXPORT AccelerateTargets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library NAMELINK_COMPONENT headers)
install(EXPORT AccelerateTargets NAMESPACE Accelerate:: DESTINATION "${package_dir}")

set(accelerate_torch_abi 1)
if(TORCH_CXX_FLAGS MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
  set(accelerate_torch_abi 0)
endif()
# A tree that is to be moved to another machine names no folder of this one.
set(accelerate_built_torch_dir "")
if(NOT ACCELERATE_TORCH_RPATH)
  set(accelerate_built_torch_dir "${Torch_DIR}")
endif()
configure_package_config_file(tools/cmake/AccelerateConfig.cmake.in
  "${PROJECT_BINARY_DIR}/AccelerateConfig.cmake" INSTALL_DESTINATION "${package_dir}"
  PATH_VARS CMAKE_INSTALL_BINDIR)
# What compiles against one version may not against the next.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/AccelerateConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/AccelerateConfig.cmake"
  "${PROJECT_BINARY_DIR}/AccelerateConfigVersion.cmake" tools/cmake/find_torch.cmake tools/cmake/perf_test.cmake
  DESTINATION "${package_dir}")
install(FILES tools/cmake/cpu_part/Caffe2Config.cmake DESTINATION "${package_dir}/cpu_part")

# For those who look at a release before anything of it is loaded (ci/release.sh, tools/release).
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/release.json" @ONLY CONTENT
"{\"version\": \"@PROJECT_VERSION@\", \"libtorch\": \"@Torch_VERSION@\", \"cxx11_abi\": @accelerate_torch_abi@}\n")
install(FILES "${PROJECT_BINARY_DIR}/release.json" DESTINATION "${CMAKE_INSTALL_DATADIR}/accelerate-cpp" COMPONENT library)

set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME tools)
install(TARGETS ${accelerate_programs} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
# Two programs to simulate from the first minute on, with their data, where the examples are built: a wheel has them.
if(ACCELERATE_EXAMPLES)
  install(TARGETS digits lm RUNTIME DESTINATION examples)
  install(FILES accelerate/examples/digits/digits.safetensors accelerate/examples/lm/kjv.txt DESTINATION examples)
endif()
# The commands under HF Accelerate's names, as links to the one program. It knows them by the name that it
# is called by; launch/commands/commands.cc has their list.
file(STRINGS launch/commands/commands.cc lines REGEX "\"accelerate-[a-z-]+\"")
string(REGEX MATCHALL "accelerate-[a-z]+(-[a-z]+)*" links "${lines}")
foreach(link IN LISTS links)
  file(CREATE_LINK accelerate "${PROJECT_BINARY_DIR}/${link}" SYMBOLIC)
  install(FILES "${PROJECT_BINARY_DIR}/${link}" DESTINATION "${CMAKE_INSTALL_BINDIR}")
endforeach()

# Pages for man(1) and completion scripts: the program writes them, so that they are those of its options.
set(shell_files "${PROJECT_BINARY_DIR}/shell_files")
set(completions "${shell_files}/accelerate.bash" "${shell_files}/accelerate.zsh" "${shell_files}/accelerate.fish")
add_custom_command(OUTPUT "${shell_files}/man1/accelerate.1" ${completions}
  COMMAND accelerate_launcher man --output_dir "${shell_files}/man1"
  COMMAND accelerate_launcher completion bash > "${shell_files}/accelerate.bash"
  COMMAND accelerate_launcher completion zsh > "${shell_files}/accelerate.zsh"
  COMMAND accelerate_launcher completion fish > "${shell_files}/accelerate.fish"
  VERBATIM)
add_custom_target(accelerate_shell_files ALL DEPENDS "${shell_files}/man1/accelerate.1" ${completions})
# All that is installed, where not all examples are built as well (ci/release.sh); Abseil, if it is built here, is the
# folder's target abseil/all.
add_custom_target(accelerate_release)
add_dependencies(accelerate_release ${installed_libraries} ${accelerate_programs} accelerate_shell_files)
if(ACCELERATE_EXAMPLES)
  add_dependencies(accelerate_release digits lm)
endif()
install(DIRECTORY "${shell_files}/man1/" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" FILES_MATCHING PATTERN "*.1")
# bash loads a completion by the name of its command.
install(FILES "${shell_files}/accelerate.bash" RENAME accelerate
  DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
install(FILES "${shell_files}/accelerate.zsh" RENAME _accelerate
  DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions")
install(FILES "${shell_files}/accelerate.fish"
  DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d")

# The pages in the folders that they have here, so that their links lead to each other; the examples that they tell of.
set(documents "${CMAKE_INSTALL_DATADIR}/doc/accelerate-cpp")
file(GLOB_RECURSE pages RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS
  accelerate/*.md accelerate/docs/images/*.png ci/*.md integration_tests/*.md launch/*.md simulator/*.md trackers/*.md)
file(GLOB top RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS *.md LICENSE NOTICE)
foreach(page IN LISTS pages top)
  get_filename_component(folder "${page}" DIRECTORY)
  install(FILES "${page}" DESTINATION "${documents}/${folder}")
endforeach()
install(DIRECTORY accelerate/examples DESTINATION "${documents}/accelerate" PATTERN BUILD EXCLUDE)

set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME headers)
# pkg-config, for those who call the compiler themselves: a file for each of the libraries above.
# accelerate_pkg_config(NAME DESCRIPTION REQUIRES CFLAGS LIBS)
function(accelerate_pkg_config name description requires cflags libs)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/${name}.pc.in" @ONLY CONTENT
"prefix=\${pcfiledir}/@to_prefix@
libdir=\${prefix}/@CMAKE_INSTALL_LIBDIR@
includedir=\${prefix}/@accelerate_include_dir@

Name: @name@
Description: @description@
Version: @PROJECT_VERSION@
Requires: @requires@
Cflags: @cflags@
Libs: @libs@
")
  # LibTorch's folder is known when all targets are.
  file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/${name}.pc" INPUT "${PROJECT_BINARY_DIR}/${name}.pc.in")
  install(FILES "${PROJECT_BINARY_DIR}/${name}.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endfunction()

file(RELATIVE_PATH to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" to_prefix "${to_prefix}")
set(cflags -std=c++20 "-I\${includedir}" ${torch_flags})
foreach(folder IN LISTS TORCH_INCLUDE_DIRS)
  get_filename_component(folder "${folder}" ABSOLUTE)
  # g++ does not find its own headers behind a second -isystem of one of its folders.
  if(NOT folder IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
    list(APPEND cflags "-isystem" "${folder}")
  endif()
endforeach()
list(JOIN cflags " " cflags)
# As Accelerate::accelerate has them: the C++ library first.
set(torch_libs "")
set(torch_targets torch torch_cpu torch_cuda c10 c10_cuda)
if(ACCELERATE_TORCH_PART STREQUAL cpu)
  set(torch_targets torch_cpu c10)
endif()
foreach(target IN LISTS torch_targets)
  if(TARGET ${target})
    list(APPEND torch_libs "-l${target}")
  endif()
endforeach()
set(torch_folder "$<TARGET_FILE_DIR:torch_cpu>")
if(ACCELERATE_TORCH_RPATH)
  string(REPLACE "$ORIGIN" "\${libdir}" torch_folder "${ACCELERATE_TORCH_RPATH}")
  string(REPLACE "${TORCH_INSTALL_PREFIX}" "${torch_folder}/.." cflags "${cflags}")
endif()
set(in_system "$<IN_LIST:${torch_folder},${CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES}>")
list(JOIN torch_libs " " torch_libs)
set(libs "-Wl,--push-state,--no-as-needed,-lstdc++,--pop-state -L\${libdir} -Wl,-rpath,\${libdir} -laccelerate")
string(APPEND libs "$<$<NOT:${in_system}>: -L${torch_folder} -Wl$<COMMA>-rpath$<COMMA>${torch_folder}> ${torch_libs}")
if(TARGET abseil_dll)
  string(APPEND libs " -labseil_dll")
  set(requires "")
else()
  list(TRANSFORM accelerate_absl REPLACE "^absl::" "absl_" OUTPUT_VARIABLE requires)
  list(JOIN requires " " requires)
endif()
accelerate_pkg_config(accelerate "Distributed training on LibTorch" "${requires}" "${cflags}" "${libs}")
set(libraries simulator)
if(with_trackers)
  list(APPEND libraries trackers)
endif()
foreach(library IN LISTS libraries)
  accelerate_pkg_config(accelerate-${library} "The ${library} of accelerate" "accelerate = ${PROJECT_VERSION}" ""
    "-L\${libdir} -Wl,--push-state,--no-as-needed,-laccelerate_${library},--pop-state")
endforeach()
