// Each rule on made-up files.
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

std::string repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

// Words that the rules look for in any file carry a gap here, so that this file passes them.
File file_without_gaps(const std::string& path, std::string contents) {
  std::erase(contents, '|');
  return {path, contents};
}

std::vector<std::string> texts(const Findings& findings) {
  std::vector<std::string> result;
  for (const Finding& finding : findings) result.push_back(to_string(finding));
  return result;
}

TEST(LineLength, IsHundredColumnsOfCodePoints) {
  const std::string full = repeated("ä", 100) + "\n";
  EXPECT_THAT(check_line_length({"a.cc", full}), IsEmpty());
  EXPECT_THAT(texts(check_line_length({"a.cc", "short\nx" + full})),
              ElementsAre("a.cc:2: line of 101 columns, more than 100"));
  EXPECT_THAT(check_line_length({"ci/lint.sh", "x" + full}), IsEmpty());
  EXPECT_EQ(check_line_length({"ci/lint.sh", std::string(201, 'x')}).size(), 1);
}

TEST(LineLength, DependsOnTheKindOfFile) {
  const std::string line = repeated("x", 121) + "\n";
  for (const char* path : {"BUILD", "a/BUILD", "a/system.BUILD", "WORKSPACE", "README.md"}) {
    EXPECT_THAT(check_line_length({path, line}), IsEmpty()) << path;
  }
  EXPECT_THAT(check_line_length({"a.bzl", line}).size(), 1);
  EXPECT_THAT(check_line_length({"a.bzl", line.substr(1)}), IsEmpty());
}

TEST(LineLength, LetsALineOfOneUrlPass) {
  const std::string url = "https://example.org/" + repeated("x", 100);
  EXPECT_THAT(check_line_length({"a.cc", "// " + url + "\n"}), IsEmpty());
  EXPECT_THAT(check_line_length({"a.cc", "// as told in " + url + "\n"}).size(), 1);
}

TEST(Blanks, FindsTabsAndTrailingBlanks) {
  EXPECT_THAT(texts(check_blanks({"a.cc", "a\n\tb\nc \nd\r\n"})),
              ElementsAre("a.cc:2: tab", "a.cc:3: blank at the end of the line",
                          "a.cc:4: blank at the end of the line"));
}

TEST(Blanks, WantsOneNewlineAtTheEnd) {
  EXPECT_THAT(check_blanks({"a.cc", ""}), IsEmpty());
  EXPECT_THAT(check_blanks({"a.cc", "a\n\nb\n"}), IsEmpty());
  EXPECT_THAT(texts(check_blanks({"a.cc", "a\nb"})),
              ElementsAre("a.cc:2: no newline at the end of the file"));
  EXPECT_THAT(texts(check_blanks({"a.cc", "a\n\n"})),
              ElementsAre("a.cc:2: empty line at the end of the file"));
  EXPECT_THAT(check_blanks({"a.cc", "\n"}).size(), 1);
}

TEST(Leftovers, FindsMarkersAsWholeWords) {
  for (const char* line : {"// TO|DO: x", "# FIX|ME", "/* XX|X */", "HA|CK(me)"}) {
    EXPECT_THAT(check_leftovers(file_without_gaps("a.cc", line)).size(), 1) << line;
    EXPECT_THAT(check_leftovers(file_without_gaps("a.md", line)).size(), 1) << line;
  }
  EXPECT_THAT(check_leftovers({"a.sh", "mktemp /tmp/XXXXXX; TODOS\n"}), IsEmpty());
}

TEST(Leftovers, FindsMissingPartsAndTestsThatDoNotRun) {
  const File missing = file_without_gaps("a.cc", "\nthrow Error(\"Not imp|lemented\");\n");
  EXPECT_THAT(texts(check_leftovers(missing)), ElementsAre("a.cc:2: a missing part"));
  EXPECT_THAT(check_leftovers({"a.md", missing.contents}), IsEmpty());
  EXPECT_THAT(check_leftovers({"a.cc", "c10::NotImplementedError"}), IsEmpty());
  for (const char* line : {"GTEST_|SKIP() << 1;", "TEST(A, DIS|ABLED_B) {"}) {
    EXPECT_THAT(check_leftovers(file_without_gaps("a_test.cc", line)).size(), 1) << line;
  }
}

