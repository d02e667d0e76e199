#include "integration_tests/golden/answers.h"

#include <string>

#include <c10/util/Exception.h>

#include "accelerate/data/dataset_error.h"
#include "integration_tests/golden/fields.h"
#include "simulator/cluster/cluster.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

json error_answer(bool ours, const std::string& message) {
  return {{"error", {{"ours", ours}, {"message", message}}}};
}

}  // namespace

json current_error() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return error_answer(true, error.what_without_backtrace());
  } catch (const DatasetError& error) {
    return error_answer(true, error.what());
  } catch (const std::exception& error) {
    return error_answer(false, error.what());
  } catch (...) {
    return error_answer(false, "something that is not a std::exception");
  }
}

json part(const std::function<json()>& make) {
  try {
    return make();
  } catch (const CaseError&) {
    throw;
  } catch (...) {
    return current_error();
  }
}

std::vector<json> ask_ranks(int num_ranks, const std::function<json(int rank)>& make, int num_nodes,
                            std::shared_ptr<simulator::SimDisk> disk) {
  std::vector<json> answers(static_cast<size_t>(num_ranks));
  simulator::Cluster cluster(
      std::to_string(num_nodes) + "x" + std::to_string(num_ranks / num_nodes),
      {.detect_drift = false,  // what drifts shows in the answers
       .disk = std::move(disk)});
  cluster.run_on_every_rank([&](simulator::Rank& rank) {
    json& answer = answers[static_cast<size_t>(rank.index())];
    try {
      answer = make(rank.index());
    } catch (...) {
      answer = current_error();
    }
  });
  return answers;
}

}  // namespace accelerate::golden
