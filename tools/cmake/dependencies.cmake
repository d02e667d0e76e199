# LibTorch, and the libraries that the project stands on: the system's, or where it has none those
# of ACCELERATE_DEPENDENCIES, built here from their sources.

include(tools/cmake/find_torch.cmake)
accelerate_find_torch(REQUIRED)
# LibTorch may have been built with the older ABI of std::string; then everything is.
separate_arguments(torch_flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${torch_flags}>")

include(FetchContent)

# accelerate_unpack(OUT NAME): the folder with NAME's sources, or an error that says what to do. What is built of them is in
# what is installed, and so is their licence.
function(accelerate_unpack out name)
  file(GLOB archive "${ACCELERATE_DEPENDENCIES}/${name}.tar.*")
  if(NOT ACCELERATE_DEPENDENCIES OR NOT archive)
    message(FATAL_ERROR "${name}: not found on this machine, and ACCELERATE_DEPENDENCIES ("
      "\"${ACCELERATE_DEPENDENCIES}\") has no ${name}.tar.*. Install it, or fill that folder by "
      "ci/gpu_dependencies.sh on a machine with a network")
  endif()
  FetchContent_Declare(accelerate_${name} URL "${archive}" DOWNLOAD_EXTRACT_TIMESTAMP ON SOURCE_SUBDIR none)
  FetchContent_MakeAvailable(accelerate_${name})
  FetchContent_GetProperties(accelerate_${name} SOURCE_DIR folder)
  foreach(licence LICENSE COPYING)
    if(ACCELERATE_INSTALL AND EXISTS "${folder}/${licence}")
      install(FILES "${folder}/${licence}" RENAME "${name}"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/accelerate-cpp/licences" COMPONENT library)
    endif()
  endforeach()
  set(${out} "${folder}" PARENT_SCOPE)
endfunction()

# ---- Abseil: in the headers that users include, so it is installed with the library.
set(accelerate_absl
  absl::absl_check absl::absl_log absl::any_invocable absl::cleanup absl::core_headers absl::crc32c
  absl::flat_hash_map absl::function_ref absl::inlined_vector absl::log_entry absl::log_sink
  absl::no_destructor absl::overload absl::random_random absl::span absl::status absl::statusor
  absl::str_format absl::strings absl::symbolize absl::synchronization absl::time)
if(NOT TARGET absl::base)
  find_package(absl CONFIG QUIET)
endif()
if(NOT TARGET absl::base)
  accelerate_unpack(absl_folder abseil)
  set(ABSL_PROPAGATE_CXX_STD ON)
  set(ABSL_ENABLE_INSTALL ${ACCELERATE_INSTALL})
  set(BUILD_SHARED_LIBS ON)
  set(ABSL_BUILD_MONOLITHIC_SHARED_LIBS ON)
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
  add_subdirectory("${absl_folder}" "${PROJECT_BINARY_DIR}/abseil")
  # It has a variable FLAGS_minloglevel, and so has LibTorch's libc10 in later releases: each is to use its own.
  target_link_options(abseil_dll PRIVATE -Wl,-Bsymbolic)
  unset(BUILD_SHARED_LIBS)
endif()

# accelerate_header_only(TARGET HEADER INSTALLED THEIRS): a library that is its headers. A project around this one may
# have it already, as the target THEIRS.
function(accelerate_header_only target header installed theirs)
  add_library(${target} INTERFACE)
  if(TARGET ${theirs})
    target_link_libraries(${target} INTERFACE ${theirs})
    return()
  endif()
  find_path(${target}_INCLUDE_DIR ${header})
  if(${target}_INCLUDE_DIR)
    target_include_directories(${target} SYSTEM INTERFACE "${${target}_INCLUDE_DIR}")
    return()
  endif()
  if(NOT EXISTS "${ACCELERATE_DEPENDENCIES}/include/${header}")
    message(FATAL_ERROR "${header} is neither on this machine nor in ACCELERATE_DEPENDENCIES (\""
      "${ACCELERATE_DEPENDENCIES}\"); ci/gpu_dependencies.sh fills that folder")
  endif()
  target_include_directories(${target} SYSTEM INTERFACE "${ACCELERATE_DEPENDENCIES}/include")
  if(installed AND ACCELERATE_INSTALL)
    get_filename_component(folder "${header}" DIRECTORY)
    install(DIRECTORY "${ACCELERATE_DEPENDENCIES}/include/${folder}" DESTINATION "${accelerate_include_dir}")
  endif()
endfunction()
accelerate_header_only(accelerate_json nlohmann/json.hpp TRUE nlohmann_json::nlohmann_json)
accelerate_header_only(accelerate_cli11 CLI/CLI.hpp FALSE CLI11::CLI11)

# ---- yaml-cpp: for the reader of documents.
if(NOT TARGET yaml-cpp::yaml-cpp)
  find_package(yaml-cpp CONFIG QUIET)
endif()
add_library(accelerate_yaml INTERFACE)
if(TARGET yaml-cpp::yaml-cpp)
  target_link_libraries(accelerate_yaml INTERFACE yaml-cpp::yaml-cpp)
else()
  accelerate_unpack(yaml_folder yaml-cpp)
  file(GLOB yaml_sources "${yaml_folder}/src/*.cpp")
  add_library(accelerate_yaml_objects STATIC EXCLUDE_FROM_ALL ${yaml_sources})
  target_include_directories(accelerate_yaml_objects SYSTEM PUBLIC "${yaml_folder}/include")
  target_compile_definitions(accelerate_yaml_objects PUBLIC YAML_CPP_STATIC_DEFINE)
  # One of its sources forgets that header.
  target_compile_options(accelerate_yaml_objects PRIVATE -w -include cstdint)
  target_link_libraries(accelerate_yaml INTERFACE accelerate_yaml_objects)
endif()

# ---- hwloc: which CPUs belong to which memory and device.
find_path(HWLOC_INCLUDE_DIR hwloc.h)
find_library(HWLOC_LIBRARY hwloc)
add_library(accelerate_hwloc INTERFACE)
if(HWLOC_INCLUDE_DIR AND HWLOC_LIBRARY)
  target_include_directories(accelerate_hwloc SYSTEM INTERFACE "${HWLOC_INCLUDE_DIR}")
  target_link_libraries(accelerate_hwloc INTERFACE "${HWLOC_LIBRARY}")
else()
  # Its own build tells what the machine is like, so it is its own build that is run.
  accelerate_unpack(hwloc_folder hwloc)
  include(ExternalProject)
  set(hwloc_built "${PROJECT_BINARY_DIR}/hwloc")
  file(MAKE_DIRECTORY "${hwloc_built}/include")
  ExternalProject_Add(accelerate_hwloc_build
    SOURCE_DIR "${hwloc_folder}"
    CONFIGURE_COMMAND "<SOURCE_DIR>/configure" "--prefix=${hwloc_built}" "CC=${CMAKE_C_COMPILER}"
      --quiet --enable-static --disable-shared --with-pic --disable-cairo --disable-libxml2
      --disable-pci --disable-libudev --disable-opencl --disable-cuda --disable-nvml --disable-gl
      --disable-rsmi --disable-levelzero --disable-readme --disable-plugin-dlopen
    BUILD_COMMAND make --silent -C hwloc
    INSTALL_COMMAND make --silent -C hwloc install COMMAND make --silent -C include install
    BUILD_BYPRODUCTS "${hwloc_built}/lib/libhwloc.a"
    LOG_CONFIGURE ON LOG_BUILD ON LOG_INSTALL ON LOG_OUTPUT_ON_FAILURE ON)
  add_dependencies(accelerate_hwloc accelerate_hwloc_build)
  target_include_directories(accelerate_hwloc SYSTEM INTERFACE "${hwloc_built}/include")
  target_link_libraries(accelerate_hwloc INTERFACE "${hwloc_built}/lib/libhwloc.a")
endif()
