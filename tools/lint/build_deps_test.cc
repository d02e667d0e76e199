// Deps of BUILD files, as they are written in this project.
#include "tools/lint/build_deps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::tidy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(BuildDeps, OfARoomAreThoseOfItsLibraryAndThoseOfItsTests) {
  const BuildDeps deps = build_deps(R"(load("//tools/build_defs:room.bzl", "room")

room(
    # It brings "//not/this".
    test_deps = ["//a/testing"],
    visibility = ["//visibility:private"],
    deps = [
        ":helpers",
        "//a/low",
        "@libtorch",
    ],
    tests = {
        "one_test": {
            "data": ["//a/data"],
            "deps": ["//a/middle"],
        },
    },
)
)");
  EXPECT_THAT(deps.deps, ElementsAre(":helpers", "//a/low", "@libtorch"));
  EXPECT_THAT(deps.of_tests, ElementsAre("//a/testing", "//a/middle"));
  EXPECT_FALSE(deps.is_public);
}

TEST(BuildDeps, OfOtherRulesCountWithAllChoices) {
  const BuildDeps deps = build_deps(R"(room(visibility = ["//visibility:public"])

accelerate_cc_library(
    name = "backends",
    visibility = ["//visibility:private"],
    deps = ["//a/gloo"] + select({
        ":with_mpi": ["//a/mpi"],
        "//conditions:default": [],
    }),
)
)");
  EXPECT_THAT(deps.deps, ElementsAre("//a/gloo", ":with_mpi", "//a/mpi", "//conditions:default"));
  EXPECT_THAT(deps.of_tests, IsEmpty());
  EXPECT_TRUE(deps.is_public);
}

TEST(BuildDeps, OfAFileThatEndsEarlyAreThoseUpToThere) {
  EXPECT_THAT(build_deps("room(\n    deps = [\"//a").deps, ElementsAre("//a"));
  EXPECT_THAT(build_deps("room(deps =").deps, IsEmpty());
  EXPECT_THAT(build_deps("").deps, IsEmpty());
}

TEST(BuildDeps, AreOfAPackageWhereTheTargetHasItsName) {
  EXPECT_EQ(package_of("//a/b"), "a/b");
  EXPECT_EQ(package_of("//a/b:b"), "a/b");
  EXPECT_EQ(package_of("//a:a"), "a");
  EXPECT_EQ(package_of("//a/b:c"), "");
  EXPECT_EQ(package_of(":b"), "");
  EXPECT_EQ(package_of("@libtorch"), "");
}

}  // namespace
}  // namespace accelerate::tidy
