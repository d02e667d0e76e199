#include "integration_tests/watch/collective_calls.h"

#include <map>
#include <stdexcept>
#include <utility>

#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include "accelerate/comm/objects.h"
#include "accelerate/comm/operations.h"

namespace accelerate::watch_tests {
namespace {

using Call = std::function<void()>;

constexpr char kCallerFailed[] = "caller failed";
constexpr char kProcess[] = "process";
constexpr char kKnown[] = "process is known";

// Stops this process, once the caller is able to end it.
void freeze(c10d::Store& store) {
  store.set(kProcess, std::to_string(getpid()));
  store.wait({kKnown});
  raise(SIGSTOP);
}

pid_t other_process(c10d::Store& store) {
  const pid_t process = std::stoi(store.get_to_str(kProcess));
  store.set(kKnown, "");
  return process;
}

// A call that needs only the group.
std::function<Call(Accelerator&)> simply(std::function<void(Accelerator&)> body) {
  return [body = std::move(body)](Accelerator& accelerator) -> Call {
    return [&accelerator, body] { body(accelerator); };
  };
}

auto numbers(bool shuffle) {
  return DataLoader(make_tensor_dataset(torch::arange(16)), {.batch_size = 2, .shuffle = shuffle});
}

template <typename Loader>
void read_all(Loader loader) {
  for (auto& batch : loader) (void)batch;
}

std::vector<CollectiveCall> make_calls() {
  return {
      {"gather", simply([](Accelerator& a) { a.gather(torch::ones({2})); })},
      {"gather_ragged",
       simply([](Accelerator& a) { gather_ragged(a.state().group(), torch::ones({2, 3})); })},
      {"gather_for_metrics",
       simply([](Accelerator& a) { a.gather_for_metrics(torch::ones({2})); })},
      {"gather_object",
       simply([](Accelerator& a) { gather_object(a.state().group(), std::vector<int>{1, 2}); })},
      {"reduce", simply([](Accelerator& a) { a.reduce(torch::ones({2})); })},
      {"broadcast_bytes",
       simply([](Accelerator& a) { broadcast_bytes(a.state().group(), "text"); })},
      {"broadcast_integer",
       simply([](Accelerator& a) { broadcast_integer(a.state().group(), 7); })},
      {"broadcast",
       simply([](Accelerator& a) { broadcast(a.state().group(), torch::ones({2}), 1); })},
      {"broadcast_object_list", simply([](Accelerator& a) {
         std::vector<std::string> list = {"text"};
         broadcast_object_list(a.state().group(), list);
       })},
      {"gather_object_ivalue", simply([](Accelerator& a) {
         gather_object(a.state().group(), c10::IValue(torch::ones({2})));
       })},
      {"pad_across_processes",
       simply([](Accelerator& a) { a.pad_across_processes(torch::ones({2})); })},
      {"copy_tensor_to_devices",
       simply([](Accelerator& a) { copy_tensor_to_devices(a.state().group(), torch::ones({2})); })},
      {"job_reduce", simply([](Accelerator&) { reduce(torch::ones({2})); })},
      {"check_trigger", simply([](Accelerator& a) { a.check_trigger(); })},
      {"main_process_first", simply([](Accelerator& a) { a.main_process_first([] {}); })},
      {"local_main_process_first",
       simply([](Accelerator& a) { auto scope = a.local_main_process_first(); })},
      {"synchronize_rng_state",
       simply([](Accelerator& a) { synchronize_rng_state(a.state().group(), RNGType::kTorch); })},
      {"synchronize_rng_states",
       simply([](Accelerator&) { synchronize_rng_states({RNGType::kTorch, RNGType::kDevice}); })},
      {"gather_tensor_shape",
       simply([](Accelerator& a) { gather_tensor_shape(a.state().group(), torch::ones({2})); })},
      {"find_executable_batch_size", simply([](Accelerator& a) {
         find_executable_batch_size([](int64_t) {}, {.group = a.state().group()})();
       })},
      {"logger_in_order", simply([](Accelerator&) {
         get_logger("watch").error("line", {.main_process_only = false, .in_order = true});
       })},
      {"wait_for_everyone", simply([](Accelerator& a) { a.wait_for_everyone(); })},
      {"new_group", simply([](Accelerator& a) {
         a.runtime().new_group({.name = "another", .timeout = kOperationTimeout});
       }),
       /*comparable=*/false},
      {"prepare", simply([](Accelerator& a) { (void)a.prepare(torch::nn::Linear(2, 1)); })},
      {"backward",
       [](Accelerator& a) -> Call {
         auto model = a.prepare(torch::nn::Linear(2, 1));
         return [&a, model]() mutable { a.backward(model(torch::ones({1, 2})).sum()); };
       }},
      {"buffers",
       [](Accelerator& a) -> Call {
         auto model = a.prepare(torch::nn::BatchNorm1d(2));
         return [model]() mutable { model(torch::ones({4, 2})); };
       }},
      {"join_uneven_inputs",
       [](Accelerator& a) -> Call {
         auto model = a.prepare(torch::nn::Linear(2, 1));
         return [&a, model] { (void)a.join_uneven_inputs(model); };
       }},
      {"shuffled_loader",
       [](Accelerator& a) -> Call {
         auto loader = a.prepare(numbers(/*shuffle=*/true));
         return [loader] { read_all(loader); };
       }},
      {"dispatched_loader",
       [](Accelerator&) -> Call {
         auto dispatcher = std::make_shared<Accelerator>(
             AcceleratorOptions{.dataloader_config = {.dispatch_batches = true}});
         auto loader = dispatcher->prepare(numbers(/*shuffle=*/false));
         return [dispatcher, loader] { read_all(loader); };
       }},
  };
}

using Named = std::map<std::string, at::Tensor>;

// No other row of the table begins with it.
void call_something_else(Accelerator& accelerator) {
  const ProcessGroupPtr group = accelerator.state().group();
  std::vector<at::Tensor> inputs{torch::ones({3}, torch::kDouble)};
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int i = 0; i < group->getSize(); ++i) outputs[0].push_back(torch::empty_like(inputs[0]));
  group->allgather(outputs, inputs)->wait();
}

}  // namespace

