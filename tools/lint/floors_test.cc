// Each rule of the floors on a made-up house.
#include "tools/lint/tidy.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::tidy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kList[] = R"(
FLOORS = {
    # The lowest first.
    "accelerate": [
        ["base"],
        ["data", "optim"],
        [""],
    ],
    "launch": [
        ["process"],
    ],
    "simulator": [
        ["core"],
        ["disk"],
        ["cluster"],
    ],
    "trackers": [
        ["csv"],
    ],
}

OPEN_TO = {
    "accelerate": {
        "launch": ["base"],
        "simulator": ["*"],
        "trackers": ["base"],
    },
    "simulator": {
        "accelerate/examples": ["*"],
    },
}

OPEN_TO_TESTS = {
    "simulator": {
        "trackers": ["disk"],
    },
}

WITHOUT_LIBTORCH = [
    "accelerate/base",
    "launch",
    "simulator/core",
    "trackers",
]

BESIDE = ["testing", "examples"]

def rooms_above():
    pass
)";

std::string including(const std::vector<std::string>& includes) {
  std::string text;
  for (const std::string& include : includes) text += "#include \"" + include + "\"\n";
  return text;
}

std::vector<std::string> findings_of(const std::vector<File>& files) {
  std::vector<File> all = files;
  all.push_back({kFloorsPath, kList});
  std::vector<std::string> texts;
  for (const Finding& finding : check_floors(all)) texts.push_back(to_string(finding));
  return texts;
}

std::vector<std::string> findings_of(const std::string& path, const std::string& include) {
  return findings_of({{path, including({include})}});
}

TEST(Floors, ARoomIncludesTheFloorsBelow) {
  EXPECT_THAT(findings_of("accelerate/data/a.h", "accelerate/base/b.h"), IsEmpty());
  EXPECT_THAT(findings_of("accelerate/a.cc", "accelerate/data/b.h"), IsEmpty());
  EXPECT_THAT(findings_of("accelerate/data/a.h", "accelerate/data/b.h"), IsEmpty());
}

TEST(Floors, AnUpwardIncludeIsFound) {
  EXPECT_THAT(findings_of("accelerate/base/a.h", "accelerate/data/b.h"),
              ElementsAre("accelerate/base/a.h:1: an upward include: accelerate/base (floor 0) "
                          "includes accelerate/data/b.h (floor 1)"));
  // Rooms on the same floor do not see each other.
  EXPECT_THAT(findings_of("accelerate/data/a.h", "accelerate/optim/b.h"),
              ElementsAre(HasSubstr("an upward include")));
}

TEST(Floors, ACycleIsFound) {
  const std::vector<std::string> findings =
      findings_of({{"accelerate/base/a.h", including({"accelerate/data/b.h"})},
                   {"accelerate/data/b.h", including({"accelerate/base/a.h"})}});
  EXPECT_THAT(findings, ElementsAre(HasSubstr("an upward include"),
                                    HasSubstr("a cycle of folders in accelerate: base data")));
}

TEST(Floors, EveryFolderIsOnAFloor) {
  EXPECT_THAT(findings_of("accelerate/attic/a.cc", "absl/time/time.h"),
              ElementsAre("accelerate/attic/a.cc:0: tools/build_defs/floors.bzl does not name this "
                          "folder"));
  EXPECT_THAT(findings_of("accelerate/data/a.cc", "accelerate/attic/a.h"),
              ElementsAre(HasSubstr("accelerate/attic/a.h is on no floor")));
}

TEST(Floors, TestsIncludeWhatTheyNeedOfTheirFolder) {
  EXPECT_THAT(findings_of("accelerate/base/a_test.cc", "accelerate/data/b.h"), IsEmpty());
  EXPECT_THAT(findings_of("accelerate/testing/a.cc", "accelerate/data/b.h"), IsEmpty());
  EXPECT_THAT(findings_of("accelerate/base/a_test.cc", "accelerate/testing/b.h"), IsEmpty());
  EXPECT_THAT(findings_of("accelerate/base/a.cc", "accelerate/testing/b.h"),
              ElementsAre(HasSubstr("only tests include accelerate/testing/b.h")));
}

TEST(Floors, KeepTheLibraryFromWhatStandsOnIt) {
  for (const char* include :
       {"simulator/cluster/cluster.h", "launch/process/a.h", "trackers/csv/b.h"}) {
    EXPECT_THAT(findings_of("accelerate/data/a.h", include).size(), 1) << include;
    EXPECT_THAT(findings_of("accelerate/data/a_test.cc", include).size(), 1) << include;
  }
  EXPECT_THAT(findings_of("accelerate/data/a.h", "simulator/cluster/b.h"),
              ElementsAre("accelerate/data/a.h:1: accelerate/ must not include "
                          "simulator/cluster/b.h"));
  EXPECT_THAT(findings_of("accelerate/examples/a/a.cc", "simulator/cluster/b.h"), IsEmpty());
  EXPECT_THAT(findings_of("accelerate/examples/a/a.cc", "launch/process/b.h").size(), 1);
}

