"""Every external repository of the workspace, in one list."""

load("//tools/third_party:system_repository.bzl", "empty_coverage_tools", "system_repository", "system_rules")
load("//tools/third_party/absl:repository.bzl", "absl_repository")

def _bazel_rules():
    # rules_cc of Debian asks for use_cpp_toolchain(), which Bazel 4.2 does not have; the plain
    # toolchain type means the same there.
    system_rules(
        name = "rules_cc",
        probes = ["/usr/share/bazel/rules/cc/WORKSPACE"],
        rewrite = "s/, \"use_cpp_toolchain\")/)/; " +
                  "s|use_cpp_toolchain()|[\"@bazel_tools//tools/cpp:toolchain_type\"]|",
        rewrite_in = ["cc"],
        strip_prefix = "rules_cc-0.0.17",
        urls = ["https://github.com/bazelbuild/rules_cc/releases/download/0.0.17/rules_cc-0.0.17.tar.gz"],
    )
    system_rules(
        name = "rules_java",
        probes = ["/usr/share/bazel/rules/java/WORKSPACE"],
        urls = ["https://github.com/bazelbuild/rules_java/releases/download/4.0.0/rules_java-4.0.0.tar.gz"],
    )
    system_rules(
        name = "platforms",
        probes = ["/usr/share/bazel/platforms/WORKSPACE"],
        urls = ["https://github.com/bazelbuild/platforms/releases/download/0.0.10/platforms-0.0.10.tar.gz"],
    )
    empty_coverage_tools(name = "remote_coverage_tools")

def _libraries():
    absl_repository(
        name = "com_google_absl",
        strip_prefix = "abseil-cpp-20240722.0",
        urls = ["https://github.com/abseil/abseil-cpp/archive/refs/tags/20240722.0.tar.gz"],
    )
    system_repository(
        name = "com_google_googletest",
        build_file = Label("//tools/third_party/googletest:system.BUILD"),
        probes = ["/usr/include/gtest/gtest.h"],
        strip_prefix = "googletest-1.16.0",
        urls = ["https://github.com/google/googletest/archive/refs/tags/v1.16.0.tar.gz"],
    )
    system_repository(
        name = "com_github_google_benchmark",
        build_file = Label("//tools/third_party/benchmark:system.BUILD"),
        probes = ["/usr/include/benchmark/benchmark.h"],
        strip_prefix = "benchmark-1.9.1",
        urls = ["https://github.com/google/benchmark/archive/refs/tags/v1.9.1.tar.gz"],
    )
    system_repository(
        name = "cli11",
        build_file = Label("//tools/third_party/cli11:system.BUILD"),
        probes = ["/usr/include/CLI/CLI.hpp"],
        strip_prefix = "CLI11-2.4.1",
        urls = ["https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.4.1.tar.gz"],
    )
    system_repository(
        name = "nlohmann_json",
        build_file = Label("//tools/third_party/nlohmann_json:system.BUILD"),
        probes = ["/usr/include/nlohmann/json.hpp"],
        strip_prefix = "json-3.11.3",
        urls = ["https://github.com/nlohmann/json/archive/refs/tags/v3.11.3.tar.gz"],
    )
    system_repository(
        name = "hwloc",
        build_file = Label("//tools/third_party/hwloc:system.BUILD"),
        probes = ["/usr/include/hwloc.h"],
    )
    system_repository(
        name = "openmpi",
        build_file = Label("//tools/third_party/openmpi:system.BUILD"),
        links_headers = True,
        probes = [
            "/usr/lib/x86_64-linux-gnu/openmpi/include/mpi.h",
            "/usr/lib/aarch64-linux-gnu/openmpi/include/mpi.h",
        ],
    )
    system_repository(
        name = "yaml_cpp",
        build_file = Label("//tools/third_party/yaml_cpp:system.BUILD"),
        probes = ["/usr/include/yaml-cpp/yaml.h"],
        strip_prefix = "yaml-cpp-0.8.0",
        urls = ["https://github.com/jbeder/yaml-cpp/archive/refs/tags/0.8.0.tar.gz"],
    )
    system_repository(
        name = "curl",
        build_file = Label("//tools/third_party/curl:system.BUILD"),
        probes = [
            "/usr/include/x86_64-linux-gnu/curl/curl.h",
            "/usr/include/aarch64-linux-gnu/curl/curl.h",
        ],
    )
    system_repository(
        name = "libpng",
        build_file = Label("//tools/third_party/libpng:system.BUILD"),
        probes = ["/usr/include/png.h"],
    )
    system_repository(
        name = "sqlite3",
        build_file = Label("//tools/third_party/sqlite3:system.BUILD"),
        probes = ["/usr/include/sqlite3.h"],
    )
    system_repository(
        name = "protobuf",
        build_file = Label("//tools/third_party/protobuf:system.BUILD"),
        probes = ["/usr/include/google/protobuf/message.h"],
    )
    system_repository(
        name = "zlib",
        build_file = Label("//tools/third_party/zlib:system.BUILD"),
        probes = ["/usr/include/zlib.h"],
    )
    system_repository(
        name = "libtorch",
        build_file = Label("//tools/third_party/libtorch:system.BUILD"),
        download_build_file = Label("//tools/third_party/libtorch:download.BUILD"),
        probes = ["/usr/include/torch/csrc/api/include/torch/torch.h"],
        strip_prefix = "libtorch",
        urls = ["https://download.pytorch.org/libtorch/cpu/libtorch-cxx11-abi-shared-with-deps-2.6.0%2Bcpu.zip"],
    )

def accelerate_repositories():
    _bazel_rules()
    _libraries()
