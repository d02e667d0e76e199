
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "accelerate/files/formats/safetensors_header.h"
#include "accelerate/platform/host_files.h"
#include "launch/commands/commands.h"
#include "launch/estimate/architecture.h"
#include "launch/testing/commands/command_tester.h"

namespace accelerate::launcher::commands {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// BERT's base model, cased; 108 310 272 parameters, and two buffers of 512 integers.
constexpr char kBert[] = R"({
  "name": "bert",
  "modules": {
    "embeddings": {
      "buffers": {"position_ids": {"shape": [1, 512], "dtype": "int64"},
                  "token_type_ids": {"shape": [1, 512], "dtype": "int64"}},
      "modules": {
        "word_embeddings": {"parameters": {"weight": [28996, 768]}},
        "position_embeddings": {"parameters": {"weight": [512, 768]}},
        "token_type_embeddings": {"parameters": {"weight": [2, 768]}},
        "LayerNorm": {"parameters": {"weight": [768], "bias": [768]}}}},
    "encoder": {"modules": {"layer": {"repeat": 12, "modules": {
      "query": {"parameters": {"weight": [768, 768], "bias": [768]}},
      "key": {"parameters": {"weight": [768, 768], "bias": [768]}},
      "value": {"parameters": {"weight": [768, 768], "bias": [768]}},
      "output": {"parameters": {"weight": [768, 768], "bias": [768]}},
      "norm1": {"parameters": {"weight": [768], "bias": [768]}},
      "up": {"parameters": {"weight": [3072, 768], "bias": [3072]}},
      "down": {"parameters": {"weight": [768, 3072], "bias": [768]}},
      "norm2": {"parameters": {"weight": [768], "bias": [768]}}}}}},
    "pooler": {"parameters": {"weight": [768, 768], "bias": [768]}}},
  "transformer": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
})";

class EstimateMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    // Tables name the file: a long path would make them wider.
    std::filesystem::current_path(folder_);
    // Whatever the machine has cached stays out of it.
    input_.environment = {"HF_HOME=" + folder_ + "/hf"};
  }

  std::string write(const std::string& name, const std::string& contents) {
    const std::filesystem::path path = std::filesystem::path(folder_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << contents;
    return name;
  }

  std::string write_safetensors(const std::string& name, std::vector<SafetensorsEntry> tensors,
                                std::optional<SafetensorsMetadata> metadata = {}) {
    SafetensorsHeader header{.tensors = std::move(tensors), .metadata = std::move(metadata)};
    const auto start = lay_out_safetensors(header);
    EXPECT_TRUE(start.ok()) << start.status();
    const std::string path = write(name, *start);
    std::filesystem::resize_file(path, start->size() + header.tensors.back().end);
    return path;
  }

  CommandResult run(std::vector<std::string> words) {
    return run_command(kEstimateMemory, std::move(words), input_);
  }

  std::string error_of(std::vector<std::string> words) {
    const CommandResult result = run(std::move(words));
    EXPECT_NE(result.exit_code, 0) << result.out;
    EXPECT_EQ(result.out, "");
    return result.err;
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
  CommandInput input_;
};

// HF Accelerate prints these figures for the model of this name.
TEST_F(EstimateMemory, PrintsThePeersTableForBert) {
  write("b.json", kBert);
  const CommandResult result = run({"b.json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out,
            "┌────────────────────────────────────────────────────┐\n"
            "│         Memory Usage for loading `b.json`          │\n"
            "├───────┬─────────────┬──────────┬───────────────────┤\n"
            "│ dtype │Largest Layer│Total Size│Training using Adam│\n"
            "├───────┼─────────────┼──────────┼───────────────────┤\n"
            "│float32│   84.95 MB  │413.18 MB │      1.61 GB      │\n"
            "│float16│   42.47 MB  │206.59 MB │     826.36 MB     │\n"
            "│  int8 │   21.24 MB  │103.29 MB │        N/A        │\n"
            "│  int4 │   10.62 MB  │ 51.65 MB │        N/A        │\n"
            "└───────┴─────────────┴──────────┴───────────────────┘\n");
}

TEST_F(EstimateMemory, PrintsOnlyTheDtypesAskedForInTheirOrder) {
  const std::string path = write("bert.json", kBert);
  for (const auto& words : {std::vector<std::string>{path, "--dtypes", "int8", "bfloat16"},
                            std::vector<std::string>{path, "--dtypes=int8,bfloat16"}}) {
    const std::string out = run(words).out;
    EXPECT_THAT(out, HasSubstr("│bfloat16│"));
    EXPECT_LT(out.find("int8"), out.find("bfloat16"));
    EXPECT_EQ(out.find("float32"), out.npos);
  }
}

TEST_F(EstimateMemory, CountsHalvesAsFloat32AndIntegersAsTheyAre) {
  const std::string path =
      write_safetensors("m.safetensors", {{.name = "a.weight", .dtype = "BF16", .shape = {100}},
                                          {.name = "a.steps", .dtype = "I64", .shape = {}},
                                          {.name = "b.weight", .dtype = "F64", .shape = {10}}});
  EXPECT_THAT(run({path, "--dtypes", "float32"}).out,
              AllOf(HasSubstr("│  408 bytes  │448 bytes │"), HasSubstr("1.75 KB")));
}

TEST_F(EstimateMemory, ReadsAFolderWithAnIndexAndTakesATransformersBlocksWhole) {
  write_safetensors("m/x-1.safetensors",
                    {{.name = "h.0.up.weight", .dtype = "F32", .shape = {256}},
                     {.name = "h.0.down.weight", .dtype = "F32", .shape = {256}},
                     {.name = "embed.weight", .dtype = "F32", .shape = {300}}});
  write_safetensors("m/x-2.safetensors", {{.name = "bias", .dtype = "F32", .shape = {1}}});
  const std::string index = write("m/model.safetensors.index.json",
                                  R"({"weight_map": {"h.0.up.weight": "x-1.safetensors",
        "h.0.down.weight": "x-1.safetensors", "embed.weight": "x-1.safetensors",
        "bias": "x-2.safetensors"}})");
  const std::vector<std::string> words = {folder_ + "/m", "--dtypes", "float32"};
  EXPECT_THAT(run(words).out, HasSubstr("│   1.17 KB   │ 3.18 KB  │"));
  EXPECT_EQ(run({index, "--dtypes", "float32"}).exit_code, 0);
  write("m/config.json", R"({"n_layer": 1, "n_embd": 8, "n_head": 2})");
  EXPECT_THAT(run(words).out, HasSubstr("│    2.0 KB   │ 3.18 KB  │"));
}

TEST_F(EstimateMemory, ReadsTheShardsOfARun) {
  write("m/metadata.json", R"({"format": "accelerate-sharded", "version": 1, "world_size": 1,
      "root": "model", "tensors": {"fc.weight": {"dtype": "F32", "shape": [4, 3], "shards": [
      {"file": "shard_00000.safetensors", "key": "fc.weight", "offsets": [0, 0],
       "lengths": [4, 3]}]}}})");
  EXPECT_THAT(run({folder_ + "/m"}).out, HasSubstr("48 bytes"));
}

TEST_F(EstimateMemory, FindsACachedModelByItsName) {
  const std::string cache = "hf/hub/models--org--tiny/";
  write_safetensors(cache + "snapshots/abc/model.safetensors",
                    {{.name = "w", .dtype = "F32", .shape = {7}}});
  EXPECT_THAT(run({"org/tiny"}).out, AllOf(HasSubstr("`org/tiny`"), HasSubstr("28 bytes")));
  write_safetensors(cache + "snapshots/def/model.safetensors",
                    {{.name = "w", .dtype = "F32", .shape = {9}}});
  EXPECT_THAT(error_of({"org/tiny"}), HasSubstr("has 2 versions and no refs/main"));
  write(cache + "refs/main", "def");
  EXPECT_THAT(run({"org/tiny"}).out, HasSubstr("36 bytes"));
  for (const char* name : {"org/tiny", "hf-hub:org/tiny"}) {
    EXPECT_THAT(run({name, "--library_name", "timm"}).out,
                AllOf(HasSubstr("`hf-hub:org/tiny`"), HasSubstr("36 bytes")));
  }
  EXPECT_EQ(estimate::add_timm_hub_prefix("resnet50"), "resnet50") << "timm's own";
  EXPECT_EQ(estimate::add_timm_hub_prefix("hf_hub:org/tiny"), "hf_hub:org/tiny");
}

