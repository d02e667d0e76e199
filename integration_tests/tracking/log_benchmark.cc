// Measures the cost of a log call on the training thread:
//
//   log_benchmark
//
// Three values a call; medians and 99th percentiles, with 200 us of work after each call, and the
// mean of calls that follow each other at once. "slow server": MLflow's tracker with a server that
// takes connections and never answers.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "accelerate/accelerate.h"
#include "accelerate/platform/host_files.h"

namespace {

using accelerate::TrackerDict;
using Clock = std::chrono::steady_clock;

constexpr int kCalls = 5000;

double micros_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Returns its port. Connections wait in its queue for ever.
int listen_without_answering() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(fd, 64) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::perror("listen");
    std::exit(1);
  }
  return ntohs(address.sin_port);
}

void measure(const char* name, const std::vector<std::string>& trackers, const std::string& folder,
             const TrackerDict& init_kwargs = {}) {
  accelerate::Accelerator accelerator(
      {.project_dir = folder, .log_with = {trackers.begin(), trackers.end()}});
  accelerator.init_trackers(name, {}, init_kwargs);
  std::vector<double> micros;
  for (int step = 0; step < kCalls; ++step) {
    const auto start = Clock::now();
    accelerator.log({{"loss", 0.5 / (step + 1)}, {"lr", 1e-3}, {"epoch", step / 100}}, step);
    micros.push_back(micros_since(start));
    const auto work = Clock::now();
    while (micros_since(work) < 200) {
    }
  }
  const auto start = Clock::now();
  for (int step = 0; step < kCalls; ++step) {
    accelerator.log({{"loss", 0.5 / (step + 1)}, {"lr", 1e-3}, {"epoch", step / 100}}, step);
  }
  const double at_once = micros_since(start) / kCalls;
  std::sort(micros.begin(), micros.end());
  std::printf("| %s | %.2f | %.2f | %.2f |\n", name, micros[kCalls / 2], micros[kCalls * 99 / 100],
              at_once);
  std::fflush(stdout);
}

int run(int /*argc*/, char** /*argv*/) {
  const accelerate::TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  std::printf("| trackers | median, us | 99 %%, us | one after the other, us |\n");
  std::printf("| --- | ---: | ---: | ---: |\n");
  measure("none", {}, folder);
  measure("jsonl", {"jsonl"}, folder);
  measure("tensorboard", {"tensorboard"}, folder);
  measure("tensorboard, jsonl, csv", {"tensorboard", "jsonl", "csv"}, folder);
  const std::string server = "http://127.0.0.1:" + std::to_string(listen_without_answering());
  setenv("MLFLOW_TRACKING_URI", server.c_str(), 1);
  measure("mlflow, slow server", {"mlflow"}, folder);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, run); }
