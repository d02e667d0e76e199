"""Repository rules that take a dependency from the system.

Nothing is downloaded: the system's packages are what LibTorch was built with, and apt has checked who
signed them.
"""

def _first_existing(rctx, paths):
    for path in paths:
        if rctx.path(path).exists:
            return path
    return missing(rctx, paths)

def missing(rctx, probes):
    """Fails: the system does not have the repository, of which it should have one of these files."""
    fail(("{}: not found on this system (looked for {}); install the packages of tools/packages.txt, " +
          "or use tools/dev").format(rctx.name, ", ".join(probes)))

def _system_repository_impl(rctx):
    probe = _first_existing(rctx, rctx.attr.probes)
    rctx.symlink(rctx.attr.build_file, "BUILD.bazel")
    rctx.symlink(Label("//tools/third_party:system_headers.bzl"), "system_headers.bzl")
    if rctx.attr.links_headers:
        rctx.symlink(rctx.path(probe).dirname, "include")

_PROBES = {"probes": attr.string_list(mandatory = True, doc = "Any of these files marks a system copy.")}

system_repository = repository_rule(
    implementation = _system_repository_impl,
    attrs = dict(
        _PROBES,
        build_file = attr.label(mandatory = True, doc = "The BUILD file; beside it lies system_headers.bzl."),
        links_headers = attr.bool(doc = "The probe's folder, which no compiler knows, is include/."),
    ),
    doc = "A library whose objects, and mostly headers, lie in the compiler's default paths.",
)

def _system_rules_impl(rctx):
    root = rctx.path(_first_existing(rctx, rctx.attr.probes)).dirname
    for entry in root.readdir():
        if entry.basename not in rctx.attr.rewrite_in:
            rctx.symlink(entry, entry.basename)
    for folder in rctx.attr.rewrite_in:
        # A real copy, so that the files below can be edited.
        result = rctx.execute(["cp", "-rL", str(root.get_child(folder)), folder])
        if result.return_code:
            fail("{}: cannot copy {}: {}".format(rctx.name, folder, result.stderr))
        result = rctx.execute([
            "find",
            folder,
            "-name",
            "*.bzl",
            "-exec",
            "sed",
            "-i",
            "-e",
            rctx.attr.rewrite,
            "{}",
            "+",
        ])
        if result.return_code:
            fail("{}: cannot rewrite {}: {}".format(rctx.name, folder, result.stderr))

system_rules = repository_rule(
    implementation = _system_rules_impl,
    attrs = dict(
        _PROBES,
        rewrite_in = attr.string_list(doc = "Folders copied and edited instead of linked."),
        rewrite = attr.string(doc = "A sed expression for the .bzl files of those folders."),
    ),
    doc = "A Bazel rule set installed as a folder with a WORKSPACE or BUILD file.",
)

def _empty_coverage_tools_impl(rctx):
    rctx.file("WORKSPACE", "")
    rctx.file("BUILD.bazel", """
package(default_visibility = ["//visibility:public"])
filegroup(name = "coverage_report_generator")
""")

empty_coverage_tools = repository_rule(
    implementation = _empty_coverage_tools_impl,
    doc = "cc_test asks for this repository even when no coverage is collected; it may be empty.",
)
