"""One test on several simulated topologies: compiled once, run once per shape."""

load("//tools/build_defs:cc.bzl", "accelerate_cc_library", "accelerate_cc_test")

def _world_size(topology):
    # "2x4", "2x4:h100,mem=1GiB" or a torus, "tpu-v4:2x2x4".
    parts = topology.split(",")[0].split(":")
    shape = parts[0] if parts[0][0].isdigit() or len(parts) == 1 else parts[1]
    product = 1
    for extent in shape.split("x"):
        if not extent.isdigit():
            fail("topology_test: \"{}\" is no topology, as \"2x4\" or \"2x4:h100\" are".format(topology))
        product *= int(extent)
    return product

def _label(topology):
    """The topology as a part of a target's name and of a tag."""
    for character in [":", ",", "="]:
        topology = topology.replace(character, "_")
    return topology

def _size(world_size):
    return "small" if world_size <= 8 else "medium" if world_size <= 64 else "large"

def topology_test(name, srcs, topologies, deps = [], tags = [], size = None, data = [], env = {}):
    """Makes NAME_SHAPE for each topology and a test_suite NAME of them all.

    Args:
      name: of the suite.
      srcs: GoogleTest sources; they take the shape from simulator::Cluster::from_test_env().
      topologies: as in ["1x1", "2x4", "2x4:h100"]; what is no letter, digit or hyphen in one becomes
        an underscore in the names.
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
        libtorch = True,
        alwayslink = True,
        visibility = ["//visibility:private"],
        deps = deps + ["@com_google_googletest//:gtest_main"],
    )
    tests = []
    for topology in topologies:
        test = "{}_{}".format(name, _label(topology))
        accelerate_cc_test(
            name = test,
            size = size or _size(_world_size(topology)),
            data = data,
            env = dict(env, ACCELERATE_TEST_TOPOLOGY = topology),
            libtorch = True,
            tags = tags + ["sim", "topology_" + _label(topology)],
            deps = [":" + library],
        )
        tests.append(test)
    native.test_suite(name = name, tests = tests)
