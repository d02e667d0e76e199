// The example as a program: its flags, and the lines that it prints.
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/child.h"
#include "accelerate/platform/host_files.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

ChildResult lm(const std::string& launch, const std::string& options) {
  return run_shell("launch/accelerate launch " + launch + " accelerate/examples/lm/lm " + options)
      .value();
}

TEST(LmProgram, TrainsSimulatedRanks) {
  const ChildResult done =
      lm("--simulate 1x2:h100 --mixed_precision bf16",
         "--blocks llama --layers 2 --heads 4 --kv_heads 1 --hidden 32 --sequence_length 32 "
         "--max_steps 3 --log_every 2 --activation_checkpointing --optimizer sgd --tied_head 1 "
         "--gradient_accumulation_steps 2 --evaluation_sequences 5");
  ASSERT_EQ(done.exit_code, 0) << done.output;
  EXPECT_THAT(
      done.output,
      AllOf(HasSubstr("model: llama, layers 2, hidden 32, 0.0 million parameters"),
            ContainsRegex("step +loss +tokens/s"), ContainsRegex(" 2 +5\\.[0-9]+ +[0-9]+"),
            ContainsRegex(" 3 +5\\.[0-9]+ +[0-9]+"),
            ContainsRegex("lm: 2 ranks on 1x2, loss 5\\.[0-9]+, step time [0-9]+\\.[0-9]+ ms, peak "
                          "memory of tensors [0-9.]+ [KM]iB per device")));
}

TEST(LmProgram, TrainsRealRanks) {
  const ChildResult done = lm(
      "--num_processes 2", "--layers 1 --heads 2 --hidden 16 --sequence_length 16 --max_steps 2");
  ASSERT_EQ(done.exit_code, 0) << done.output;
  EXPECT_THAT(done.output, AllOf(HasSubstr("model: gpt, layers 1, "),
                                 ContainsRegex("lm: 2 ranks on [0-9x]+, loss 5\\.[0-9]+"),
                                 Not(HasSubstr("peak memory"))));
}

// The same losses wherever experts are, with one share of the data each.
TEST(LmProgram, TrainsExperts) {
  const std::string options =
      "--blocks llama --layers 1 --heads 2 --hidden 16 --sequence_length 16 --max_steps 3 "
      "--experts 4 --capacity_factor 1.25 --evaluation_sequences 8 --shared_intermediate 8";
  const auto loss_of = [&](const std::string& launch) {
    const ChildResult done = lm(launch, options);
    EXPECT_EQ(done.exit_code, 0) << launch << ": " << done.output;
    const size_t at = done.output.find(", loss ");
    EXPECT_NE(at, std::string::npos) << done.output;
    double loss = 0;
    EXPECT_EQ(std::sscanf(done.output.c_str() + at, ", loss %lf", &loss), 1);
    return loss;
  };
  const std::string shards = " --use_parallelism_config --parallelism_config_dp_shard_size 2";
  const double whole = loss_of("--simulate 1x2:h100" + shards);
  EXPECT_NEAR(loss_of("--simulate 1x2:h100 --parallelism_config_ep_size 2" + shards), whole, 2e-4);
  EXPECT_NEAR(loss_of("--num_processes 2 --parallelism_config_ep_size 2" + shards), whole, 2e-4);
}

// A program that trains by flags alone: what it prints.
std::string trained(const std::string& program, const std::string& launch,
                    const std::string& flags) {
  const ChildResult done =
      run_shell("launch/accelerate launch " + launch + " accelerate/examples/by_feature/" +
                program + "/" + program + " " + flags)
          .value();
  EXPECT_EQ(done.exit_code, 0) << launch << ": " << done.output;
  return done.output;
}

struct Losses {
  double first = 0, last = 0;
};

Losses losses_of(const std::string& output) {
  Losses read;
  const size_t begin = output.find(", loss ");
  EXPECT_NE(begin, std::string::npos) << output;
  if (begin == std::string::npos) return read;
  EXPECT_EQ(std::sscanf(output.c_str() + begin, ", loss %lf to %lf", &read.first, &read.last), 2);
  return read;
}

