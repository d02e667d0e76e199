/// Tables from words to values, in which a value stands once before all of its words.
///
///   static const auto& kinds = *new WordMap<Kind>(
///       word_map<Kind>({{Kind::kView, "view reshape flatten"}, {Kind::kJoin, "cat"}}));
///
/// Threads: pure functions.
#pragma once

#include <initializer_list>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace accelerate {

template <typename T>
using WordMap = absl::flat_hash_map<absl::string_view, T>;

/// The words are between spaces and must outlive the map, as literals do.
template <typename T>
WordMap<T> word_map(std::initializer_list<std::pair<T, absl::string_view>> rows) {
  WordMap<T> map;
  for (const auto& [value, words] : rows) {
    for (const absl::string_view word : absl::StrSplit(words, ' ')) map.emplace(word, value);
  }
  return map;
}

}  // namespace accelerate