TEST_F(EstimateMemory, CountsTiedTensorsOnceAndKeepsWholeWhatIsNotSplit) {
  const std::string path = write("a.json", R"({"dtype": "float16",
      "modules": {"embed": {"parameters": {"weight": [10, 10]}},
                  "block": {"no_split": true, "parameters": {"scale": [1]}, "modules": {
                     "a": {"parameters": {"weight": [60]}},
                     "b": {"parameters": {"weight": [60]}}}},
                  "head": {"parameters": {"weight": [10, 10]}}},
      "tied": [["embed.weight", "head.weight"]]})");
  EXPECT_THAT(run({path, "--dtypes", "float32"}).out, HasSubstr("│  484 bytes  │884 bytes │"));
}

// A device map has all names of a tied tensor, on one device, and counts it once.
TEST_F(EstimateMemory, PlacesTiedTensorsTogether) {
  const std::string described = write("a.json", R"({
      "modules": {"embed": {"parameters": {"weight": [100]}},
                  "block": {"parameters": {"weight": [50]}},
                  "head": {"parameters": {"weight": [100]}}},
      "tied": [["embed.weight", "head.weight"]]})");
  const std::vector<std::string> limits = {"--dtypes", "float32", "--max_memory", "0=900,1=400"};
  const auto run_with_limits = [&](const std::string& model) {
    std::vector<std::string> words = {model};
    words.insert(words.end(), limits.begin(), limits.end());
    return run(words).out;
  };
  EXPECT_THAT(run_with_limits(described), HasSubstr("Device map in float32:\n{\n  \"\": 0\n}"));

  // safetensors lists the tied tensors that a file omits in the file's metadata.
  const std::vector<SafetensorsEntry> stored = {
      {.name = "block.weight", .dtype = "F32", .shape = {50}},
      {.name = "wte.weight", .dtype = "F32", .shape = {100}}};
  const std::string noted = write_safetensors(
      "noted/model.safetensors", stored, {{{"format", "pt"}, {"lm_head.weight", "wte.weight"}}});
  EXPECT_THAT(run_with_limits(noted), HasSubstr("lm_head: 400 bytes, 400 with wte (tied)"));

  // As a configuration says it: the head is in the files or not.
  const std::string config = R"({"architectures": ["TinyForCausalLM"],
                                 "tie_word_embeddings": true})";
  write_safetensors("once/model.safetensors", stored);
  write("once/config.json", config);
  EXPECT_THAT(run_with_limits("once"), HasSubstr("lm_head: 400 bytes, 400 with wte (tied)"));
  std::vector<SafetensorsEntry> twice = stored;
  twice.push_back({.name = "lm_head.weight", .dtype = "F32", .shape = {100}});
  write_safetensors("twice/model.safetensors", twice);
  EXPECT_THAT(run_with_limits("twice"), HasSubstr("lm_head: 400 bytes; device 0"));
  write("twice/config.json", config);
  const std::string tied = run_with_limits("twice");
  EXPECT_THAT(tied, AllOf(HasSubstr("│600 bytes │"), HasSubstr("(tied)")));
  // Python writes infinities as words.
  write("twice/config.json", R"({"architectures": ["TinyForCausalLM"], "tie_word_embeddings": true,
                                 "time_step_limit": [-Infinity, Infinity]})");
  EXPECT_EQ(run_with_limits("twice"), tied);
}

