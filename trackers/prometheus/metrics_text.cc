#include "trackers/prometheus/prometheus_tracker.h"

#include <cmath>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "accelerate/base/number_text.h"
#include "trackers/common/formats.h"

namespace accelerate::trackers {
namespace {

constexpr size_t kMaxMetrics = 10000;
constexpr size_t kMaxLabels = 200;
constexpr size_t kMaxLabel = 200;

std::string sanitised(const std::string& name, bool colons) {
  std::string result;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    result += absl::ascii_isalnum(byte) || (colons && c == ':') ? c : '_';
  }
  if (result.empty() || absl::ascii_isdigit(static_cast<unsigned char>(result[0]))) {
    result.insert(0, "_");
  }
  return result;
}

template <typename Taken>
std::string unique(std::string name, const Taken& taken) {
  if (taken.count(name) == 0) return name;
  for (int i = 2;; ++i) {
    const std::string other = absl::StrCat(name, "_", i);
    if (taken.count(other) == 0) return other;
  }
}

std::string shortened(const std::string& value) {
  const std::string text = valid_utf8(value);
  if (text.size() <= kMaxLabel) return text;
  size_t cut = kMaxLabel;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) --cut;  // whole UTF-8
  return text.substr(0, cut);
}

std::string label_text(const MetricsText::Labels& labels) {
  std::string text;
  std::set<std::string> names;
  for (const auto& [name, value] : labels) {
    if (names.size() >= kMaxLabels) break;
    std::string label = sanitised(name, /*colons=*/false);
    if (label.starts_with("__")) label.insert(0, "x");  // those are Prometheus's own
    label = *names.insert(unique(label, names)).first;
    absl::StrAppend(
        &text, text.empty() ? "" : ",", label, "=\"",
        absl::StrReplaceAll(shortened(value), {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}),
        "\"");
  }
  return text;
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return float_text(value);
}

}  // namespace

MetricsText::MetricsText(std::string prefix, Labels labels)
    : prefix_(std::move(prefix)), labels_(std::move(labels)) {}

bool MetricsText::set(const std::string& name, double value) {
  const std::lock_guard lock(mutex_);
  Metric* const metric = find_or_add(name);
  if (metric == nullptr) return false;
  metric->value = value;
  return true;
}

void MetricsText::set_info(const std::string& name, const Labels& labels) {
  const std::lock_guard lock(mutex_);
  Metric* const metric = find_or_add(name);
  if (metric == nullptr) return;
  Labels all = labels_;
  all.insert(all.end(), labels.begin(), labels.end());
  metric->labels = label_text(all);
  metric->value = 1;
}

std::string MetricsText::text() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& [name, metric] : metrics_) {
    absl::StrAppend(&text, "# HELP ", name, " ", metric.help, "\n# TYPE ", name, " gauge\n", name,
                    "{", metric.labels, "} ", number_text(metric.value), "\n");
  }
  return text;
}

MetricsText::Metric* MetricsText::find_or_add(const std::string& name) {
  const auto known = name_of_.find(name);
  if (known != name_of_.end()) return &metrics_.at(known->second);
  if (metrics_.size() >= kMaxMetrics) return nullptr;
  const std::string shown = unique(sanitised(prefix_ + name, /*colons=*/true), metrics_);
  name_of_[name] = shown;
  Metric& metric = metrics_[shown];
  metric.help = absl::StrReplaceAll(valid_utf8(name), {{"\\", "\\\\"}, {"\n", "\\n"}, {"\r", " "}});
  metric.labels = label_text(labels_);
  return &metric;
}

}  // namespace accelerate::trackers
