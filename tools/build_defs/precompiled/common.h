// What many sources include. A header with objects of its own (CLI11) is none of these: each source
// would construct them.
//
// A source that reads these headers precompiled instantiates the virtual functions of each class
// template whose constructor they define, whether it uses the class or not: clang leaves a vtable's
// functions to the end of a source. Here they are instantiated once, which halves the time of an
// average source. Two things make clang do that early, the vtable of a local class and a call whose
// object's class is final.
#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include <absl/base/no_destructor.h>
#include <absl/cleanup/cleanup.h>
#include <absl/functional/function_ref.h>
#include <absl/functional/overload.h>
#include <absl/log/absl_check.h>
#include <absl/log/absl_log.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/ascii.h>
#include <absl/strings/escaping.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>
#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>
#include <absl/types/span.h>
#include <nlohmann/json.hpp>

namespace precompiled {

// Instantiates the virtual functions of `Bases`. What is inline and never called leaves no object
// code behind.
template <class... Bases>
void instantiate_virtual_functions() {
  (
      [] {
        struct Local : Bases {
          ~Local() override {}
        };
      }(),
      ...);
}

// Names in an explicit instantiation may be private.
template <auto kFunction>
struct Calls {};
template struct Calls<[](std::__format::_Seq_sink<std::string>& sink) {
  sink._M_reserve(1);
  sink._M_bump(1);
}>;
template struct Calls<[](std::__format::_Seq_sink<std::wstring>& sink) {
  sink._M_reserve(1);
  sink._M_bump(1);
}>;

}  // namespace precompiled
