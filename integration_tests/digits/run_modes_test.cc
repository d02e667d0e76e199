// The same binary as two real processes over Gloo and as two simulated ranks: the same bits.
#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace accelerate {
namespace {

constexpr char kLaunch[] = "launch/accelerate launch ";
constexpr char kProgram[] =
    " integration_tests/digits/losses accelerate/examples/digits/digits.csv.gz";

struct Output {
  int status = -1;
  std::string text;
};

Output run(const std::string& command) {
  Output output;
  std::FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> chunk;
  while (size_t n = fread(chunk.data(), 1, chunk.size(), pipe)) output.text.append(chunk.data(), n);
  output.status = pclose(pipe);
  return output;
}

// What follows "loss " on each line, whatever the launcher puts before it.
std::vector<std::string> losses(const std::string& text) {
  std::vector<std::string> found;
  for (size_t at = text.find("loss 0x"); at != std::string::npos;
       at = text.find("loss 0x", at + 1)) {
    found.push_back(text.substr(at + 5, text.find('\n', at) - at - 5));
  }
  return found;
}

TEST(RunModes, TwoProcessesEqualTwoSimulatedRanksBitForBit) {
  const Output real = run(std::string(kLaunch) + "--num_processes 2" + kProgram);
  ASSERT_EQ(real.status, 0) << real.text;
  const Output simulated = run(std::string(kLaunch) + "--simulate 1x2" + kProgram);
  ASSERT_EQ(simulated.status, 0) << simulated.text;
  ASSERT_EQ(losses(real.text).size(), 10) << real.text;
  EXPECT_EQ(losses(real.text), losses(simulated.text));
  // Dropout draws differ by rank and step: a constant would pass for equal.
  EXPECT_NE(losses(real.text)[0], losses(real.text)[9]);
}

TEST(RunModes, SaysHowToRepeatAFailedSimulation) {
  const Output failed = run(std::string(kLaunch) +
                            "--simulate 1x2 --simulate_seed 5 integration_tests/digits/losses "
                            "no_such_file");
  EXPECT_NE(failed.status, 0);
  EXPECT_NE(failed.text.find("no_such_file"), std::string::npos) << failed.text;
  EXPECT_NE(failed.text.find("accelerate launch --simulate 1x2 --simulate_seed 5"),
            std::string::npos)
      << failed.text;
}

}  // namespace
}  // namespace accelerate
