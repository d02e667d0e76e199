#include "simulator/hardware/kernel_tables.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/log/absl_check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/document.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/base/status.h"
#include "simulator/hardware/kernel_table_text.h"
#include "simulator/hardware/kernel_time.h"

namespace accelerate::simulator {
namespace {

using Stage = KernelTable::Attention::Stage;

constexpr char kSchema[] = "kernel-table/1";
constexpr double kUs = 1e3;
constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;

// By Stage.
const std::vector<std::string>& stage_names() {
  static const auto* names = new std::vector<std::string>{"forward", "backward", "both"};
  return *names;
}

// Reads a document.
class Reader {
 public:
  KernelTable read(const DocumentNode& root) {
    if (root.at("schema").text() != kSchema) {
      root.at("schema").fail(absl::StrCat("\"", kSchema, "\""));
    }
    table_.device = root.at("device").text();
    table_.multiprocessors = static_cast<int>(number(root.at("multiprocessors"), 1e6));
    read_peaks(root.at("peak"));
    for (const DocumentNode& source : root.at("sources").members()) {
      table_.sources.push_back(
          {source.key(), absl::StrCat(source.at("name").text(), ", ", source.at("date").text(),
                                      ", ", source.at("url").text())});
    }
    read_products(root.at("matmul"));
    read_memory(root.at("memory"));
    read_host(root.at("host"));
    read_attention(root.at("attention"));
    derive(table_);
    return std::move(table_);
  }

 private:
  static double number(const DocumentNode& value, double largest) {
    return value.number(absl::StrCat("a number above zero and at most ", largest),
                        std::numeric_limits<double>::denorm_min(), largest);
  }

  static bool is_estimate(const DocumentNode& object) {
    const std::optional<DocumentNode> flag = object.find("estimate");
    return flag && flag->boolean();
  }

  int source(const DocumentNode& object) {
    std::vector<std::string> keys;
    for (const KernelTable::Source& each : table_.sources) keys.push_back(each.key);
    return static_cast<int>(object.at("source").choice("a key of /sources", keys));
  }

  static MathType type(const DocumentNode& object) {
    return static_cast<MathType>(object.at("type").choice("a type", accelerate::texts<MathType>()));
  }

  // {"share": .., "source": ..} or {"us": .., "source": ..}, both perhaps with "estimate".
  KernelTable::Figure figure(const DocumentNode& object, const char* key, const char* unit,
                             double scale, double largest) {
    const DocumentNode value = object.at(key);
    return {.value = scale * number(value.at(unit), largest),
            .source = source(value),
            .estimate = is_estimate(value)};
  }
  KernelTable::Figure share(const DocumentNode& object, const char* key) {
    return figure(object, key, "share", 1, 1);
  }
  KernelTable::Figure time(const DocumentNode& object, const char* key) {
    return figure(object, key, "us", kUs, 1e6);
  }

  // Calls take(row) for the rows of {"columns": [...], "values": [[...], ...]}.
  template <typename Take>
  static void rows(const DocumentNode& object, const std::vector<std::string>& columns,
                   Take&& take) {
    const DocumentNode names = object.at("columns");
    if (names.value() != Document::Json(columns)) {
      names.fail(absl::StrJoin(columns, ", "));
    }
    for (const DocumentNode& line : object.at("values").items()) {
      const std::string expected = absl::StrCat(columns.size(), " numbers");
      const std::vector<DocumentNode> values = line.items(expected);
      if (values.size() != columns.size()) line.fail(expected);
      std::vector<double> row;
      for (size_t i = 0; i < columns.size(); ++i) {
        const bool may_be_zero = columns[i] == "causal";
        row.push_back(may_be_zero && values[i].value() == 0 ? 0 : number(values[i], 1e12));
      }
      take(row);
    }
  }