void expect_near(const Losses& actual, const Losses& expected) {
  EXPECT_NEAR(actual.first, expected.first, 2e-4);
  EXPECT_NEAR(actual.last, expected.last, 2e-3);
}

// By flags alone as well. Dropout draws what one process draws, but for parts of sequences.
TEST(TensorParallelProgram, DividesLayersAsTheFlagsSay) {
  const auto run = [](const std::string& launch, const std::string& flags) {
    return trained("tensor_parallel", launch, flags);
  };
  const std::string mesh = " --use_parallelism_config --parallelism_config_tp_size 2";
  const Losses one = losses_of(run("--num_processes 1", "")),
               one_without_dropout = losses_of(run("--num_processes 1", "--dropout 0"));
  EXPECT_LT(one.last, one.first);
  EXPECT_THAT(run("--simulate 1x2 --dry_run" + mesh, ""), HasSubstr("mesh: tp 2\n"));
  const std::string simulated = run("--simulate 1x2" + mesh, "--print_layout");
  EXPECT_THAT(simulated,
              AllOf(HasSubstr("layout of 2 ranks, tp 2: rank 0 has "),
                    ContainsRegex("blocks\\.0-1\\.qkv\\.weight +192x64 +96x64 +column over "
                                  "tp in 4 groups in blocks of 64, 64, 64"),
                    ContainsRegex("tp: [0-9]+ a token: row layers")));
  EXPECT_EQ(simulated.find("layout of 2 ranks"), simulated.rfind("layout of 2 ranks"))
      << "one rank prints";
  expect_near(losses_of(simulated), one);
  expect_near(losses_of(run("--num_processes 2" + mesh, "--parallel_loss")), one);
  expect_near(
      losses_of(run("--num_processes 2" + mesh, "--sequence_parallel --parallel_loss --dropout 0")),
      one_without_dropout);
  expect_near(losses_of(run("--simulate 1x2" + mesh,
                            "--sequence_parallel --keep_gathered_inputs --dropout 0")),
              one_without_dropout);
}

// Ranks have different numbers of tokens with labels: with sp the first of four has none.
TEST(LongSequencesProgram, DividesSequencesAsTheFlagsSay) {
  const std::string cp = " --use_parallelism_config --parallelism_config_cp_size ",
                    sp = " --use_parallelism_config --parallelism_config_sp_size ";
  const auto run = [](const std::string& launch, const std::string& flags = "") {
    return losses_of(trained("long_sequences", launch, "--sequence_length 32 " + flags));
  };
  const Losses one = run("--num_processes 1");
  EXPECT_LT(one.last, one.first);
  expect_near(run("--simulate 1x4" + cp + "4"), one);
  expect_near(run("--simulate 1x2" + cp + "2 --parallelism_config_cp_comm_strategy alltoall",
                  "--activation_checkpointing"),
              one);
  expect_near(run("--simulate 1x4" + sp + "4"), one);
  expect_near(run("--num_processes 2" + cp + "2 --parallelism_config_cp_comm_strategy alltoall"),
              one);
  expect_near(run("--num_processes 2" + sp + "2"), one);
  // Beside shards, whose ranks have half of the batch each.
  expect_near(
      run("--simulate 1x4:h100" + cp + "2 --parallelism_config_dp_shard_size 2", "--batch_size 1"),
      one);
}

