// sample_report --out DIR [--ranks N] [--layers N]: writes the report of a synthetic trace, for
// ci/report.sh.
//
// Prints the numbers that the page must show, one per line.

#include <iostream>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "simulator/report/report.h"
#include "simulator/testing/report/sample_trace.h"

int main(int argc, char** argv) {
  using namespace accelerate::simulator;
  SampleOptions options;
  std::string directory;
  for (int i = 1; i + 1 < argc; i += 2) {
    const absl::string_view flag = argv[i];
    if (flag == "--out") directory = argv[i + 1];
    if (flag == "--ranks" && !absl::SimpleAtoi(argv[i + 1], &options.ranks)) options.ranks = 0;
    if (flag == "--layers" && !absl::SimpleAtoi(argv[i + 1], &options.layers)) options.layers = 0;
  }
  if (directory.empty() || options.ranks < 1 || options.layers < 1) {
    std::cerr << "usage: sample_report --out DIR [--ranks N] [--layers N]\n";
    return 2;
  }
  const Trace trace = make_sample_trace(options);
  if (absl::Status status = write_report(trace, directory); !status.ok()) {
    std::cerr << status.message() << '\n';
    return 1;
  }
  std::set<std::pair<int, int>> tracks;
  for (const Slice& slice : trace.slices) tracks.insert({slice.rank, slice.stream});
  std::cout << "ranks " << trace.world_size << "\ntracks " << tracks.size() << "\nrecorded-slices "
            << trace.slices.size() << "\noperators " << trace.operators.size() << "\nsteps "
            << trace.steps.size() << '\n';
}
