/// How rows are made, and the parts of the table.
///
/// Threads: constant data.
#pragma once

#include <cstdint>
#include <type_traits>

#include "absl/types/span.h"
#include "accelerate/base/option.h"

namespace accelerate::options {

/// Options of programs, ranks, machines, output and simulations.
absl::Span<const Option> launch_rows();
/// Options of what ranks do: the fields of plug-ins and kwargs.
absl::Span<const Option> engine_rows();
/// Options of TPUs and SageMaker.
absl::Span<const Option> machine_rows();

/// More ranks, machines and threads there are not.
inline constexpr int64_t kMany = 1 << 20;

/// A row in the making: what most rows lack is not mentioned.
struct Row {
  Option option;

  constexpr operator Option() const { return option; }

  template <typename T>
  constexpr Row with(T Option::* column, std::type_identity_t<T> value) const {
    Row row = *this;
    row.option.*column = value;
    return row;
  }

  constexpr Row ours() const { return with(&Option::origin, SettingOrigin::kOurs); }
  /// The launcher leaves the variable as it is.
  constexpr Row by_variable() const {
    return with(&Option::origin, SettingOrigin::kVariableOnly)
        .with(&Option::variable_is_read, false);
  }
  constexpr Row shortened(char letter) const { return with(&Option::short_name, letter); }
  constexpr Row spelt(const char* flag) const { return with(&Option::flag, flag); }
  constexpr Row or_spelt(const char* flag) const { return with(&Option::other_flag, flag); }
  constexpr Row common() const { return with(&Option::is_common, true); }
  constexpr Row negated_by(const char* flag) const { return with(&Option::negated_flag, flag); }
  constexpr Row called(const char* value) const { return with(&Option::value_name, value); }
  constexpr Row or_else(const char* value) const { return with(&Option::default_value, value); }
  constexpr Row one_of(const char* choices) const { return with(&Option::choices, choices); }
  constexpr Row in_any_case(const char* choices) const {
    return one_of(choices).with(&Option::is_in_any_case, true);
  }
  constexpr Row between(int64_t least, int64_t most = kMany) const {
    return with(&Option::least, least).with(&Option::most, most);
  }
  constexpr Row in(Section section) const { return with(&Option::section, section); }
  constexpr Row at_top(const char* key = nullptr) const {
    return in(Section::kTop).with(&Option::key, key);
  }
  constexpr Row once(const char* keys) const { return with(&Option::old_keys, keys); }
  /// At the top of files of both kinds.
  constexpr Row in_both(const char* key = nullptr) const {
    return at_top(key).with(&Option::in_sagemaker, true);
  }
  constexpr Row absent() const { return with(&Option::status, Status::kNotInThisVersion); }
  /// The variable's value is the launcher's default, and ranks get it.
  constexpr Row exchanged_by(const char* name) const {
    return with(&Option::variable, name).with(&Option::variable_prefix, nullptr);
  }
  constexpr Row without_variable() const { return exchanged_by(nullptr); }
  constexpr Row written_to(const char* name) const {
    return exchanged_by(name).with(&Option::variable_is_read, false);
  }
  constexpr Row written_as(Spelling spelling) const { return with(&Option::spelling, spelling); }
  constexpr Row for_ranks() const { return with(&Option::is_for_ranks, true); }
  constexpr Row secret() const { return with(&Option::is_secret, true); }
  constexpr Row since(const char* release) const { return with(&Option::since, release); }

  constexpr Row fills(const char* field) const { return with(&Option::field, field); }
  constexpr Row field_or(const char* value) const { return with(&Option::field_default, value); }
};

constexpr Row peer(Group group, const char* name, ValueType type, const char* help,
                   Question question = {}) {
  return {{.name = name,
           .type = type,
           .default_value = type == ValueType::kFlag ? "false" : nullptr,
           .group = group,
           .help = help,
           .question = question}};
}
constexpr Row ours(Group group, const char* name, ValueType type, const char* help,
                   Question question = {}) {
  return peer(group, name, type, help, question).ours();
}
constexpr Row common(Group group, const char* name, ValueType type, const char* help,
                     Question question = {}) {
  return peer(group, name, type, help, question).common();
}
constexpr Row file_only(Group group, const char* name, ValueType type, const char* help,
                        Question question = {}) {
  return peer(group, name, type, help, question).with(&Option::origin, SettingOrigin::kFileOnly);
}

/// Rows of a group whose keys stand in one section. A rank has each in the variable that begins so
/// and goes on with the name in capitals; null: in none. What an option is `otherwise` is the
/// launcher's default, or of the field alone.
struct Family {
  Group group;
  Section section;
  const char* variables;
  bool is_of_field = false;

  constexpr Row operator()(const char* name, ValueType type, const char* otherwise,
                           const char* help, Question question = {}) const {
    const Row row = peer(group, name, type, help, question)
                        .in(section)
                        .with(&Option::variable_prefix, variables);
    if (is_of_field) return row.field_or(otherwise);
    return otherwise == nullptr ? row : row.or_else(otherwise);
  }
};

}  // namespace accelerate::options
