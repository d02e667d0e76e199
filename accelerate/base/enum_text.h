/// Enumerations whose members have a text: one table per enumeration, and from it both directions.
///
///   to_string(PrecisionType::kBf16)       "bf16"
///   contains<PrecisionType>("int3")       false
///   value_of<PrecisionType>("bf16")       PrecisionType::kBf16; nothing for other texts
///   values<PrecisionType>()               all members, in their order
///   texts<PrecisionType>()                their texts
///   from_string<PrecisionType>("bf16")    PrecisionType::kBf16 (accelerate/values/texts.h)
///
/// ACCELERATE_ENUM_TEXTS makes an enumeration one of these; it stands in namespace accelerate:
///
///   ACCELERATE_ENUM_TEXTS(PrecisionType, "PrecisionType", "no", "fp8", "fp16", "bf16")
#pragma once

#include <cstddef>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace accelerate {

/// For E, whose members count from 0: `kName`, which errors call it; `kTexts`, an array of the
/// members' texts in their order; and `kAnyCase` where a text may be given in any case.
template <typename E>
struct EnumTable;

/// What errors call the enumeration, and its members' texts in their order.
#define ACCELERATE_ENUM_TEXTS(Enum, name, ...)             \
  template <>                                              \
  struct EnumTable<Enum> {                                 \
    static constexpr char kName[] = name;                  \
    static constexpr const char* kTexts[] = {__VA_ARGS__}; \
  };
/// The same where texts may be given in any case.
#define ACCELERATE_ENUM_TEXTS_IN_ANY_CASE(Enum, name, ...) \
  template <>                                              \
  struct EnumTable<Enum> {                                 \
    static constexpr char kName[] = name;                  \
    static constexpr bool kAnyCase = true;                 \
    static constexpr const char* kTexts[] = {__VA_ARGS__}; \
  };

template <typename E>
concept EnumWithText = requires { EnumTable<E>::kTexts; };

namespace internal {

// The text's place in the table, -1 if it has none.
template <EnumWithText E>
int index_of_text(std::string_view text) {
  const absl::string_view wanted(text.data(), text.size());
  int index = 0;
  for (const absl::string_view known : EnumTable<E>::kTexts) {
    constexpr bool kAnyCase = requires { EnumTable<E>::kAnyCase; };
    if (kAnyCase ? absl::EqualsIgnoreCase(known, wanted) : known == wanted) return index;
    ++index;
  }
  return -1;
}

}  // namespace internal

template <EnumWithText E>
constexpr const char* to_string(E value) {
  const auto index = static_cast<size_t>(value);
  return index < std::size(EnumTable<E>::kTexts) ? EnumTable<E>::kTexts[index] : "";
}

template <EnumWithText E>
bool contains(std::string_view text) {
  return internal::index_of_text<E>(text) >= 0;
}

template <EnumWithText E>
std::optional<E> value_of(std::string_view text) {
  const int index = internal::index_of_text<E>(text);
  return index >= 0 ? std::optional(static_cast<E>(index)) : std::nullopt;
}

template <EnumWithText E>
std::vector<E> values() {
  std::vector<E> values;
  for (size_t i = 0; i < std::size(EnumTable<E>::kTexts); ++i) values.push_back(static_cast<E>(i));
  return values;
}

template <EnumWithText E>
std::vector<std::string> texts() {
  return {std::begin(EnumTable<E>::kTexts), std::end(EnumTable<E>::kTexts)};
}

}  // namespace accelerate
