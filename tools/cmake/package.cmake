# `cmake --build build --target package`: what is installed, as a package; where it is Debian's, as three: what programs
# load, what they are built with, and the launcher with its pages. install.cmake says which file is in which.

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
  set(CPACK_DEB_COMPONENT_INSTALL ON)
  set(CPACK_COMPONENTS_ALL library headers tools)
  # What libraries and programs are linked with; ours lie in the build folder then.
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${PROJECT_BINARY_DIR}")
  set(same_version "libaccelerate-cpp (= ${PROJECT_VERSION})")
  set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libaccelerate-cpp)
  set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
  set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "The libraries that programs load.")
  # Without it LibTorch multiplies matrices about thirty times slower.
  set(CPACK_DEBIAN_LIBRARY_PACKAGE_RECOMMENDS libopenblas0-pthread)
  set(CPACK_DEBIAN_HEADERS_PACKAGE_NAME libaccelerate-cpp-dev)
  set(CPACK_DEBIAN_HEADERS_PACKAGE_SECTION libdevel)
  set(CPACK_COMPONENT_HEADERS_DESCRIPTION "What programs are built with: headers, CMake's package, pkg-config's files.")
  set(CPACK_DEBIAN_HEADERS_PACKAGE_DEPENDS
    "${same_version}, accelerate-cpp (= ${PROJECT_VERSION}), libtorch-dev, libabsl-dev, nlohmann-json3-dev")
  set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME accelerate-cpp)
  set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION utils)
  set(CPACK_COMPONENT_TOOLS_DESCRIPTION "The launcher, its man pages, documents and examples.")
  set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS "${same_version}")
endif()
include(CPack)
