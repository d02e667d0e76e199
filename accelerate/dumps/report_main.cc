// accelerate-dump-report FOLDER: what `accelerate simulate --from_dump FOLDER` starts. Prints what
// the dumps in the folder tell, as the report of a live failure.
#include <iostream>
#include <string>

#include "absl/status/status.h"
#include "accelerate/dumps/dump_folder.h"

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
  std::cout << accelerate::dumps_report(*dumps) << "\n"
            << accelerate::run_lines(folder) << std::flush;
  return std::cout ? 0 : 1;
}
