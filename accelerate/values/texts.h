/// Exceptions as texts, and enumerations from their texts; accelerate/base/enum_text.h has the
/// other direction.
///
/// Threads: pure functions.
#pragma once

#include <cstddef>
#include <exception>
#include <iterator>
#include <string>
#include <string_view>

#include "accelerate/base/enum_text.h"

namespace accelerate {

/// The message of an exception; LibTorch's without their backtraces.
std::string exception_text(const std::exception& error);

/// Also for an exception that is not a std::exception. Null: the exception that is being handled.
std::string exception_text(const std::exception_ptr& error = nullptr);

namespace internal {

[[noreturn]] void throw_unknown_text(const char* name, const char* const* texts, size_t count,
                                     std::string_view text);

}  // namespace internal

/// Errors: c10::ValueError that names the enumeration and its members.
template <EnumWithText E>
E from_string(std::string_view text) {
  const int index = internal::index_of_text<E>(text);
  if (index >= 0) return static_cast<E>(index);
  internal::throw_unknown_text(EnumTable<E>::kName, EnumTable<E>::kTexts,
                               std::size(EnumTable<E>::kTexts), text);
}

}  // namespace accelerate
