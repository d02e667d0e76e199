# Texts as string constants of a C++ source, as tools/build_defs/embed.bzl makes them. The call of embed_text in the
# folder's BUILD file says which files make which constant, and which header declares them.
#
#   cmake -DFOLDER=simulator/report -DOUT=template_text.cc -P embed_text.cmake

file(READ "${FOLDER}/BUILD" build)
string(REGEX MATCH "embed_text\\([^)]*constants = {([^}]*)}[^)]*header = \"([^\"]+)\"" found "${build}")
set(constants "${CMAKE_MATCH_1}")
set(header "${CMAKE_MATCH_2}")
if(NOT found)
  message(FATAL_ERROR "${FOLDER}/BUILD says nothing of texts to embed")
endif()
string(REGEX MATCH "namespace = \"([A-Za-z0-9_:]+)\"" namespace "${build}")
set(text "#include \"${header}\"\nnamespace ${CMAKE_MATCH_1} {\n")
string(REGEX MATCHALL "\"k[A-Za-z0-9]+\": \\[[^]]*\\]" entries "${constants}")
foreach(entry IN LISTS entries)
  string(REGEX MATCH "k[A-Za-z0-9]+" constant "${entry}")
  string(APPEND text "extern const char ${constant}[] = R\"embedded(")
  string(REGEX MATCHALL "[A-Za-z0-9_/:-]+\\.(html|css|json|js|py)" files "${entry}")
  foreach(file IN LISTS files)
    # A label is that of a file in another folder.
    if(file MATCHES "^//(.*):(.*)$")
      set(path "${CMAKE_MATCH_1}/${CMAKE_MATCH_2}")
    else()
      set(path "${FOLDER}/${file}")
    endif()
    file(READ "${path}" contents)
    string(APPEND text "${contents}")
  endforeach()
  string(APPEND text ")embedded\";\n")
endforeach()
file(WRITE "${OUT}" "${text}}\n")
