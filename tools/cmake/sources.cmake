# Which files of the tree are in which library, by rules, so that nobody keeps a list.
#
# The names of files say what they are: tests, benchmarks and programs are in no library. What the
# rules find is compared with Bazel's libraries by integration_tests/outside.

set(accelerate_no_library "(_test|_benchmark|_fuzzer|_main|/main)\\.cc$|/(testing|fuzz|examples)/")

# accelerate_sources(OUT FOLDER...): the library sources below the folders, relative to the root.
function(accelerate_sources out)
  list(TRANSFORM ARGN APPEND "/*.cc" OUTPUT_VARIABLE patterns)
  list(TRANSFORM patterns PREPEND "${PROJECT_SOURCE_DIR}/")
  file(GLOB_RECURSE found RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS ${patterns})
  list(FILTER found EXCLUDE REGEX "${accelerate_no_library}")
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# accelerate_reach(OUT HEADERS|SOURCES FILE...): the files, and the project's headers that they
# include, directly or not; with SOURCES also the library sources in the folders of those headers, and
# theirs, because a folder is one library.
function(accelerate_reach out what)
  set(found ${ARGN})
  set(todo ${ARGN})
  while(todo)
    list(POP_FRONT todo file)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${file}")
    file(STRINGS "${PROJECT_SOURCE_DIR}/${file}" next
      REGEX "^#include \"(accelerate|simulator|launch|trackers)/")
    list(TRANSFORM next REPLACE "^#include \"([^\"]+)\".*" "\\1")
    if(what STREQUAL SOURCES AND file MATCHES "\\.h$")
      get_filename_component(folder "${file}" DIRECTORY)
      file(GLOB sources RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${folder}/*.cc")
      list(FILTER sources EXCLUDE REGEX "${accelerate_no_library}")
      list(APPEND next ${sources})
    endif()
    list(REMOVE_ITEM next ${found})
    list(REMOVE_DUPLICATES next)
    list(APPEND found ${next})
    list(APPEND todo ${next})
  endwhile()
  list(SORT found)
  set(${out} ${found} PARENT_SCOPE)
endfunction()
