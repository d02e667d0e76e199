/// A PJRT plug-in for install_xla_test, of which only the entry's name is real; it can crash or
/// hang when it is loaded.

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string_view>

extern "C" void* GetPjrtApi() { return nullptr; }

namespace {

[[maybe_unused]] const bool kLoaded = [] {
  std::cout << "a library may be noisy" << std::flush;
  const char* behaviour = std::getenv("ACCELERATE_TEST_PLUGIN_BEHAVIOUR");
  if (behaviour == nullptr) return true;
  if (std::string_view(behaviour) == "crash") std::abort();
  if (std::string_view(behaviour) == "exit") _exit(0);
  return true;
}();

}  // namespace
