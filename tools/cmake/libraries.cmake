# Accelerate::accelerate, Accelerate::simulator and Accelerate::trackers: shared libraries, because
# their backends, modes and trackers register themselves when they are loaded, whether or not a
# program names them.

# LibTorch, Abseil and other packages are built by g++, and clang names templates as g++ does only when it is asked to be
# as old as 17. Programs that use the libraries need it as well.
set(accelerate_abi_copts
  "$<$<AND:$<CXX_COMPILER_ID:Clang>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,18>>:-fclang-abi-compat=17>")
set(accelerate_copts ${accelerate_abi_copts} -Wall -Wextra -Werror=return-type -Wno-unused-parameter -Wno-sign-compare
  -Wno-missing-field-initializers)

# ---- Parts that a machine may lack what they need for: backends, and trackers.

# accelerate_want(OUT NAME FOUND REASON): whether a part is built, by its option.
function(accelerate_want out name found reason)
  if(ACCELERATE_${name} STREQUAL ON AND NOT found)
    message(FATAL_ERROR "ACCELERATE_${name} is ON, but ${reason}")
  endif()
  if(found AND ACCELERATE_${name})
    message(STATUS "Accelerate: with ${name}")
    set(${out} TRUE PARENT_SCOPE)
  else()
    message(STATUS "Accelerate: without ${name}")
    set(${out} FALSE PARENT_SCOPE)
  endif()
endfunction()

accelerate_sources(library_sources accelerate)
accelerate_sources(simulator_sources simulator)
add_library(accelerate_backends INTERFACE)

# The Gloo inside LibTorch, or the one that it is linked to, as Debian's is. LibTorch comes without Gloo's headers; those
# of another release do (accelerate/comm/backends/gloo/gloo_backend.h), but its library does not.
find_path(GLOO_INCLUDE_DIR gloo/context.h
  HINTS ${TORCH_INCLUDE_DIRS} PATHS "${ACCELERATE_DEPENDENCIES}/include")
get_target_property(torch_cpu_file torch_cpu LOCATION)
execute_process(COMMAND "${CMAKE_READELF}" -d "${torch_cpu_file}" OUTPUT_VARIABLE torch_cpu_needs)
if(NOT GLOO_INCLUDE_DIR)
  message(FATAL_ERROR "no headers of Gloo: install libgloo-dev, or set ACCELERATE_DEPENDENCIES")
endif()
target_include_directories(accelerate_backends SYSTEM INTERFACE "${GLOO_INCLUDE_DIR}")
if(torch_cpu_needs MATCHES "libgloo")
  find_library(GLOO_LIBRARY gloo REQUIRED)
  target_link_libraries(accelerate_backends INTERFACE "${GLOO_LIBRARY}")
endif()
target_compile_definitions(accelerate_backends INTERFACE USE_C10D_GLOO)

# The path that is installed leaves out folders of the project, and LibTorch may be in one: install.md makes a venv there.
# A tree that is to be moved to another machine (ACCELERATE_TORCH_RPATH) names no folder of this one.
get_filename_component(torch_cpu_folder "${torch_cpu_file}" DIRECTORY)
cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${torch_cpu_folder}" torch_is_inside)
if(torch_is_inside AND NOT ACCELERATE_TORCH_RPATH)
  list(APPEND CMAKE_INSTALL_RPATH "${torch_cpu_folder}")
endif()

find_package(MPI QUIET COMPONENTS C)
accelerate_want(with_mpi MPI "${MPI_C_FOUND}" "no MPI was found")
if(with_mpi)
  target_link_libraries(accelerate_backends INTERFACE MPI::MPI_C)
  target_compile_definitions(accelerate_backends INTERFACE OMPI_SKIP_MPICXX)
else()
  list(FILTER library_sources EXCLUDE REGEX "^accelerate/comm/backends/mpi/")
endif()

# What LibTorch was built with stands in its targets' definitions.
set(torch_definitions "")
foreach(target torch torch_cpu torch_cuda)
  if(TARGET ${target} AND NOT (target STREQUAL torch_cuda AND ACCELERATE_TORCH_PART STREQUAL cpu))
    get_target_property(definitions ${target} INTERFACE_COMPILE_DEFINITIONS)
    list(APPEND torch_definitions ${definitions})
  endif()
endforeach()
find_path(NCCL_INCLUDE_DIR nccl.h HINTS "${TORCH_INSTALL_PREFIX}/../nvidia/nccl/include")
set(nccl_found FALSE)
if(USE_C10D_NCCL IN_LIST torch_definitions AND NCCL_INCLUDE_DIR)
  set(nccl_found TRUE)
endif()
accelerate_want(with_nccl NCCL ${nccl_found} "LibTorch has none, or nccl.h was not found")
if(with_nccl)
  target_include_directories(accelerate_backends SYSTEM INTERFACE "${NCCL_INCLUDE_DIR}")
  target_compile_definitions(accelerate_backends INTERFACE USE_C10D_NCCL)
