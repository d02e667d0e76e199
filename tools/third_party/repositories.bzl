"""Every external repository of the workspace, in one list."""

load("//tools/third_party:system_repository.bzl", "empty_coverage_tools", "system_repository", "system_rules")
load("//tools/third_party/absl:repository.bzl", "absl_repository")

def _make(made, rule, name, **attributes):
    if name not in made:
        rule(name = name, **attributes)

def _bazel_rules(made):
    # rules_cc of Debian asks for use_cpp_toolchain(), which Bazel 4.2 does not have; the plain
    # toolchain type means the same there.
    _make(
        made,
        system_rules,
        name = "rules_cc",
        probes = ["/usr/share/bazel/rules/cc/WORKSPACE"],
        rewrite = "s/, \"use_cpp_toolchain\")/)/; " +
                  "s|use_cpp_toolchain()|[\"@bazel_tools//tools/cpp:toolchain_type\"]|",
        rewrite_in = ["cc"],
    )
    _make(
        made,
        system_rules,
        name = "rules_java",
        probes = ["/usr/share/bazel/rules/java/WORKSPACE"],
    )
    _make(
        made,
        system_rules,
        name = "platforms",
        probes = ["/usr/share/bazel/platforms/WORKSPACE"],
    )
    _make(made, empty_coverage_tools, name = "remote_coverage_tools")

def libraries(made = []):
    """The libraries that the project stands on.

    Args:
      made: names of repositories that are there already, and stay.
    """
    _make(made, absl_repository, name = "com_google_absl")
    _make(
        made,
        system_repository,
        name = "com_google_googletest",
        build_file = Label("//tools/third_party/googletest:system.BUILD"),
        probes = ["/usr/include/gtest/gtest.h"],
    )
    _make(
        made,
        system_repository,
        name = "com_github_google_benchmark",
        build_file = Label("//tools/third_party/benchmark:system.BUILD"),
        probes = ["/usr/include/benchmark/benchmark.h"],
    )
    _make(
        made,
        system_repository,
        name = "cli11",
        build_file = Label("//tools/third_party/cli11:system.BUILD"),
        probes = ["/usr/include/CLI/CLI.hpp"],
    )
    _make(
        made,
        system_repository,
        name = "nlohmann_json",
        build_file = Label("//tools/third_party/nlohmann_json:system.BUILD"),
        probes = ["/usr/include/nlohmann/json.hpp"],
    )
    _make(
        made,
        system_repository,
        name = "hwloc",
        build_file = Label("//tools/third_party/hwloc:system.BUILD"),
        probes = ["/usr/include/hwloc.h"],
    )
    _make(
        made,
        system_repository,
        name = "openmpi",
        build_file = Label("//tools/third_party/openmpi:system.BUILD"),
        links_headers = True,
        probes = [
            "/usr/lib/x86_64-linux-gnu/openmpi/include/mpi.h",
            "/usr/lib/aarch64-linux-gnu/openmpi/include/mpi.h",
        ],
    )
    _make(
        made,
        system_repository,
        name = "yaml_cpp",
        build_file = Label("//tools/third_party/yaml_cpp:system.BUILD"),
        probes = ["/usr/include/yaml-cpp/yaml.h"],
    )
    _make(
        made,
        system_repository,
        name = "curl",
        build_file = Label("//tools/third_party/curl:system.BUILD"),
        probes = [
            "/usr/include/x86_64-linux-gnu/curl/curl.h",
            "/usr/include/aarch64-linux-gnu/curl/curl.h",
        ],
    )
    _make(
        made,
        system_repository,
        name = "libpng",
        build_file = Label("//tools/third_party/libpng:system.BUILD"),
        probes = ["/usr/include/png.h"],
    )
    _make(
        made,
        system_repository,
        name = "sqlite3",
        build_file = Label("//tools/third_party/sqlite3:system.BUILD"),
        probes = ["/usr/include/sqlite3.h"],
    )
    _make(
        made,
        system_repository,
        name = "protobuf",
        build_file = Label("//tools/third_party/protobuf:system.BUILD"),
        probes = ["/usr/include/google/protobuf/message.h"],
    )
    _make(
        made,
        system_repository,
        name = "zlib",
        build_file = Label("//tools/third_party/zlib:system.BUILD"),
        probes = ["/usr/include/zlib.h"],
    )
    _make(
        made,
        system_repository,
        name = "libtorch",
        build_file = Label("//tools/third_party/libtorch:system.BUILD"),
        probes = ["/usr/include/torch/csrc/api/include/torch/torch.h"],
    )

def accelerate_repositories():
    """All of them, for a WORKSPACE, which keeps those of its own; MODULE.bazel has the libraries by extensions.bzl."""
    made = native.existing_rules().keys()
    _bazel_rules(made)
    libraries(made)
