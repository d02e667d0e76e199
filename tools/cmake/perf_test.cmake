# accelerate_add_perf_test(NAME PROGRAM target TOPOLOGIES cluster... BASELINE file
#                          [OPTIONS word...] [ARGS word...] [TOLERANCES metric=tolerance...])
#
# Adds the test NAME, which fails when the program costs more or less on simulated clusters than BASELINE says,
# and the target NAME_accept, which writes BASELINE: for the first time, too. PROGRAM trains with accelerate::run and is
# linked to Accelerate::simulator; it runs in its own folder. OPTIONS are those of `accelerate launch`. TOLERANCES are by
# metric or group of metrics, as in "time=1 %"; what none names is compared exactly.
function(accelerate_add_perf_test name)
  cmake_parse_arguments(PARSE_ARGV 1 perf "" "PROGRAM;BASELINE" "TOPOLOGIES;OPTIONS;ARGS;TOLERANCES")
  foreach(key PROGRAM BASELINE TOPOLOGIES)
    if(NOT perf_${key})
      message(FATAL_ERROR "accelerate_add_perf_test(${name}): ${key} is missing")
    endif()
  endforeach()
  if(perf_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "accelerate_add_perf_test(${name}): unknown: ${perf_UNPARSED_ARGUMENTS}")
  endif()
  get_filename_component(baseline "${perf_BASELINE}" ABSOLUTE)
  get_filename_component(folder "${baseline}" DIRECTORY)
  get_filename_component(workload "${baseline}" NAME_WLE)
  get_filename_component(ending "${baseline}" LAST_EXT)
  if(NOT ending STREQUAL ".json")
    message(FATAL_ERROR "accelerate_add_perf_test(${name}): the baseline ${perf_BASELINE} is not a .json file")
  endif()

  accelerate_json_texts(program "./$<TARGET_FILE_NAME:${perf_PROGRAM}>" LISTS perf_ARGS)
  accelerate_json_texts(options LISTS perf_OPTIONS)
  accelerate_json_texts(clusters LISTS perf_TOPOLOGIES)
  accelerate_json_texts(workload "${workload}")
  set(tolerances "")
  foreach(each IN LISTS perf_TOLERANCES)
    string(REGEX MATCH "^([^=]+)=(.+)$" found "${each}")
    if(NOT found)
      message(FATAL_ERROR "accelerate_add_perf_test(${name}): the tolerance ${each} is not METRIC=TOLERANCE")
    endif()
    accelerate_json_texts(metric "${CMAKE_MATCH_1}")
    accelerate_json_texts(tolerance "${CMAKE_MATCH_2}")
    list(APPEND tolerances "${metric}: ${tolerance}")
  endforeach()
  list(JOIN tolerances ", " tolerances)
  set(config "${CMAKE_CURRENT_BINARY_DIR}/${name}.perf.yaml")
  # JSON, which YAML is a superset of.
  file(GENERATE OUTPUT "${config}" CONTENT "{\"workloads\": [{\"name\": ${workload}, \"program\": [${program}], \
\"options\": [${options}], \"clusters\": [${clusters}], \"tolerances\": {${tolerances}}}]}\n")

  set(place --config "${config}" --baselines "${folder}")
  add_test(NAME ${name}
    COMMAND "${ACCELERATE_LAUNCHER}" perf compare ${place}
      --accept_command "cmake --build ${CMAKE_BINARY_DIR} --target ${name}_accept"
    WORKING_DIRECTORY "$<TARGET_FILE_DIR:${perf_PROGRAM}>")
  add_custom_target(${name}_accept
    COMMAND "${ACCELERATE_LAUNCHER}" perf accept ${place}
    WORKING_DIRECTORY "$<TARGET_FILE_DIR:${perf_PROGRAM}>" VERBATIM)
  add_dependencies(${name}_accept ${perf_PROGRAM})
  if(TARGET accelerate_launcher)
    add_dependencies(${name}_accept accelerate_launcher)
  endif()
endfunction()

# accelerate_json_texts(VARIABLE [text] [LISTS list]): the text and those of the list, whatever is in them.
function(accelerate_json_texts variable)
  cmake_parse_arguments(PARSE_ARGV 1 json "" "LISTS" "")
  set(texts "")
  foreach(text IN LISTS json_UNPARSED_ARGUMENTS ${json_LISTS})
    string(REGEX REPLACE "([\"\\])" "\\\\\\1" text "${text}")
    string(APPEND texts ", \"${text}\"")
  endforeach()
  string(REGEX REPLACE "^, " "" texts "${texts}")
  set(${variable} "${texts}" PARENT_SCOPE)
endfunction()
