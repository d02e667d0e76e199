"""A header that clang reads ready made, where each source would parse LibTorch's anew.

Only clang: it maps 140 MB where g++ would read 800. The options must be those of the sources that read it;
clang refuses a header that was made with others.
"""

load("@rules_cc//cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@rules_cc//cc:defs.bzl", "CcInfo", "cc_common")
load("@rules_cc//cc:find_cc_toolchain.bzl", "find_cc_toolchain")

# clang writes the paths of what it reads into its output, and one of this checkout would keep others from sharing
# that in a cache. So it reads our headers, joined, from its input, and its paths begin with one that every checkout
# has. Where Bazel looks through what a source has read, .bazelrc makes that a system folder.
_HERE = "/proc/self/cwd"

def _precompiled_header_impl(ctx):
    compiled = ctx.actions.declare_file(ctx.label.name + ".h.pch")

    toolchain = find_cc_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    libraries = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
    options = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts
    compile_command = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = CPP_COMPILE_ACTION_NAME,
        variables = cc_common.create_compile_variables(
            feature_configuration = features,
            cc_toolchain = toolchain,
            source_file = "-",
            use_pic = True,
            user_compile_flags = options + [
                "-working-directory=" + _HERE,
                "-o",
                compiled.path,
                "-x",
                "c++-header",
                # Templates that the headers themselves use are instantiated here, once.
                "-fpch-instantiate-templates",
                # The headers' contents count, not their times.
                "-Xclang",
                "-fno-pch-timestamp",
            ] + [option for base in ctx.files.base for option in ["-include-pch", base.path]],
            preprocessor_defines = libraries.defines,
            quote_include_directories = libraries.quote_includes,
            system_include_directories = libraries.system_includes,
        ),
    )
    compiler = cc_common.get_tool_for_action(
        feature_configuration = features,
        action_name = CPP_COMPILE_ACTION_NAME,
    )
    command = 'cat %s | "$@"' % " ".join([source.path for source in ctx.files.srcs])
    outputs = [compiled]
    if ctx.attr.base:
        # Bazel forgets what a source has not read itself: neither this header, nor those of the project in it, would
        # compile that source again. A header that changes with this one does.
        stamp = ctx.actions.declare_file(ctx.label.name + ".stamp.h")
        outputs.append(stamp)
        command += ' && echo "// $(sha256sum <%s)" >%s' % (compiled.path, stamp.path)
    ctx.actions.run_shell(
        command = command,
        arguments = [compiler] + compile_command,
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = cc_common.empty_variables(),
        ),
        inputs = depset(ctx.files.srcs + ctx.files.base, transitive = [toolchain.all_files, libraries.headers]),
        outputs = outputs,
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling %s" % ctx.label,
    )
    return [
        DefaultInfo(files = depset([compiled])),
        CcInfo(compilation_context = cc_common.create_compilation_context(
            headers = depset(outputs + ctx.files.base),
        )),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "base": attr.label(doc = "a precompiled header that this one adds to", providers = [CcInfo]),
        "copts": attr.string_list(doc = "those of the sources that include it, all that matter"),
        "deps": attr.label_list(doc = "the libraries that its headers belong to", providers = [CcInfo]),
        "srcs": attr.label_list(allow_files = [".inc"], doc = "what it holds, joined"),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
