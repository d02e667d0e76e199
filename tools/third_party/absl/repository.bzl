"""Abseil under its upstream labels, from the system's shared libraries."""

load("//tools/third_party:system_repository.bzl", "missing")

# Package -> targets used by this project. The system's headers need no per-target include paths,
# so each target only stands for the label; they all link the same set, trimmed by --as-needed.
_TARGETS = {
    "absl/base": ["core_headers", "no_destructor"],
    "absl/cleanup": ["cleanup"],
    "absl/container": ["flat_hash_map", "inlined_vector"],
    "absl/crc": ["crc32c"],
    "absl/debugging": ["symbolize"],
    "absl/functional": ["any_invocable", "function_ref", "overload"],
    "absl/log": ["absl_check", "absl_log", "log_entry", "log_sink"],
    "absl/random": ["random"],
    "absl/status": ["status", "statusor"],
    "absl/strings": ["strings", "str_format"],
    "absl/synchronization": ["synchronization"],
    "absl/time": ["time"],
    "absl/types": ["span"],
}

def _library(name, deps):
    return "cc_library(name = \"{}\", deps = {})\n".format(name, deps)

def _absl_system_repository_impl(rctx):
    header = "/usr/include/absl/base/config.h"
    if not rctx.path(header).exists:
        missing(rctx, [header])
    found = rctx.execute(["sh", "-c", "ls -d /usr/lib/*/libabsl_*.so /usr/lib64/libabsl_*.so"])
    libraries = [
        "-l" + path.split("/")[-1][len("lib"):-len(".so")]
        for path in found.stdout.split("\n")
        if path and "test" not in path and "flags_parse" not in path
    ]
    if not libraries:
        fail("com_google_absl: {} is there but no libabsl_*.so; install libabsl-dev".format(header))
    public = """load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])
"""
    linkopts = ["-Wl,--push-state,--as-needed"] + libraries + ["-Wl,--pop-state"]
    rctx.file("BUILD.bazel", public + "cc_library(name = \"libraries\", linkopts = {})\n".format(linkopts))
    for package, targets in _TARGETS.items():
        rctx.file(
            package + "/BUILD.bazel",
            public + "".join([_library(target, ["//:libraries"]) for target in targets]),
        )

absl_repository = repository_rule(
    implementation = _absl_system_repository_impl,
)
