/// The answers of a family's run_case where something throws, and how it asks ranks.
///
/// In an answer `{"error": {"ours": bool, "type": name, "message": text}}` stands for an exception.
/// `ours` is whether the library reports errors so; an expected error is met by no other one. The
/// type is the exception's name without namespaces, or the code of a status ("InvalidArgument");
/// see errors.h. `{"refused_by_compiler": true}` stands for a call that does not compile, which is
/// never an error of the library.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"

namespace accelerate::simulator {
class SimDisk;
}  // namespace accelerate::simulator

namespace accelerate {
class RecordedWarnings;
}  // namespace accelerate

namespace accelerate::golden {

/// The case makes a call that does not compile; a static_assert stands where this is thrown.
class DoesNotCompile : public std::exception {};

/// The case asks for what this version does not have, which `feature` names. Thrown only where the
/// library itself was seen to refuse it, or has no function for it at all. Such cases are counted
/// apart: they neither pass nor fail.
class Missing : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

nlohmann::json refused_by_compiler();

/// The answer that the status is. \pre It is not OK.
nlohmann::json status_error(const absl::Status& status);

/// The answer that the exception is. \pre An exception is being handled.
nlohmann::json current_error();

/// The value that `make` returns, or the error it throws, as part of an answer. A CaseError and a
/// Missing pass through.
nlohmann::json part(const std::function<nlohmann::json()>& make);

/// The warnings without their category.
std::vector<std::string> plain_texts(const RecordedWarnings& warnings);

/// Runs `make(rank)` on every rank of a simulated cluster; an exception is that rank's answer. The
/// ranks are spread evenly over the nodes, in order, and find `disk`, if there is one.
std::vector<nlohmann::json> ask_ranks(int num_ranks,
                                      const std::function<nlohmann::json(int rank)>& make,
                                      int num_nodes = 1,
                                      std::shared_ptr<simulator::SimDisk> disk = nullptr);

}  // namespace accelerate::golden
