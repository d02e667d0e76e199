"""Conan 2: `conan create tools/release/conan` packages this checkout. Not tried.

LibTorch is none of Conan's packages: the folder of one is the conf user.accelerate:libtorch, as in
`-c user.accelerate:libtorch=/opt/libtorch`. Gloo's headers, which LibTorch comes without, are those of the system, or of the folder
that ci/gpu_dependencies.sh has filled (user.accelerate:dependencies).
"""
import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load


class AccelerateCppConan(ConanFile):
    name = "accelerate-cpp"
    description = "Distributed training on LibTorch, and a simulator of clusters"
    license = "Apache-2.0"
    topics = ("machine-learning", "distributed-training", "libtorch", "simulation")
    package_type = "shared-library"
    settings = "os", "arch", "compiler", "build_type"

    @property
    def _checkout(self):
        return os.path.join(self.recipe_folder, "..", "..", "..")

    def set_version(self):
        header = load(self, os.path.join(self._checkout, "accelerate", "base", "version.h"))
        self.version = re.search(r'kAccelerateVersion\[\] = "([\d.]+)"', header)[1]

    def export_sources(self):
        for pattern in ("accelerate/*", "simulator/*", "launch/*", "trackers/*", "tools/*", "integration_tests/self_test/*",
                        "ci/*.md", "CMakeLists.txt", "*.md", "LICENSE", "NOTICE"):
            copy(self, pattern, self._checkout, self.export_sources_folder)

    def requirements(self):
        self.requires("abseil/[>=20230802.1]", transitive_headers=True, transitive_libs=True)
        self.requires("nlohmann_json/[>=3.11 <4]", transitive_headers=True)
        self.requires("cli11/[>=2.3 <3]")
        self.requires("hwloc/[>=2.9 <3]")
        self.requires("yaml-cpp/[>=0.7 <1]")

    def layout(self):
        cmake_layout(self)

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("the launcher and the runtime of processes are for Linux")
        check_min_cppstd(self, 20)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["CMAKE_PREFIX_PATH"] = self.conf.get("user.accelerate:libtorch", default="")
        toolchain.cache_variables["ACCELERATE_DEPENDENCIES"] = self.conf.get("user.accelerate:dependencies", default="")
        toolchain.cache_variables["ACCELERATE_MPI"] = "OFF"
        toolchain.cache_variables["ACCELERATE_TRACKERS"] = "OFF"
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()

    def package_info(self):
        # The package's own CMake files are right: they find LibTorch, and say if it is another one.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs.append(os.path.join("lib", "cmake", "Accelerate"))