TEST(Floors, KeepLibTorchOutOfTheRoomsWithoutIt) {
  for (const char* include : {"torch/types.h", "ATen/ATen.h", "c10/util/Exception.h"}) {
    for (const char* path : {"simulator/core/a.cc", "launch/process/a.cc", "trackers/csv/a.cc",
                             "accelerate/base/a.cc", "accelerate/base/a_test.cc"}) {
      EXPECT_THAT(findings_of(path, include).size(), 1) << path << include;
    }
    EXPECT_THAT(findings_of("accelerate/data/a.cc", include), IsEmpty());
  }
  EXPECT_THAT(findings_of("simulator/core/a.cc", "absl/time/time.h"), IsEmpty());
}

TEST(Floors, OpenRoomsToOtherFolders) {
  EXPECT_THAT(findings_of("launch/process/a.cc", "accelerate/base/b.h"), IsEmpty());
  EXPECT_THAT(findings_of("launch/process/a.cc", "accelerate/data/b.h").size(), 1);
  EXPECT_THAT(findings_of("simulator/cluster/a.cc", "accelerate/data/b.h"), IsEmpty());
  EXPECT_THAT(findings_of("simulator/cluster/a.cc", "launch/process/b.h").size(), 1);
  EXPECT_THAT(findings_of("trackers/csv/a.cc", "accelerate/base/b.h"), IsEmpty());
  EXPECT_THAT(findings_of("trackers/csv/a_test.cc", "simulator/disk/sim_disk.h"), IsEmpty());
  EXPECT_THAT(findings_of("trackers/csv/a.cc", "simulator/disk/sim_disk.h").size(), 1);
}

TEST(Floors, LeaveIntegrationTestsFreeAndLetNothingIncludeThem) {
  EXPECT_THAT(findings_of("integration_tests/a/a_test.cc", "launch/process/a.h"), IsEmpty());
  for (const char* path : {"accelerate/data/a.h", "simulator/core/a.h", "launch/process/a.h"}) {
    EXPECT_THAT(findings_of(path, "integration_tests/a/b.h").size(), 1) << path;
  }
}

TEST(Floors, AreDrawnWithTheirCounts) {
  const std::vector<File> files = {
      {kFloorsPath, kList},
      {"accelerate/data/a.h", including({"accelerate/base/b.h", "accelerate/base/c.h"})},
      {"accelerate/base/b.h", including({"accelerate/optim/b.h"})},
  };
  const std::string drawing = draw_floors(files);
  EXPECT_THAT(drawing, HasSubstr("accelerate: 4 rooms on 3 floors, 2 arrows, 1 upward, 0 folder "
                                 "cycles\n"));
  EXPECT_THAT(drawing, HasSubstr("   2  (accelerate)\n   1  data                   base\n"));
}

std::vector<std::string> texts_of(const Findings& findings) {
  std::vector<std::string> texts;
  for (const Finding& finding : findings) texts.push_back(to_string(finding));
  return texts;
}

std::vector<File> with_list(std::vector<File> files) {
  files.push_back({kFloorsPath, kList});
  return files;
}

TEST(LowestFloors, AreWhatIncludesNeed) {
  std::vector<File> files = with_list({
      {"accelerate/base/a.h", ""},
      {"accelerate/data/a.h", including({"accelerate/base/b.h"})},
      {"accelerate/optim/a.cc", including({"accelerate/base/b.h"})},
      {"accelerate/a.cc", including({"accelerate/optim/b.h"})},
  });
  EXPECT_THAT(check_lowest_floors(files), IsEmpty());
  files[1].contents = "";
  EXPECT_THAT(texts_of(check_lowest_floors(files)),
              ElementsAre("tools/build_defs/floors.bzl:0: accelerate/data stands on floor 1 and "
                          "needs floor 0 only: it needs no other room of accelerate"));
  files[2].contents = "";
  // The room above both comes down with them.
  EXPECT_THAT(texts_of(check_lowest_floors(files)),
              ElementsAre("tools/build_defs/floors.bzl:0: accelerate stands on floor 2 and needs "
                          "floor 1 only: accelerate/optim is on floor 0, and accelerate/a.cc "
                          "includes accelerate/optim/b.h",
                          HasSubstr("accelerate/data stands on floor 1"),
                          HasSubstr("accelerate/optim stands on floor 1")));
}