else()
  list(FILTER library_sources EXCLUDE REGEX "^accelerate/comm/backends/nccl/")
endif()

# ---- Trackers, where everything is there that they write and send with.

accelerate_sources(tracker_sources trackers)
# The sources that protoc makes.
file(GLOB tracker_protos RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS trackers/*/*.proto)
list(TRANSFORM tracker_protos REPLACE "\\.proto$" ".pb.cc" OUTPUT_VARIABLE tracker_messages)
find_package(CURL QUIET)
find_package(PNG QUIET)
find_package(Protobuf QUIET)
find_package(SQLite3 QUIET)
set(trackers_found FALSE)
if(CURL_FOUND AND PNG_FOUND AND Protobuf_FOUND AND SQLite3_FOUND)
  set(trackers_found TRUE)
endif()
accelerate_want(with_trackers TRACKERS ${trackers_found}
  "libcurl, libpng, SQLite or protobuf was not found")

# ---- What Bazel built, in the place of compiling.

# Sets built_accelerate, built_simulator, built_trackers and built_launch: archives, by folder at the top; and
# built_main_SOURCE, the object of a program's source. Every source of a library that Bazel compiled must be one that the
# rules above find. (Bazel compiles CLI11 once for all; here each source has the headers alone.)
function(accelerate_read_built)
  get_filename_component(folder "${ACCELERATE_BUILT_OBJECTS}" DIRECTORY)
  file(STRINGS "${ACCELERATE_BUILT_OBJECTS}" lines)
  accelerate_sources(known accelerate simulator launch trackers)
  list(APPEND known simulator/report/template_text.cc simulator/hardware/kernel_table_texts.cc
    launch/commands/compile_regions_text.cc ${tracker_messages} tools/third_party/cli11/cli11.cc)
  foreach(line IN LISTS lines)
    if(line MATCHES "^source (.*)$")
      if(NOT CMAKE_MATCH_1 IN_LIST known)
        message(SEND_ERROR "${CMAKE_MATCH_1} is in Bazel's libraries and not in those of CMake; "
          "tools/cmake/sources.cmake holds its rules")
      endif()
    elseif(line MATCHES "^library ([a-z]+) (.*)$")
      list(APPEND built_${CMAKE_MATCH_1} "${folder}/${CMAKE_MATCH_2}")
    elseif(line MATCHES "^main ([^ ]+) (.*)$")
      set("built_main_${CMAKE_MATCH_1}" "${folder}/${CMAKE_MATCH_2}" PARENT_SCOPE)
    endif()
  endforeach()
  foreach(name accelerate simulator trackers launch)
    if(NOT built_${name})
      message(FATAL_ERROR "${ACCELERATE_BUILT_OBJECTS} names no library of ${name}")
    endif()
    set(built_${name} ${built_${name}} PARENT_SCOPE)
  endforeach()
endfunction()

# A source for what is otherwise made of archives only.
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/archives_only.cc" CONTENT "" @ONLY)

if(ACCELERATE_BUILT_OBJECTS)
  accelerate_read_built()
endif()

# The headers that Bazel precompiles, the same for both builds.
set(precompiled_headers "")
if(ACCELERATE_PRECOMPILED)
  foreach(part common libtorch)
    list(APPEND precompiled_headers "${PROJECT_SOURCE_DIR}/tools/build_defs/precompiled/${part}.inc")
  endforeach()
endif()

# accelerate_library(NAME BUILT SOURCES...): a shared library of the sources, or of what Bazel made of them.
function(accelerate_library name built)
  if(built)
    add_library(${name} SHARED "${PROJECT_BINARY_DIR}/archives_only.cc")
    target_link_libraries(${name} PRIVATE -Wl,--whole-archive ${built} -Wl,--no-whole-archive)
    set_property(TARGET ${name} PROPERTY LINK_DEPENDS ${built})
  else()
    add_library(${name} SHARED ${ARGN})
    target_compile_options(${name} PRIVATE ${accelerate_copts})
    target_precompile_headers(${name} PRIVATE ${precompiled_headers})
  endif()
  target_include_directories(${name} PUBLIC
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>" "$<INSTALL_INTERFACE:${accelerate_include_dir}>")
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_compile_options(${name} PUBLIC "${accelerate_abi_copts}")
  set_target_properties(${name} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION})
endfunction()

# ---- The libraries.

# What the headers need. An installed package finds these again by itself (AccelerateConfig.cmake).
# The C++ library comes first: LibTorch's wheels export functions of std::filesystem that another one made, and where
# a program finds those before its own, std::filesystem::remove_all jumps to address 0.
set(accelerate_cxx_library -Wl,--push-state,--no-as-needed,-lstdc++,--pop-state)
add_library(accelerate_public INTERFACE)
target_link_libraries(accelerate_public INTERFACE ${accelerate_cxx_library}
  ${TORCH_LIBRARIES} ${accelerate_absl} accelerate_json)
target_include_directories(accelerate_public SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
target_compile_options(accelerate_public INTERFACE ${torch_flags})

accelerate_library(accelerate "${built_accelerate}" ${library_sources})
target_link_libraries(accelerate PUBLIC "$<BUILD_INTERFACE:accelerate_public>"
  PRIVATE accelerate_backends accelerate_hwloc accelerate_yaml ${CMAKE_DL_LIBS})
add_library(Accelerate::accelerate ALIAS accelerate)
# at::RecordFunction has a member more where NDEBUG is not defined, and LibTorch is built with it.
file(GLOB with_record_function accelerate/profiling/*.cc)
set_source_files_properties(${with_record_function} PROPERTIES COMPILE_DEFINITIONS NDEBUG)

# accelerate_embed(FOLDER NAME FILES...): NAME.cc of the folder's texts, and of these FILES elsewhere, as its BUILD file
# says. Libraries that have it depend on the target accelerate_NAME, so that it is made once.
function(accelerate_embed folder name)
  file(GLOB_RECURSE texts CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}"
    "${folder}/*.html" "${folder}/*.css" "${folder}/*.js" "${folder}/*.json")
  add_custom_command(OUTPUT "${PROJECT_BINARY_DIR}/${name}.cc"
    COMMAND "${CMAKE_COMMAND}" "-DFOLDER=${folder}" "-DOUT=${PROJECT_BINARY_DIR}/${name}.cc"
      -P tools/cmake/embed_text.cmake
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    DEPENDS tools/cmake/embed_text.cmake "${folder}/BUILD" ${texts} ${ARGN}
    VERBATIM)
  add_custom_target(accelerate_${name} DEPENDS "${PROJECT_BINARY_DIR}/${name}.cc")
endfunction()
accelerate_embed(simulator/report template_text)
accelerate_embed(simulator/hardware kernel_table_texts)
accelerate_embed(launch/commands compile_regions_text tools/compile_regions.py)

# accelerate_registering_library(NAME): Accelerate::NAME links the library accelerate_NAME_library. No program names what
# is in it: a linker that drops such libraries, as Ubuntu's does, is told not to. In one word, because CMake leaves out
# words that it has had.
function(accelerate_registering_library name)
  target_link_libraries(accelerate_${name}_library PUBLIC accelerate)
  set_target_properties(accelerate_${name}_library PROPERTIES
    OUTPUT_NAME accelerate_${name} EXPORT_NAME ${name}_library)
  add_library(accelerate_${name} INTERFACE)
  set(file "$<TARGET_FILE:$<TARGET_NAME:accelerate_${name}_library>>")
  target_link_libraries(accelerate_${name} INTERFACE
    "-Wl,--push-state,--no-as-needed,${file},--pop-state" accelerate_${name}_library)
  set_target_properties(accelerate_${name} PROPERTIES EXPORT_NAME ${name})
  add_library(Accelerate::${name} ALIAS accelerate_${name})
endfunction()

accelerate_library(accelerate_simulator_library "${built_simulator}"
  ${simulator_sources} "${PROJECT_BINARY_DIR}/template_text.cc" "${PROJECT_BINARY_DIR}/kernel_table_texts.cc")
add_dependencies(accelerate_simulator_library accelerate_template_text accelerate_kernel_table_texts)
accelerate_registering_library(simulator)

if(with_trackers)
  foreach(proto IN LISTS tracker_protos)
    string(REGEX REPLACE "\\.proto$" ".pb" made "${PROJECT_BINARY_DIR}/messages/${proto}")
    add_custom_command(OUTPUT "${made}.cc" "${made}.h"
      COMMAND "${CMAKE_COMMAND}" -E make_directory "${PROJECT_BINARY_DIR}/messages"
      COMMAND protobuf::protoc --proto_path=. "--cpp_out=${PROJECT_BINARY_DIR}/messages" "${proto}"
      WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" DEPENDS "${proto}" VERBATIM)
    list(APPEND tracker_sources "${made}.cc")
  endforeach()
  accelerate_library(accelerate_trackers_library "${built_trackers}" ${tracker_sources})
  target_include_directories(accelerate_trackers_library PRIVATE "${PROJECT_BINARY_DIR}/messages")
  target_link_libraries(accelerate_trackers_library
    PRIVATE CURL::libcurl PNG::PNG SQLite::SQLite3 ZLIB::ZLIB ${Protobuf_LIBRARIES})
  # LibTorch's package gives the name protobuf::libprotobuf to nothing.
  target_include_directories(accelerate_trackers_library SYSTEM PRIVATE ${Protobuf_INCLUDE_DIRS})
  accelerate_registering_library(trackers)
endif()
