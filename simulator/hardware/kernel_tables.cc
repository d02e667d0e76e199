#include "simulator/hardware/kernel_tables.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "absl/log/absl_check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/message_text.h"
#include "nlohmann/json.hpp"
#include "simulator/hardware/choice_names.h"
#include "simulator/hardware/kernel_table_text.h"
#include "simulator/hardware/kernel_time.h"

namespace accelerate::simulator {
namespace {

using Json = nlohmann::json;
using Stage = KernelTable::Attention::Stage;

constexpr char kSchema[] = "kernel-table/1";
constexpr double kUs = 1e3;
constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;
// By Stage.
constexpr const char* kStages[] = {"forward", "backward", "both"};

// Reads a document. After the first error every reader returns at once; `status_` then says what
// was expected at which JSON pointer.
class Reader {
 public:
  absl::StatusOr<KernelTable> read(absl::string_view text) {
    Json root;
    try {
      root = Json::parse(text);
    } catch (const Json::out_of_range& error) {  // a number beyond every double
      return absl::InvalidArgumentError(
          absl::StrCat("bad table of kernels: expected smaller numbers: ", error.what()));
    } catch (const Json::parse_error& error) {
      const absl::string_view before = text.substr(0, error.byte);
      return absl::InvalidArgumentError(
          absl::StrCat("bad table of kernels: expected JSON in line ",
                       1 + std::count(before.begin(), before.end(), '\n'), ": ", error.what()));
    }
    read_root(root);
    if (!status_.ok()) return status_;
    derive(table_);
    return std::move(table_);
  }

 private:
  void fail(absl::string_view at, absl::string_view expected) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        absl::StrCat("bad table of kernels: expected ", expected, " at \"", at, "\""));
  }

  // The member `key`, which exists; null after an error.
  const Json* member(const Json& object, const std::string& at, const char* key) {
    if (!status_.ok()) return nullptr;
    const auto found = object.is_object() ? object.find(key) : object.end();
    if (!object.is_object() || found == object.end()) {
      fail(absl::StrCat(at, "/", key), "a value");
      return nullptr;
    }
    return &*found;
  }

  double number(const Json& value, const std::string& at, double largest) {
    if (value.is_number() && value.get<double>() > 0 && value.get<double>() <= largest) {
      return value.get<double>();
    }
    fail(at, absl::StrCat("a number above zero and at most ", largest));
    return 1;
  }

  double number(const Json& object, const std::string& at, const char* key, double largest) {
    const Json* value = member(object, at, key);
    return value == nullptr ? 1 : number(*value, absl::StrCat(at, "/", key), largest);
  }

  std::string text(const Json& object, const std::string& at, const char* key) {
    const Json* value = member(object, at, key);
    if (value != nullptr && value->is_string()) return value->get<std::string>();
    fail(absl::StrCat(at, "/", key), "text");
    return "";
  }

  bool flag(const Json& object, const std::string& at, const char* key) {
    const auto found = object.find(key);
    if (found == object.end()) return false;
    if (found->is_boolean()) return found->get<bool>();
    fail(absl::StrCat(at, "/", key), "true or false");
    return false;
  }

  int source(const Json& object, const std::string& at) {
    const std::string key = text(object, at, "source");
    const auto found = std::ranges::find(table_.sources, key, &KernelTable::Source::key);
    if (found != table_.sources.end()) return static_cast<int>(found - table_.sources.begin());
    std::vector<std::string> keys;
    for (const KernelTable::Source& each : table_.sources) keys.push_back(each.key);
    fail(absl::StrCat(at, "/source"),
         absl::StrCat("a key of /sources (", suggestion(key, keys), ")"));
    return -1;
  }

  MathType type(const Json& object, const std::string& at) {
    const std::string name = text(object, at, "type");
    if (const auto found = internal::choice_of<MathType>(name)) return *found;
    fail(absl::StrCat(at, "/type"), suggestion(name, internal::choice_names<MathType>()));
    return MathType::kFp32;
  }

  // {"share": .., "source": ..} or {"us": .., "source": ..}, both perhaps with "estimate".
  KernelTable::Figure figure(const Json& object, const std::string& at, const char* key,
                             const char* unit, double scale, double largest) {
    const Json* value = member(object, at, key);
    const std::string inside = absl::StrCat(at, "/", key);
    if (value == nullptr) return {};
    return {.value = scale * number(*value, inside, unit, largest),
            .source = source(*value, inside),
            .estimate = status_.ok() && flag(*value, inside, "estimate")};
  }

