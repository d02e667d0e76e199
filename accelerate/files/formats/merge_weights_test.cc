#include "accelerate/files/formats/merge_weights.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/files/formats/safetensors_header.h"
#include "accelerate/files/formats/sharded_metadata.h"
#include "accelerate/files/formats/weight_files.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/testing/files/interrupted_files.h"

namespace accelerate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Bytes of a U8 tensor by name.
struct Part {
  std::string name;
  std::vector<int64_t> shape;
  std::string bytes;
};

class MergeWeights : public testing::Test {
 protected:
  MergeWeights() : base_(testing::TempDir() + "/merge_weights") { clear(); }
  ~MergeWeights() override { clear(); }
  void clear() { EXPECT_TRUE(remove_all(files_, base_).ok()); }

  std::string in() const { return join_path(base_, "in"); }
  std::string out() const { return join_path(base_, "out"); }

  void write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(write_file(files_, join_path(in(), name), text).ok());
  }
  void write_tensors(const std::string& name, const std::vector<Part>& parts) {
    SafetensorsHeader header;
    for (const Part& part : parts) {
      header.tensors.push_back({.name = part.name, .dtype = "U8", .shape = part.shape});
    }
    std::string text = *lay_out_safetensors(header);
    for (const SafetensorsEntry& entry : header.tensors) {
      for (const Part& part : parts) {
        if (part.name == entry.name) text += part.bytes;
      }
    }
    write(name, text);
  }

  // Two ranks: a matrix by rows, one by columns, a vector that only rank 1 has, a number.
  void write_shards() {
    write_tensors("shard_00000.safetensors",
                  {{"rows", {1, 3}, "abc"}, {"columns", {2, 1}, "ad"}, {"number", {}, "n"}});
    write_tensors("shard_00001.safetensors",
                  {{"rows", {2, 3}, "defghi"}, {"columns", {2, 2}, "bcef"}, {"own", {4}, "wxyz"}});
    const auto shard = [](int rank, const char* key, std::vector<int64_t> offsets,
                          std::vector<int64_t> lengths) {
      return TensorShard{sharded_file_name(rank), key, {std::move(offsets), std::move(lengths)}};
    };
    metadata_ = {.world_size = 2, .root = "model"};
    metadata_.tensors["rows"] = {
        "U8", {3, 3}, {shard(1, "rows", {1, 0}, {2, 3}), shard(0, "rows", {0, 0}, {1, 3})}};
    metadata_.tensors["columns"] = {
        "U8", {2, 3}, {shard(0, "columns", {0, 0}, {2, 1}), shard(1, "columns", {0, 1}, {2, 2})}};
    metadata_.tensors["number"] = {"U8", {}, {shard(0, "number", {}, {})}};
    metadata_.tensors["own"] = {"U8", {4}, {shard(1, "own", {0}, {4})}};
    write_metadata();
  }
  void write_metadata() { write("metadata.json", sharded_metadata_text(metadata_)); }

  std::string merge(const MergeWeightsOptions& options = {}) {
    return std::string(merge_weights(files_, in(), out(), options).status().message());
  }

  // "name=bytes ..." by position.
  std::string contents(const std::string& name) {
    const auto file = files_.open(join_path(out(), name));
    if (!file.ok()) return std::string(file.status().message());
    const auto header = read_safetensors_header(**file, name);
    if (!header.ok()) return std::string(header.status().message());
    std::string text;
    for (const SafetensorsEntry& entry : header->tensors) {
      std::string bytes(entry.end - entry.begin, '\0');
      EXPECT_TRUE(
          (*file)
              ->read_at(header->data_offset + entry.begin,
                        absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size()))
              .ok());
      text += (text.empty() ? "" : " ") + entry.name + "=" + bytes;
    }
    return text;
  }
  std::vector<std::string> list(const std::string& folder) {
    const auto names = files_.list(folder);
    return names.ok() ? *names : std::vector<std::string>{};
  }

  HostFiles disk_;
  InterruptedFiles files_{disk_, InterruptedFiles::kNever, /*syncs=*/false};
  const std::string base_;
  ShardedMetadata metadata_;
};

TEST_F(MergeWeights, PutsBoxesTogether) {
  write_shards();
  int64_t written = 0;
  const auto merged =
      merge_weights(files_, in(), out(), {.progress = [&](int64_t bytes) { written += bytes; }});
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->tensors, 4);
  EXPECT_EQ(merged->bytes, 20);
  EXPECT_EQ(written, 20);
  EXPECT_THAT(merged->files, ElementsAre("model.safetensors"));
  EXPECT_EQ(contents("model.safetensors"), "columns=abcdef number=n own=wxyz rows=abcdefghi");
  EXPECT_EQ(list(in()).size(), 3);
}

