/// How the library and its tests reach what is behind a class that users see. Not for users.
#pragma once

namespace accelerate::internal {

/// The one friend of such classes. Each has a private member function internals().
struct Access {
  template <typename Object>
  static decltype(auto) to(Object&& object) {
    return object.internals();
  }
};

}  // namespace accelerate::internal
