
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "accelerate/platform/host_files.h"
#include "launch/commands/commands.h"
#include "launch/testing/commands/command_tester.h"

namespace accelerate::launcher::commands {
namespace {

using ::testing::HasSubstr;

class TpuConfig : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& contents) {
    const std::string path = folder_ + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << contents;
    return path;
  }

  CommandResult run(std::vector<std::string> words) {
    return run_command(kTpuConfig, std::move(words),
                       {.environment = {"HF_HOME=" + folder_, "PATH=" + folder_}});
  }

  // The line that is printed for these words and a pod.
  std::string line(std::vector<std::string> words) {
    words.insert(words.end(), {"--tpu_name", "NAME", "--tpu_zone", "ZONE", "--debug"});
    const CommandResult result = run(std::move(words));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

constexpr char kBegin[] = "Running gcloud compute tpus tpu-vm ssh NAME --zone ZONE --command ";

TEST_F(TpuConfig, PrintsThePeersLine) {
  EXPECT_EQ(line({"--command", "echo hi"}),
            std::string(kBegin) + "cd /usr/share; echo hi --worker all\n");
  EXPECT_EQ(line({"--command", "echo a", "--command", "echo b"}),
            std::string(kBegin) + "cd /usr/share; echo a; echo b --worker all\n");
  EXPECT_EQ(line({"--command", "[ -f a ] && [ -f b,c ]"}),
            std::string(kBegin) + "cd /usr/share; [ -f a ] && [ -f b,c ] --worker all\n");
  EXPECT_EQ(line({"--command_file", write("f", "ls\npwd\n")}),
            std::string(kBegin) + "cd /usr/share; ls; pwd --worker all\n");
  EXPECT_THAT(line({"--command", "ls", "--alpha"}),
              HasSubstr("gcloud alpha compute tpus tpu-vm ssh NAME"));
}

TEST_F(TpuConfig, InstallsWhatIsAskedFor) {
  const auto installed = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--command", "ls", "--install_accelerate"});
    return line(std::move(words));
  };
  EXPECT_THAT(installed({"--install_command", "cp /mnt/accelerate /usr/bin"}),
              HasSubstr("; cp /mnt/accelerate /usr/bin; ls"));
}

TEST_F(TpuConfig, TakesFromTheConfigurationWhatWasNotTyped) {
  const std::string config = write("c.yaml",
                                   "distributed_type: XLA\ntpu_name: pod\ntpu_zone: zone\n"
                                   "commands:\n- echo config\n");
  EXPECT_EQ(run({"--config_file", config, "--debug"}).out,
            "Running gcloud compute tpus tpu-vm ssh pod --zone zone --command cd /usr/share; echo "
            "config --worker all\n");
  EXPECT_EQ(line({"--config_file", config, "--command", "ls"}),
            std::string(kBegin) + "cd /usr/share; ls --worker all\n");
  std::filesystem::create_directories(folder_ + "/accelerate");
  std::filesystem::rename(config, folder_ + "/accelerate/default_config.yaml");
  EXPECT_THAT(run({"--debug"}).out, HasSubstr("ssh pod --zone zone"));
}

TEST_F(TpuConfig, RunsTheLine) {
  const std::string gcloud =
      write("gcloud", "#!/bin/sh\nfor w in \"$@\"; do echo \"[$w]\"; done > " + folder_ +
                          "/said\nexit $(/bin/cat " + folder_ + "/code)\n");
  ASSERT_EQ(chmod(gcloud.c_str(), 0755), 0);
  write("code", "0");
  const std::vector<std::string> words = {"--command", "echo hi",    "--tpu_name",
                                          "n",         "--tpu_zone", "z"};
  EXPECT_EQ(run(words).exit_code, 0);
  std::stringstream said;
  said << std::ifstream(folder_ + "/said").rdbuf();
  EXPECT_THAT(said.str(), HasSubstr("[--command]\n[cd /usr/share; echo hi]\n[--worker]\n[all]\n"));
  write("code", "3");
  const CommandResult failed = run(words);
  EXPECT_EQ(failed.exit_code, 3);
  EXPECT_THAT(failed.err, HasSubstr("exit code 3"));
  std::filesystem::remove(gcloud);
  EXPECT_EQ(run(words).exit_code, 127);
}

TEST_F(TpuConfig, SaysWhatIsMissing) {
  EXPECT_THAT(run({"--tpu_name", "n", "--tpu_zone", "z"}).err, HasSubstr("nothing to run"));
  EXPECT_THAT(run({"--command", "ls", "--tpu_zone", "z"}).err, HasSubstr("--tpu_name"));
  EXPECT_THAT(run({"--command", "ls", "--tpu_name", "n"}).err, HasSubstr("--tpu_zone"));
  EXPECT_THAT(run({"--command_file", folder_ + "/no"}).err, HasSubstr("/no cannot be read"));
  EXPECT_THAT(run({"--config_file", folder_ + "/no.yaml"}).err, HasSubstr("no.yaml"));
  // Another project's package would be installed.
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--install_accelerate"},
        {"--install_accelerate", "--accelerate_version", "latest"},
        {"--install_accelerate", "--install_command", "cp a b", "--accelerate_version", "1.0"}}) {
    std::vector<std::string> line = {"--command", "ls", "--tpu_name", "n", "--tpu_zone", "z"};
    line.insert(line.end(), words.begin(), words.end());
    const CommandResult refused = run(line);
    EXPECT_EQ(refused.exit_code, kExitBadCommandLine);
    EXPECT_THAT(refused.err, HasSubstr("HF Accelerate"));
    EXPECT_THAT(refused.err, HasSubstr("--install_command"));
  }
}

}  // namespace
}  // namespace accelerate::launcher::commands