TEST(MachinePaths, AreFoundUnlessTheyAreTails) {
  for (const char* line : {"/wo|rk/main", "see /ro|ot/r", "\"/ho|me/me/x\"", "=/ho|me/me"}) {
    EXPECT_THAT(check_machine_paths(file_without_gaps("a.md", line)).size(), 1) << line;
  }
  for (const char* line : {"$cache/root/x", "${a}/work/x", "../work/x", "~/work/", "/tmp/home",
                           "https://example.org/home/x"}) {
    EXPECT_THAT(check_machine_paths({"a.md", line}), IsEmpty()) << line;
  }
}

TEST(Wording, FindsANounBehindIsNo) {
  const File file = file_without_gaps(
      "a.cc", "// It is n|o text.\nfail(\"x is n|o rank\");\nfail(name, \" is n|o dtype\");\n");
  EXPECT_THAT(texts(check_wording(file)),
              ElementsAre("a.cc:1: \"is no\" before a noun: say \"is not a\"",
                          HasSubstr("a.cc:2: "), HasSubstr("a.cc:3: ")));
  for (const char* path : {"a.h", "a.md", "a.sh", "a.py"}) {
    EXPECT_THAT(check_wording({path, file.contents}).size(), 3) << path;
  }
  for (const char* line : {"// There is no rank.", "fail(\"there is no rank\")", "it is no longer",
                           "it is no more than 3", "it is no such key", "/// is n|o rank",
                           "  # is n|o rank", "this is now", "analysis no x", "say \"is no\""}) {
    EXPECT_THAT(check_wording(file_without_gaps("a.cc", line)), IsEmpty()) << line;
  }
}

TEST(Wording, FindsCommentsThatBeginWithOf) {
  for (const char* line : {"// O|f a rank.", "  /// O|f a rank.", "int a;  ///< O|f a rank."}) {
    EXPECT_THAT(texts(check_wording(file_without_gaps("a.h", line))),
                ElementsAre("a.h:1: a comment that begins with \"Of\": write a sentence"))
        << line;
  }
  EXPECT_THAT(check_wording(file_without_gaps("a.sh", "x  # O|f a rank.")).size(), 1);
  for (const char* line : {"// Often.", "// The rank. Of", "a(\"# Of a file\")", "Of(// a)"}) {
    EXPECT_THAT(check_wording({"a.cc", line}), IsEmpty()) << line;
  }
  EXPECT_THAT(check_wording({"a.md", "# Of ranks"}), IsEmpty());
}

TEST(Wording, FindsANounBehindAreNo) {
  const File file =
      file_without_gaps("a.cc", "// They are n|o tensors.\nfail(\"are n|o ranks\");\n");
  EXPECT_THAT(
      texts(check_wording(file)),
      ElementsAre("a.cc:1: \"are no\" before a noun: say \"are not\"", HasSubstr("a.cc:2: ")));
  for (const char* line : {"// There are no ranks.", "they are no longer", "they are no such keys",
                           "/// are n|o ranks", "compare no x"}) {
    EXPECT_THAT(check_wording(file_without_gaps("a.cc", line)), IsEmpty()) << line;
  }
}

TEST(Wording, FindsLaterSentencesThatBeginWithOf) {
  for (const char* line : {"// It goes. O|f long lists a part.", "f();  // A. O|f them one."}) {
    EXPECT_THAT(texts(check_wording(file_without_gaps("a.cc", line))),
                ElementsAre("a.cc:1: a sentence that begins with \"Of\": give it a subject"))
        << line;
  }
  EXPECT_THAT(check_wording(file_without_gaps("a.md", "It goes. O|f a run one.")).size(), 1);
  for (const char* line :
       {"// It goes. Of the ranks one waits.", "f(\"A. O|f them one.\");", "// It goes. Often."}) {
    EXPECT_THAT(check_wording(file_without_gaps("a.cc", line)), IsEmpty()) << line;
  }
}

TEST(Wording, FindsWordsOfOurOwnInProse) {
  for (const char* line : {"// The ranks me|et.", "int a;  // they set|tle",
                           "// A round that is filled u|p.", "// It catches u|p."}) {
    EXPECT_THAT(texts(check_wording(file_without_gaps("a.cc", line))),
                ElementsAre(HasSubstr("say it in the field's terms")))
        << line;
  }
  EXPECT_THAT(check_wording(file_without_gaps("a.md", "Machines me|et there.")).size(), 1);
  EXPECT_THAT(check_wording(file_without_gaps("a.sh", "x  # set|tled")).size(), 1);
  for (const char* line :
       {"settle();", "// `settle` may be null.", "// say \"pad\", not \"fill up\"",
        "EXPECT_EQ(name, \"settle\");", "// The ranks meeting."}) {
    EXPECT_THAT(check_wording({"a.cc", line}), IsEmpty()) << line;
  }
}