TEST_F(EstimateMemory, DividesTheStatesOverRanks) {
  // 1 GB of float32: parameters 1, gradients 1, moments 2; the largest layer has half of it.
  const std::string path = write("a.json", R"({"modules": {
      "a": {"parameters": {"weight": [134217728]}},
      "b": {"parameters": {"weight": [134217728]}}}})");
  const std::string all =
      run({path, "--dp_shard_size", "4", "--tp_size", "2", "--dtypes", "float32", "int8"}).out;
  EXPECT_THAT(all, HasSubstr("│Adam, TP 2│ZeRO-1, TP 2 on 8│ZeRO-2, TP 2 on 8│"
                             "ZeRO-3/FSDP, TP 2 on 8│"));
  // Halves by TP; then 1/2 + 1/2 + 1/4, 1/2 + 1/8 + 1/4, and 4/8 with twice the layer, 1/4.
  EXPECT_THAT(all, HasSubstr("│  2.0 GB  │     1.25 GB     │     896.0 MB    │        1.0 GB"));
  EXPECT_THAT(all, HasSubstr("│   N/A    │       N/A       │"));
  const std::string one =
      run({path, "--dp_shard_size", "4", "--zero_stage", "2", "--dtypes", "float32"}).out;
  EXPECT_THAT(one, AllOf(HasSubstr("│ZeRO-2 on 4│"), HasSubstr("│  1.75 GB  │")));
  EXPECT_EQ(one.find("ZeRO-1"), one.npos);
  EXPECT_THAT(error_of({path, "--zero_stage", "2"}), HasSubstr("--dp_shard_size"));
}

// As with as many ranks along dp_shard, and activations of a quarter of the tokens.
TEST_F(EstimateMemory, DividesSequencesOverRanks) {
  const std::string path = write("a.json", R"({"modules": {
      "a": {"parameters": {"weight": [134217728]}},
      "b": {"parameters": {"weight": [134217728]}}}})");
  std::vector<std::string> words = {path, "--dtypes", "float32", "--cp_size", "4"};
  EXPECT_THAT(run(words).out, AllOf(HasSubstr("│ZeRO-1, CP 4 on 4│ZeRO-2, CP 4 on 4│"
                                              "ZeRO-3/FSDP, CP 4 on 4│"),
                                    HasSubstr("│      2.5 GB     │     1.75 GB     │")));
  EXPECT_THAT(run({path, "--dtypes", "float32", "--dp_shard_size", "2", "--sp_size", "2"}).out,
              HasSubstr("│ZeRO-1, SP 2 on 4│"));
  const std::vector<std::string> transformer = {
      "--dtypes",      "float16", "--batch_size",        "1", "--sequence_length",     "4096",
      "--hidden_size", "1024",    "--num_hidden_layers", "2", "--num_attention_heads", "4"};
  words = {path, "--cp_size", "4"};
  words.insert(words.end(), transformer.begin(), transformer.end());
  EXPECT_THAT(run(words).out, HasSubstr("│  68.0 MB  │"));
  words.insert(words.end(), {"--attn_implementation", "eager"});
  EXPECT_THAT(error_of(words), HasSubstr("keeps the scores of whole sequences"));
  words = {path, "--sp_size", "8"};
  words.insert(words.end(), transformer.begin(), transformer.end());
  EXPECT_THAT(error_of(words), HasSubstr("4 heads of its attention on a rank, which 8 ranks along "
                                         "sp do not divide evenly; --sp_size 4 does"));
  EXPECT_THAT(error_of({path, "--cp_size", "2", "--batch_size", "1", "--sequence_length", "130"}),
              HasSubstr("--sequence_length 130 is not 4 equal pieces; 132 is"));
  EXPECT_THAT(error_of({path, "--cp_size", "2", "--sp_size", "2"}),
              HasSubstr("mutually exclusive. Got cp_size=2 and sp_size=2"));
}

// The experts' 4 MB are halved with their gradients and moments, 8 MB; of the others' a rank has a
// quarter, and twice the layer, 12 MB.
TEST_F(EstimateMemory, DividesExperts) {
  const std::string path = write("experts.json", R"({"modules": {
      "a": {"parameters": {"weight": [1048576]}},
      "mlp": {"modules": {"experts": {"parameters": {"up": [8, 131072]}}}}}})");
  const std::string divided =
      run({path, "--dtypes", "float32", "--dp_shard_size", "4", "--ep_size", "2"}).out;
  EXPECT_THAT(divided,
              AllOf(HasSubstr("FSDP, EP 2 on 4"), HasSubstr(" 20.0 MB "), Not(HasSubstr("ZeRO"))));
  EXPECT_THAT(error_of({path, "--dp_shard_size", "16", "--ep_size", "16"}),
              HasSubstr("experts.json: \"mlp.experts\" has 8 experts, which 16 ranks do not divide "
                        "evenly; --ep_size 8 does"));
  EXPECT_THAT(
      error_of({path, "--dp_shard_size", "4", "--ep_size", "3"}),
      HasSubstr("ep_size=3 does not divide the 4 ranks of dp_shard_size * cp_size * sp_size, "
                "among which experts are divided; the nearest layout that works: dp_shard "
                "4, ep 2"));
  // Ranks with parts of sequences divide experts as those along dp_shard do.
  EXPECT_THAT(
      run({path, "--dtypes", "float32", "--dp_shard_size", "2", "--cp_size", "2", "--ep_size", "4"})
          .out,
      AllOf(HasSubstr("FSDP, EP 4, CP 2 on 4"), HasSubstr(" 16.0 MB ")));
  EXPECT_THAT(error_of({path, "--dp_shard_size", "4", "--ep_size", "2", "--zero_stage", "1"}),
              HasSubstr("leave --zero_stage out"));
}

