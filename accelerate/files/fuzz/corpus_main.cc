// corpus_main FOLDER...: calls a fuzz target without a fuzzer, for each file in the folders and for
// all that such a file is when it is cut off.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  int files = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream stream(entry.path(), std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), {}};
      for (size_t size = 0; size <= bytes.size(); ++size) {
        // A copy of its own, so that sanitizers see who reads beyond it.
        const std::vector<uint8_t> input(bytes.begin(), bytes.begin() + size);
        LLVMFuzzerTestOneInput(input.data(), input.size());
      }
      ++files;
    }
  }
  std::printf("%d files\n", files);
  return files > 0 ? 0 : 1;
}
