# `cmake --build build --target package`: what is installed, as a package.

set(CPACK_PACKAGE_NAME accelerate-cpp)
set(CPACK_PACKAGE_VENDOR "Accelerate for C++")
# The project itself has no address: whoever makes a package to give away is its maintainer.
if(NOT "$ENV{DEBEMAIL}" STREQUAL "")
  set(CPACK_PACKAGE_CONTACT "$ENV{DEBEMAIL}")
  if(NOT CPACK_PACKAGE_CONTACT MATCHES "<" AND NOT "$ENV{DEBFULLNAME}" STREQUAL "")
    set(CPACK_PACKAGE_CONTACT "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
  endif()
else()
  set(CPACK_PACKAGE_CONTACT "a local build <nobody@accelerate-cpp.invalid>")
endif()
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "distributed training on LibTorch, and a simulator of clusters")
set(CPACK_PACKAGE_DESCRIPTION "Turns a LibTorch training loop in C++ into one that runs on one CPU, on many processes and on GPUs, \
as Hugging Face Accelerate does for Python. The same program also runs on a simulated cluster inside one process.")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR TGZ)

# A package of Debian's kind names the packages that it needs, so all must come from such packages, LibTorch too.
get_filename_component(torch_prefix "${TORCH_INSTALL_PREFIX}" REALPATH)
if(torch_prefix STREQUAL "/usr" AND NOT TARGET abseil_dll)
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
  # What the libraries are linked with; and what those need who include the headers.
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libtorch-dev, libabsl-dev, nlohmann-json3-dev")
  # Without it LibTorch multiplies matrices about thirty times slower.
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS libopenblas0-pthread)
endif()
include(CPack)
