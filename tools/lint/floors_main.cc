// floors [ROOT]: draws the floors of a checkout and names what breaks them; exits with 1 if there
// is anything.
#include <cstdio>
#include <exception>
#include <vector>

#include "tools/lint/source_tree.h"
#include "tools/lint/tidy.h"

int main(int argc, char** argv) try {
  using namespace accelerate::tidy;
  const std::vector<File> files = read_source_tree(argc > 1 ? argv[1] : ".");
  std::fputs(draw_floors(files).c_str(), stdout);
  const Findings findings = check_floors(files);
  for (const Finding& finding : findings) std::puts(to_string(finding).c_str());
  return findings.empty() ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "floors: %s\n", error.what());
  return 2;
}
