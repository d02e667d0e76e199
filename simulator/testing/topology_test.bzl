"""One test on several simulated topologies: compiled once, run once per shape."""

load("//tools/build_defs:cc.bzl", "accelerate_cc_library", "accelerate_cc_test")

def _world_size(topology):
    parts = topology.split("x")
    if len(parts) != 2 or not parts[0].isdigit() or not parts[1].isdigit():
        fail("topology_test: \"{}\" is not NODESxRANKS, as in \"2x4\"".format(topology))
    return int(parts[0]) * int(parts[1])

def _size(world_size):
    return "small" if world_size <= 8 else "medium" if world_size <= 64 else "large"

def topology_test(name, srcs, topologies, deps = [], tags = [], size = None, data = [], env = {}):
    """Makes NAME_SHAPE for each topology and a test_suite NAME of them all.

    Args:
      name: of the suite.
      srcs: GoogleTest sources; they take the shape from simulator::Cluster::from_test_env().
      topologies: as in ["1x1", "2x4"].
      deps: as in cc_test; GoogleTest's main comes by itself.
      tags: added to "sim", "libtorch" and "topology_SHAPE".
      size: of each test; by default it follows from the number of ranks.
      data: as in cc_test.
      env: added to the shape.
    """
    library = name + "_lib"
    accelerate_cc_library(
        name = library,
        testonly = True,
        srcs = srcs,
        alwayslink = True,
        visibility = ["//visibility:private"],
        deps = deps + ["@com_google_googletest//:gtest_main"],
    )
    tests = []
    for topology in topologies:
        test = "{}_{}".format(name, topology)
        accelerate_cc_test(
            name = test,
            size = size or _size(_world_size(topology)),
            data = data,
            env = dict(env, ACCELERATE_TEST_TOPOLOGY = topology),
            tags = tags + ["sim", "libtorch", "topology_" + topology],
            deps = [":" + library],
        )
        tests.append(test)
    native.test_suite(name = name, tests = tests)
