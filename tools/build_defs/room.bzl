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

# How many tests: fewer, since after a change of one of them all of them are compiled and run anew.
_JOINED_TESTS = 4

# With one of these a test is compiled by itself.
_OWN_ARGUMENTS = ["srcs", "deps", "copts"]

_LINE = "echo \"#line 1 \\\"$$source\\\"\"; "
_AS_IT_IS = "cat $$source"

# The unnamed namespace gets the name of the source, so that two sources may have helpers of one name.
_ENCLOSED = "sed \"s/^namespace {/namespace $$(echo $$source | tr -c '[:alnum:]\\n' _) {/\" $$source"

def _joined_source(name, sources, command, testonly = False):
    """Writes sources one behind the other into NAME.cc, which the compiler reads."""
    native.genrule(
        name = name,
        testonly = testonly,
        srcs = sources,
        outs = [name + ".cc"],
        cmd = "for source in $(SRCS); do %s%s; done >$@" % (_LINE, command),
    )
    return name + ".cc"

def _parts(sources, size):
    """Divides a list into equal parts of up to `size`."""
    parts = (len(sources) + size - 1) // size
    return [sources[len(sources) * i // parts:len(sources) * (i + 1) // parts] for i in range(parts)]

def _joined(name, sources, apart, enclosed):
    """The sources of a library as clang reads them.

    --config=gcc reads each by itself, and so finds one that forgot an #include. Names in the unnamed
    namespaces of a room's sources therefore have to differ, but for those that are `apart` or `enclosed`.
    """
    together = [source for source in sources if source not in apart and source not in enclosed]
    joined = [source for source in sources if source in apart]
    for suffix, members, command in [("", together, _AS_IT_IS), ("_enclosed", enclosed, _ENCLOSED)]:
        parts = _parts(members, _JOINED)
        for i in range(len(parts)):
            if len(parts[i]) < 2:
                joined += parts[i]
            else:
                joined.append(_joined_source("%s%s_joined_%d" % (name, suffix, i), parts[i], command))
    return select({
        PRECOMPILED: joined,
        "//conditions:default": sources,
    })

def _joined_tests(name, tests, **library):
    """Compiles sources of tests as clang reads them.

    Args:
      name: of the room.
      tests: sources, whose names stand in unnamed namespaces.
      **library: as in accelerate_cc_library.

    Returns:
      by source, the library that has it.
    """
    library_of = {}
    parts = _parts(tests, _JOINED_TESTS)
    for i in range(len(parts)):
        if len(parts[i]) < 2:
            continue
        joined = "%s_joined_tests_%d" % (name, i)
        accelerate_cc_library(
            name = joined,
            testonly = True,
            alwayslink = True,
            srcs = [_joined_source(joined + "_source", parts[i], _ENCLOSED, testonly = True)],
            visibility = ["//visibility:private"],
            **library
        )
        for source in parts[i]:
            library_of[source] = ":" + joined
    return library_of

_ABSEIL = Label("//tools/third_party/absl")
_BENCHMARK = Label("@com_github_google_benchmark//:benchmark")
_GOOGLE_TEST = Label("@com_google_googletest//:gtest_main")
_ONE_SOURCE = Label("//tools/build_defs:one_source_main")

def room(
        deps = [],
        test_deps = [],
        tests = {},
        topology_tests = [],
        exclude = [],
        apart = [],
        enclosed = [],
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
      apart: sources with short names that others have, too, and tests whose cases are in a library: the
        compiler reads each by itself.
      enclosed: sources of the library that define nothing outside of their unnamed namespaces.
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
            srcs = _joined(name, sources, apart, enclosed) + generated,
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
    test_sources = _files("*_test.cc", exclude)
    tests_with_libtorch = libtorch or "@libtorch" in test_deps
    library_of = _joined_tests(
        name,
        [
            source
            for source in test_sources
            if source not in apart and source[:-len(".cc")] not in topology_tests and
               not [key for key in _OWN_ARGUMENTS if key in tests.get(source[:-len(".cc")], {})]
        ],
        copts = copts,
        deps = test_deps + [_ONE_SOURCE],
        libtorch = tests_with_libtorch,
        tags = tags + ["manual"],
    )
    for source in test_sources:
        test = source[:-len(".cc")]
        arguments = dict({"srcs": [source]}, **tests.get(test, {}))
        arguments["copts"] = copts + arguments.pop("copts", [])
        arguments["deps"] = test_deps + arguments.pop("deps", [])
        arguments["tags"] = tags + arguments.pop("tags", [])
        if test in topology_tests:
            if package == TOPOLOGY_SUITES.package:
                arguments["deps"].remove(":" + name)
            accelerate_topology_test(name = test, **arguments)
            continue
        arguments["deps"].append(_GOOGLE_TEST)
        if source in library_of:
            for key, joined in [("srcs", []), ("deps", [library_of[source]])]:
                arguments[key] = select({
                    PRECOMPILED: joined,
                    "//conditions:default": arguments[key],
                })
        accelerate_cc_test(
            name = test,
            size = arguments.pop("size", "small"),
            libtorch = tests_with_libtorch,
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
