#include "accelerate/megatron/indexed_dataset.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "accelerate/files/formats/preprocess_tokens.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> numbers(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.to(at::kLong).contiguous();
  return {whole.const_data_ptr<int64_t>(), whole.const_data_ptr<int64_t>() + whole.numel()};
}

class IndexedDatasetTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) { return join_path(folder_.path(), name); }

  // Documents of these lengths, whose tokens count on from `first`.
  std::string write(const std::string& name, const std::vector<int64_t>& lengths, int64_t first) {
    TokenIndex index = {.dtype = TokenDtype::kInt32, .documents = {0}};
    std::string bytes;
    for (const int64_t length : lengths) {
      index.offsets.push_back(static_cast<int64_t>(bytes.size()));
      index.lengths.push_back(length);
      index.documents.push_back(static_cast<int64_t>(index.lengths.size()));
      for (int64_t i = 0; i < length; ++i, ++first) {
        for (int shift = 0; shift < 32; shift += 8) {
          bytes.push_back(static_cast<char>(first >> shift & 0xFF));
        }
      }
    }
    EXPECT_TRUE(write_file(files_, path(name) + ".idx", *token_index_bytes(index)).ok());
    EXPECT_TRUE(write_file(files_, path(name) + ".bin", bytes).ok());
    return path(name);
  }

  const TemporaryFolder folder_;
  HostFiles files_;
};

TEST_F(IndexedDatasetTest, ReadsEveryDtype) {
  for (uint8_t code = 1; code <= 8; ++code) {
    const auto dtype = static_cast<TokenDtype>(code);
    const bool is_float = dtype == TokenDtype::kFloat32 || dtype == TokenDtype::kFloat64;
    const int64_t size = token_size(dtype);
    // 1 as a float has these last bytes; as an integer it is large, or below 0.
    std::string bytes(static_cast<size_t>(2 * size), '\0');
    if (is_float) {
      bytes[size - 1] = '\x3F';
      bytes[size - 2] = dtype == TokenDtype::kFloat32 ? '\x80' : '\xF0';
    } else {
      bytes[0] = '\x01';
      bytes[2 * size - 1] = '\x80';
    }
    const TokenIndex index = {.dtype = dtype, .lengths = {2}, .offsets = {0}, .documents = {0, 1}};
    ASSERT_TRUE(write_file(files_, path("d.idx"), *token_index_bytes(index)).ok());
    ASSERT_TRUE(write_file(files_, path("d.bin"), bytes).ok());
    const at::Tensor tokens = IndexedDataset(files_, path("d")).get(0);
    EXPECT_EQ(tokens.scalar_type(), is_float ? at::kDouble : at::kLong);
    const bool is_unsigned = dtype == TokenDtype::kUint8 || dtype == TokenDtype::kUint16;
    const int64_t last = is_unsigned ? int64_t{1} << (8 * size - 1)
                                     : static_cast<int64_t>(~uint64_t{0} << (8 * size - 1));
    EXPECT_THAT(numbers(tokens), ElementsAre(1, is_float ? 0 : last)) << int{code};
  }
}

TEST_F(IndexedDatasetTest, GivesPartsOfSequences) {
  const IndexedDataset tokens(files_, write("a", {3, 0, 4}, 10));
  EXPECT_EQ(tokens.size(), 3);
  EXPECT_THAT(numbers(tokens.get(2)), ElementsAre(13, 14, 15, 16));
  EXPECT_THAT(numbers(tokens.get(2, 1, 2)), ElementsAre(14, 15));
  EXPECT_THAT(numbers(tokens.get(1)), ElementsAre());
  EXPECT_THROW(tokens.get(2, 1, 4), c10::IndexError);
  EXPECT_THROW(tokens.get(3), c10::IndexError);
  EXPECT_THROW(tokens.get(-1), c10::IndexError);
  EXPECT_THROW(tokens.get(2, -1, 2), c10::IndexError);
  EXPECT_THROW(tokens.get(2, 5), c10::IndexError);
  EXPECT_THAT(numbers(tokens.get(2, 4)), ElementsAre());
}

