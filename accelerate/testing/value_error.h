/// The text of an exception that a function throws, for tests.
#pragma once

#include <string>

#include <c10/util/Exception.h>

namespace accelerate {

/// The message of the c10::ValueError; "no error" without one. Other exceptions go on.
template <typename Function>
std::string value_error_of(Function&& function) {
  try {
    function();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

/// The same of any c10::Error.
template <typename Function>
std::string c10_error_of(Function&& function) {
  try {
    function();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

}  // namespace accelerate