// The example that divides a model, by flags alone.
TEST(FsdpProgram, DividesAModelAsTheFlagsSay) {
  const auto fsdp = [](const std::string& launch) {
    return run_shell("launch/accelerate launch " + launch +
                     " accelerate/examples/by_feature/fsdp/fsdp --max_steps 3")
        .value();
  };
  const ChildResult replicas = fsdp("--simulate 2x2:h100");
  ASSERT_EQ(replicas.exit_code, 0) << replicas.output;
  EXPECT_THAT(replicas.output, HasSubstr("no FSDP: every rank has the whole model"));
  const ChildResult units = fsdp(
      "--simulate 2x2:h100 --use_fsdp --fsdp_version 2 --fsdp_auto_wrap_policy "
      "TRANSFORMER_BASED_WRAP --fsdp_activation_checkpointing true");
  ASSERT_EQ(units.exit_code, 0) << units.output;
  EXPECT_THAT(
      units.output,
      AllOf(HasSubstr("unit blocks.0: "), HasSubstr("unit norm: 3 parameters, kept until backward"),
            HasSubstr("unit model: 1 parameters, kept until backward"),
            ContainsRegex("fsdp: 4 ranks on 2x2, loss [0-9.]+ to [0-9.]+, step time")));
  const ChildResult hybrid =
      fsdp("--simulate 2x2:h100 --use_fsdp --fsdp_sharding_strategy HYBRID_SHARD");
  ASSERT_EQ(hybrid.exit_code, 0) << hybrid.output;
  EXPECT_THAT(hybrid.output, HasSubstr("dp_replicate 2 x dp_shard 2"));
  // The same losses as replicas have.
  const auto losses = [](const ChildResult& done) {
    const size_t begin = done.output.find(", loss ");
    return done.output.substr(begin, done.output.find(", step time") - begin);
  };
  EXPECT_EQ(losses(units), losses(replicas));
  EXPECT_EQ(losses(hybrid), losses(replicas));
  const ChildResult refused = fsdp(
      "--simulate 1x2:h100 --use_fsdp --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP "
      "--fsdp_transformer_layer_cls_to_wrap Layer");
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.output, HasSubstr("Could not find the transformer layer class Layer"));
}

// The example that loads what another run wrote.
TEST(BigModelLoadProgram, LoadsOntoADeviceTheHostAndTheDisk) {
  const std::string folder = ::testing::TempDir() + "/big_model_load";
  const auto load = [&](const std::string& launch, const std::string& options) {
    return run_shell("launch/accelerate launch " + launch +
                     " accelerate/examples/big_model_load/big_model_load --layers 2 --checkpoint " +
                     folder + "/model --offload_folder " + folder + "/offload " + options)
        .value();
  };
  const ChildResult whole =
      load("--simulate 1x2:h100",
           "--write --max_shard_size 500KB --broadcast_from_rank0 --device_map '{\"\": \"cpu\"}'");
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  EXPECT_THAT(whole.output, AllOf(HasSubstr("(model): cpu"), ContainsRegex("cpu: [0-9]+ tensors"),
                                  ContainsRegex("big_model_load: [0-9.]+ MB in [0-9.]+ s, ")));
  const ChildResult parts =
      load("--simulate 1x1:h100",
           "--device_map '{\"\": \"cpu\", \"blocks.0\": 0, \"blocks.1\": \"disk\"}'");
  ASSERT_EQ(parts.exit_code, 0) << parts.output;
  EXPECT_THAT(parts.output,
              AllOf(ContainsRegex("0: 12 tensors, [0-9.]+ KiB, peak [0-9.]+ KiB of 79.11 GiB"),
                    ContainsRegex("cpu: [0-9]+ tensors, [0-9.]+ KiB, peak"),
                    HasSubstr("disk: 12 tensors")));
  const ChildResult planned =
      load("--simulate 1x1:h100", "--device_map sequential --max_memory '{\"0\": \"10GB\"}'");
  ASSERT_EQ(planned.exit_code, 0) << planned.output;
  EXPECT_THAT(planned.output, HasSubstr("(model): 0"));
  // The same tokens wherever the model is.
  std::vector<std::string> texts;
  for (const char* map :
       {"{\"\": 0}", "{\"\": 1, \"blocks.0\": \"cpu\", \"blocks.1\": \"disk\"}"}) {
    const ChildResult generated = load("--simulate 1x1:h100,devices=2",
                                       std::string("--generate 4 --device_map '") + map + "'");
    ASSERT_EQ(generated.exit_code, 0) << generated.output;
    EXPECT_THAT(generated.output, AllOf(ContainsRegex("tokens: [0-9]+ [0-9]+ [0-9]+ [0-9]+\n"),
                                        ContainsRegex("big_model_load: 4 tokens, [0-9.]+ s a")));
    const size_t begin = generated.output.find("tokens: ");
    texts.push_back(generated.output.substr(begin, generated.output.find('\n', begin) - begin));
  }
  EXPECT_EQ(texts[0], texts[1]);
  // Processes, each with a model of its own.
  const ChildResult processes =
      load("--num_processes 2", "--generate 4 --device_map '{\"\": \"disk\"}'");
  ASSERT_EQ(processes.exit_code, 0) << processes.output;
  EXPECT_THAT(processes.output, HasSubstr(texts[0] + "\n"));
  const ChildResult refused = load("--simulate 1x1:h100", "--device_map '{\"blocks\": 0}'");
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.output, HasSubstr("the device map has no device for positions"));
}

