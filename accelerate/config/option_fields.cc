#include "accelerate/config/option_fields.h"

#include "absl/strings/str_join.h"

namespace accelerate::internal {

std::optional<std::string> option_text(const options::Option& row, const Environment& environment) {
  const std::string variable = row.variable_name();
  if (variable.empty()) return std::nullopt;
  if (std::optional<std::string> text = environment.get(variable)) return text;
  const char* const otherwise =
      row.field_default != nullptr ? row.field_default : row.default_value;
  if (otherwise == nullptr || *otherwise == 0) return std::nullopt;
  return otherwise;
}

void refuse_choice(const options::Option& row, const std::string& text,
                   absl::Span<const char* const> choices) {
  TORCH_CHECK_VALUE(false, row.variable_name(), "=\"", text, "\" is none of ",
                    absl::StrJoin(choices, ", "));
}

void check_choice(const options::Option& row, const char* who, const char* name,
                  const std::string& text) {
  const std::vector<absl::string_view> choices = row.choice_list();
  TORCH_CHECK_VALUE(choices.empty() || std::ranges::count(choices, text) > 0, who, name, " is \"",
                    text, "\", but it is one of ", absl::StrJoin(choices, ", "));
}

}  // namespace accelerate::internal