  // Calls take(row, pointer) for the rows of {"columns": [...], "values": [[...], ...]}.
  template <typename Take>
  void rows(const Json& object, const std::string& at, const std::vector<std::string>& columns,
            Take&& take) {
    const Json* names = member(object, at, "columns");
    if (names != nullptr && *names != Json(columns)) {
      return fail(absl::StrCat(at, "/columns"), absl::StrJoin(columns, ", "));
    }
    const Json* values = member(object, at, "values");
    if (values == nullptr) return;
    for (size_t i = 0; i < values->size() && status_.ok(); ++i) {
      const std::string inside = absl::StrCat(at, "/values/", i);
      const Json& value = (*values)[i];
      if (!value.is_array() || value.size() != columns.size()) {
        return fail(inside, absl::StrCat(columns.size(), " numbers"));
      }
      std::vector<double> row;
      for (size_t j = 0; j < columns.size(); ++j) {
        const bool may_be_zero = columns[j] == "causal";
        const std::string place = absl::StrCat(inside, "/", j);
        row.push_back(may_be_zero && value[j] == 0 ? 0 : number(value[j], place, 1e12));
      }
      if (status_.ok()) take(row);
    }
  }

  void read_root(const Json& root) {
    if (text(root, "", "schema") != kSchema) {
      return fail("/schema", absl::StrCat("\"", kSchema, "\""));
    }
    table_.device = text(root, "", "device");
    table_.multiprocessors = static_cast<int>(number(root, "", "multiprocessors", 1e6));
    read_peaks(root);
    read_sources(root);
    read_products(root);
    read_memory(root);
    read_host(root);
    read_attention(root);
  }

  void read_peaks(const Json& root) {
    const Json* peak = member(root, "", "peak");
    if (peak == nullptr) return;
    DeviceModel& device = table_.measured;
    device.name = table_.device;
    device.kernel_ns_min = 1;
    device.launch_ns = internal::kLaunchNs;
    device.memory_bytes_per_second = kGiga * number(*peak, "/peak", "memory_gb_s", 1e9);
    // Nothing is measured in other formats.
    const double half = kTera * number(*peak, "/peak", "fp16_tflops", 1e9);
    device.flops_per_second.fill(half);
    device.flops_per_second[static_cast<size_t>(MathType::kFp8)] =
        kTera * number(*peak, "/peak", "fp8_tflops", 1e9);
  }

  void read_sources(const Json& root) {
    const Json* sources = member(root, "", "sources");
    if (sources == nullptr) return;
    for (const auto& [key, value] : sources->items()) {
      const std::string at = absl::StrCat("/sources/", key);
      std::string line = absl::StrCat(text(value, at, "name"), ", ", text(value, at, "date"), ", ",
                                      text(value, at, "url"));
      if (!status_.ok()) return;
      table_.sources.push_back({key, std::move(line)});
    }
  }

  void read_products(const Json& root) {
    const std::string at = "/matmul";
    const Json* matmul = member(root, "", "matmul");
    const Json* plateau = matmul == nullptr ? nullptr : member(*matmul, at, "plateau");
    if (plateau == nullptr) return;
    for (size_t i = 0; i < kNumMathTypes; ++i) {
      table_.plateau[i] = figure(*plateau, "/matmul/plateau",
                                 internal::choice_names<MathType>()[i].c_str(), "share", 1, 1);
    }
    table_.product_ramp_ns = figure(*matmul, at, "ramp", "us", kUs, 1e6);
    table_.unaligned = figure(*matmul, at, "unaligned", "share", 1, 1);
    if (const Json* tiles = member(*matmul, at, "tiles")) {
      rows(*tiles, "/matmul/tiles", {"m", "n", "share"}, [this](const std::vector<double>& row) {
        if (row[2] > 1) fail("/matmul/tiles/values", "shares of at most 1");
        table_.tiles.push_back(
            {static_cast<int64_t>(row[0]), static_cast<int64_t>(row[1]), row[2]});
      });
      if (table_.tiles.empty()) fail("/matmul/tiles/values", "a tile");
    }
    each_group(*matmul, at, [this](const Json& group, const std::string& inside) {
      KernelTable::Product product;
      product.type = type(group, inside);
      product.source = source(group, inside);
      product.estimate = status_.ok() && flag(group, inside, "estimate");
      rows(group, inside, {"m", "n", "k", "us"}, [&](const std::vector<double>& row) {
        product.m = static_cast<int64_t>(row[0]);
        product.n = static_cast<int64_t>(row[1]);
        product.k = static_cast<int64_t>(row[2]);
        product.ns = row[3] * kUs;
        table_.products.push_back(product);
      });
    });
  }