TEST(LmProgram, RefusesFlagsInASentence) {
  const auto refusal = [](const std::string& options) {
    const ChildResult refused = lm("--simulate 1x2", options);
    EXPECT_EQ(refused.exit_code, 2) << refused.output;
    return refused.output;
  };
  EXPECT_THAT(refusal("--model 8b"), HasSubstr("8b not in {tiny,125m,1b,7b,70b}"));
  EXPECT_THAT(refusal("--heads 3"), HasSubstr("3 heads cannot share a hidden size of 128"));
  EXPECT_THAT(refusal("--layers 0"), HasSubstr("layers is 0, not at least 1"));
  EXPECT_THAT(refusal("--resume"), HasSubstr("--resume requires --output_dir"));
  EXPECT_THAT(refusal("--skew=-1"), HasSubstr("--skew"));
}

// The example that ranks train by ZeRO, by flags and by a configuration of DeepSpeed.
TEST(DeepSpeedProgram, TrainsAsTheFlagsAndTheConfigurationSay) {
  const auto deepspeed = [](const std::string& launch) {
    return run_shell("launch/accelerate launch " + launch +
                     " accelerate/examples/by_feature/deepspeed/deepspeed --max_steps 4")
        .value();
  };
  const auto losses = [](const ChildResult& done) {
    const size_t begin = done.output.find(", loss ");
    return done.output.substr(begin, done.output.find(", gradient") - begin);
  };
  const ChildResult replicas = deepspeed("--simulate 2x2:h100");
  ASSERT_EQ(replicas.exit_code, 0) << replicas.output;
  EXPECT_THAT(replicas.output, HasSubstr("no ZeRO: every rank has the whole model"));
  for (const std::string stage : {"1", "2", "3"}) {
    const ChildResult done = deepspeed(
        "--simulate 2x2:h100 --use_deepspeed --gradient_clipping 0 --zero_stage " + stage);
    ASSERT_EQ(done.exit_code, 0) << done.output;
    EXPECT_EQ(losses(done), losses(replicas)) << stage;
  }
  // The same on two processes, with the optimizer in memory and on the machine's disk.
  const std::string processes =
      "--num_processes 2 --use_deepspeed --gradient_clipping 0 --zero_stage 3";
  const ChildResult in_memory = deepspeed(processes);
  ASSERT_EQ(in_memory.exit_code, 0) << in_memory.output;
  const TemporaryFolder folder;
  const ChildResult on_disk =
      deepspeed(processes + " --offload_optimizer_device nvme --offload_optimizer_nvme_path " +
                folder.path() + "/swap");
  ASSERT_EQ(on_disk.exit_code, 0) << on_disk.output;
  EXPECT_EQ(losses(on_disk), losses(in_memory));
  EXPECT_TRUE(std::filesystem::is_directory(folder.path() + "/swap"));
  const ChildResult configured = deepspeed(
      "--simulate 2x2:h100 --use_deepspeed --mixed_precision bf16 --deepspeed_config_file "
      "accelerate/examples/by_feature/deepspeed/zero2_adamw.json");
  ASSERT_EQ(configured.exit_code, 0) << configured.output;
  EXPECT_THAT(configured.output,
              ContainsRegex("deepspeed: 4 ranks on 2x2, loss [0-9.]+ to [0-9.]+, gradient norm "
                            "[0-9.]+, rate [0-9.e+-]+, step time"));
}

