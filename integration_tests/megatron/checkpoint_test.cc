// Checkpoints that Megatron-Core 0.16.1 wrote (record_checkpoint.py): with their weights the
// example's model gives Megatron-Core's logits.
#include "accelerate/megatron/checkpoint.h"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/files/torch_file.h"
#include "accelerate/megatron/weights.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ByName = std::map<std::string, at::Tensor>;

constexpr char kData[] = "integration_tests/megatron/data/checkpoint";
constexpr int64_t kVocabulary = 29;

struct Recorded {
  std::string name;
  MegatronModelShape shape;
  lm::Config config;
};

Recorded gpt() {
  return {.name = "gpt",
          .shape = {.kind = MegatronModelKind::kGpt2,
                    .num_layers = 2,
                    .num_attention_heads = 4,
                    .num_query_groups = 4,
                    .vocab_size = kVocabulary,
                    .padded_vocab_size = 32,
                    .is_tied = true},
          .config = lm::model_config("tiny", {.blocks = lm::Blocks::kGpt,
                                              .layers = 2,
                                              .hidden = 16,
                                              .heads = 4,
                                              .kv_heads = 4,
                                              .intermediate = 32,
                                              .sequence_length = 16,
                                              .vocabulary = kVocabulary,
                                              .tied_head = 1})};
}

Recorded llama() {
  return {.name = "llama",
          .shape = {.kind = MegatronModelKind::kLlama,
                    .num_layers = 2,
                    .num_attention_heads = 4,
                    .num_query_groups = 2,
                    .vocab_size = kVocabulary,
                    .padded_vocab_size = 32,
                    .is_tied = false},
          .config = lm::model_config("tiny", {.blocks = lm::Blocks::kLlama,
                                              .layers = 2,
                                              .hidden = 16,
                                              .heads = 4,
                                              .kv_heads = 2,
                                              .intermediate = 24,
                                              .sequence_length = 16,
                                              .vocabulary = kVocabulary,
                                              .tied_head = 0})};
}

std::string folder_of(const Recorded& model, int64_t tp) {
  return absl::StrCat(kData, "/", model.name, "_tp", tp);
}

NamedTensors read(const std::string& folder, const MegatronModelShape& shape,
                  const MegatronDivision& division) {
  HostFiles files;
  return read_megatron_checkpoint(files, folder, shape, division);
}

void expect_equal(const NamedTensors& got, const NamedTensors& expected) {
  const ByName tensors(got.begin(), got.end());
  EXPECT_EQ(tensors.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(tensors.contains(name)) << name;
    EXPECT_TRUE(tensors.at(name).equal(tensor)) << name;
  }
}

// ---- The example's tensors of Hugging Face's.

// The example has the rows of queries, keys and values by groups.
at::Tensor by_groups(const std::vector<at::Tensor>& qkv, int64_t groups) {
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < groups; ++i) {
    for (const at::Tensor& each : qkv) rows.push_back(each.chunk(groups)[static_cast<size_t>(i)]);
  }
  return at::cat(rows);
}

ByName example_gpt(const ByName& hf, const lm::Config& config) {
  ByName own = {{"tokens.weight", hf.at("transformer.wte.weight")},
                {"positions", hf.at("transformer.wpe.weight")}};
  for (const char* kind : {".weight", ".bias"}) {
    own[absl::StrCat("norm", kind)] = hf.at(absl::StrCat("transformer.ln_f", kind));
    for (int64_t i = 0; i < config.layers; ++i) {
      const auto theirs = [&](const char* name) {
        const at::Tensor& tensor = hf.at(absl::StrCat("transformer.h.", i, ".", name, kind));
        return tensor.dim() == 2 ? tensor.t() : tensor;
      };
      const auto set = [&](const char* name, const at::Tensor& tensor) {
        own[absl::StrCat("blocks.", i, ".", name, kind)] = tensor;
      };
      set("norm1", theirs("ln_1"));
      set("norm2", theirs("ln_2"));
      set("attention.qkv", by_groups(theirs("attn.c_attn").chunk(3), config.kv_heads));
      set("attention.project", theirs("attn.c_proj"));
      set("mlp.up", theirs("mlp.c_fc"));
      set("mlp.down", theirs("mlp.c_proj"));
    }
  }
  return own;
}

ByName example_llama(const ByName& hf, const lm::Config& config) {
  ByName own = {{"tokens.weight", hf.at("model.embed_tokens.weight")},
                {"norm.weight", hf.at("model.norm.weight")},
                {"head.weight", hf.at("lm_head.weight")}};
  for (int64_t i = 0; i < config.layers; ++i) {
    const auto theirs = [&](const char* name) {
      return hf.at(absl::StrCat("model.layers.", i, ".", name, ".weight"));
    };
    const auto set = [&](const char* name, const at::Tensor& tensor) {
      own[absl::StrCat("blocks.", i, ".", name, ".weight")] = tensor;
    };
    set("norm1", theirs("input_layernorm"));
    set("norm2", theirs("post_attention_layernorm"));
    set("attention.qkv", by_groups({theirs("self_attn.q_proj"), theirs("self_attn.k_proj"),
                                    theirs("self_attn.v_proj")},
                                   config.kv_heads));
    set("attention.project", theirs("self_attn.o_proj"));
    set("mlp.gate", theirs("mlp.gate_proj"));
    set("mlp.up", theirs("mlp.up_proj"));
    set("mlp.down", theirs("mlp.down_proj"));
  }
  return own;
}

// ---- What Megatron-Core wrote.