TEST_F(IndexedDatasetTest, RefusesABlendOfSamplesThatAreNotThere) {
  const auto tokens = std::make_shared<const IndexedDataset>(files_, write("a", {9}, 0));
  const std::vector<std::shared_ptr<const MegatronDataset>> sets = {
      std::make_shared<const GPTDataset>(tokens, std::pair<int64_t, int64_t>(0, 1),
                                         SampleOptions{.sequence_length = 4})};
  ASSERT_EQ(sets[0]->size(), 2);
  const auto problem = [&](const BlendOrder& order) {
    return value_error_of([&] { BlendedDataset(sets, order); });
  };
  EXPECT_EQ(problem({.datasets = {0, 0}, .samples = {1, 0}}), "no error");
  EXPECT_THAT(problem({.datasets = {0}, .samples = {2}}), HasSubstr("set 0 has 2 samples"));
  EXPECT_THAT(problem({.datasets = {1}, .samples = {0}}), HasSubstr("there is no set 1 of 1"));
  EXPECT_THAT(problem({.datasets = {-1}, .samples = {0}}), HasSubstr("there is no set -1"));
  EXPECT_THAT(problem({.datasets = {0, 0}, .samples = {0}}), HasSubstr("its order is not whole"));
}

TEST_F(IndexedDatasetTest, NamesAFileThatIsTooShort) {
  const std::string prefix = write("a", {3}, 0);
  ASSERT_TRUE(write_file(files_, prefix + ".bin", "short").ok());
  EXPECT_THAT(value_error_of([&] { IndexedDataset(files_, prefix); }),
              AllOf(HasSubstr(prefix + ".bin"), HasSubstr("12 bytes, but it has 5")));
  EXPECT_THAT(value_error_of([&] { IndexedDataset(files_, path("none")); }), HasSubstr("none.idx"));
}

TEST_F(IndexedDatasetTest, SamplesAreRunsOfTokensAcrossDocuments) {
  const auto tokens = std::make_shared<const IndexedDataset>(files_, write("a", {5, 3, 6, 4}, 0));
  const GPTDataset samples(tokens, {1, 4}, {.sequence_length = 4, .seed = 3});
  // 13 tokens in the documents' shuffled order, of which a label ends each sample.
  const std::vector<int64_t> begin = {5, 8, 14};
  const std::vector<int64_t> length = {3, 6, 4};
  const SampleOrder order = sample_order(std::vector<int64_t>{1, 2, 3}, tokens->index().lengths,
                                         {.sequence_length = 4, .seed = 3});
  std::vector<int64_t> run;
  for (const int64_t document : order.documents) {
    for (int64_t i = 0; i < length[document - 1]; ++i) run.push_back(begin[document - 1] + i);
  }
  ASSERT_EQ(samples.size(), 3);
  for (int64_t i = 0; i < samples.size(); ++i) {
    const auto first = run.begin() + 4 * order.shuffle[i];
    EXPECT_EQ(numbers(samples.get(i).at("text")), std::vector<int64_t>(first, first + 5)) << i;
  }
  EXPECT_THROW(samples.get(3), c10::IndexError);
}

TEST_F(IndexedDatasetTest, BlendsFilesByTheirWeights) {
  const std::string a = write("a", std::vector<int64_t>(20, 10), 0);
  const std::string b = write("b", std::vector<int64_t>(20, 10), 1000);
  const auto sets = make_gpt_datasets(files_, {.data_path = {"3", a, "1", b},
                                               .split = "80,20,0",
                                               .sequence_length = 8,
                                               .num_samples = {16, 4, 4}});
  ASSERT_NE(sets[0], nullptr);
  ASSERT_NE(sets[1], nullptr);
  EXPECT_EQ(sets[2], nullptr) << "no sequence is for the test";
  EXPECT_EQ(sets[0]->size(), 16);
  EXPECT_EQ(sets[1]->size(), 4);
  for (const int64_t token : numbers(sets[1]->get(0).at("text"))) EXPECT_GE(token % 1000, 160);
  int64_t of_b = 0;
  for (int64_t i = 0; i < sets[0]->size(); ++i) {
    const MegatronBatch sample = sets[0]->get(i);
    const auto id = sample.at("dataset_id").item<int64_t>();
    of_b += id;
    EXPECT_EQ(sample.at("text").numel(), 9);
    EXPECT_EQ(sample.at("text")[0].item<int64_t>() >= 1000, id == 1) << i;
    for (const int64_t token : numbers(sample.at("text"))) EXPECT_LT(token % 1000, 160);
  }
  EXPECT_EQ(of_b, 4);
}