// What is copied at a time ends within a row of the larger box.
TEST_F(MergeWeights, PutsLargeBoxesTogether) {
  constexpr int64_t kRows = 3, kLeft = 4'000'001, kRight = 100'000, kWidth = kLeft + kRight;
  std::string whole(kRows * kWidth, '\0'), left, right;
  for (size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<char>(i ^ (i >> 9));
  for (int64_t row = 0; row < kRows; ++row) {
    left += whole.substr(row * kWidth, kLeft);
    right += whole.substr(row * kWidth + kLeft, kRight);
  }
  write_tensors("shard_00000.safetensors", {{"x", {kRows, kLeft}, left}});
  write_tensors("shard_00001.safetensors", {{"x", {kRows, kRight}, right}});
  metadata_ = {.world_size = 2, .root = "model"};
  metadata_.tensors["x"] = {"U8",
                            {kRows, kWidth},
                            {{sharded_file_name(0), "x", {{0, 0}, {kRows, kLeft}}},
                             {sharded_file_name(1), "x", {{0, kLeft}, {kRows, kRight}}}}};
  write_metadata();
  EXPECT_EQ(merge(), "");
  EXPECT_TRUE(contents("model.safetensors") == "x=" + whole);
}

TEST_F(MergeWeights, MakesOneFileOfTheStateOfAnOptimizer) {
  write_shards();
  metadata_.root = "optimizer";
  metadata_.values = R"({"lr":0.5})";
  write_metadata();
  EXPECT_THAT(merge({.max_shard_size = 10}), HasSubstr("the state of an optimizer is one file"));
  const auto merged = merge_weights(files_, in(), out(), {.remove_checkpoint_dir = true});
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_THAT(merged->files, ElementsAre("optimizer.safetensors"));
  EXPECT_EQ(merged->tensors, 4);
  EXPECT_EQ(merged->bytes, 20);
  EXPECT_THAT(list(out()), ElementsAre("optimizer.safetensors"));
  EXPECT_EQ(contents("optimizer.safetensors"), "columns=abcdef number=n own=wxyz rows=abcdefghi");
  const auto file = files_.open(join_path(out(), "optimizer.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto header = read_safetensors_header(**file, "optimizer.safetensors");
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->metadata->at("values"), metadata_.values);
  EXPECT_FALSE(*exists(files_, in()));
}

TEST_F(MergeWeights, MakesJsonOfTheStateOfAnOptimizerWithoutTensors) {
  metadata_ = {.world_size = 2, .root = "optimizer"};
  metadata_.values = R"({"lr": 0.5})";
  write_metadata();
  EXPECT_EQ(merge(), "");
  EXPECT_THAT(list(out()), ElementsAre("optimizer.json"));
  EXPECT_EQ(*read_file(files_, join_path(out(), "optimizer.json")), "{\n  \"lr\": 0.5\n}\n");
}

TEST_F(MergeWeights, WritesShardsAgain) {
  write_shards();
  EXPECT_EQ(merge({.max_shard_size = 10}), "");
  EXPECT_THAT(list(out()),
              ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                          "model-00003-of-00003.safetensors", "model.safetensors.index.json"));
  EXPECT_EQ(contents("model-00002-of-00003.safetensors"), "own=wxyz");
}

TEST_F(MergeWeights, TakesAnIndexWithItsShards) {
  write_tensors("a.safetensors", {{"x", {2}, "12"}});
  write_tensors("b.safetensors", {{"y", {1, 3}, "345"}, {"z", {0}, ""}});
  write("model.safetensors.index.json", shard_index_text({.weight_map = {{"x", "a.safetensors"},
                                                                         {"y", "b.safetensors"},
                                                                         {"z", "b.safetensors"}}}));
  EXPECT_EQ(merge({.remove_checkpoint_dir = true}), "");
  EXPECT_EQ(contents("model.safetensors"), "x=12 y=345 z=");
  EXPECT_FALSE(*exists(files_, in()));
}

TEST_F(MergeWeights, RemovesOnlyWhatItMerged) {
  write_shards();
  write("notes.txt", "mine");
  EXPECT_EQ(merge({.remove_checkpoint_dir = true}), "");
  EXPECT_THAT(list(in()), ElementsAre("notes.txt"));
}

TEST_F(MergeWeights, FindsDamageBeforeItWrites) {
  write_shards();
  const ShardedMetadata good = metadata_;
  const auto problem_with = [&](const auto& change) {
    metadata_ = good;
    change(metadata_);
    write_metadata();
    const std::string problem = merge({.remove_checkpoint_dir = true});
    EXPECT_FALSE(*exists(files_, out()));
    EXPECT_EQ(list(in()).size(), 3);
    return problem;
  };
  EXPECT_THAT(problem_with([](auto& m) { m.tensors["rows"].shards.pop_back(); }),
              HasSubstr("\"rows\" leave a hole"));
  EXPECT_THAT(problem_with([](auto& m) { m.tensors["own"].shards[0].key = "lost"; }),
              HasSubstr("shard_00001.safetensors: it has no \"lost\""));
  EXPECT_THAT(problem_with([](auto& m) { m.tensors["own"].dtype = "I8"; }),
              HasSubstr("another dtype"));
  EXPECT_THAT(problem_with([](auto& m) { m.tensors["own"].shards[0].file = "lost.safetensors"; }),
              HasSubstr("lost.safetensors"));
  metadata_ = good;
  write_metadata();
  write("shard_00001.safetensors", "garbage");
  EXPECT_THAT(merge(), HasSubstr("shard_00001.safetensors"));
  write("metadata.json", "{");
  EXPECT_THAT(merge(), HasSubstr("metadata.json"));
}

TEST_F(MergeWeights, HintsAtCheckpointsNearby) {
  EXPECT_EQ(merge_weights(files_, in(), out()).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(write_file(files_, join_path(in(), "pytorch_model_fsdp_0/metadata.json"), "{}").ok());
  EXPECT_THAT(merge(), HasSubstr("merge_weights/in/pytorch_model_fsdp_0?"));
  EXPECT_THAT(std::string(merge_weights(files_, in() + "/nothing", out()).status().message()),
              HasSubstr("merge_weights/in/pytorch_model_fsdp_0?"));
}

TEST_F(MergeWeights, SaysWhatIsPickled) {
  const auto code = [&](const std::string& path) {
    return merge_weights(files_, path, out()).status().code();
  };
  write("pytorch_model_fsdp_0/.metadata", "\x80\x02}.");
  write("pytorch_model_fsdp_0/__0_0.distcp", "PK\x03\x04 and more");
  const std::string distributed = join_path(in(), "pytorch_model_fsdp_0");
  EXPECT_EQ(code(distributed), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(merge_weights(files_, distributed, out()).status().message()),
              HasSubstr("pytorch_model_fsdp_0 is of torch.distributed.checkpoint"));
  EXPECT_THAT(merge(), HasSubstr("merge_weights/in/pytorch_model_fsdp_0?"));
  for (const std::string& start : {std::string("PK\x03\x04\0\0\x08\x08", 8),
                                   std::string("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46")}) {
    write("pytorch_model.bin", start + "and more");
    EXPECT_THAT(merge(), HasSubstr("pytorch_model.bin: it is pickled"));
    EXPECT_EQ(code(join_path(in(), "pytorch_model.bin")), absl::StatusCode::kUnimplemented);
  }
  ASSERT_TRUE(remove_all(files_, join_path(in(), "pytorch_model.bin")).ok());
  write("shard.bin", "PK\x03\x04 and more");
  write("pytorch_model.bin.index.json", shard_index_text({.weight_map = {{"x", "shard.bin"}}}));
  EXPECT_THAT(merge(), HasSubstr("shard.bin: it is pickled"));
  // A header of 640 bytes that is damaged.
  write("shard.bin", std::string("\x80\x02\0\0\0\0\0\0{", 9) + std::string(700, ' '));
  EXPECT_THAT(merge(), Not(HasSubstr("pickled")));
  EXPECT_FALSE(*exists(files_, out()));
}

TEST_F(MergeWeights, RefusesItsOwnFolder) {
  write_shards();
  EXPECT_EQ(merge_weights(files_, in(), in() + "/../in/").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(MergeWeights, IsCompleteOrNotThereWhereverItStops) {
  for (int64_t operation = 1;; ++operation) {
    clear();
    write_shards();
    InterruptedFiles files(files_, operation);
    const bool is_done = merge_weights(files, in(), out(), {.remove_checkpoint_dir = true}).ok();
    const bool is_there = *exists(files_, join_path(out(), "model.safetensors"));
    if (is_there) {
      EXPECT_EQ(contents("model.safetensors"), "columns=abcdef number=n own=wxyz rows=abcdefghi");
    } else {
      EXPECT_EQ(list(in()).size(), 3) << "lost at operation " << operation;
    }
    if (is_done) break;
  }
}

}  // namespace
}  // namespace accelerate