TEST(LowestFloors, CountWhatBuildFilesDependOn) {
  const auto found = [](const std::string& build) {
    return check_lowest_floors(with_list({{"accelerate/data/a.h", ""},
                                          {"accelerate/base/b.h", ""},
                                          {"accelerate/data/BUILD", build}}));
  };
  EXPECT_THAT(found("room(deps = [\"//accelerate/base\"])\n"), IsEmpty());
  EXPECT_THAT(found("room(test_deps = [\"//accelerate/base\"])\n"), IsEmpty());
  EXPECT_THAT(found("cc_binary(deps = [\"//accelerate/base:base\"])\n"), IsEmpty());
  EXPECT_THAT(found("room(tests = {\"a_test\": {\"deps\": [\"//accelerate/base\"]}})\n"),
              IsEmpty());
  EXPECT_THAT(found("room(deps = [\"//accelerate/base:other\", \"//launch/process\"])\n").size(),
              1);
  EXPECT_THAT(found("room()\n").size(), 1);
}

TEST(LowestFloors, LetTestsDependOnPublicRooms) {
  const std::string test = "room(test_deps = [\"//accelerate/base\"])\n";
  const std::string library = "room(deps = [\"//accelerate/base\"])\n";
  const std::string everybodys = "room(visibility = [\"//visibility:public\"])\n";
  const std::string program = "cc_binary(deps = [\"//accelerate/base\"])\n";
  for (const std::string& needing : {library, program}) {
    EXPECT_THAT(check_lowest_floors(with_list(
                    {{"accelerate/base/BUILD", everybodys}, {"accelerate/data/BUILD", needing}})),
                IsEmpty());
  }
  EXPECT_THAT(check_lowest_floors(with_list({{"accelerate/base/BUILD", everybodys},
                                             {"accelerate/data/BUILD", test}}))
                  .size(),
              1);
}

TEST(LowestFloors, AreNotAskedOfRoomsThatNeedEachOther) {
  EXPECT_THAT(
      check_lowest_floors(with_list({{"accelerate/base/a.h", including({"accelerate/data/b.h"})},
                                     {"accelerate/data/b.h", including({"accelerate/base/a.h"})}})),
      IsEmpty());
}

TEST(FileCircles, AreFoundWithTheirIncludes) {
  const std::vector<File> files = with_list({
      {"accelerate/data/a.h", "\n" + including({"accelerate/data/b.h"})},
      {"accelerate/data/b.h", ""},
      {"accelerate/data/b.cc", including({"accelerate/data/b.h", "accelerate/data/c.h"})},
      {"accelerate/data/c.cc", including({"accelerate/data/c.h", "accelerate/data/a.h"})},
      {"accelerate/data/d.cc", including({"accelerate/data/a.h"})},
  });
  EXPECT_THAT(texts_of(check_file_circles(files)),
              ElementsAre("accelerate/data/a.h:2: a circle of files: a, b, c (a.h includes b.h, "
                          "b.cc includes c.h, c.cc includes a.h)"));
}

TEST(FileCircles, AreFoundOncePerCircle) {
  const std::vector<File> files = with_list({
      {"accelerate/data/a.h", including({"accelerate/data/b.h"})},
      {"accelerate/data/b.h", including({"accelerate/data/a.h"})},
      {"launch/process/a.h", including({"launch/process/b.h"})},
      {"launch/process/b.cc", including({"launch/process/b.h", "launch/process/a.h"})},
  });
  EXPECT_THAT(texts_of(check_file_circles(files)),
              ElementsAre(HasSubstr("accelerate/data/a.h:1: a circle of files: a, b"),
                          HasSubstr("launch/process/a.h:1: a circle of files: a, b")));
}

TEST(FileCircles, AreNotClosedByTestsOrByOtherRooms) {
  const std::vector<File> files = with_list({
      {"accelerate/data/a.h", including({"accelerate/base/b.h"})},
      {"accelerate/base/b.h", including({"accelerate/data/a.h"})},
      {"accelerate/data/b_test.cc", including({"accelerate/data/c.h"})},
      {"accelerate/data/c.h", including({"accelerate/data/b_test.h"})},
      {"accelerate/testing/a.h", including({"accelerate/testing/b.h"})},
      {"accelerate/testing/b.h", including({"accelerate/testing/a.h"})},
      {"accelerate/data/d.cc", including({"accelerate/data/d.h"})},
  });
  EXPECT_THAT(check_file_circles(files), IsEmpty());
}

TEST(Summary, CountsFloorsAndCirclesOfFiles) {
  std::vector<File> files = with_list({
      {"accelerate/base/a.h", ""},
      {"accelerate/data/a.h", including({"accelerate/base/b.h"})},
      {"accelerate/a.cc", including({"accelerate/data/b.h"})},
  });
  EXPECT_EQ(summary_of_floors(files), "floors needed = floors declared = 3, circles of files 0\n");
  files[1].contents = "";
  files.push_back({"accelerate/base/b.h", including({"accelerate/base/a.h"})});
  files[0].contents = including({"accelerate/base/b.h"});
  EXPECT_EQ(summary_of_floors(files), "floors needed 2, floors declared 3, circles of files 1\n");
  EXPECT_EQ(summary_of_floors({}), "");
}

}  // namespace
}  // namespace accelerate::tidy