TEST_F(IndexedDatasetTest, ShufflesByTheSeedOfItsOptions) {
  const std::string prefix = write("a", std::vector<int64_t>(12, 10), 0);
  const auto tokens = std::make_shared<const IndexedDataset>(files_, prefix);
  for (const uint32_t seed : {1U, 5U}) {
    const auto sets = make_gpt_datasets(files_, {.data_path = {prefix},
                                                 .split = "1",
                                                 .sequence_length = 8,
                                                 .num_samples = {14, 0, 0},
                                                 .seed = seed});
    const GPTDataset expected(tokens, {0, 12},
                              {.sequence_length = 8, .num_samples = 14, .seed = seed});
    ASSERT_EQ(sets[0]->size(), expected.size());
    for (int64_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(numbers(sets[0]->get(i).at("text")), numbers(expected.get(i).at("text")))
          << "seed " << seed << ", sample " << i;
    }
  }
}

TEST_F(IndexedDatasetTest, ReadsFilesWithoutWeightsOnce) {
  const std::string a = write("a", {9, 9}, 0);
  const std::string b = write("b", {9}, 1000);
  const auto sets = make_gpt_datasets(
      files_,
      {.data_path = {a, b}, .split = "1", .sequence_length = 4, .num_samples = {1000, 0, 0}});
  EXPECT_EQ(sets[0]->size(), 4 + 2);
  EXPECT_THAT(value_error_of([&] {
                make_gpt_datasets(files_, {.data_path = {"1", a, "x", b}, .sequence_length = 4});
              }),
              HasSubstr("1 weights for 2 files"));
}

TEST_F(IndexedDatasetTest, FollowsTheArgumentsOfALoader) {
  nlohmann::ordered_json args = {{"data_path", {0.75, "a", 0.25, "b"}},
                                 {"split", "80,20,0"},
                                 {"seq_length", 16},
                                 {"seed", 7},
                                 {"train_iters", 10},
                                 {"train_samples", nullptr},
                                 {"global_batch_size", 4},
                                 {"eval_iters", 3},
                                 {"eval_interval", 5}};
  const GPTDatasetOptions options = gpt_dataset_options(args);
  EXPECT_THAT(options.data_path, ElementsAre("0.75", "a", "0.25", "b"));
  EXPECT_EQ(options.split, "80,20,0");
  EXPECT_EQ(options.sequence_length, 16);
  EXPECT_EQ(options.seed, 7U);
  EXPECT_THAT(options.num_samples, ElementsAre(40, 3 * 3 * 4, 3 * 4))
      << "validation is twice on the way, and at the end";
  nlohmann::ordered_json fewer = args;
  fewer.erase("split");
  fewer.erase("seed");
  EXPECT_EQ(gpt_dataset_options(fewer).split, "969,30,1");
  EXPECT_EQ(gpt_dataset_options(fewer).seed, 1234U);
  for (const char* name : {"global_batch_size", "eval_interval"}) {
    nlohmann::ordered_json without = args;
    without[name] = 0;
    EXPECT_THAT(value_error_of([&] { gpt_dataset_options(without); }),
                HasSubstr(std::string(name) + " is 0"));
  }
  args["data_path"] = "1 a 2 b";
  args["train_samples"] = 22;
  EXPECT_THAT(gpt_dataset_options(args).data_path, ElementsAre("1", "a", "2", "b"));
  EXPECT_THAT(gpt_dataset_options(args).num_samples, ElementsAre(22, 2 * 3 * 4, 3 * 4));
  args["seq_length"] = "long";
  EXPECT_THAT(value_error_of([&] { gpt_dataset_options(args); }),
              HasSubstr("seq_length: expected a whole number"));
  args.erase("data_path");
  EXPECT_THAT(value_error_of([&] { gpt_dataset_options(args); }), HasSubstr("\"data_path\""));
}

TEST_F(IndexedDatasetTest, ReadsWhatPreprocessingWrites) {
  ASSERT_TRUE(
      write_file(files_, path("in.jsonl"), "{\"text\": \"abc\"}\n{\"text\": \"d\"}\n").ok());
  ASSERT_TRUE(preprocess_tokens(files_, path("in.jsonl"),
                                {.output_prefix = path("out"), .append_end = true})
                  .ok());
  const IndexedDataset tokens(files_, path("out_text_document"));
  EXPECT_THAT(numbers(tokens.get(0)), ElementsAre('a', 'b', 'c', 256));
  EXPECT_THAT(numbers(tokens.get(1)), ElementsAre('d', 256));
}

}  // namespace
}  // namespace accelerate
