// floors [ROOT]: draws the floors of a checkout and names what breaks them, or the walls between
// the library and the simulator; exits with 1 if there is anything. The last line counts floors and
// circles of files.
#include <cstdio>
#include <exception>
#include <vector>

#include "tools/lint/source_tree.h"
#include "tools/lint/tidy.h"

int main(int argc, char** argv) try {
  using namespace accelerate::tidy;
  const std::vector<File> files = read_source_tree(argc > 1 ? argv[1] : ".");
  std::fputs(draw_floors(files).c_str(), stdout);
  Findings findings = check_floors(files);
  for (const auto& rule :
       {check_lowest_floors, check_file_circles, check_simulated_names, check_process_questions}) {
    const Findings more = rule(files);
    findings.insert(findings.end(), more.begin(), more.end());
  }
  for (const Finding& finding : findings) std::puts(to_string(finding).c_str());
  std::fputs(summary_of_floors(files).c_str(), stdout);
  return findings.empty() ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "floors: %s\n", error.what());
  return 2;
}