// The example that compares a model with quantised weights to the same one without.
TEST(QuantizationProgram, ComparesAndTrainsAdapters) {
  const TemporaryFolder folder;
  const auto quantization = [&](const std::string& launch, const std::string& options) {
    return run_shell("launch/accelerate launch " + launch +
                     " accelerate/examples/by_feature/quantization/quantization --layers 2 " +
                     "--sequence_length 64 --evaluation_sequences 8 --generate 4 " +
                     "--offload_folder " + folder.path() + "/offload " + options)
        .value();
  };
  const std::string checkpoint = "--checkpoint " + folder.path() + "/out/model ";
  // A process, which trains the model first.
  const ChildResult trained = quantization(
      "--num_processes 1",
      "--load_in_4bit --bnb_4bit_quant_type nf4 --bnb_4bit_use_double_quant --max_steps 20 "
      "--train_adapters 20 --output_dir " +
          folder.path() + "/out");
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  EXPECT_THAT(trained.output,
              AllOf(HasSubstr("model: llama, layers 2"),
                    ContainsRegex("bf16 +[0-9.]+ KiB +100\\.0 % +[0-9.]+ [KM]iB +[0-9.]+ +[0-9.]+"),
                    ContainsRegex("nf4, double +[0-9.]+ KiB +[34][0-9]\\.[0-9] %"),
                    HasSubstr("nf4, double: \"And God said, "),
                    ContainsRegex("adapters of rank 8: 4096 parameters are trained"),
                    ContainsRegex("step +20  loss [0-9.]+")));
  // The adapters learn.
  const auto number_behind = [&trained](const std::string& text) {
    const size_t begin = trained.output.find(text);
    return begin == std::string::npos ? 0 : std::stod(trained.output.substr(begin + text.size()));
  };
  const double before = number_behind("evaluation loss "), after = number_behind("before, ");
  EXPECT_GT(after, 0);
  EXPECT_LT(after, before);
  // Ranks that share the codes, and a model that was saved as it is kept.
  const ChildResult ranks =
      quantization("--simulate 1x2:h100", checkpoint + "--load_in_8bit --train_adapters 3 --save " +
                                              folder.path() + "/int8");
  ASSERT_EQ(ranks.exit_code, 0) << ranks.output;
  EXPECT_THAT(ranks.output, AllOf(ContainsRegex("int8 +[0-9.]+ KiB +[56][0-9]\\.[0-9] %"),
                                  ContainsRegex("step +3  loss [0-9.]+")));
  const ChildResult offloaded =
      quantization("--simulate 1x1:h100",
                   "--load_in_8bit --no_comparison --device_map '{\"\": 0, \"blocks.0\": \"cpu\", "
                   "\"blocks.1\": \"disk\"}' --checkpoint " +
                       folder.path() + "/int8");
  ASSERT_EQ(offloaded.exit_code, 0) << offloaded.output;
  EXPECT_THAT(offloaded.output, Not(HasSubstr("bf16")));
  // The same text, wherever the model is.
  const auto text_of = [](const ChildResult& done) {
    const size_t begin = done.output.find("int8: ");
    return done.output.substr(begin, done.output.find('\n', begin) - begin);
  };
  EXPECT_EQ(text_of(offloaded), text_of(ranks));
  const ChildResult refused = quantization("--simulate 1x1", "--load_in_8bit --load_in_4bit");
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("Exactly 1 option from [--load_in_8bit,--load_in_4bit]"));
}

}  // namespace
}  // namespace accelerate
