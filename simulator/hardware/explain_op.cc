#include "simulator/hardware/explain_op.h"

#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/base/message_text.h"
#include "simulator/hardware/kernel_tables.h"
#include "simulator/hardware/presets.h"
#include "simulator/hardware/quantity.h"

namespace accelerate::simulator {
namespace {

constexpr int64_t kMaxExtent = int64_t{1} << 31;
constexpr double kMaxFlops = 1e18;

struct Operation {
  const char* name;
  std::vector<std::string> extents;  // empty: takes bytes
  double written_share = 0;          // of the bytes
  const char* example;
};

const std::vector<Operation>& operations() {
  static const auto* all = new std::vector<Operation>{
      {"mm", {"m", "n", "k"}, 0, "mm 12288x4096x4096:bf16"},
      {"bmm", {"batch", "m", "n", "k"}, 0, "bmm 32x1024x1024x128:bf16"},
      {"grouped_mm", {"groups", "m", "n", "k"}, 0, "grouped_mm 8x4096x14336x4096:bf16"},
      {"attention",
       {"batch", "heads", "length", "head_dim"},
       0,
       "attention 2x32x4096x128:bf16 causal backward"},
      {"read", {}, 0, "read 64MiB"},
      {"copy", {}, 1.0 / 2, "copy 64MiB"},
      {"add", {}, 1.0 / 3, "add 64MiB"}};
  return *all;
}

absl::Status error(absl::string_view text, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("bad operation \"", text, "\": expected ", expected));
}

std::string rate_text(double flops) {
  return scaled_text(flops / 1e9, {"GFLOP/s", "TFLOP/s", "PFLOP/s"}, 1000);
}
std::string flop_text(double flops) {
  return scaled_text(flops, {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"}, 1000);
}
std::string byte_count(double bytes) {
  return scaled_text(bytes, {"B", "kB", "MB", "GB", "TB"}, 1000);
}
std::string bandwidth_text(double rate) { return absl::StrFormat("%.4g GB/s", rate / 1e9); }
std::string share_text(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

absl::StatusOr<KernelWork> parse_bytes(absl::string_view text, const Operation& operation,
                                       absl::Span<const std::string> words) {
  if (words.size() != 2) return error(text, absl::StrCat("as in \"", operation.example, "\""));
  const Quantity bytes = parse_quantity(words[1], Dimension::kBytes);
  if (!bytes.ok()) {
    return error(text, absl::StrCat(bytes.expected, " at \"", words[1].substr(bytes.position),
                                    "\", as in \"", operation.example, "\""));
  }
  return KernelWork{.bytes = bytes.value, .written_bytes = bytes.value * operation.written_share};
}

absl::StatusOr<KernelWork> parse_shape(absl::string_view text, const Operation& operation,
                                       absl::Span<const std::string> words) {
  const std::string form = absl::StrCat(absl::StrJoin(operation.extents, "x"), ":TYPE, as in \"",
                                        operation.example, "\"");
  if (words.size() < 2) return error(text, form);
  const std::vector<std::string> parts = absl::StrSplit(words[1], ':');
  const std::vector<std::string> numbers = absl::StrSplit(parts[0], 'x');
  if (parts.size() != 2 || numbers.size() != operation.extents.size()) return error(text, form);
  std::vector<int64_t> extents;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (!absl::SimpleAtoi(numbers[i], &extents.emplace_back()) || extents[i] < 1 ||
        extents[i] > kMaxExtent) {
      return error(text, absl::StrCat("a whole number from 1 to ", kMaxExtent, " for ",
                                      operation.extents[i], ", not \"", numbers[i], "\""));
    }
  }
  const auto type = accelerate::value_of<MathType>(parts[1]);
  if (!type.has_value()) {
    return error(
        text, absl::StrCat("a type (", suggestion(parts[1], accelerate::texts<MathType>()), ")"));
  }
  const bool is_attention = operation.extents.back() == "head_dim";
  AttentionShape attention = {.type = *type};
  for (const std::string& word : words.subspan(2)) {
    bool* const flag = word == "causal"     ? &attention.causal
                       : word == "backward" ? &attention.backward
                       : word == "mask"     ? &attention.masked
                       : word == "dropout"  ? &attention.dropout
                                            : nullptr;
    if (!is_attention || flag == nullptr) {
      return error(
          text, absl::StrCat(
                    is_attention ? "\"causal\", \"backward\", \"mask\" or \"dropout\"" : "nothing",
                    " in the place of \"", word, "\""));
    }
    *flag = true;
  }
  KernelWork work;
  if (is_attention) {
    attention.heads = extents[0] * extents[1];
    attention.queries = attention.keys = extents[2];
    attention.head_dim = extents[3];
    work = attention_work(attention);
  } else {
    if (extents.size() == 3) extents.insert(extents.begin(), 1);
    work = product_work(*type, extents[0], extents[1], extents[2], extents[3]);
    work.grouped = operation.extents[0] == "groups";
  }
  if (work.flops > kMaxFlops) {
    return error(text, absl::StrFormat("a smaller shape, of at most %s instead of %s",
                                       flop_text(kMaxFlops), flop_text(work.flops)));
  }
  return work;
}

// An explanation that ends with the sources that it names.
class Text : public Explanation {
 public:
  explicit Text(const KernelTable* table) : Explanation(/*width=*/12), table_(table) {}

  // "(vidur)", "(azure, estimate)".
  std::string by(int source, bool estimate) {
    if (source < 0) return "";
    sources_.insert(source);
    return absl::StrCat(" (", table_->sources[source].key, estimate ? ", estimate" : "", ")");
  }
  std::string by(const KernelTable::Figure& figure) { return by(figure.source, figure.estimate); }

  std::string finish() {
    if (!sources_.empty()) head("sources");
    for (const int source : sources_) {
      line(table_->sources[source].key, table_->sources[source].text);
    }
    return Explanation::finish();
  }

 private:
  const KernelTable* table_;
  std::set<int> sources_;
};

void explain_result(const DeviceModel& device, const KernelTime& time, Text& text) {
  text.line("kernel", absl::StrCat(time_text(static_cast<double>(time.ns)), ", no less than ",
                                   time_text(static_cast<double>(device.kernel_ns_min))));
}

void explain_ideal(const DeviceModel& device, const KernelWork& work, Text& text) {
  const KernelTime time = kernel_time(device, nullptr, work);
  text.head("ideal");
  if (work.flops > 0) {
    text.line("arithmetic",
              absl::StrCat(time_text(time.compute_ns), " at ", rate_text(device.flops(work.type))));
  }
  text.line("memory", absl::StrCat(time_text(time.memory_ns), " at ",
                                   bandwidth_text(device.memory_bytes_per_second)));
  explain_result(device, time, text);
}

void explain_tiles(const KernelTable& table, const KernelTime& time, Text& text) {
  if (time.tile == nullptr) return;
  const std::string split =
      time.split > 1 ? absl::StrCat(", k in ", time.split, " parts side by side") : "";
  text.line("tiles",
            absl::StrFormat("%d of %dx%d%s, in %d waves of %d; at %.4g of the best tile's speed "
                            "(estimate)",
                            time.tiles, time.tile->m, time.tile->n, split, time.waves,
                            table.multiprocessors, time.tile->share));
  if (time.is_slowed) {
    text.line("alignment",
              absl::StrCat("x ", share_text(table.unaligned.value),
                           " of the speed: rows of n or k elements are not multiples of 16 bytes",
                           text.by(table.unaligned)));
  }
}

void explain_neighbours(const KernelTime& time, Text& text) {
  if (time.num_neighbours == 0) return;
  text.line("correction", absl::StrFormat("x %.4g, by %s", time.correction,
                                          time.is_measured ? "the time of this very product:"
                                                           : "measured products nearby:"));
  for (int i = 0; i < time.num_neighbours; ++i) {
    const KernelTable::Product& product = *time.neighbours[i];
    text.line("", absl::StrCat(product.m, "x", product.n, "x", product.k, ":",
                               accelerate::to_string(product.type), " took ", time_text(product.ns),
                               text.by(product.source, product.estimate)));
  }
}

void explain_attention(const KernelWork& work, Text& text) {
  text.line("attention",
            absl::StrCat(work.efficient ? "LibTorch's memory-efficient kernel" : "flash attention",
                         work.masked ? ", with a mask" : "", work.dropout ? ", with dropout" : "",
                         work.efficient || work.dropout ? " (measured on an H100)" : ""));
}

void explain_measured(const DeviceModel& device, const KernelTable& table, const KernelWork& work,
                      Text& text) {
  const KernelTime time = kernel_time(device, &table, work);
  text.head("measured");
  if (work.kind == KernelWork::Kind::kAttention) explain_attention(work, text);
  if (work.flops > 0) {
    explain_tiles(table, time, text);
    const std::string by = time.curve != nullptr ? text.by(time.curve->source, time.curve->estimate)
                           : work.efficient
                               ? ""
                               : text.by(table.plateau[static_cast<size_t>(work.type)]);
    text.line("arithmetic",
              absl::StrCat(time_text(time.compute_ns), " at ", share_text(time.compute_share),
                           " of ", rate_text(device.flops(work.type)), by));
  }
  const KernelTable::Figure& nearest = time.memory_share == table.copy.value   ? table.copy
                                       : time.memory_share == table.read.value ? table.read
                                                                               : table.add;
  text.line("memory",
            absl::StrCat(time_text(time.memory_ns), " at ", share_text(time.memory_share), " of ",
                         bandwidth_text(device.memory_bytes_per_second), text.by(nearest)));
  text.line("ramp",
            absl::StrCat(time_text(time.ramp_ns),
                         text.by(work.flops > 0 ? table.product_ramp_ns : table.memory_ramp_ns)));
  explain_neighbours(time, text);
  explain_result(device, time, text);
}

void explain_host(const DeviceModel& device, const KernelTable* table, const KernelWork& work,
                  Text& text) {
  OperatorCall host{.is_product = work.kind == KernelWork::Kind::kProduct};
  const auto time_of = [&](const KernelTable* by) {
    return time_text(static_cast<double>(host_ns(device, by, host)));
  };
  text.head("host");
  text.line("ideal", time_of(nullptr));
  if (table == nullptr) return;
  text.line("measured", absl::StrCat(time_of(table), text.by(table->host.kernel_ns)));
  host.records = true;
  text.line("", absl::StrCat(time_of(table), " with a node for the backward pass",
                             text.by(table->host.record_ns)));
}

}  // namespace

std::string scaled_text(double value, absl::Span<const char* const> units, double step) {
  size_t unit = 0;
  for (; value >= step && unit + 1 < units.size(); ++unit) value /= step;
  return absl::StrFormat("%.4g %s", value, units[unit]);
}

std::string time_text(double ns) { return scaled_text(ns, {"ns", "us", "ms", "s"}, 1000); }

void Explanation::head(absl::string_view line) { absl::StrAppend(&text_, line, "\n"); }

void Explanation::line(absl::string_view term, absl::string_view value) {
  absl::StrAppend(&text_, absl::StrFormat("  %-*s", width_ - 1, term), " ", value, "\n");
}

absl::StatusOr<KernelWork> parse_operation(absl::string_view text) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ', absl::SkipEmpty());
  std::vector<std::string> names;
  for (const Operation& operation : operations()) {
    if (!words.empty() && words[0] == operation.name) {
      return operation.extents.empty() ? parse_bytes(text, operation, words)
                                       : parse_shape(text, operation, words);
    }
    names.emplace_back(operation.name);
  }
  return error(text,
               absl::StrCat("an operation (", suggestion(words.empty() ? "" : words[0], names),
                            "), as in \"", operations()[0].example, "\""));
}

absl::StatusOr<std::string> explain_operation(absl::string_view text, const DeviceModel& device) {
  const absl::StatusOr<KernelWork> work = parse_operation(text);
  if (!work.ok()) return work.status();
  const KernelTable* table =
      device.kernel_file.empty() ? find_kernel_table(device.name) : kernel_table_of(device);
  Text out(table);
  out.head(absl::StrCat(text, " on ", device.name));
  if (work->flops > 0) out.line("work", flop_text(work->flops));
  out.line("traffic", absl::StrCat(byte_count(work->bytes), ", of which ",
                                   byte_count(work->written_bytes), " are written"));
  explain_ideal(device, *work, out);
  if (table != nullptr) explain_measured(device, *table, *work, out);
  explain_host(device, table, *work, out);
  out.head(absl::StrCat("A simulation takes the ", internal::efficiency_text(device), " time",
                        table == nullptr ? "; no measurements of this device are known."
                                         : " (key efficiency of the cluster)."));
  return out.finish();
}

}  // namespace accelerate::simulator