// Formula 2 of the paper: 34*s*b*h + 5*a*s*s*b bytes a layer in 16 bits, here 34 and 20 MB.
TEST_F(EstimateMemory, CountsATransformersActivations) {
  const std::string path = write("a.json", R"({"parameters": {"w": [1]}})");
  std::vector<std::string> words = {
      path, "--dtypes",      "float16", "--sequence_length",   "1024", "--batch_size",
      "1",  "--hidden_size", "1024",    "--num_hidden_layers", "2"};
  EXPECT_THAT(error_of(words),
              AllOf(HasSubstr("give --num_attention_heads"), Not(HasSubstr("hidden_size"))));
  words.insert(words.end(), {"--num_attention_heads", "4"});
  EXPECT_THAT(run(words).out, HasSubstr("│  68.0 MB  │"));
  words.insert(words.end(), {"--attn_implementation", "eager"});
  EXPECT_THAT(run(words).out, HasSubstr("│  108.0 MB │"));
  words.push_back("--activation_checkpointing");
  EXPECT_THAT(run(words).out, HasSubstr("│  58.0 MB  │"));
  words.insert(words.end(), {"--tp_size", "2"});
  EXPECT_THAT(run(words).out, HasSubstr("│  36.0 MB  │"));
  EXPECT_THAT(error_of({path, "--batch_size", "1"}), HasSubstr("--sequence_length"));
}

// GPT's blocks, four of them: elements and bytes that are counted by hand.
constexpr char kGpt[] = R"({
  "parameters": {"positions": [128, 128]},
  "modules": {
    "tokens": {"parameters": {"weight": [256, 128]}},
    "blocks": {"repeat": 4, "modules": {
      "norm1": {"parameters": {"weight": [128], "bias": [128]}},
      "norm2": {"parameters": {"weight": [128], "bias": [128]}},
      "attention": {"modules": {
        "qkv": {"parameters": {"weight": [384, 128], "bias": [384]}},
        "project": {"parameters": {"weight": [128, 128], "bias": [128]}}}},
      "mlp": {"modules": {
        "up": {"parameters": {"weight": [512, 128], "bias": [512]}},
        "down": {"parameters": {"weight": [128, 512], "bias": [128]}}}}}},
    "norm": {"parameters": {"weight": [128], "bias": [128]}}},
  "transformer": {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
                  "intermediate_size": 512}
})";

TEST_F(EstimateMemory, DividesTheLayersOverRanksByNames) {
  const std::string path = write("gpt.json", kGpt);
  std::vector<std::string> words = {path, "--dtypes",     "float32", "--tp_size",
                                    "2",  "--batch_size", "4",       "--sequence_length",
                                    "128"};
  const std::string divided = run(words).out;
  // 16 bytes an element, and 2,633,728 a block.
  EXPECT_THAT(divided, HasSubstr("Each of 2 ranks along tp has 431104 of 842496 elements: by the "
                                 "usual names of layers\n"));
  EXPECT_THAT(divided, AllOf(HasSubstr("│ 6.58 MB  │"), HasSubstr("│  10.05 MB │")));
  words.push_back("--sequence_parallel");
  EXPECT_THAT(run(words).out, HasSubstr("│  8.03 MB  │"));
  EXPECT_THAT(run({path}).out, Not(HasSubstr("ranks along tp")));
}