TEST(Wording, FindsRanksThatHear) {
  EXPECT_THAT(texts(check_wording(file_without_gaps("a.md", "A rank\nhea|rs all.\n"))),
              ElementsAre(HasSubstr("a.md:2: odd wording: ")));
  EXPECT_THAT(check_wording(file_without_gaps("a.cc", "// Each says a wo|rd.")).size(), 1);
  EXPECT_THAT(check_wording({"a.cc", "// Shears and words."}), IsEmpty());
}

TEST(Wording, LeavesDataAndOtherFilesAlone) {
  const File file = file_without_gaps("a.cc", "// It is n|o text.\n");
  for (const char* path : {"integration_tests/golden/data/a.md", "a/BUILD", "a.txt", "a.json"}) {
    EXPECT_THAT(check_wording({path, file.contents}), IsEmpty()) << path;
  }
}

TEST(Size, IsOneMebibyteUnlessItIsData) {
  const std::string most = repeated("x", 1 << 20);
  EXPECT_THAT(check_size({"a.txt", most}), IsEmpty());
  EXPECT_THAT(check_size({"a.txt", most + "x"}).size(), 1);
  EXPECT_THAT(check_size({"a.safetensors", most + "x"}).size(), 1);
  EXPECT_THAT(check_size({"accelerate/examples/a/b.safetensors", most + "x"}), IsEmpty());
  EXPECT_THAT(check_size({"integration_tests/golden/data/a.json", most + "x"}), IsEmpty());
}

TEST(Header, NeedsACommentAndAGuard) {
  EXPECT_THAT(check_header({"a.h", "/// What it is for.\n#pragma once\n"}), IsEmpty());
  EXPECT_THAT(check_header({"a.cc", "int a;\n"}), IsEmpty());
  EXPECT_THAT(
      texts(check_header({"a.h", "// Plain.\nint a;\n"})),
      ElementsAre("a.h:1: the header does not open with a /// comment", "a.h:1: no #pragma once"));
}

TEST(Header, KeepsTorchTorchAndUsingNamespaceOut) {
  const std::string start = "/// A.\n#pragma once\n";
  EXPECT_THAT(texts(check_header({"a.h", start + "# include <torch/torch.h>\n"})),
              ElementsAre(HasSubstr("a.h:3: torch/torch.h in a header")));
  EXPECT_THAT(texts(check_header({"a.h", start + "  using namespace std;\n"})),
              ElementsAre("a.h:3: using namespace in a header"));
  EXPECT_THAT(check_header({"a.h", start + "#include <torch/types.h>\nusing std::pair;\n"}),
              IsEmpty());
}

TEST(NumberOfLines, IsLimitedByKind) {
  EXPECT_THAT(check_number_of_lines({"a.h", repeated("\n", 400)}), IsEmpty());
  EXPECT_THAT(texts(check_number_of_lines({"a.h", repeated("\n", 401)})),
              ElementsAre("a.h:401: 401 lines, more than 400: is this two ideas?"));
  EXPECT_THAT(check_number_of_lines({"a.cc", repeated("\n", 700)}), IsEmpty());
  EXPECT_THAT(check_number_of_lines({"a.cc", repeated("\n", 701)}).size(), 1);
  EXPECT_THAT(check_number_of_lines({"a.md", repeated("\n", 701)}), IsEmpty());
}

TEST(Sleeps, AreFoundInTestsUnlessTheClockIsTheTests) {
  const File real = file_without_gaps(
      "a_test.cc", "\nstd::this_thread::sleep_for|(1s);\n usleep|(3);\n absl::SleepFor|(x);\n");
  EXPECT_THAT(check_sleeps(real).size(), 3);
  EXPECT_THAT(check_sleeps({"integration_tests/a/main.cc", real.contents}).size(), 3);
  EXPECT_THAT(check_sleeps({"a.cc", real.contents}), IsEmpty());
  EXPECT_THAT(check_sleeps({"a_test.cc", "runtime.sleep_for(x); runtime->sleep_for(x);\n"}),
              IsEmpty());
  EXPECT_THAT(check_sleeps({"a_test.cc", "  void sleep_for(Duration time) override;\n"}),
              IsEmpty());
  EXPECT_THAT(check_sleeps({"a_test.cc", "sleep 100; oversleep(1)\n"}), IsEmpty());
}

