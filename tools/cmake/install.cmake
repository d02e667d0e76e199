# What `cmake --install` lays down, and find_package(Accelerate) finds.

include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Accelerate")

# The headers that programs include, and those that these need.
file(GLOB schedulers RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS
  accelerate/optim/*.h accelerate/optim/schedulers/*.h)
set(installed_libraries accelerate accelerate_simulator simulator accelerate_launch_settings)
set(tracker_headers "")
if(with_trackers)
  list(APPEND installed_libraries accelerate_trackers trackers)
  file(GLOB tracker_headers RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS
    trackers/*/*_tracker.h)
endif()
accelerate_reach(public_headers HEADERS
  accelerate/accelerate.h accelerate/process/launchers.h simulator/cluster/cluster.h
  simulator/report/report.h ${schedulers} ${tracker_headers})
foreach(header IN LISTS public_headers)
  get_filename_component(folder "${header}" DIRECTORY)
  install(FILES "${header}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/${folder}")
endforeach()
# It includes none of the others.
install(FILES launch/settings/basic_config.h
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/launch/settings")

install(TARGETS ${installed_libraries} EXPORT AccelerateTargets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT AccelerateTargets NAMESPACE Accelerate:: DESTINATION "${package_dir}")

configure_package_config_file(tools/cmake/AccelerateConfig.cmake.in
  "${CMAKE_BINARY_DIR}/AccelerateConfig.cmake" INSTALL_DESTINATION "${package_dir}"
  PATH_VARS CMAKE_INSTALL_BINDIR)
# What compiles against one version may not against the next.
write_basic_package_version_file("${CMAKE_BINARY_DIR}/AccelerateConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/AccelerateConfig.cmake"
  "${CMAKE_BINARY_DIR}/AccelerateConfigVersion.cmake" tools/cmake/find_torch.cmake
  DESTINATION "${package_dir}")
install(FILES tools/cmake/cpu_part/Caffe2Config.cmake DESTINATION "${package_dir}/cpu_part")

install(TARGETS ${accelerate_programs} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
# The commands under HF Accelerate's names, as links to the one program. It knows them by the name that it
# is called by; launch/commands/commands.cc has their list.
file(STRINGS launch/commands/commands.cc lines REGEX "\"accelerate-[a-z-]+\"")
string(REGEX MATCHALL "accelerate-[a-z]+(-[a-z]+)*" links "${lines}")
foreach(link IN LISTS links)
  file(CREATE_LINK accelerate "${CMAKE_BINARY_DIR}/${link}" SYMBOLIC)
  install(FILES "${CMAKE_BINARY_DIR}/${link}" DESTINATION "${CMAKE_INSTALL_BINDIR}")
endforeach()

# Pages for man(1) and completion scripts: the program writes them, so that they are those of its options.
set(shell_files "${CMAKE_BINARY_DIR}/shell_files")
set(completions "${shell_files}/accelerate.bash" "${shell_files}/accelerate.zsh" "${shell_files}/accelerate.fish")
add_custom_command(OUTPUT "${shell_files}/man1/accelerate.1" ${completions}
  COMMAND accelerate_program man --output_dir "${shell_files}/man1"
  COMMAND accelerate_program completion bash > "${shell_files}/accelerate.bash"
  COMMAND accelerate_program completion zsh > "${shell_files}/accelerate.zsh"
  COMMAND accelerate_program completion fish > "${shell_files}/accelerate.fish"
  VERBATIM)
add_custom_target(accelerate_shell_files ALL DEPENDS "${shell_files}/man1/accelerate.1" ${completions})
install(DIRECTORY "${shell_files}/man1/" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" FILES_MATCHING PATTERN "*.1")
# bash loads a completion by the name of its command.
install(FILES "${shell_files}/accelerate.bash" RENAME accelerate
  DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
install(FILES "${shell_files}/accelerate.zsh" RENAME _accelerate
  DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions")
install(FILES "${shell_files}/accelerate.fish"
  DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d")
