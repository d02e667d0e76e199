#include "accelerate/files/formats/weight_files.h"

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/host_files.h"

namespace accelerate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class FindWeightFiles : public testing::Test {
 protected:
  FindWeightFiles() : folder_(testing::TempDir() + "/weight_files") { clear(); }
  ~FindWeightFiles() override { clear(); }
  void clear() { EXPECT_TRUE(remove_all(files_, folder_).ok()); }

  void write(const std::string& name, const std::string& text = "x") {
    ASSERT_TRUE(write_file(files_, join_path(folder_, name), text).ok());
  }
  void write_index(const std::string& name, const std::map<std::string, std::string>& weight_map) {
    write(name, shard_index_text({.weight_map = weight_map}));
  }
  std::vector<std::string> find(const std::string& name = "") {
    const absl::StatusOr<WeightFiles> found =
        find_weight_files(files_, name.empty() ? folder_ : join_path(folder_, name));
    if (!found.ok()) return {std::string(found.status().message())};
    std::vector<std::string> names;
    for (const WeightFile& file : found->files)
      names.push_back(file.path.substr(folder_.size() + 1));
    return names;
  }
  absl::StatusCode code() { return find_weight_files(files_, folder_).status().code(); }

  HostFiles files_;
  const std::string folder_;
};

TEST_F(FindWeightFiles, TakesAFileOrAnIndexByName) {
  write("weights");
  write("s1.safetensors");
  write("s2.safetensors");
  write_index("x.safetensors.index.json", {{"a", "s2.safetensors"}, {"b", "s1.safetensors"}});
  EXPECT_THAT(find("weights"), ElementsAre("weights"));
  EXPECT_THAT(find("x.safetensors.index.json"), ElementsAre("s1.safetensors", "s2.safetensors"));
  EXPECT_THAT(find(), ElementsAre("s1.safetensors", "s2.safetensors"));
}

TEST_F(FindWeightFiles, PrefersSafetensorsAndSingleFiles) {
  write("shard.bin");
  write_index("pytorch_model.bin.index.json", {{"a", "shard.bin"}});
  EXPECT_THAT(find(), ElementsAre("shard.bin"));
  write("pytorch_model.bin");
  EXPECT_THAT(find(), ElementsAre("pytorch_model.bin"));
  write("shard.safetensors");
  write_index("model.safetensors.index.json", {{"a", "shard.safetensors"}});
  EXPECT_THAT(find(), ElementsAre("shard.safetensors"));
  write("model.safetensors");
  EXPECT_THAT(find(), ElementsAre("model.safetensors"));
}

TEST_F(FindWeightFiles, SaysWhatIsMissingOrTooMuch) {
  EXPECT_EQ(code(), absl::StatusCode::kNotFound);
  write("notes.txt");
  EXPECT_EQ(code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(find(), ElementsAre(HasSubstr("nothing to load")));
  write_index("a.safetensors.index.json", {{"a", "lost.safetensors"}});
  EXPECT_EQ(code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(find(), ElementsAre(HasSubstr("lost.safetensors")));
  write_index("b.safetensors.index.json", {});
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(FindWeightFiles, FindsAShardOfAnInterruptedSaveUnderItsLastName) {
  write("a.safetensors");
  write("b.new.safetensors");
  write_index("x.safetensors.index.json", {{"a", "a.new.safetensors"}, {"b", "b.new.safetensors"}});
  EXPECT_THAT(find(), ElementsAre("a.safetensors", "b.new.safetensors"));
}

TEST(CheckWeightFile, ComparesWithTheIndex) {
  const WeightFile file{.path = "f", .tensors = {"a", "b"}};
  EXPECT_TRUE(check_weight_file(file, {"b", "a"}).ok());
  EXPECT_THAT(std::string(check_weight_file(file, {"a"}).message()), HasSubstr("b"));
  EXPECT_THAT(std::string(check_weight_file(file, {"a", "b", "c"}).message()), HasSubstr("\"c\""));
}

}  // namespace
}  // namespace accelerate