  void read_peaks(const DocumentNode& peak) {
    DeviceModel& device = table_.measured;
    device.name = table_.device;
    device.kernel_ns_min = 1;
    device.launch_ns = internal::kLaunchNs;
    device.memory_bytes_per_second = kGiga * number(peak.at("memory_gb_s"), 1e9);
    // Nothing is measured in other formats.
    device.flops_per_second.fill(kTera * number(peak.at("fp16_tflops"), 1e9));
    device.flops_per_second[static_cast<size_t>(MathType::kFp8)] =
        kTera * number(peak.at("fp8_tflops"), 1e9);
  }

  void read_products(const DocumentNode& matmul) {
    const DocumentNode plateau = matmul.at("plateau");
    for (const MathType type : accelerate::values<MathType>()) {
      table_.plateau[static_cast<size_t>(type)] = share(plateau, accelerate::to_string(type));
    }
    table_.product_ramp_ns = time(matmul, "ramp");
    table_.unaligned = share(matmul, "unaligned");
    const DocumentNode tiles = matmul.at("tiles");
    rows(tiles, {"m", "n", "share"}, [&](const std::vector<double>& row) {
      if (row[2] > 1) tiles.fail_at("values", "shares of at most 1");
      table_.tiles.push_back({static_cast<int64_t>(row[0]), static_cast<int64_t>(row[1]), row[2]});
    });
    if (table_.tiles.empty()) tiles.fail_at("values", "a tile");
    for (const DocumentNode& group : matmul.at("measured").items()) {
      KernelTable::Product product;
      product.type = type(group);
      product.source = source(group);
      product.estimate = is_estimate(group);
      rows(group, {"m", "n", "k", "us"}, [&](const std::vector<double>& row) {
        product.m = static_cast<int64_t>(row[0]);
        product.n = static_cast<int64_t>(row[1]);
        product.k = static_cast<int64_t>(row[2]);
        product.ns = row[3] * kUs;
        table_.products.push_back(product);
      });
    }
  }

  void read_memory(const DocumentNode& memory) {
    table_.read = share(memory, "read");
    table_.copy = share(memory, "copy");
    table_.add = share(memory, "add");
    table_.memory_ramp_ns = time(memory, "ramp");
  }

  void read_host(const DocumentNode& host) {
    table_.host = {.view_ns = time(host, "view"),
                   .kernel_ns = time(host, "kernel"),
                   .record_ns = time(host, "record"),
                   .node_ns = time(host, "node"),
                   .product_ns = time(host, "product"),
                   .tensor_ns = time(host, "tensor"),
                   .collective_ns = time(host, "collective")};
    table_.pinned = share(host, "pinned");
    table_.pageable = share(host, "pageable");
  }

  void read_attention(const DocumentNode& attention) {
    for (const DocumentNode& group : attention.at("measured").items()) {
      KernelTable::Attention line;
      line.type = type(group);
      line.source = source(group);
      line.estimate = is_estimate(group);
      line.stage = static_cast<Stage>(group.at("stage").choice("a stage", stage_names()));
      rows(group, {"head_dim", "causal", "length", "batch", "heads", "us"},
           [&](const std::vector<double>& row) {
             line.head_dim = static_cast<int64_t>(row[0]);
             line.causal = row[1] != 0;
             line.length = static_cast<int64_t>(row[2]);
             line.batch = static_cast<int64_t>(row[3]);
             line.heads = static_cast<int64_t>(row[4]);
             line.ns = row[5] * kUs;
             table_.attention.push_back(line);
           });
    }
    for (const Stage stage : {Stage::kForward, Stage::kBackward}) {
      const auto serves = [stage](const KernelTable::Attention& line) {
        return line.stage == stage || line.stage == Stage::kBoth;
      };
      if (std::ranges::any_of(table_.attention, serves)) continue;
      attention.fail_at(
          "measured",
          absl::StrCat("a line of stage ", stage_names()[static_cast<size_t>(stage)], " or both"));
    }
  }

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
  return as_status(absl::StatusCode::kInvalidArgument, [&]() -> absl::StatusOr<KernelTable> {
    const Document document = Document::json(json, {.name = "bad table of kernels"});
    return Reader().read(document.root());
  });
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
