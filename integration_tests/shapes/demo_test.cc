// The examples as programs under the launcher: with shapes alone they print the step time and the
// peak memory of a run with values. One shape: that of the demo.
#include <filesystem>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/child.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/platform/host_files.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kShapes[] = " --simulate_numerics shapes --simulate_unknown_values nan ";

std::string output_of(const std::string& options, const std::string& program) {
  const ChildResult done =
      run_shell("launch/accelerate launch --simulate 2x4:h100 " + options + " " + program).value();
  EXPECT_EQ(done.exit_code, 0) << done.output;
  return done.output;
}

// What the program's last line says from the step time on.
std::string costs(const std::string& output) {
  const size_t begin = output.rfind("step time ");
  if (begin == output.npos) return "no step time in:\n" + output;
  return output.substr(begin, output.find('\n', begin) - begin);
}

TEST(Demo, CostsTheSameWithShapesAlone) {
  const std::string digits =
      "accelerate/examples/digits/digits --data accelerate/examples/digits/digits.safetensors "
      "--max_steps 10";
  const std::string real = costs(output_of("", digits));
  EXPECT_THAT(real, HasSubstr("peak memory"));
  EXPECT_EQ(costs(output_of(kShapes, digits)), real);
}

// Three of eight ranks run: rank 0, one for the others, and a spot check.
TEST(Lm, CostsTheSameFolded) {
  const std::string lm =
      "accelerate/examples/lm/lm --max_steps 4 --log_every 2 --evaluation_sequences 8";
  const std::string whole = output_of(kShapes, lm);
  EXPECT_THAT(costs(whole), HasSubstr("peak memory"));
  EXPECT_EQ(costs(output_of(std::string(kShapes) + "--simulate_fold ", lm)), costs(whole));
  // With a mesh, along its axes.
  const std::string mesh =
      std::string(kShapes) + "--use_parallelism_config --parallelism_config_dp_replicate_size 8 ";
  EXPECT_EQ(costs(output_of(mesh + "--simulate_fold ", lm)), costs(output_of(mesh, lm)));
}

// What only rank 0 does, or only in some micro-steps, is folded as well.
TEST(Lm, CostsTheSameFoldedWhateverItDoes) {
  const TemporaryFolder folder;
  const std::string short_run = " --max_steps 4 --log_every 0 --evaluation_sequences 0";
  for (const char* run :
       {"accelerate/examples/lm/lm --gradient_accumulation_steps 3 --batch_size 2",
        "--use_fsdp accelerate/examples/lm/lm --blocks gpt",
        "--use_fsdp --fsdp_sharding_strategy HYBRID_SHARD accelerate/examples/lm/lm --blocks gpt",
        "--use_fsdp --fsdp_version 2 --mixed_precision bf16 accelerate/examples/lm/lm "
        "--blocks llama --gradient_accumulation_steps 2"}) {
    const std::string whole = output_of(kShapes, run + short_run);
    EXPECT_THAT(costs(whole), HasSubstr("peak memory")) << run;
    EXPECT_EQ(costs(output_of(std::string(kShapes) + "--simulate_fold ", run + short_run)),
              costs(whole))
        << run;
  }
  // Whose files a disk takes first is the seed's choice: beside an asynchronous save only memory is
  // the same.
  const auto peak = [](const std::string& output) {
    const std::string text = costs(output);
    const size_t begin = text.find("peak memory");
    return begin == text.npos ? text : text.substr(begin);
  };
  const std::string saves = "accelerate/examples/lm/lm --checkpointing_steps 2 --output_dir " +
                            folder.path("out") + short_run;
  const std::string whole = peak(output_of(kShapes, saves));
  EXPECT_THAT(whole, HasSubstr("MiB per device"));
  EXPECT_EQ(peak(output_of(std::string(kShapes) + "--simulate_fold ", saves)), whole);
  EXPECT_FALSE(std::filesystem::exists(folder.path("out")));
}

// The real command plus two flags.
TEST(Shapes, LeaveTheFilesOfARealRun) {
  const TemporaryFolder folder;
  const std::string digits =
      "accelerate/examples/digits/digits --data accelerate/examples/digits/digits.safetensors "
      "--log_with jsonl --logging_dir " +
      folder.path() + " --checkpointing_steps 4 --output_dir " + folder.path("out");
  const auto contents = [&] {
    std::map<std::string, std::string> files;
    HostFiles host;
    for (const auto& each : std::filesystem::recursive_directory_iterator(folder.path())) {
      files[each.path().string()] =
          each.is_directory() ? "" : *read_file(host, each.path().string());
    }
    return files;
  };
  output_of("", digits + " --max_steps 10");
  const auto before = contents();
  EXPECT_GT(before.size(), 10u);
  EXPECT_THAT(output_of(kShapes, digits + " --max_steps 14 --resume"),
              HasSubstr("no file of this machine was made, replaced or removed"));
  EXPECT_EQ(contents(), before);
  // Nothing is left to do, and no figure is made up.
  EXPECT_THAT(output_of("", digits + " --max_steps 8 --resume"),
              AllOf(HasSubstr("digits: 8 ranks on 2x4, nothing left to do"),
                    Not(HasSubstr("accuracy 0.000"))));
}

TEST(Lm, CostsTheSameWithShapesAlone) {
  const std::string lm =
      "accelerate/examples/lm/lm --blocks llama --max_steps 4 --log_every 2 --mixed_precision bf16 "
      "--activation_checkpointing --evaluation_sequences 8";
  const std::string shapes = output_of(kShapes, lm);
  EXPECT_THAT(costs(shapes), HasSubstr("peak memory"));
  EXPECT_EQ(costs(shapes), costs(output_of("", lm)));
  EXPECT_THAT(shapes, HasSubstr("loss nan")) << "no loss was computed";
}

}  // namespace
}  // namespace accelerate
