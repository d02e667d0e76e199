// Sentences in every kind of file, some with nouns and some without.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/lint/tidy.h"

namespace accelerate::tidy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Pronouns carry a gap here, so that this file passes the rule.
File file_without_gaps(const std::string& path, std::string contents) {
  std::erase(contents, '^');
  return {path, contents};
}

Findings findings_in(const std::string& path, const std::string& contents) {
  return check_pronouns(file_without_gaps(path, contents));
}

std::vector<int> lines_of_findings(const std::string& path, const std::string& contents) {
  std::vector<int> lines;
  for (const Finding& finding : findings_in(path, contents)) lines.push_back(finding.line);
  return lines;
}

// Four pronouns in seven words, and a sentence with nouns.
constexpr char kBad[] = "Wh^at th^ey gave is th^at of oth^ers.";
constexpr char kGood[] = "The ranks gave the values of their representatives.";

TEST(Pronouns, AreReportedWithFileLineScoreAndSentence) {
  const File file = file_without_gaps(
      "a.cc",
      "int a;\n// Ranks on one node. Th^ose of on^e node, and whether there\n// are others.\n");
  EXPECT_THAT(check_pronouns(file),
              ElementsAre(Finding{"a.cc", 2,
                                  "0.56 of the words are pronouns, more than 0.4: name the things "
                                  "in \"Those of one node, and whether there are others.\""}));
}

TEST(Pronouns, PassInSentencesWithNouns) {
  const std::vector<std::pair<std::string, std::string>> kinds = {
      {"a.cc", "// "}, {"a.h", "/// "}, {"a.md", ""}, {"a.sh", "# "}, {"a.py", "# "}};
  for (const auto& [path, sign] : kinds) {
    EXPECT_THAT(findings_in(path, sign + kGood + "\n"), IsEmpty()) << path;
    EXPECT_EQ(findings_in(path, sign + kBad + "\n").size(), 1) << path;
  }
}

TEST(Pronouns, CountFromSevenWordsAndAboveFourTenths) {
  EXPECT_THAT(findings_in("a.md", "It has wh^at th^ey had once.\n"), IsEmpty());  // Six words.
  EXPECT_EQ(findings_in("a.md", "It h^as wh^at th^ey had once then.\n").size(), 1);
  // Four of ten words.
  EXPECT_THAT(findings_in("a.md", "It has wh^at th^ey gave it at once or later.\n"), IsEmpty());
  // Numbers and signs are not words; a possessive counts as its pronoun.
  EXPECT_EQ(findings_in("a.md", "It h^as 12 wh^at th^ey gave + then to.\n").size(), 1);
  EXPECT_EQ(findings_in("a.md", "It has oth^er's and an^other's (th^ese) now.\n").size(), 1);
}

TEST(Pronouns, AreCountedInEachSentence) {
  const std::string two = std::string(kGood) + " " + kBad;
  EXPECT_THAT(lines_of_findings("a.h", "/// " + two + "\nint a;\n"), ElementsAre(1));
  EXPECT_THAT(findings_in("a.h", "/// It is\nint a;  ///< wh^at th^ey gave to it.\n"), IsEmpty());
  EXPECT_THAT(findings_in("a.h", "/// It is\n///\n/// wh^at th^ey gave to it.\n"), IsEmpty());
  EXPECT_THAT(findings_in("a.h", "/// It is\n\n/// wh^at th^ey gave to it.\n"), IsEmpty());
  EXPECT_THAT(findings_in("a.sh", "# It is\nls\n# wh^at th^ey gave to it.\n"), IsEmpty());
  EXPECT_THAT(lines_of_findings("a.h", "\nint a;  // It is\n        // wh^at th^ey gave to it.\n"),
              ElementsAre(2));
}

TEST(Pronouns, AreCountedInTheStringsOfAMessage) {
  EXPECT_THAT(
      lines_of_findings("a.cc", "f(a,\n  \"it has wh^at th^ey \",\n  x, \"gave to it\");\n"),
      ElementsAre(2));
  // Two arguments that are strings, two statements, and data.
  EXPECT_THAT(findings_in("a.cc", "f(\"it has wh^at th^ey \", \"gave to it\");\n"), IsEmpty());
  EXPECT_THAT(findings_in("a.cc", "f(\"it has wh^at th^ey \");\ng(\"gave to it\");\n"), IsEmpty());
  EXPECT_THAT(findings_in("a.cc", std::string("f(R\"(") + kBad + ")\");\n"), IsEmpty());
}

TEST(Pronouns, OfCodeAreNoProse) {
  EXPECT_THAT(findings_in("a.cc", "th^is->th^at(it, one, other, any, its, as);\n"), IsEmpty());
  EXPECT_THAT(findings_in("a.md", "```\n" + std::string(kBad) + "\n```\n"), IsEmpty());
  EXPECT_THAT(findings_in("a.md", "The function `th^at(it, one, th^is)` waits for it there.\n"),
              IsEmpty());
  // Quotes in characters and signs of comments in strings do not open any.
  EXPECT_THAT(lines_of_findings("a.cc", "f('\"', \"// \\\"\", 1'000);\n// " + std::string(kBad)),
              ElementsAre(2));
}

TEST(Pronouns, AreCountedInCellsAndItemsOfADocument) {
  EXPECT_THAT(findings_in("a.md", "| it is wh^at | th^ey gave it the^re |\n"), IsEmpty());
  EXPECT_THAT(
      lines_of_findings("a.md", "| a | b |\n| - | - |\n| a | " + std::string(kBad) + " |\n"),
      ElementsAre(3));
  EXPECT_THAT(findings_in("a.md", "- it is wh^at\n- th^ey gave it the^re\n"), IsEmpty());
  EXPECT_THAT(findings_in("a.md", "1. it is wh^at\n2. th^ey gave it the^re\n"), IsEmpty());
  EXPECT_THAT(findings_in("a.md", "# It is wh^at\nth^ey gave it the^re\n"), IsEmpty());
}

TEST(Pronouns, AreNotCountedInDataAndOtherFiles) {
  const std::string text = std::string("// ") + kBad + "\n";
  for (const char* path : {"integration_tests/golden/data/a.cc", "a/BUILD", "a.txt", "a.json"}) {
    EXPECT_THAT(findings_in(path, text), IsEmpty()) << path;
  }
}

TEST(Pronouns, AreARuleOfTheTree) {
  const std::vector<File> files = {
      {"a.md", std::string(kGood) + "\n"},
      file_without_gaps("b.md", std::string(kBad) + "\n"),
  };
  const Findings findings = check_tree(files);
  ASSERT_EQ(findings.size(), 1);
  EXPECT_EQ(findings[0].path, "b.md");
  EXPECT_THAT(findings[0].message, HasSubstr("they gave is that of others"));
}

}  // namespace
}  // namespace accelerate::tidy
