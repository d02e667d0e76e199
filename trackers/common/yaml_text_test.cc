#include "trackers/common/yaml_text.h"

#include <limits>
#include <optional>
#include <string>

#include <gtest/gtest.h>

namespace accelerate::trackers {
namespace {

TEST(YamlText, WritesSortedBlocks) {
  EXPECT_EQ(yaml_text({{"lr", 0.1},
                       {"b", {{"z", 1}, {"a", std::nullopt}}},
                       {"flag", true},
                       {"lr", 1e-5},
                       {"empty", TrackerDict()},
                       {"none", TrackerList()},
                       {"list", TrackerList{1, "x", TrackerList{2, 3}, TrackerDict{{"k", 4}}}}}),
            "b:\n  a: null\n  z: 1\nempty: {}\nflag: true\nlist:\n- 1\n- x\n- - 2\n  - 3\n"
            "- k: 4\nlr: 1.0e-05\nnone: []\n");
  EXPECT_EQ(yaml_text({}), "{}\n");
}

TEST(YamlText, KeepsWhatIsNotFinite) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(yaml_text({{"a", inf}, {"b", -inf}, {"c", std::numeric_limits<double>::quiet_NaN()}}),
            "a: .inf\nb: -.inf\nc: .nan\n");
}

TEST(YamlText, QuotesWhatWouldBeReadAsSomethingElse) {
  for (const char* const text :
       {"", "true", "Off", "12", "1.5", "1.0e-5", "0x1F", "~", "2024-01-02", "- a", "a: b", "a #b",
        "#a", "[1]", " a", "a ", "*a", "1:30"}) {
    EXPECT_EQ(yaml_text({{"k", text}}), "k: '" + std::string(text) + "'\n");
  }
  for (const char* const text : {"x", "1e-5", "a:b", "-a", "it's", "a#b", "1.2.3", "a, [b]"}) {
    EXPECT_EQ(yaml_text({{"k", text}}), "k: " + std::string(text) + "\n");
  }
  EXPECT_EQ(yaml_text({{"k", "'a"}}), "k: '''a'\n");
  EXPECT_EQ(yaml_text({{"1", "a\n\tb\"\\"}}), "'1': \"a\\n\\tb\\\"\\\\\"\n");
  EXPECT_EQ(yaml_text({{"k", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\xA4\x97\xFF"}}),
            "k: \"\\xE9\\u20AC\\U0001F917\\xFF\"\n");
}

TEST(YamlText, BreaksLongLines) {
  const std::string word(45, 'w');
  EXPECT_EQ(yaml_text({{"k", word + " " + word + " x y"}}),
            "k: " + word + " " + word + "\n  x y\n");
  EXPECT_EQ(yaml_text({{"k", std::string(300, 'x')}}), "k: " + std::string(300, 'x') + "\n");
}

TEST(YamlText, WritesTensorsAsTheirElements) {
  EXPECT_EQ(
      yaml_text({{"a", TensorValue{.sizes = {2, 2}, .dtype = "int64", .values = {1, 2, 3, 4}}},
                 {"b", TensorValue{.dtype = "float32", .values = {2}}},
                 {"c", TensorValue{.sizes = {0}, .dtype = "float32"}}}),
      "a:\n- - 1\n  - 2\n- - 3\n  - 4\nb: 2.0\nc: []\n");
}

}  // namespace
}  // namespace accelerate::trackers
