/// The fields of a struct, listed once and visited by name.
///
///   struct AutocastKwargs {
///     bool enabled = true;
///     std::optional<bool> cache_enabled;
///   };
///   ACCELERATE_FIELDS(AutocastKwargs, enabled, cache_enabled)
///
///   visit_fields(kwargs, [](const char* name, auto& value) { ... });
///
/// The macro stands after the struct, in its namespace. A const object is visited with const
/// fields. accelerate/values/fields.h turns such structs into JSON and back.
/// ACCELERATE_STRUCT is for all fields of a struct, and compares two of them as well; name_of_class
/// is the struct's name. ACCELERATE_ARGUMENTS is ACCELERATE_FIELDS for fields behind accessors, as
/// LibTorch's TORCH_ARG makes them.
#pragma once

#include <concepts>
#include <optional>
#include <type_traits>

// Expands to macro(a) macro(b) ... The preprocessor has no recursion, so every level of
// ACCELERATE_EXPAND scans the rest again: four to the third power, 64 arguments, are possible.
#define ACCELERATE_EXPAND(...) \
  ACCELERATE_EXPAND_16(        \
      ACCELERATE_EXPAND_16(ACCELERATE_EXPAND_16(ACCELERATE_EXPAND_16(__VA_ARGS__))))
#define ACCELERATE_EXPAND_16(...) \
  ACCELERATE_EXPAND_4(ACCELERATE_EXPAND_4(ACCELERATE_EXPAND_4(ACCELERATE_EXPAND_4(__VA_ARGS__))))
#define ACCELERATE_EXPAND_4(...) \
  ACCELERATE_EXPAND_1(ACCELERATE_EXPAND_1(ACCELERATE_EXPAND_1(ACCELERATE_EXPAND_1(__VA_ARGS__))))
#define ACCELERATE_EXPAND_1(...) __VA_ARGS__
#define ACCELERATE_PARENTHESES ()
#define ACCELERATE_EACH(macro, first, ...) \
  macro(first) __VA_OPT__(ACCELERATE_EACH_AGAIN ACCELERATE_PARENTHESES(macro, __VA_ARGS__))
#define ACCELERATE_EACH_AGAIN() ACCELERATE_EACH
#define ACCELERATE_VISIT_FIELD(field) visit(#field, self.field);
#define ACCELERATE_VISIT_ARGUMENT(field) visit(#field, self.field());
#define ACCELERATE_VISIT(Type, macro, ...)                             \
  template <typename Self, typename Visitor>                           \
    requires std::same_as<std::remove_cvref_t<Self>, Type>             \
  void visit_fields(Self&& self, Visitor&& visit) {                    \
    __VA_OPT__(ACCELERATE_EXPAND(ACCELERATE_EACH(macro, __VA_ARGS__))) \
  }

#define ACCELERATE_FIELDS(Type, ...) \
  ACCELERATE_VISIT(Type, ACCELERATE_VISIT_FIELD __VA_OPT__(, ) __VA_ARGS__)
#define ACCELERATE_SAME_FIELD(field) &&a.field == b.field
#define ACCELERATE_STRUCT(Type, ...)                                             \
  ACCELERATE_FIELDS(Type __VA_OPT__(, ) __VA_ARGS__)                             \
  template <std::same_as<Type> T>                                                \
  constexpr const char* name_of_class(const T& /*object*/) {                     \
    return #Type;                                                                \
  }                                                                              \
  template <std::same_as<Type> T>                                                \
  bool operator==(const T& a, const T& b) {                                      \
    return true __VA_OPT__(                                                      \
        ACCELERATE_EXPAND(ACCELERATE_EACH(ACCELERATE_SAME_FIELD, __VA_ARGS__))); \
  }
#define ACCELERATE_ARGUMENTS(Type, ...) \
  ACCELERATE_VISIT(Type, ACCELERATE_VISIT_ARGUMENT __VA_OPT__(, ) __VA_ARGS__)

namespace accelerate {

namespace internal {

/// T of std::optional<T>; other types are their own.
template <typename T>
struct Unwrapped {
  using Type = T;
};
template <typename T>
struct Unwrapped<std::optional<T>> {
  using Type = T;
};

struct NoVisitor {
  template <typename T>
  void operator()(const char* name, const T& value) const {}
};

}  // namespace internal

template <typename T>
concept HasFields = requires(const T& object) { visit_fields(object, internal::NoVisitor()); };

}  // namespace accelerate
