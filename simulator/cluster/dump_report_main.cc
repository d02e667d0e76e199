// accelerate-dump-report FOLDER: what `accelerate simulate --from_dump FOLDER` starts. Prints what
// the dumps in the folder tell, as the report of a live failure, and makes the calls of a job
// without a simulated program once more.
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "accelerate/dumps/dump_folder.h"
#include "simulator/cluster/reenact.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "accelerate-dump-report: expected a folder of dumps\n";
    return 2;
  }
  const std::string folder = argv[1];
  const auto dumps = accelerate::read_dumps(folder);
  if (!dumps.ok()) {
    std::cerr << "accelerate: " << dumps.status().message() << std::endl;
    return absl::IsNotFound(dumps.status()) ? 2 : 1;
  }
  std::cout << accelerate::dumps_report(*dumps) << "\n";
  const std::string run = accelerate::run_lines(folder);
  if (!run.empty()) {
    // The program itself repeats it.
    std::cout << run;
  } else {
    const auto again = accelerate::simulator::reenact(
        *dumps, absl::StrCat("accelerate simulate --from-dump ", folder));
    std::cout << "\n";
    if (again.ok()) {
      std::cout << again->to_string();
    } else {
      std::cout << "the calls were not made again: " << again.status().message() << "\n";
    }
  }
  std::cout << std::flush;
  return std::cout ? 0 : 1;
}
