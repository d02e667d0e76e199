#include "trackers/mlflow/open_client.h"

#include <filesystem>
#include <stdexcept>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/platform/file_system.h"
#include "trackers/common/http_client.h"
#include "trackers/mlflow/buffered_client.h"
#include "trackers/mlflow/file_store.h"
#include "trackers/mlflow/rest_store.h"

namespace accelerate::trackers {
namespace {

bool is_http(const std::string& uri) {
  return absl::StartsWith(uri, "http://") || absl::StartsWith(uri, "https://");
}

std::string folder_of(const TrackerSetup& setup, std::string uri) {
  if (uri.empty()) {
    uri = setup.logging_dir.empty() ? "mlruns" : join_path(setup.logging_dir, "mlruns");
  } else if (absl::StartsWith(uri, "file:")) {
    const bool has_host = absl::StartsWith(uri, "file://");
    uri = path_of_file_uri(uri);
    if (has_host && !absl::StartsWith(uri, "/")) {
      throw std::invalid_argument(
          "mlflow: a tracking URI of file: is of this machine: file:///folder");
    }
  } else if (absl::StrContains(uri, "://") || absl::StartsWith(uri, "databricks")) {
    throw std::invalid_argument(
        absl::StrCat("mlflow: the tracking URI begins with ", uri.substr(0, uri.find(':')),
                     ", and may be http://..., https://..., file:///... or a folder"));
  }
  const bool absolute = absl::StartsWith(uri, "/") || !setup.services.is_real;
  return absolute ? uri : std::filesystem::absolute(uri).lexically_normal().string();
}

}  // namespace

std::unique_ptr<MlflowClient> open_mlflow_client(const TrackerSetup& setup,
                                                 const std::string& tracking_uri) {
  std::unique_ptr<MlflowStore> store;
  if (!is_http(tracking_uri)) {
    store = std::make_unique<FileStore>(folder_of(setup, tracking_uri), setup.services,
                                        setup.random_bits);
  } else if (!setup.services.is_real) {
    throw std::invalid_argument(
        "mlflow: in a simulation there is no server; let the tracking URI "
        "be a folder");
  } else {
    try {
      store = std::make_unique<RestStore>(tracking_uri, setup.services.environment,
                                          setup.services.files);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(absl::StrCat("mlflow: the tracking URI: ", error.what()));
    }
  }
  return std::make_unique<BufferedClient>(std::move(store), setup.services, setup.random_bits);
}

std::string mlflow_unavailable(const TrackerServices& services) {
  const std::string uri = services.environment.get_or("MLFLOW_TRACKING_URI", "");
  if (is_http(uri) && !services.is_real) {
    return "MLFLOW_TRACKING_URI is a server, and there is none in a simulation";
  }
  return {};
}

}  // namespace accelerate::trackers
