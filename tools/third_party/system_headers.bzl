"""Headers in folders of the system that no compiler looks through by itself."""

load("@rules_cc//cc:defs.bzl", "CcInfo", "cc_common")

def _system_headers_impl(ctx):
    return [CcInfo(compilation_context = cc_common.create_compilation_context(
        system_includes = depset(ctx.attr.folders),
    ))]

system_headers = rule(
    implementation = _system_headers_impl,
    attrs = {"folders": attr.string_list(mandatory = True, doc = "Below /usr/include, so that Bazel trusts them.")},
    doc = """What depends on it, at any distance, searches the folders.

    An absolute folder is the same for every checkout, and stays the same in clang's precompiled headers,
    where cc_library's `includes` would be a folder of this checkout's.""",
)