// Two stages: 49,152 elements before the blocks and two of these, 198,272 each. Four: two blocks,
// for which the second stage keeps three micro-batches.
TEST_F(EstimateMemory, DividesBlocksIntoStages) {
  const std::string path = write("gpt.json", kGpt);
  const std::string two = run({path, "--dtypes", "float32", "--pp_size", "2"}).out;
  EXPECT_THAT(two, AllOf(HasSubstr("Adam, PP 2"), HasSubstr(" 6.8 MB "),
                         HasSubstr("The largest of 2 stages has 445696 of 842496 elements\n")));
  EXPECT_THAT(run({path, "--dtypes", "float32", "--pp_size", "2", "--dp_shard_size", "2"}).out,
              AllOf(HasSubstr("│ZeRO-1, PP 2 on 4│"), HasSubstr("ZeRO-3/FSDP, PP 2 on 4")));
  EXPECT_THAT(run({path, "--dtypes", "float32", "--pp_size", "4", "--batch_size", "4",
                   "--sequence_length", "128"})
                  .out,
              AllOf(HasSubstr("│ 6.05 MB  │"), HasSubstr("│  24.09 MB │")));
  EXPECT_THAT(run({path, "--dtypes", "float32", "--pp_size", "2", "--tp_size", "2"}).out,
              AllOf(HasSubstr("Adam, TP 2, PP 2"), HasSubstr("ranks along tp has 431104"),
                    HasSubstr(" of 431104 elements\n")));
  EXPECT_THAT(error_of({path, "--pp_size", "8"}),
              HasSubstr("gpt.json: 4 blocks are 6 parts with what is before and behind them, so "
                        "that --pp_size is 6 at most"));
}

TEST_F(EstimateMemory, DividesTheLayersOverRanksByAPlan) {
  const std::string path = write("gpt.json", kGpt);
  const std::string plan = write("plan.json", R"({"blocks.*.mlp.up": "colwise",
                                                  "blocks.*.mlp.down": "rowwise"})");
  EXPECT_THAT(run({path, "--tp_size", "4", "--tp_plan", plan}).out,
              HasSubstr("has 447744 of 842496 elements: by its tp_plan\n"));
  EXPECT_THAT(error_of({path, "--tp_plan", plan}),
              HasSubstr("--tp_plan has no meaning without --tp_size"));
  EXPECT_THAT(error_of({path, "--sequence_parallel"}),
              HasSubstr("--sequence_parallel has no meaning without --tp_size"));
  EXPECT_THAT(error_of({path, "--tp_size", "2", "--tp_plan", write("bad.json", R"({"a": "b"})")}),
              HasSubstr("bad.json: expected a word of a plan"));
  EXPECT_THAT(error_of({path, "--tp_size", "2", "--tp_plan", "none.json"}), HasSubstr("none.json"));
  EXPECT_THAT(
      error_of({path, "--tp_size", "8"}),
      HasSubstr("gpt.json has 4 heads of its attention, which 8 ranks do not divide evenly; "
                "--tp_size 4 does"));
  EXPECT_THAT(
      error_of({path, "--tp_size", "4", "--num_key_value_heads", "2"}),
      HasSubstr("\"blocks.0.attention.qkv.bias\" is several weights in one, with 2 heads of keys "
                "and values, which 4 ranks do not divide evenly; --tp_size 2 does"));
  EXPECT_THAT(
      error_of({path, "--tp_size", "4", "--num_key_value_heads", "3"}),
      HasSubstr("3 heads of keys and values, which 4 ranks do not divide evenly; --tp_size 1 "
                "does"));
}

// Four ranks of which two have the same head of keys and of values, 16 rows of 128.
TEST_F(EstimateMemory, CountsAHeadOfKeysOnSeveralRanks) {
  const std::string path = write("grouped.json", R"({"modules": {
      "q_proj": {"parameters": {"weight": [128, 128]}},
      "k_proj": {"parameters": {"weight": [32, 128]}},
      "v_proj": {"parameters": {"weight": [32, 128]}},
      "o_proj": {"parameters": {"weight": [128, 128]}}},
      "transformer": {"num_attention_heads": 8}})");
  EXPECT_THAT(run({path, "--tp_size", "4"}).out, HasSubstr("has 10240 of 40960 elements"));
  EXPECT_THAT(run({path, "--tp_size", "4", "--num_key_value_heads", "2"}).out,
              HasSubstr("has 12288 of 40960 elements: by the usual names of layers\n"));
}

