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

def accelerate_cc_library(copts = [], **kwargs):
    cc_library(copts = _COPTS + copts, **kwargs)

def accelerate_cc_binary(copts = [], **kwargs):
    cc_binary(copts = _COPTS + copts, **kwargs)

def accelerate_cc_test(size, copts = [], **kwargs):
    cc_test(size = size, copts = _COPTS + copts, **kwargs)
