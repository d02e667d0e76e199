#include "integration_tests/golden/answers.h"

#include <string>

#include <c10/util/Exception.h>

#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/data/dataset_error.h"
#include "accelerate/testing/recorded_warnings.h"
#include "integration_tests/golden/fields.h"
#include "simulator/cluster/cluster.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

json error_answer(bool ours, const std::string& type, const std::string& message) {
  return {{"error", {{"ours", ours}, {"type", type}, {"message", message}}}};
}

template <typename Exception>
bool is(const c10::Error& error) {
  return dynamic_cast<const Exception*>(&error) != nullptr;
}

const char* type_name(const c10::Error& error) {
  if (is<CheckpointError>(error)) return "CheckpointError";
  if (is<c10::ValueError>(error)) return "ValueError";
  if (is<c10::TypeError>(error)) return "TypeError";
  if (is<c10::IndexError>(error)) return "IndexError";
  if (is<c10::NotImplementedError>(error)) return "NotImplementedError";
  if (is<c10::OutOfMemoryError>(error)) return "OutOfMemoryError";
  if (is<c10::DistBackendError>(error)) return "DistBackendError";
  return "Error";
}

}  // namespace

json refused_by_compiler() { return {{"refused_by_compiler", true}}; }

json status_error(const absl::Status& status) {
  std::string type(absl::StatusCodeToString(status.code()));
  if (absl::IsInvalidArgument(status)) type = "InvalidArgument";
  if (absl::IsNotFound(status)) type = "NotFound";
  if (absl::IsAlreadyExists(status)) type = "AlreadyExists";
  return error_answer(true, type, std::string(status.message()));
}

std::vector<std::string> plain_texts(const RecordedWarnings& warnings) {
  static const std::string kCategory = "UserWarning: ";
  std::vector<std::string> texts;
  for (const std::string& text : warnings.texts()) {
    texts.push_back(text.starts_with(kCategory) ? text.substr(kCategory.size()) : text);
  }
  return texts;
}

json current_error() {
  try {
    throw;
  } catch (const DoesNotCompile&) {
    return refused_by_compiler();
  } catch (const c10::Error& error) {
    return error_answer(true, type_name(error), error.what_without_backtrace());
  } catch (const DatasetError& error) {
    return error_answer(true, "DatasetError", error.what());
  } catch (const std::exception& error) {
    return error_answer(false, "std::exception", error.what());
  } catch (...) {
    return error_answer(false, "", "something that is not a std::exception");
  }
}

json part(const std::function<json()>& make) {
  try {
    return make();
  } catch (const CaseError&) {
    throw;
  } catch (const Missing&) {
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