const std::vector<CollectiveCall>& collective_calls() {
  static const auto* calls = new std::vector<CollectiveCall>(make_calls());
  return *calls;
}

const CollectiveCall& find_call(const std::string& name) {
  for (const CollectiveCall& call : collective_calls()) {
    if (call.name == name) return call;
  }
  throw std::out_of_range("no collective call " + name);
}

std::vector<Difference> differences() {
  return {
      {"rows of a gather",
       [](Accelerator& a, int rank) { a.gather(torch::ones({rank == 2 ? 3 : 2, 4})); },
       {"shape Float[2, 4] against Float[3, 4]", "rank 2: "}},
      {"truth values where others have bytes",
       [](Accelerator& a, int rank) {
         a.gather(torch::ones({2}, rank == 2 ? torch::kBool : torch::kByte));
       },
       {"dtype Byte[2] against Bool[2]", "rank 2: "}},
      {"another half precision",
       [](Accelerator& a, int rank) {
         broadcast(a.state().group(),
                   torch::ones({2}, rank == 1 ? torch::kBFloat16 : torch::kHalf));
       },
       {"Half[2]", "BFloat16[2]", "rank 1: "}},
      {"other dims of values that differ in rows",
       [](Accelerator& a, int rank) {
         a.gather_for_metrics(torch::ones({rank, rank == 1 ? 4 : 5}));
       },
       {"Float[2, 5]", "Float[2, 4]", "rank 1: "}},
      {"as many keys, but others",
       [](Accelerator& a, int rank) {
         a.reduce(Named{{"loss", torch::ones({1})},
                        {rank == 1 ? "recall" : "accuracy", torch::ones({1})}});
       },
       {R"(reduce of {"accuracy", "loss"} against reduce of {"loss", "recall"})", "rank 1: "}},
      {"keys that only some have",
       [](Accelerator& a, int rank) {
         a.gather(rank == 0 ? Named{} : Named{{"loss", torch::ones({1})}});
       },
       {R"(gather of {} )", R"(gather of {"loss"})", "rank 0: "}},
      {"keys of metrics",
       [](Accelerator& a, int rank) {
         using Nested = std::vector<std::map<int, torch::Tensor>>;
         a.gather_for_metrics(Nested{{{rank, torch::ones({rank + 1})}}});
       },
       {"gather_for_metrics of [{0}] against gather_for_metrics of [{1}]"}},
  };
}

void run_rank(const CollectiveCall& call, Others others, int caller) {
  Accelerator accelerator(
      {.kwargs_handlers = {InitProcessGroupKwargs{.timeout = kOperationTimeout}}});
  const Call alone = call.prepare(accelerator);
  const auto store = accelerator.runtime().store();
  if (accelerator.process_index() == caller) {
    const pid_t frozen = others == Others::kFreeze ? other_process(*store) : 0;
    try {
      alone();
    } catch (...) {
      if (frozen != 0) {
        kill(frozen, SIGKILL);
        throw;
      }
      store->set(kCallerFailed, std::vector<uint8_t>{1});
      throw;
    }
  } else if (others == Others::kCompute) {
    store->wait({kCallerFailed});
    accelerator.wait_for_everyone();
  } else if (others == Others::kDiffer) {
    call_something_else(accelerator);
  } else if (others == Others::kFreeze) {
    freeze(*store);
  }
}

}  // namespace accelerate::watch_tests
