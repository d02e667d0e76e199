# An overlay port of this checkout: vcpkg install accelerate-cpp --overlay-ports=tools/release/vcpkg
#
# LibTorch is not vcpkg's, whose release may be too old: CMAKE_PREFIX_PATH in the environment names its folder. Not tried.
vcpkg_check_linkage(ONLY_DYNAMIC_LIBRARY)
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../../.." ABSOLUTE)

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    "-DTorch_DIR=$ENV{CMAKE_PREFIX_PATH}/share/cmake/Torch"
    -DACCELERATE_MPI=OFF
    -DACCELERATE_TRACKERS=OFF
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME Accelerate CONFIG_PATH lib/cmake/Accelerate)
vcpkg_copy_tools(TOOL_NAMES accelerate accelerate-module accelerate-self-test accelerate-plan accelerate-dump-report AUTO_CLEAN)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE" "${SOURCE_PATH}/NOTICE")