TEST(MegatronCheckpoint, GivesMegatronCoresLogits) {
  const at::NoGradGuard no_grad;
  std::ifstream file(absl::StrCat(kData, "/logits.json"));
  const nlohmann::json answers = nlohmann::json::parse(file);
  for (const Recorded& model : {gpt(), llama()}) {
    const auto answer = answers.at(model.name);
    const auto rows = answer.at("tokens").get<std::vector<std::vector<int64_t>>>();
    std::vector<at::Tensor> tokens;
    for (const std::vector<int64_t>& row : rows) tokens.push_back(torch::tensor(row, at::kLong));
    const auto logits = answer.at("logits").get<std::vector<double>>();
    for (const int64_t tp : {1, 2}) {
      SCOPED_TRACE(absl::StrCat(model.name, ", tp ", tp));
      const NamedTensors tensors =
          hf_from_megatron(read(folder_of(model, tp), model.shape, {.tp = tp}), model.shape);
      const ByName hf(tensors.begin(), tensors.end());
      const ByName own =
          model.name == "gpt" ? example_gpt(hf, model.config) : example_llama(hf, model.config);
      lm::Lm net(model.config);
      const auto parameters = net->named_parameters();
      ASSERT_EQ(parameters.size(), own.size());
      for (const auto& item : parameters) item.value().copy_(own.at(item.key()));
      const at::Tensor got = net->forward(at::stack(tokens)).to(at::kDouble);
      const at::Tensor expected = torch::tensor(logits, at::kDouble).view(got.sizes());
      EXPECT_LE((got - expected).abs().max().item<double>(), 1e-5);
      EXPECT_GT(expected.abs().max().item<double>(), 1);
    }
  }
}

// To the bit: the parts of tp 2 are what Megatron-Core itself made of the one process's weights.
TEST(MegatronCheckpoint, IsCutAndJoinedAsMegatronCoreDoes) {
  HostFiles files;
  for (const Recorded& model : {gpt(), llama()}) {
    SCOPED_TRACE(model.name);
    const NamedTensors whole = read(folder_of(model, 1), model.shape, {});
    expect_equal(read(folder_of(model, 2), model.shape, {.tp = 2}), whole);
    for (const int64_t rank : {0, 1}) {
      const std::string path =
          absl::StrCat(folder_of(model, 2), "/iter_0000001/mp_rank_0", rank, "/model_optim_rng.pt");
      expect_equal(cut_megatron(whole, model.shape, {.tp = 2}, {.tp = rank}),
                   read_torch_state_dict(files, path).tensors);
    }
  }
}

TEST(MegatronCheckpoint, IsReadFromTheFolderOfItsIteration) {
  const Recorded model = llama();
  const std::string folder = folder_of(model, 1);
  expect_equal(read(folder + "/iter_0000001", model.shape, {}), read(folder, model.shape, {}));
}

// Ranks along pp have numbers behind those along tp.
TEST(MegatronCheckpoint, HasFilesOfStages) {
  const Recorded model = llama();
  TemporaryFolder folder;
  HostFiles files;
  EXPECT_THAT(c10_error_of([&] { read(folder.path(), model.shape, {.tp = 2, .pp = 2}); }),
              HasSubstr(folder.path("mp_rank_00_000/model_optim_rng.pt")));
  const auto copy_of_file = read_file(
      files, absl::StrCat(folder_of(model, 1), "/iter_0000001/mp_rank_00/model_optim_rng.pt"));
  ASSERT_TRUE(copy_of_file.ok()) << copy_of_file.status();
  ASSERT_TRUE(
      write_file(files, folder.path("mp_rank_00_000/model_optim_rng.pt"), *copy_of_file).ok());
  EXPECT_THAT(c10_error_of([&] { read(folder.path(), model.shape, {.tp = 1, .pp = 2}); }),
              HasSubstr(folder.path("mp_rank_00_001/model_optim_rng.pt")));
}

// ---- Bad input.

TEST(MegatronCheckpoint, NamesThePartThatIsMissing) {
  const Recorded model = gpt();
  EXPECT_THAT(c10_error_of([&] { read(folder_of(model, 1), model.shape, {.tp = 2}); }),
              HasSubstr("iter_0000001/mp_rank_01/model_optim_rng.pt"));
  const NamedTensors half = read(folder_of(model, 2), model.shape, {});
  EXPECT_THAT(value_error_of([&] { hf_from_megatron(half, model.shape); }),
              AllOf(HasSubstr("embedding.word_embeddings.weight"), HasSubstr("expected 32 rows")));
}

TEST(MegatronCheckpoint, NamesFormatsThatAreNotRead) {
  const MegatronModelShape shape = gpt().shape;
  TemporaryFolder folder;
  HostFiles files;
  const std::string tracker = folder.path("latest_checkpointed_iteration.txt");
  ASSERT_TRUE(write_file(files, tracker, "20\n").ok());
  ASSERT_TRUE(write_file(files, folder.path("iter_0000020/metadata.json"), "{}").ok());
  EXPECT_THAT(c10_error_of([&] { read(folder.path(), shape, {}); }),
              AllOf(HasSubstr(folder.path("iter_0000020")), HasSubstr("metadata.json"),
                    HasSubstr("--ckpt-convert-format torch")));
  ASSERT_TRUE(write_file(files, tracker, "last").ok());
  EXPECT_THAT(c10_error_of([&] { read(folder.path(), shape, {}); }),
              AllOf(HasSubstr(tracker), HasSubstr("got \"last\"")));
  ASSERT_TRUE(write_file(files, tracker, "release").ok());
  EXPECT_THAT(c10_error_of([&] { read(folder.path(), shape, {}); }),
              HasSubstr(folder.path("release/mp_rank_00/model_optim_rng.pt")));
  EXPECT_THAT(value_error_of([&] { read(folder.path(), shape, {.pp = 2, .chunks = 2}); }),
              HasSubstr("chunks=2"));
}

}  // namespace
}  // namespace accelerate