TEST(TestSizes, AreWrittenInEveryTest) {
  const File build = {"a/BUILD",
                      "load(\"x\", \"cc_test\")\n"
                      "cc_test(\n    name = \"a\",\n)\n"
                      "accelerate_cc_test(\n    name = \"size (\",\n    # size\n)\n"
                      "accelerate_cc_test(\n    name = \"b\",\n    size = \"small\",\n)\n"};
  EXPECT_THAT(texts(check_test_sizes(build)),
              ElementsAre("a/BUILD:2: cc_test without a size",
                          "a/BUILD:5: accelerate_cc_test without a size"));
}

TEST(RepeatedRows, AreFoundInTablesOfFacts) {
  const std::string head = "| area | there | here |\n| --- | --- | --- |\n";
  const std::string path = "accelerate/docs/differences.md";
  EXPECT_THAT(check_repeated_rows({path, head + "| `a` | b | c |\n| d | b | e |\n"}), IsEmpty());
  EXPECT_THAT(texts(check_repeated_rows({path, head + "| `a` | b | c |\n| A | d | e |\n"})),
              ElementsAre(path + ":4: a second row about \"a\", after line 3"));
  EXPECT_THAT(texts(check_repeated_rows({path, head + "| a | b | c |\n| d | B | `c` |\n"})),
              ElementsAre(path + ":4: the row says the same as line 3"));
  EXPECT_THAT(texts(check_repeated_rows({path, head + "| a | b |\n| c | d\\|e | f |\n"})),
              ElementsAre(path + ":3: a row of 2 cells in a table of 3"));
  // Many features have the same cells about where they work.
  EXPECT_THAT(check_repeated_rows(
                  {"accelerate/docs/status.md", head + "| a | yes | yes |\n| b | yes | yes |\n"}),
              IsEmpty());
  // Two tables of one document do not repeat each other either.
  EXPECT_THAT(check_repeated_rows({path, head + "| a | b | c |\n\ntext\n" + head}), IsEmpty());
  EXPECT_EQ(
      check_repeated_rows({path, head + "| a | b | c |\n\n" + head + "| a | d | e |\n"}).size(), 1);
  EXPECT_THAT(check_repeated_rows({"README.md", head + "| a | b | c |\n| a | b | c |\n"}),
              IsEmpty());
}

TEST(DeadFiles, AreThoseThatNoBuildFileNames) {
  const std::vector<File> files = {
      {"a/BUILD", "srcs = [\"a.cc\", \"deep/b.cc\"]"},
      {"a/a.cc", ""},
      {"a/deep/b.cc", ""},
      {"a/aa.cc", ""},
      {"a/notes.md", ""},
      {"b/b.h", ""},
  };
  EXPECT_THAT(texts(check_dead_files(files)),
              ElementsAre("a/aa.cc:0: dead file: a/BUILD does not name it",
                          "b/b.h:0: no BUILD file in its folder or above"));
}

TEST(DeadFiles, AreNoneInARoomsOwnFolder) {
  const std::vector<File> files = {
      {"a/BUILD", "load()\nroom()\n"}, {"a/a.cc", ""}, {"a/deep/b.cc", ""}};
  EXPECT_THAT(texts(check_dead_files(files)),
              ElementsAre("a/deep/b.cc:0: dead file: a/BUILD does not name it"));
}

TEST(TopLevel, IsFixed) {
  const std::vector<File> files = {{"accelerate/a.md", ""},
                                   {".ci/run", ""},
                                   {"README.md", ""},
                                   {"src/a.md", ""},
                                   {"src/b.md", ""}};
  EXPECT_THAT(texts(check_top_level(files)),
              ElementsAre("src/a.md:0: folder at the top outside the fixed list: src"));
}

TEST(Tree, ReportsByPathAndLineAndLeavesDataAlone) {
  const std::vector<File> files = {
      {"b.txt", "ok\n \n"},
      {"a.txt", "\t\n"},
      {"integration_tests/golden/data/a.json", "\t"},
      {"accelerate/a/fuzz/corpus/b/c", "\t"},
      {"picture.bin", std::string("\t\0", 2)},
  };
  EXPECT_THAT(texts(check_tree(files)),
              ElementsAre("a.txt:1: tab", "b.txt:2: blank at the end of the line"));
}

}  // namespace
}  // namespace accelerate::tidy
