#include "accelerate/profiling/call_stack.h"

#include <dlfcn.h>
#include <execinfo.h>

#include "absl/debugging/symbolize.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace accelerate {
namespace {

bool is_users_object(absl::string_view path) {
  const absl::string_view file = path.substr(path.rfind('/') + 1);
  for (const char* prefix : {"libtorch", "libc10", "libabsl", "libc.", "libc-", "libstdc++",
                             "libgcc", "libpthread", "libm."}) {
    if (absl::StartsWith(file, prefix)) return false;
  }
  return true;
}

// Headers' templates are instantiated in the user's program.
bool is_users_function(absl::string_view name) {
  for (const char* prefix :
       {"c10::", "at::", "torch::", "std::", "void std::", "decltype", "_start", "__",
        "accelerate::internal::", "accelerate::CallStack", "accelerate::OperatorObserver"}) {
    if (absl::StartsWith(name, prefix)) return false;
  }
  return true;
}

std::string name_of(void* address) {
  Dl_info object;
  if (dladdr(address, &object) == 0 || object.dli_fname == nullptr) return "";
  if (!is_users_object(object.dli_fname)) return "";
  char name[1024];
  // The address is where the call returns to, which may be the next function's.
  if (!absl::Symbolize(static_cast<char*>(address) - 1, name, sizeof(name))) return "";
  return is_users_function(name) ? name : "";
}

}  // namespace

CallStack CallStack::here() {
  void* addresses[kMaxDepth];
  const int depth = backtrace(addresses, kMaxDepth);
  return {.addresses = std::vector<void*>(addresses, addresses + depth)};
}

std::vector<std::string> FunctionNames::names(const CallStack& stack) {
  std::vector<std::string> names;
  for (void* address : stack.addresses) {
    auto [found, is_new] = name_by_address_.try_emplace(address);
    if (is_new) found->second = name_of(address);
    if (!found->second.empty()) names.push_back(found->second);
  }
  return names;
}

}  // namespace accelerate
