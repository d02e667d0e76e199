"""Repository rules that take a dependency from the system, or download it where it is missing.

The system copy is what CI builds (Debian 13 packages named in tools/packages.txt). The download
is for hosts without the packages but with a network; it is untested.
"""

def _first_existing(rctx, paths):
    for path in paths:
        if rctx.path(path).exists:
            return path
    return None

def _download(rctx):
    if not rctx.attr.urls:
        fail(("{name}: not found on this system (looked for {probes}) and no download is known; " +
              "install the packages of tools/packages.txt or use tools/dev").format(
            name = rctx.name,
            probes = ", ".join(rctx.attr.probes),
        ))
    rctx.download_and_extract(
        url = rctx.attr.urls,
        stripPrefix = rctx.attr.strip_prefix,
    )
    if rctx.attr.download_build_file:
        rctx.symlink(rctx.attr.download_build_file, "BUILD.bazel")

def _system_repository_impl(rctx):
    probe = _first_existing(rctx, rctx.attr.probes)
    if probe:
        rctx.symlink(rctx.attr.build_file, "BUILD.bazel")
        if rctx.attr.links_headers:
            rctx.symlink(rctx.path(probe).dirname, "include")
        return
    _download(rctx)

_DOWNLOAD_ATTRS = {
    "probes": attr.string_list(mandatory = True, doc = "Any of these files marks a system copy."),
    "urls": attr.string_list(doc = "Archive to fetch when there is no system copy (untested)."),
    "strip_prefix": attr.string(),
    "download_build_file": attr.label(doc = "BUILD file for an archive that has none."),
}

system_repository = repository_rule(
    implementation = _system_repository_impl,
    attrs = dict(
        _DOWNLOAD_ATTRS,
        build_file = attr.label(mandatory = True, doc = "BUILD file for the system copy."),
        links_headers = attr.bool(doc = "The probe's folder, which no compiler knows, is include/."),
    ),
    doc = "A library whose objects, and mostly headers, lie in the compiler's default paths.",
)

def _system_rules_impl(rctx):
    root = _first_existing(rctx, rctx.attr.probes)
    if not root:
        _download(rctx)
        return
    root = rctx.path(root).dirname
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
        _DOWNLOAD_ATTRS,
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
