// The MPI backend against Gloo and against MPI itself, called in turn:
//
//   backend_benchmark [ROUNDS]
//
// starts two processes by mpirun. Prints medians, taken on rank 0, as in
// accelerate/docs/performance_log.md.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <mpi.h>
#include <torch/torch.h>
#include <unistd.h>

#include "accelerate/accelerate.h"
#include "accelerate/parallel/replicated/ddp.h"

namespace {

using accelerate::DistributedDataParallel;
using accelerate::Runtime;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Tensors = std::vector<torch::Tensor>;

constexpr int64_t kLarge = 25 << 20;  // elements: 100 MB
constexpr int64_t kWidth = 2500;
constexpr int kLayers = 4;
constexpr int64_t kBatch = 16;

// Latencies are those of calls that follow each other, without the start of the first.
constexpr int kCalls = 100;

struct Subject {
  std::string name;
  std::function<void()> run;
  /// The number of calls whose mean is one measurement.
  int calls = 1;
  std::vector<double> micros = {};
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// In turn, each from a common start.
void measure(std::vector<Subject>& subjects, const Group& group, int rounds, bool together) {
  for (int round = -rounds / 10 - 3; round < rounds; ++round) {
    for (Subject& subject : subjects) {
      if (together) group->barrier()->wait();
      const auto start = std::chrono::steady_clock::now();
      for (int call = 0; call < subject.calls; ++call) subject.run();
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - start;
      if (round >= 0) subject.micros.push_back(took.count() / subject.calls);
    }
  }
}

void print(const std::vector<Subject>& subjects, double unit, const char* name) {
  if (Runtime::current().topology().rank != 0) return;
  for (const Subject& subject : subjects) {
    std::printf("| %s | %.2f %s |\n", subject.name.c_str(), median(subject.micros) / unit, name);
  }
  std::fflush(stdout);
}

struct Replica {
  explicit Replica(const Group& group) {
    for (int layer = 0; layer < kLayers; ++layer) {
      net->push_back(torch::nn::Linear(kWidth, kWidth));
      net->push_back(torch::nn::ReLU());
    }
    ddp = std::make_unique<DistributedDataParallel>(
        net.ptr(), group,
        accelerate::DistributedDataParallelKwargs{.gradient_as_bucket_view = true});
  }
  void step(const torch::Tensor& x) {
    ddp->before_forward();
    torch::Tensor out = net->forward(x);
    if (ddp->needs_outputs())
      out = ddp->after_forward({out})[0];
    else
      ddp->after_forward({});
    out.square().mean().backward();
    net->zero_grad();
  }

  torch::nn::Sequential net;
  std::unique_ptr<DistributedDataParallel> ddp;
};

int run(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 200;
  torch::set_num_threads(1);
  Runtime& runtime = Runtime::current();
  const Group mpi = runtime.new_group({.name = "mpi", .backend = "mpi"});
  const Group gloo = runtime.new_group({.name = "gloo", .backend = "gloo"});
  Tensors small{torch::ones({1})};
  Tensors large{torch::zeros({kLarge})};

  std::vector<Subject> latency{
      {"all-reduce of 4 bytes, MPI itself",
       [&] {
         MPI_Allreduce(MPI_IN_PLACE, small[0].data_ptr(), 1, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
       },
       kCalls},
      {"all-reduce of 4 bytes, mpi through c10d", [&] { mpi->allreduce(small)->wait(); }, kCalls},
      {"all-reduce of 4 bytes, gloo through c10d", [&] { gloo->allreduce(small)->wait(); },
       kCalls}};
  measure(latency, mpi, rounds, /*together=*/true);
  print(latency, 1, "us");

  std::vector<Subject> bandwidth{
      {"all-reduce of 100 MB, MPI itself",
       [&] {
         MPI_Allreduce(MPI_IN_PLACE, large[0].data_ptr(), kLarge, MPI_FLOAT, MPI_SUM,
                       MPI_COMM_WORLD);
       }},
      {"all-reduce of 100 MB, MPI_Iallreduce",
       [&] {
         MPI_Request request;
         MPI_Iallreduce(MPI_IN_PLACE, large[0].data_ptr(), kLarge, MPI_FLOAT, MPI_SUM,
                        MPI_COMM_WORLD, &request);
         MPI_Wait(&request, MPI_STATUS_IGNORE);
       }},
      {"all-reduce of 100 MB, mpi through c10d", [&] { mpi->allreduce(large)->wait(); }},
      {"all-reduce of 100 MB, gloo through c10d", [&] { gloo->allreduce(large)->wait(); }}};
  measure(bandwidth, mpi, 15, /*together=*/true);
  print(bandwidth, 1000, "ms");

  const torch::Tensor x = torch::randn({kBatch, kWidth});
  Replica over_mpi(mpi);
  Replica over_gloo(gloo);
  std::vector<Subject> steps{
      {"DDP step, not synchronised",
       [&] {
         const accelerate::NoSyncScope no_sync({over_mpi.ddp->no_sync_count()});
         over_mpi.step(x);
       }},
      {"DDP step, mpi", [&] { over_mpi.step(x); }},
      {"DDP step, gloo", [&] { over_gloo.step(x); }}};
  measure(steps, mpi, 30, /*together=*/true);
  print(steps, 1000, "ms");
  if (runtime.topology().rank == 0) {
    const double alone = median(steps[0].micros);
    std::printf(
        "| exposed communication, mpi | %.2f ms |\n| exposed communication, gloo | %.2f ms |\n",
        (median(steps[1].micros) - alone) / 1000, (median(steps[2].micros) - alone) / 1000);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (std::getenv("OMPI_COMM_WORLD_RANK") != nullptr) return accelerate::run(argc, argv, run);
  std::vector<char*> command;
  for (const char* word : {"mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"}) {
    command.push_back(const_cast<char*>(word));
  }
  command.insert(command.end(), argv, argv + argc);
  command.push_back(nullptr);
  setenv("OMP_NUM_THREADS", "1", 1);
  setenv("OPENBLAS_NUM_THREADS", "1", 1);
  execvp(command[0], command.data());
  std::perror("mpirun");
  return 1;
}