  void read_memory(const Json& root) {
    const Json* memory = member(root, "", "memory");
    if (memory == nullptr) return;
    table_.read = figure(*memory, "/memory", "read", "share", 1, 1);
    table_.copy = figure(*memory, "/memory", "copy", "share", 1, 1);
    table_.add = figure(*memory, "/memory", "add", "share", 1, 1);
    table_.memory_ramp_ns = figure(*memory, "/memory", "ramp", "us", kUs, 1e6);
  }

  void read_host(const Json& root) {
    const std::string at = "/host";
    const Json* host = member(root, "", "host");
    if (host == nullptr) return;
    const auto us = [&](const char* key) { return figure(*host, at, key, "us", kUs, 1e6); };
    table_.host = {.view_ns = us("view"),
                   .kernel_ns = us("kernel"),
                   .record_ns = us("record"),
                   .node_ns = us("node"),
                   .product_ns = us("product"),
                   .tensor_ns = us("tensor"),
                   .collective_ns = us("collective")};
    table_.pinned = figure(*host, at, "pinned", "share", 1, 1);
    table_.pageable = figure(*host, at, "pageable", "share", 1, 1);
  }

  void read_attention(const Json& root) {
    const Json* attention = member(root, "", "attention");
    if (attention == nullptr) return;
    each_group(*attention, "/attention", [this](const Json& group, const std::string& inside) {
      KernelTable::Attention line;
      line.type = type(group, inside);
      line.source = source(group, inside);
      line.estimate = status_.ok() && flag(group, inside, "estimate");
      const std::string stage = text(group, inside, "stage");
      const auto found = std::ranges::find(kStages, stage);
      if (found == std::end(kStages)) {
        return fail(absl::StrCat(inside, "/stage"),
                    absl::StrCat("one of ", absl::StrJoin(kStages, ", ")));
      }
      line.stage = static_cast<Stage>(found - std::begin(kStages));
      rows(group, inside, {"head_dim", "causal", "length", "batch", "heads", "us"},
           [&](const std::vector<double>& row) {
             line.head_dim = static_cast<int64_t>(row[0]);
             line.causal = row[1] != 0;
             line.length = static_cast<int64_t>(row[2]);
             line.batch = static_cast<int64_t>(row[3]);
             line.heads = static_cast<int64_t>(row[4]);
             line.ns = row[5] * kUs;
             table_.attention.push_back(line);
           });
    });
    for (const Stage stage : {Stage::kForward, Stage::kBackward}) {
      const auto serves = [stage](const KernelTable::Attention& line) {
        return line.stage == stage || line.stage == Stage::kBoth;
      };
      if (std::ranges::any_of(table_.attention, serves)) continue;
      fail("/attention/measured",
           absl::StrCat("a line of stage ", kStages[static_cast<size_t>(stage)], " or both"));
    }
  }

  // Calls take(group, pointer) for each group in "measured".
  template <typename Take>
  void each_group(const Json& object, const std::string& at, Take&& take) {
    const Json* groups = member(object, at, "measured");
    if (groups == nullptr) return;
    for (size_t i = 0; i < groups->size() && status_.ok(); ++i) {
      take((*groups)[i], absl::StrCat(at, "/measured/", i));
    }
  }

  absl::Status status_;
  KernelTable table_;
};

// The share of the peak at which the kernels of a line ran, without their ramps.
double attention_share(const KernelTable& table, const KernelTable::Attention& line) {
  double flops = 0;
  double ns = line.ns;
  for (const bool backward : {false, true}) {
    if (line.stage == (backward ? Stage::kForward : Stage::kBackward)) continue;
    flops += attention_work({.type = line.type,
                             .causal = line.causal,
                             .backward = backward,
                             .heads = line.batch * line.heads,
                             .queries = line.length,
                             .keys = line.length,
                             .head_dim = line.head_dim})
                 .flops;
    ns -= table.product_ramp_ns.value;
  }
  return flops / (ns / 1e9) / table.measured.flops(line.type);
}

