"""Fuzz targets as tests: each runs over its corpus, without a fuzzer. ci/fuzz.sh goes further."""

load(":cc.bzl", "accelerate_cc_test")

def accelerate_fuzz_test(name, srcs, deps, libtorch = False):
    """NAME_fuzzer.cc over the files in corpus/NAME, as the test NAME_fuzzer_test.

    Args:
      name: what is fuzzed.
      srcs: NAME_fuzzer.cc.
      deps: what it includes.
      libtorch: whether it includes LibTorch.
    """
    accelerate_cc_test(
        name = name + "_fuzzer_test",
        size = "small",
        srcs = srcs,
        args = [native.package_name() + "/corpus/" + name],
        data = native.glob(["corpus/" + name + "/*"]),
        libtorch = libtorch,
        deps = deps + [":corpus_main"],
    )
