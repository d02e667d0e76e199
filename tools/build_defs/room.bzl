"""A room: a folder with one library, its tests and its benchmarks, told apart by the names of files.

    *_test.cc          a test each
    *_benchmark.cc     a program each, which nobody runs but by hand
    *_main.cc          programs; the BUILD file declares them
    *_fuzzer.cc        fuzz targets; the BUILD file declares them
    all other sources  the room's library, which has the folder's name

tools/build_defs/floors.bzl says which room may see which.
"""

load(":cc.bzl", "PRECOMPILED", "accelerate_cc_binary", "accelerate_cc_library", "accelerate_cc_test")
load(":floors.bzl", "check_deps", "rooms_above")
load(":topology_test.bzl", "TOPOLOGY_SUITES", "accelerate_topology_test")

_NO_LIBRARY = ["*_test.cc", "*_benchmark.cc", "*_main.cc", "*_fuzzer.cc"]

# A room may have no file of one kind: Bazel 8 takes such a pattern for a mistake unless it is told.
def _files(pattern, exclude):
    return native.glob([pattern], exclude = exclude, allow_empty = True)

# How many sources the compiler reads as one, which takes it half the time: what they include is read, and the
# templates that they use are instantiated, once. After a change all of them are compiled anew.
_JOINED = 8

def _joined(name, sources, apart):
    """The sources of a library as clang reads them: one behind the other, in files of up to _JOINED.

    --config=gcc reads each by itself, and so finds one that forgot an #include. Names in the unnamed
    namespaces of a room's sources therefore have to differ, but for those that are `apart`.
    """
    all_sources = sources
    sources = [source for source in sources if source not in apart]
    if len(sources) < 2:
        return all_sources
    files = (len(sources) + _JOINED - 1) // _JOINED
    joined = []
    for i in range(files):
        joined.append("%s_joined_%d.cc" % (name, i))
        native.genrule(
            name = "%s_joined_%d" % (name, i),
            srcs = sources[len(sources) * i // files:len(sources) * (i + 1) // files],
            outs = [joined[-1]],
            cmd = "for source in $(SRCS); do echo \"#line 1 \\\"$$source\\\"\"; cat $$source; done >$@",
        )
    return select({
        PRECOMPILED: joined + apart,
        "//conditions:default": all_sources,
    })

_ABSEIL = Label("//tools/third_party/absl")
_BENCHMARK = Label("@com_github_google_benchmark//:benchmark")
_GOOGLE_TEST = Label("@com_google_googletest//:gtest_main")

def room(
        deps = [],
        test_deps = [],
        tests = {},
        topology_tests = [],
        exclude = [],
        apart = [],
        alwayslink = False,
        linkopts = [],
        generated = [],
        copts = [],
        tags = [],
        testonly = False,
        visibility = None,
        **library):
    """The library, tests and benchmarks of the BUILD file's folder.

    Args:
      deps: what its sources include: rooms on floors below, and other libraries. Abseil comes by itself.
      test_deps: what its tests and benchmarks include besides; GoogleTest comes by itself.
      tests: by a test's name, those of its arguments that differ from {"size": "small"}.
      topology_tests: names of tests with suites of simulator/testing, which run on many topologies;
        ci/sim_sweep.sh takes them. They are medium unless `tests` says otherwise.
      exclude: sources that belong to other targets of the BUILD file.
      apart: sources with short names that others have, too: the compiler reads each by itself.
      alwayslink: as in cc_library.
      linkopts: as in cc_library.
      generated: sources that other rules make.
      copts: of the library, and of its tests.
      tags: of all its targets.
      testonly: tests alone use it.
      visibility: of the library; by default all rooms above see it. Public is what users depend on from
        their own workspaces; rooms that are not above are refused all the same.
      **library: as in accelerate_cc_library.
    """
    package = native.package_name()
    name = package.split("/")[-1]
    libtorch = "@libtorch" in deps
    check_deps(package, deps)
    sources = _files("*.cc", _NO_LIBRARY + exclude)
    headers = _files("*.h", exclude)
    if sources or headers:
        accelerate_cc_library(
            name = name,
            srcs = _joined(name, sources, apart) + generated,
            hdrs = headers,
            alwayslink = alwayslink,
            copts = copts,
            libtorch = libtorch,
            linkopts = linkopts,
            tags = tags,
            testonly = testonly,
            visibility = visibility or rooms_above(package),
            deps = deps + [_ABSEIL],
            **library
        )
        test_deps = [":" + name] + test_deps
    test_deps = test_deps + [dep for dep in deps if dep not in test_deps] + [_ABSEIL]
    for source in _files("*_test.cc", exclude):
        test = source[:-len(".cc")]
        arguments = dict({"srcs": [source]}, **tests.get(test, {}))
        arguments["copts"] = copts + arguments.pop("copts", [])
        arguments["deps"] = test_deps + arguments.pop("deps", [])
        arguments["tags"] = tags + arguments.pop("tags", [])
        if test in topology_tests:
            if package == TOPOLOGY_SUITES.package:
                arguments["deps"].remove(":" + name)
            accelerate_topology_test(name = test, **arguments)
        else:
            arguments["deps"].append(_GOOGLE_TEST)
            accelerate_cc_test(
                name = test,
                size = arguments.pop("size", "small"),
                libtorch = libtorch or "@libtorch" in test_deps,
                **arguments
            )
    for source in _files("*_benchmark.cc", exclude):
        benchmark = source[:-len(".cc")]
        accelerate_cc_binary(
            name = benchmark,
            testonly = True,
            srcs = [source],
            copts = copts,
            libtorch = libtorch or "@libtorch" in test_deps,
            tags = tags,
            deps = test_deps + [_BENCHMARK],
            **tests.get(benchmark, {})
        )
