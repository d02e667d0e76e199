/// Enumerations whose members have a text: one table per enumeration, and from it both directions.
///
///   to_string(PrecisionType::kBf16)       "bf16"
///   contains<PrecisionType>("int3")       false
///   values<PrecisionType>()               all members, in the table's order
///   from_string<PrecisionType>("bf16")    PrecisionType::kBf16 (accelerate/values/texts.h)
///
/// A specialisation of EnumTable makes an enumeration one of these.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

namespace accelerate {

template <typename E>
struct EnumMember {
  E value;
  const char* text;
};

/// For E: `kName`, which errors call it; `kMembers`, a std::array of EnumMember<E>; `kAnyCase`,
/// whether a text may be given in any case.
template <typename E>
struct EnumTable;

template <typename E>
concept EnumWithText = requires { EnumTable<E>::kMembers; };

namespace internal {

// The text's place in a list of texts, -1 if it has none.
int index_of_text(const char* const* texts, size_t count, std::string_view text, bool any_case);

template <EnumWithText E>
constexpr auto kTexts = [] {
  constexpr auto& kMembers = EnumTable<E>::kMembers;
  std::array<const char*, kMembers.size()> texts{};
  for (size_t i = 0; i < texts.size(); ++i) texts[i] = kMembers[i].text;
  return texts;
}();

template <EnumWithText E>
int index_of_text(std::string_view text) {
  return index_of_text(kTexts<E>.data(), kTexts<E>.size(), text, EnumTable<E>::kAnyCase);
}

}  // namespace internal

template <EnumWithText E>
constexpr const char* to_string(E value) {
  for (const auto& member : EnumTable<E>::kMembers) {
    if (member.value == value) return member.text;
  }
  return "";
}

template <EnumWithText E>
bool contains(std::string_view text) {
  return internal::index_of_text<E>(text) >= 0;
}

template <EnumWithText E>
std::vector<E> values() {
  std::vector<E> values;
  for (const auto& member : EnumTable<E>::kMembers) values.push_back(member.value);
  return values;
}

}  // namespace accelerate
