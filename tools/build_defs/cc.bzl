"""Thin wrappers of the C++ rules: the project's compiler options and precompiled headers."""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")

COPTS = [
    "-std=c++20",
    "-Wall",
    "-Wextra",
    "-Werror=return-type",
    "-Wno-unused-parameter",
    "-Wno-sign-compare",
    # Options are aggregates for designated initialisers; members that are left out keep their defaults.
    "-Wno-missing-field-initializers",
]

# The compiler reads a test's own code, nearly all templates, more often than anybody runs it.
TEST_COPTS = COPTS + [
    "-O0",
    "-U_FORTIFY_SOURCE",
]

# LibTorch is built by g++, and clang names templates as g++ does only when it is asked to be as old as 17.
CLANG_COPTS = ["-fclang-abi-compat=17"]

# Packages whose sources read the project's own headers precompiled, too.
_ABOVE_THE_PROJECT = ("accelerate/examples/", "integration_tests/")

# Macros expand in the packages of other workspaces, too, where a string would name something of theirs.
_SETTING = Label("//tools/build_defs:precompiled")
# Whether the compiler is clang, which --config=clang and --config=gcc say: a key of select().
PRECOMPILED = str(_SETTING)

# Where rules of this repository write, in a workspace that has it as an external one, too.
GENERATED = "/".join([part for part in ["$(GENDIR)", _SETTING.workspace_root] if part])

def _with_headers(kwargs, libtorch, testonly):
    """Adds the options of a source, and the headers that clang reads precompiled.

    --config=gcc reads none of them, and so finds a source that forgot an #include.
    """
    copts = (TEST_COPTS if testonly else COPTS) + kwargs.pop("copts", [])
    deps = kwargs.pop("deps", [])
    copts = copts + select({
        PRECOMPILED: CLANG_COPTS,
        "//conditions:default": [],
    })
    if kwargs.pop("precompiled", True):
        is_above = native.repository_name() == "@" and native.package_name().startswith(_ABOVE_THE_PROJECT)
        libraries = ("project_" if is_above else "libtorch_") if libtorch else ""
        name = libraries + ("test_" if testonly else "") + "headers"
        header = "%s/tools/build_defs/%s" % (GENERATED, name)
        stamp = ["-include", header + ".stamp.h"] if libraries == "project_" else []
        copts = copts + select({
            PRECOMPILED: ["-include-pch", header + ".h.pch"] + stamp,
            "//conditions:default": [],
        })
        deps = deps + select({
            PRECOMPILED: [Label("//tools/build_defs:" + name)],
            "//conditions:default": [],
        })
    return dict(kwargs, copts = copts, deps = deps)

def accelerate_cc_library(libtorch = False, testonly = False, **kwargs):
    """A library.

    Args:
      libtorch: whether it includes LibTorch.
      testonly: tests alone use it; it is compiled as they are.
      **kwargs: as cc_library has them, and `precompiled`: whether it reads precompiled headers.
    """
    cc_library(testonly = testonly, **_with_headers(kwargs, libtorch, testonly))

def accelerate_cc_binary(libtorch = False, **kwargs):
    """A program; arguments as for accelerate_cc_library. Benchmarks are optimised although `testonly`."""
    cc_binary(**_with_headers(kwargs, libtorch, False))

def accelerate_cc_test(size, libtorch = False, **kwargs):
    """A test; arguments as for accelerate_cc_library, and those of cc_test."""
    tags = kwargs.pop("tags", []) + (["libtorch"] if libtorch else [])
    # lld drops a library that only another shared library needs, and a static test starts sooner.
    cc_test(size = size, tags = tags, linkstatic = True, **_with_headers(kwargs, libtorch, True))
