// `accelerate simulate SPEC [OPTIONS] PROGRAM [ARGS...]`: `expand_arguments` makes `launch
// --simulate SPEC ...` of it. Here are its help, the error for a missing SPEC, and what it tells
// without a program: `--list`, what a SPEC may name, `--explain-op` and `--explain-collective`, how
// long a kernel and a collective take, and `--from-dump`, what the dumps of a failed job tell.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/enum_text.h"
#include "launch/commands/commands.h"
#include "launch/commands/probe.h"
#include "launch/perf/metrics.h"
#include "launch/settings/settings.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/hardware/explain_op.h"
#include "simulator/hardware/presets.h"
#include "simulator/hardware/quantity.h"
#include "simulator/network/explain_collective.h"

namespace accelerate::launcher::commands {
namespace {

using simulator::Dimension;
using simulator::format_quantity;

constexpr char kName[] = "simulate";

struct Options {
  bool list = false;
  std::string operation;       // to explain
  std::string collective;      // to explain
  std::string on;              // DEVICE[,KEY=VALUE...] or a cluster
  std::string from_dump;       // a folder of dumps
  settings::TypedFlags typed;  // for the help alone
};

constexpr size_t kIndent = 2;

std::string link_text(const std::string& kind, const simulator::LinkModel& link) {
  return absl::StrCat(kind, " ",
                      format_quantity(link.bytes_per_second, Dimension::kBytesPerSecond));
}

std::string devices_text() {
  std::vector<std::vector<std::string>> rows = {
      {"device", "memory", "bandwidth", "bf16", "kernels", "within a node", "between nodes"}};
  for (const simulator::Preset& preset : simulator::presets()) {
    const simulator::DeviceModel& device = preset.device;
    const simulator::ClusterSpec usual = simulator::internal::usual_cluster(
        preset, {.num_nodes = 2, .ranks_per_node = preset.devices_per_node});
    const bool is_torus = usual.node_fabric == simulator::NodeFabric::kTorus;
    rows.push_back(
        {device.name, format_quantity(static_cast<double>(device.memory_bytes), Dimension::kBytes),
         format_quantity(device.memory_bytes_per_second, Dimension::kBytesPerSecond),
         format_quantity(device.flops(simulator::MathType::kBf16), Dimension::kFlopsPerSecond),
         accelerate::to_string(device.efficiency),
         link_text(accelerate::to_string(usual.node_fabric), usual.node_link),
         is_torus ? "the same torus"
                  : link_text(accelerate::to_string(usual.network_fabric), usual.nic)});
  }
  return perf::plain_table(rows, kIndent);
}

std::string list_text() {
  const std::string node =
      absl::StrJoin(simulator::internal::fabric_names<simulator::NodeFabric>(), ", ");
  const std::string network =
      absl::StrJoin(simulator::internal::fabric_names<simulator::NetworkFabric>(), ", ");
  return absl::StrCat(
      "A cluster (SPEC) is\n"
      "  NODESxRANKS                    2x4: CPU tensors, time is not modelled\n"
      "  NODESxRANKS:DEVICE             2x4:h100: a device's usual node and network\n"
      "  NODESxRANKS:DEVICE,KEY=VALUE   2x8:a100-80,nic=200Gbps: with constants changed\n"
      "  DEVICE:AXES                    tpu-v4:2x2x4: a torus of 16 chips\n"
      "  FILE.json                      a cluster of your own hardware\n\n"
      "Devices, with one link of each network in one direction:\n",
      devices_text(), "\nKeys:\n",
      perf::plain_table(
          {{"mem", "memory of a device", "mem=64GB"},
           {"hbm", "memory bandwidth", "hbm=3.35TB/s"},
           {"flops", "peak in bfloat16; other formats keep their ratio", "flops=500TFLOPS"},
           {"launch", "time of the host for a kernel", "launch=5us"},
           {"host", "bandwidth to and from host memory", "host=32GB/s"},
           {"efficiency",
            absl::StrCat("kernels at the peaks, or as measured (see the table): ",
                         absl::StrJoin(accelerate::texts<simulator::Efficiency>(), ", "),
                         ", or a file of tools/kernel_table"),
            "efficiency=ideal"},
           {"kernels",
            absl::StrCat("kernels of NVIDIA's devices: ",
                         absl::StrJoin(accelerate::texts<simulator::KernelSet>(), ", ")),
            "kernels=transformer_engine"},
           {"graphs", "steps after the first are replayed by one launch", "graphs=on"},
           {"expandable_segments", "the caching allocator's segments grow, if measured",
            "expandable_segments=true"},
           {"max_split_size", "its largest block that is split, if measured",
            "max_split_size=128MiB"},
           {"devices", "devices of each rank", "devices=4"},
           {"node", absl::StrCat("network within a node: ", node), "node=pcie"},
           {"link", "one link within a node", "link=25GB/s"},
           {"link_latency", "its latency", "link_latency=300ns"},
           {"fabric", absl::StrCat("network between nodes: ", network), "fabric=ethernet"},
           {"nics", "NICs of a node", "nics=4"},
           {"nic", "one NIC", "nic=200Gbps"},
           {"nic_latency", "its latency", "nic_latency=2us"},
           {"nccl", "version of NCCL, if measured", "nccl=2.21.5"},
           {"disk", "a node's disk, or off", "disk=7GB/s"},
           {"disk_latency", "its latency", "disk_latency=50us"}},
          kIndent));
}

int explain(const Options& options, Invocation& invocation) {
  // The last key may name a file, too.
  const bool is_file =
      absl::EndsWith(options.on, ".json") && options.on.find(",efficiency=") == std::string::npos;
  const bool is_cluster = is_file || options.on.find_first_of(":{") != std::string::npos;
  const auto spec =
      simulator::ClusterSpec::parse(is_cluster ? options.on : absl::StrCat("1x1:", options.on));
  if (!spec.ok()) return fail(invocation, kName, spec.status(), kExitBadCommandLine);
  if (!spec->device.has_value()) {
    return refuse(invocation, kName, absl::StrCat("\"", options.on, "\" names no device"));
  }
  const auto text = options.collective.empty()
                        ? simulator::explain_operation(options.operation, *spec->device)
                        : simulator::explain_collective(options.collective, *spec);
  if (!text.ok()) return fail(invocation, kName, text.status(), kExitBadCommandLine);
  invocation.out << *text;
  return finish(invocation);
}

int run(const Options& options, const std::vector<std::string>& remaining, Invocation& invocation) {
  const bool explains = !options.operation.empty() || !options.collective.empty();
  const bool asks = options.list || !options.from_dump.empty() || explains;
  // Where a question is asked nothing reads a program, or what a run is told.
  std::vector<std::string> idle = settings::typed_words(options.typed);
  idle.insert(idle.end(), remaining.begin(), remaining.end());
  if (asks && !idle.empty()) {
    return refuse(invocation, kName,
                  absl::StrCat("--list, --from_dump, --explain_op and --explain_collective start "
                               "no program; leave out ",
                               absl::StrJoin(idle, " ")));
  }
  if (!options.from_dump.empty()) {
    return run_companion(invocation, kName, kDumpReport, {options.from_dump});
  }
  if (options.list) {
    invocation.out << list_text();
    return finish(invocation);
  }
  if (explains) return explain(options, invocation);
  if (!options.on.empty()) {
    return refuse(invocation, kName, "--on needs --explain_op or --explain_collective");
  }
  return refuse(invocation, kName,
                "the cluster comes first: accelerate simulate SPEC "
                "[OPTIONS] PROGRAM [ARGS...], as in 2x4:h100; accelerate "
                "simulate --list shows what it may name");
}

void declare(CLI::App& app, Options& options) {
  app.usage("Usage: accelerate simulate SPEC [OPTIONS] PROGRAM [ARGS...]");
  app.footer(
      "The same as accelerate launch --simulate SPEC [OPTIONS] PROGRAM [ARGS...], with all options "
      "of launch.\n"
      "With --sweep or --fit, which name the clusters, there is no SPEC.\n"
      "SPEC is nodes x ranks and their device: 2x4, 2x4:h100.");
  settings::declare_flags(app, options.typed);
  settings::show_flags(app, settings::Group::kSimulation);
  app.get_option("--simulate")->group("");
  app.set_help_flag("-h,--help", "show this help");
  auto* list = app.add_flag("--list", options.list,
                            "show the devices, networks and keys that SPEC may name");
  auto* on = add_value(app, "--on", options.on, "DEVICE",
                       "what --explain_op and --explain_collective are about: h100, "
                       "h100,hbm=4TB/s, 2x8:h100");
  auto* operation = add_value(app, "--explain_op", options.operation, "OP",
                              "show how long a kernel takes, and why: \"mm 12288x4096x4096:bf16\"")
                        ->needs(on);
  auto* collective = add_value(app, "--explain_collective", options.collective, "COLLECTIVE",
                               "show how long a collective takes, and why: \"all_reduce 25MB\"")
                         ->needs(on)
                         ->excludes(operation);
  add_value(app, "--from_dump", options.from_dump, "DIR",
            "show what the dumps of a job's ranks in a folder tell, as a live failure would: "
            "ours, PyTorch's Flight Recorder's, logs of NCCL")
      ->excludes(list, operation, collective);
  app.allow_extras();
}

}  // namespace

const Command kSimulate = {kName, "Start a program on a simulated cluster.",
                           with_options<declare, run>};

}  // namespace accelerate::launcher::commands