TEST_F(EstimateMemory, SaysWhatIsWrong) {
  EXPECT_THAT(error_of({"no-such-model"}),
              AllOf(HasSubstr("accelerate estimate-memory: \"no-such-model\""),
                    HasSubstr(folder_ + "/hf/hub"), HasSubstr("nothing is downloaded")));
  EXPECT_THAT(error_of({"./no/such/place"}), HasSubstr("./no/such/place does not exist"));
  EXPECT_THAT(error_of({folder_}), HasSubstr("has nothing to load"));
  write_safetensors("unet/model.safetensors", {{.name = "w", .dtype = "F32", .shape = {7}}});
  EXPECT_THAT(error_of({folder_}), HasSubstr("name one of its parts: unet"));
  EXPECT_THAT(error_of({write("pytorch_model.bin", "x")}), HasSubstr("not a safetensors file"));
  EXPECT_THAT(error_of({write("bad.safetensors", "x")}), HasSubstr("bad.safetensors"));
  EXPECT_THAT(error_of({write("config.json", R"({"model_type": "bert"})")}),
              HasSubstr("which has no shapes"));
  EXPECT_THAT(error_of({write("m.json", "{")}), HasSubstr("m.json: it is not JSON"));
  EXPECT_EQ(run({folder_, "--dtypes", "float31"}).exit_code, 2);
  EXPECT_EQ(run({folder_, "--library_name", "keras"}).exit_code, 2);
  EXPECT_EQ(run({}).exit_code, 2);
}

TEST_F(EstimateMemory, RefusesDescriptionsThatMakeNoSense) {
  const auto error = [&](const std::string& text) { return error_of({write("m.json", text)}); };
  EXPECT_THAT(error("{}"), HasSubstr("describes no tensors"));
  EXPECT_THAT(error("[]"), HasSubstr("m.json: expected an object with "));
  EXPECT_THAT(error(R"({"params": {}})"),
              HasSubstr("a key (did you mean \"parameters\"?) at \"/params\""));
  EXPECT_THAT(error(R"({"parameters": {"w": [-1]}})"),
              HasSubstr("a size of at least 0 at \"/parameters/w/0\", found -1"));
  EXPECT_THAT(error(R"({"parameters": {"w": 3}})"),
              HasSubstr("a list of sizes at \"/parameters/w\", found 3"));
  EXPECT_THAT(error(R"({"parameters": {"w": {"dtype": "bool"}}})"),
              HasSubstr("expected a shape at \"/parameters/w/shape\""));
  EXPECT_THAT(error(R"({"parameters": {"w": {"shape": [], "dtype": "f"}}})"),
              HasSubstr("a dtype at \"/parameters/w/dtype\", found \"f\""));
  EXPECT_THAT(error(R"({"parameters": {"w": [1]}, "tied": [["w", "v"]]})"),
              HasSubstr("names \"v\""));
  EXPECT_THAT(error(R"({"parameters": {"w": [1], "v": [2]}, "tied": [["w", "v"]]})"),
              HasSubstr("another size"));
  EXPECT_THAT(error(R"({"modules": {"a": {"repeat": -1}}})"),
              HasSubstr("at \"/modules/a/repeat\", found -1"));
  EXPECT_THAT(
      error(R"({"modules": {"a": {"repeat": 1000000, "modules": {"b": {"repeat": 1000000}}}}})"),
      HasSubstr("too many modules"));
  EXPECT_THAT(
      error(R"({"parameters": {"a.b": [1]}, "modules": {"a": {"parameters": {"b": [1]}}}})"),
      HasSubstr("\"a.b\" occurs twice"));
  EXPECT_THAT(error(R"({"parameters": {"w": [1]}, "transformer": {"heads": 1}})"),
              HasSubstr("heads"));
}

TEST_F(EstimateMemory, ExplainsThatNoCodeIsExecuted) {
  const CommandResult result = run({write("bert.json", kBert), "--trust_remote_code"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("--trust_remote_code has no effect"));
}

}  // namespace
}  // namespace accelerate::launcher::commands
