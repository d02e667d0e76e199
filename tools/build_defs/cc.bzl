"""Thin wrappers of the C++ rules: the project's compiler options, and nothing else."""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")

_COPTS = [
    "-std=c++20",
    # LibTorch's C++ frontend keeps its headers apart from the rest.
    "-isystem/usr/include/torch/csrc/api/include",
    "-Wall",
    "-Wextra",
    "-Werror=return-type",
    "-Wno-unused-parameter",
    "-Wno-sign-compare",
    # Options are aggregates for designated initialisers; what is left out has its default.
    "-Wno-missing-field-initializers",
]

# A test's own code, nearly all templates, is read by the compiler more often than it runs.
TEST_COPTS = _COPTS + [
    "-O0",
    "-U_FORTIFY_SOURCE",
]

def accelerate_cc_library(copts = [], **kwargs):
    cc_library(copts = _COPTS + copts, **kwargs)

def accelerate_cc_binary(copts = [], **kwargs):
    cc_binary(copts = _COPTS + copts, **kwargs)

def accelerate_cc_test(size, copts = [], deps = [], **kwargs):
    """A test. What it includes of LibTorch and googletest is precompiled."""
    options = TEST_COPTS + copts
    if "@libtorch" in deps:
        deps = deps + ["//tools/build_defs:libtorch_test_headers"]
        options = options + ["-include", "tools/build_defs/libtorch_test_headers.h"]
    cc_test(size = size, copts = options, deps = deps, **kwargs)
