// The walls between the library and the simulator, on made-up sources.
#include "tools/lint/tidy.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::tidy {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kPresets[] = R"(
// As "z9" of another maker.
Preset q7() { return {.device = device("q7", "gpu", 32), .aliases = {"q7-32"}}; }
Preset hpu() { return {.device = device("hpu", "hpu", 32)}; }
)";

std::vector<std::string> names_found(const std::string& path, const std::string& line) {
  std::vector<std::string> texts;
  for (const Finding& finding :
       check_simulated_names({{"simulator/hardware/presets.cc", kPresets}, {path, line}})) {
    texts.push_back(to_string(finding));
  }
  return texts;
}

TEST(Walls, KeepTheSimulatorsDevicesOutOfTheLibrary) {
  EXPECT_THAT(names_found("accelerate/precision/a.cc", "\nreturn name == \"q7\";\n"),
              ElementsAre("accelerate/precision/a.cc:2: the simulator's device \"q7\": ask "
                          "Runtime::device_has"));
  EXPECT_THAT(names_found("accelerate/a.h", "const char* kSpec = \"2x4:q7-32\";\n"),
              ElementsAre(HasSubstr("\"q7-32\"")));
  EXPECT_THAT(names_found("accelerate/a.cc", "if (q7) return \"http://x\";\n"), SizeIs(1));
  EXPECT_THAT(names_found("accelerate/a.cc", "return name == \"Q7\";\n"), SizeIs(1));
}

TEST(Walls, LeaveOtherNamesAndOtherPlacesAlone) {
  for (const char* line :
       {"/// As in \"q7\".\n", "return 1;  // q7\n", "bool q70 = aq7;\n", "return \"hpu\";\n",
        "return \"z9\";\n", "return \"q7-16\";\n", "f(\"\\\"\");  // q7\n"}) {
    EXPECT_THAT(names_found("accelerate/precision/a.cc", line), IsEmpty()) << line;
  }
  for (const char* path :
       {"accelerate/precision/a_test.cc", "accelerate/testing/a.h", "accelerate/examples/lm/a.cc",
        "accelerate/options/a.cc", "accelerate/a_benchmark.cc", "accelerate/docs/a.md",
        "simulator/cluster/a.cc"}) {
    EXPECT_THAT(names_found(path, "return \"q7\";\n"), IsEmpty()) << path;
  }
  EXPECT_THAT(check_simulated_names({{"accelerate/a.cc", "return \"q7\";\n"}}), IsEmpty());
}

std::vector<File> asking(int places) {
  std::vector<File> files = {
      {"accelerate/runtime/runtime.h", "  virtual bool owns_process() const { return false; }\n"},
      {"accelerate/process/real_runtime.h", "  bool owns_process() const override { return 1; }\n"},
      {"accelerate/state/a_test.cc", "EXPECT_TRUE(runtime.owns_process());\n"},
      {"accelerate/testing/a.h", "if (runtime.owns_process()) return;\n"},
      {"simulator/cluster/a.cc", "if (runtime.owns_process()) return;\n"},
      {"accelerate/state/b.cc", "// owns_process() is asked elsewhere.\n"},
  };
  for (int i = 0; i < places; ++i) {
    files.push_back({"accelerate/state/place_" + std::to_string(i) + ".cc",
                     "\nif (runtime.owns_process()) return;\n"});
  }
  return files;
}

TEST(Walls, LetFewPlacesAskForTheProcess) {
  EXPECT_THAT(check_process_questions(asking(8)), IsEmpty());
  const Findings findings = check_process_questions(asking(9));
  ASSERT_THAT(findings, SizeIs(9));
  EXPECT_EQ(to_string(findings[0]),
            "accelerate/state/place_0.cc:2: owns_process() is asked in 9 places, more than 8: ask "
            "Runtime what is wanted");
  EXPECT_THAT(findings, Each(::testing::Field(&Finding::line, 2)));
}

TEST(Walls, CountTheQuestionsOfExamplesToo) {
  std::vector<File> files = asking(8);
  files.push_back({"accelerate/examples/common/a.h", "if (runtime.owns_process()) return;\n"});
  EXPECT_THAT(check_process_questions(files), SizeIs(9));
}

}  // namespace
}  // namespace accelerate::tidy