std::vector<KernelTable::AttentionCurve> curves_of(const KernelTable& table, bool backward,
                                                   bool causal) {
  const Stage other = backward ? Stage::kForward : Stage::kBackward;
  std::vector<KernelTable::AttentionCurve> curves;
  for (const KernelTable::Attention& line : table.attention) {
    if (line.stage == other || line.causal != causal) continue;
    auto curve = std::ranges::find(curves, line.head_dim, &KernelTable::AttentionCurve::head_dim);
    if (curve == curves.end()) {
      curve = curves.insert(curve, {.head_dim = line.head_dim,
                                    .share_by_log_length = {},
                                    .source = line.source,
                                    .estimate = line.estimate});
    }
    curve->share_by_log_length.emplace_back(std::log(static_cast<double>(line.length)),
                                            attention_share(table, line));
  }
  for (auto& curve : curves) std::ranges::sort(curve.share_by_log_length);
  std::ranges::sort(curves, {}, &KernelTable::AttentionCurve::head_dim);
  return curves;
}

struct EmbeddedTable {
  const char* device;
  const char* text;
};
// The same chip with other memory: shares of peaks hold, times of products that wait for memory are
// scaled.
constexpr EmbeddedTable kEmbedded[] = {{"a100-40", kKernelsA100},       {"a100-80", kKernelsA100},
                                       {"a100-pcie", kKernelsA100Pcie}, {"h100", kKernelsH100},
                                       {"h200", kKernelsH200},          {"b200", kKernelsB200}};

}  // namespace

void derive(KernelTable& table) {
  // The model alone, uncorrected.
  std::vector<KernelTable::Product> derived = std::exchange(table.products, {});
  for (KernelTable::Product& product : derived) {
    product.log_m = std::log(static_cast<double>(product.m));
    product.log_n = std::log(static_cast<double>(product.n));
    product.log_k = std::log(static_cast<double>(product.k));
    const KernelTime time =
        kernel_time(table.measured, &table,
                    product_work(product.type, /*batch=*/1, product.m, product.n, product.k));
    product.log_ratio =
        std::log(product.ns / (std::max(time.compute_ns, time.memory_ns) + time.ramp_ns));
  }
  table.products = std::move(derived);
  for (const int backward : {0, 1}) {
    auto& curves = table.curves[backward];
    for (const int causal : {0, 1}) curves[causal] = curves_of(table, backward != 0, causal != 0);
    // What was measured for one of both stands for the other.
    for (const int causal : {0, 1}) {
      if (curves[causal].empty()) curves[causal] = curves[1 - causal];
    }
  }
}

absl::StatusOr<KernelTable> parse_kernel_table(absl::string_view json) {
  return Reader().read(json);
}

const KernelTable* find_kernel_table(absl::string_view device) {
  // Never destroyed.
  static const auto& tables = *new std::vector<KernelTable>([] {
    std::vector<KernelTable> all;
    for (const EmbeddedTable& embedded : kEmbedded) {
      absl::StatusOr<KernelTable> table = parse_kernel_table(embedded.text);
      ABSL_CHECK(table.ok()) << embedded.device << ": " << table.status();
      if (table->device != embedded.device) {
        table->of_another = std::exchange(table->device, embedded.device);
      }
      all.push_back(*std::move(table));
    }
    return all;
  }());
  const auto found = std::ranges::find(tables, device, &KernelTable::device);
  return found == tables.end() ? nullptr : &*found;
}

absl::StatusOr<const KernelTable*> kernel_table_in(const std::string& path) {
  static std::mutex mutex;
  static auto& tables = *new std::map<std::string, KernelTable>();  // never destroyed
  std::lock_guard<std::mutex> lock(mutex);
  if (const auto found = tables.find(path); found != tables.end()) return &found->second;
  std::ifstream file(path);
  if (!file) {
    return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" cannot be read"));
  }
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  absl::StatusOr<KernelTable> table = parse_kernel_table(text);
  if (!table.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", path, "\" is not one: ", table.status().message()));
  }
  return &tables.emplace(path, *std::move(table)).first->second;
}

std::vector<std::string> devices_with_kernel_table() {
  std::vector<std::string> names;
  for (const EmbeddedTable& embedded : kEmbedded) names.emplace_back(embedded.device);
  return names;
}

const KernelTable* kernel_table_of(const DeviceModel& device) {
  if (device.efficiency != Efficiency::kMeasured) return nullptr;
  if (device.kernel_file.empty()) return find_kernel_table(device.name);
  const auto table = kernel_table_in(device.kernel_file);
  ABSL_CHECK(table.ok()) << table.status();  // it was read when the cluster's text was
  return *table;
}

}  // namespace accelerate::simulator
