#include "trackers/prometheus/prometheus_tracker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "trackers/common/file_options.h"
#include "trackers/common/init_kwargs.h"
#include "trackers/common/numbers.h"
#include "trackers/common/secrets.h"

namespace accelerate::trackers {
namespace {

constexpr std::string_view kExtension = ".prom";
constexpr char kName[] = "prometheus";
constexpr int kDefaultPort = 9499;
constexpr size_t kMaxSaid = 100;

const TrackerRegistration kRegistration({.name = kName,
                                         .requires_logging_directory = false,
                                         .main_process_only = true,
                                         .tracker = make_tracker<PrometheusTracker>,
                                         .unavailable =
                                             [](const TrackerServices& services) -> std::string {
                                           return services.is_real ? ""
                                                                   : "nobody scrapes a simulation";
                                         }});

template <typename Visit>
void for_each_value(const TrackerDict& values, const std::string& prefix, const Visit& visit) {
  for (const auto& [name, value] : values) {
    if (const auto* const dict = value.get_if<TrackerDict>()) {
      for_each_value(*dict, absl::StrCat(prefix, name, "/"), visit);
    } else {
      visit(absl::StrCat(prefix, name), value);
    }
  }
}

}  // namespace

PrometheusTracker::Options::Options(const TrackerSetup& setup) {
  InitKwargs kwargs(kName, setup.init_kwargs);
  textfile = kwargs.text("textfile").value_or("");
  if (kwargs.text("textfile") && !textfile.ends_with(kExtension)) {
    kwargs.refuse("textfile", "a path that ends with .prom");
  }
  if (const auto number = kwargs.integer("port")) {
    if (*number < 0 || *number > 65535) kwargs.refuse("port", "between 0 and 65535");
    port = static_cast<int>(*number);
  } else if (textfile.empty()) {
    port = kDefaultPort;
  }
  // Ranks of one machine must not be in each other's way.
  if (const int rank = setup.services.rank; rank > 0) {
    if (port && *port > 0) *port += rank;
    if (port && *port > 65535) {
      kwargs.refuse("port", absl::StrCat("at most 65535 with rank ", rank, " added to it"));
    }
    if (!textfile.empty()) {
      textfile.insert(textfile.size() - kExtension.size(), absl::StrCat(".rank_", rank));
    }
  }
  address = kwargs.text("address").value_or("127.0.0.1");
  if (!MetricsServer::is_address(address)) kwargs.refuse("address", "an address in numbers");
  prefix = kwargs.text("prefix").value_or("accelerate_");
  kwargs.finish();
}

PrometheusTracker::PrometheusTracker(const TrackerSetup& setup)
    : services_(setup.services),
      options_(setup),
      metrics_(options_.prefix,
               {{"run", setup.project_name}, {"rank", absl::StrCat(setup.services.rank)}}) {
  // Names that are ours before any that is logged.
  metrics_.set("last_log_timestamp_seconds", unix_seconds(setup.time));
}

void PrometheusTracker::start() {
  if (!options_.port) return;
  server_ = std::make_unique<MetricsServer>(options_.address, *options_.port,
                                            [this] { return metrics_.text(); });
  const bool is_ipv6 = options_.address.find(':') != std::string::npos;
  services_.info(absl::StrCat("metrics are at http://", is_ipv6 ? "[" : "", options_.address,
                              is_ipv6 ? "]:" : ":", server_->port(), "/metrics"));
}

void PrometheusTracker::store_init_configuration(const TrackerDict& values) {
  MetricsText::Labels labels;
  for_each_value(values, "", [&](const std::string& name, const TrackerValue& value) {
    if (is_secret_name(name)) return;
    labels.emplace_back(name, without_url_secrets(value_text(value)));
  });
  metrics_.set_info("config_info", labels);
  is_new_ = true;
}

void PrometheusTracker::log(const TrackerDict& values, const TrackerStep& step) {
  if (step.step) metrics_.set("step", static_cast<double>(*step.step));
  metrics_.set("last_log_timestamp_seconds", unix_seconds(step.time));
  for_each_value(values, "", [&](const std::string& name, const TrackerValue& value) {
    // A metric of the user's may be called like ours.
    set(name == "step" || name == "last_log_timestamp_seconds" || name == "config_info"
            ? absl::StrCat("logged_", name)
            : name,
        value);
  });
  is_new_ = true;
  refuse_log_kwargs(kName, step.kwargs);
}

void PrometheusTracker::flush() {
  if (!is_new_ || options_.textfile.empty()) return;
  throw_if_error(write_file(services_.files, options_.textfile, metrics_.text()));
  is_new_ = false;
}

void PrometheusTracker::finish() {
  server_.reset();
  flush();
}

void PrometheusTracker::set(const std::string& name, const TrackerValue& value) {
  std::optional<double> number = value.number();
  const auto* const tensor = value.get_if<TensorValue>();
  if (tensor != nullptr && tensor->values.size() == 1) number = tensor->values[0];
  if (!number) {
    leave_out(name, absl::StrCat("is of type ", std::string(type_name(value)), " and no number"));
  } else if (!metrics_.set(name, *number)) {
    leave_out(name, "is one name too many");
  }
}

void PrometheusTracker::leave_out(const std::string& name, const std::string& why) {
  if (said_.size() >= kMaxSaid || !said_.insert(name).second) return;
  services_.warn(absl::StrCat("tracker prometheus: `", name, "` ", why, "; it is left out"));
}

}  // namespace accelerate::trackers
