"""A test that runs on many simulated clusters, in this workspace or in another."""

load(":cc.bzl", "accelerate_cc_test")

TOPOLOGY_SUITES = Label("//simulator/testing")

def accelerate_topology_test(name, srcs, deps = [], size = "medium", tags = [], **kwargs):
    """A test whose suites are declared with TOPOLOGY_SUITE of simulator/testing/topology_suite.h.

    Args:
      name: of the test.
      srcs: its sources.
      deps: what they include; GoogleTest, the suites and simulated clusters come by themselves.
      size: as cc_test has it. A suite runs on several shapes, so it is longer than another test.
      tags: beside those by which ci/sim_sweep.sh finds it.
      **kwargs: as accelerate_cc_test has them. `libtorch` is true, and the simulator has it anyway.
    """
    accelerate_cc_test(
        name = name,
        size = size,
        srcs = srcs,
        libtorch = True,
        tags = tags + ["sim", "sim_sweep"],
        deps = deps + [Label("@com_google_googletest//:gtest_main"), TOPOLOGY_SUITES],
        **kwargs
    )
