# The report's page as string constants of a C++ source, as simulator/report/embed.bzl makes them.
# The BUILD file says which files make which constant.
#
#   cmake -DFOLDER=simulator/report -DOUT=template_text.cc -P embed_page.cmake

file(READ "${FOLDER}/BUILD" build)
string(REGEX MATCH "embed_text\\([^)]*constants = {([^}]*)}" found "${build}")
set(constants "${CMAKE_MATCH_1}")
if(NOT found)
  message(FATAL_ERROR "${FOLDER}/BUILD says nothing of the report's page")
endif()
set(text "#include \"simulator/report/template.h\"\nnamespace accelerate::simulator {\n")
string(REGEX MATCHALL "\"k[A-Za-z]+\": \\[[^]]*\\]" entries "${constants}")
foreach(entry IN LISTS entries)
  string(REGEX MATCH "k[A-Za-z]+" constant "${entry}")
  string(APPEND text "extern const char ${constant}[] = R\"embedded(")
  string(REGEX MATCHALL "[a-z_]+\\.(html|css|js)" files "${entry}")
  foreach(file IN LISTS files)
    file(READ "${FOLDER}/${file}" contents)
    string(APPEND text "${contents}")
  endforeach()
  string(APPEND text ")embedded\";\n")
endforeach()
file(WRITE "${OUT}" "${text}}\n")
