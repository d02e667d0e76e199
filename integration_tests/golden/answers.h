/// What a family's run_case puts into its answer where something throws, and how it asks ranks.
///
/// In an answer `{"error": {"ours": bool, "message": text}}` stands for an exception. `ours` is
/// whether the library reports errors so; an expected error is met by no other one.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace accelerate::simulator {
class SimDisk;
}  // namespace accelerate::simulator

namespace accelerate::golden {

/// The answer that the exception is. \pre An exception is being handled.
nlohmann::json current_error();

/// What `make` returns, or the error it throws, as part of an answer. A CaseError passes through.
nlohmann::json part(const std::function<nlohmann::json()>& make);

/// Runs `make(rank)` on every rank of a simulated cluster; an exception is that rank's answer. The
/// ranks are spread evenly over the nodes, in order, and find `disk`, if there is one.
std::vector<nlohmann::json> ask_ranks(int num_ranks,
                                      const std::function<nlohmann::json(int rank)>& make,
                                      int num_nodes = 1,
                                      std::shared_ptr<simulator::SimDisk> disk = nullptr);

}  // namespace accelerate::golden
