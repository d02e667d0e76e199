// Accelerator::prepare and construction: what comes back, in which order, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/optim/schedulers/plateau.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Loader = DataLoader<TensorDataset<2>>;

Loader made_loader(int64_t samples = 8, int64_t batch = 2) {
  return Loader(make_tensor_dataset(torch::arange(samples).to(torch::kFloat).view({-1, 1}),
                                    torch::arange(samples)),
                {.batch_size = batch});
}

// The text of the exception that `fn` throws.
template <typename Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TOPOLOGY_SUITE(Prepare, .also = {"1x2:h100"}, .hardware = simulator::Hardware::kNoTpu);
TOPOLOGY_SUITE(Construction);
TOPOLOGY_SUITE(Place);

TEST_P(Prepare, GivesBackEachObjectInItsPlace) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    torch::nn::Linear net(1, 1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    torch::optim::StepLR step_lr(sgd, 1);
    std::string text = "untouched";
    auto [scheduler, loader, same_text, optimizer, model] =
        accelerator.prepare(step_lr, made_loader(), text, sgd, net);
    static_assert(std::is_same_v<decltype(scheduler), AcceleratedScheduler>);
    static_assert(std::is_same_v<decltype(optimizer), AcceleratedOptimizer>);
    static_assert(std::is_same_v<decltype(model), PreparedModel<torch::nn::LinearImpl>>);
    EXPECT_EQ(&same_text, &text);
    EXPECT_EQ(&*optimizer, &sgd);
    EXPECT_EQ(&*scheduler, &step_lr);
    EXPECT_EQ(model.module(), net.ptr());
    EXPECT_EQ(accelerator.unwrap_model(model), net.ptr());
    EXPECT_TRUE(loader.is_prepared());
    const int64_t batches = 4;
    EXPECT_EQ(loader.size(), (batches + world_size() - 1) / world_size());
  });
}

// LibTorch's ReduceLROnPlateauScheduler would come back unprepared: it does not compile.
static_assert(internal::IsMistaken<torch::optim::ReduceLROnPlateauScheduler&>);
static_assert(internal::IsMistaken<std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler>>);
static_assert(internal::IsScheduler<optim::ReduceLROnPlateau&>);

TEST_P(Prepare, GivesOneObjectBackByItself) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    auto model = accelerator.prepare(std::make_shared<torch::nn::LinearImpl>(1, 1));
    const torch::Tensor x = torch::ones({2, 1}).to(accelerator.device());
    EXPECT_EQ(model(x).size(0), 2);
    torch::nn::Sequential layers(torch::nn::Linear(1, 3), torch::nn::ReLU());
    EXPECT_EQ(accelerator.prepare(layers)(x).size(1), 3);
  });
}

TEST_P(Prepare, WrapsNothingTwice) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    torch::nn::Linear net(1, 1);
    auto [model, loader] = accelerator.prepare(net, made_loader());
    auto [again, loader_again] = accelerator.prepare(model, loader);
    EXPECT_EQ(internal::Access::to(again), internal::Access::to(model));
    EXPECT_EQ(loader_again.size(), loader.size());
    EXPECT_EQ(internal::Access::to(accelerator.prepare(net)), internal::Access::to(model));
  });
}

TEST_P(Prepare, TakesOptimizersInEveryOwnership) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    torch::nn::Linear net(1, 1);
    auto shared = std::make_shared<torch::optim::SGD>(net->parameters(), 0.1);
    auto [by_pointer, moved] =
        accelerator.prepare(shared, torch::optim::SGD(net->parameters(), 0.1));
    EXPECT_EQ(&*by_pointer, shared.get());
    net->weight.mutable_grad() = torch::ones_like(net->weight);
    const auto before = net->weight.detach().clone();
    moved.step();
    EXPECT_FALSE(torch::equal(net->weight, before));
  });
}

TEST_P(Prepare, WantsAPlacementForEachObjectOrNone) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    torch::nn::Linear net(1, 1);
    EXPECT_THAT(error_of([&] {
                  accelerator.prepare(PrepareOptions{.device_placement = {true}}, net,
                                      made_loader());
                }),
                HasSubstr("device_placement has 1 entries for 2 objects"));
    auto [model, loader] =
        accelerator.prepare(PrepareOptions{.device_placement = {true, false}}, net, made_loader());
    EXPECT_FALSE(loader.shard_options()->device_placement);
  });
}

// The state was on the CPU before the model was moved.
torch::optim::Adam adam_with_state(torch::nn::Linear& net) {
  torch::optim::Adam adam(net->parameters(), 0.1);
  net->weight.mutable_grad() = torch::ones_like(net->weight);
  adam.step();
  return adam;
}

c10::Device device_of_state(const torch::optim::Optimizer& optimizer) {
  const auto& state = *optimizer.state().begin()->second;
  return static_cast<const torch::optim::AdamParamState&>(state).exp_avg().device();
}

TEST_P(Prepare, PlacesEachOptimizerAsItsEntrySays) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    torch::nn::Linear net(1, 1);
    torch::optim::Adam moved = adam_with_state(net), stays = adam_with_state(net),
                       alone = adam_with_state(net), own = adam_with_state(net);
    auto shared = std::make_shared<torch::optim::Adam>(adam_with_state(net));
    accelerator.prepare(PrepareOptions{.device_placement = {true, false, false}}, moved, stays,
                        shared);
    EXPECT_EQ(device_of_state(moved), accelerator.device());
    EXPECT_TRUE(device_of_state(stays).is_cpu());
    EXPECT_TRUE(device_of_state(*shared).is_cpu());
    const auto unowned = [](torch::optim::Optimizer& optimizer) {
      return std::shared_ptr<torch::optim::Optimizer>(std::shared_ptr<void>(), &optimizer);
    };
    accelerator.prepare_optimizer(unowned(alone), /*device_placement=*/false);
    EXPECT_TRUE(device_of_state(alone).is_cpu());
    accelerator.prepare_optimizer(unowned(own));
    EXPECT_EQ(device_of_state(own), accelerator.device());
  });
}

TEST_P(Prepare, PlacesNothingWhereTheAcceleratorDoesNot) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator({.device_placement = false});
    EXPECT_FALSE(accelerator.device_placement());
    torch::nn::Linear net(1, 1), asked(1, 1);
    torch::optim::Adam adam = adam_with_state(net);
    const bool evaluates = has_devices();  // DDP takes no model of another device
    auto model = accelerator.prepare_model(net, {.evaluation_mode = evaluates});
    auto [optimizer, loader] = accelerator.prepare(adam, made_loader(8 * world_size()));
    EXPECT_TRUE(net->weight.device().is_cpu());
    EXPECT_TRUE(device_of_state(adam).is_cpu());
    for (auto& [x, y] : loader) {
      EXPECT_TRUE(x.device().is_cpu());
      EXPECT_TRUE(y.device().is_cpu());
    }
    // An object's own flag wins.
    accelerator.prepare_model(asked, {.device_placement = true, .evaluation_mode = evaluates});
    EXPECT_EQ(asked->weight.device(), accelerator.device());
    for (auto& [x, y] : accelerator.prepare_data_loader(made_loader(8 * world_size()), true)) {
      EXPECT_EQ(x.device(), accelerator.device());
    }
  });
}

TEST_P(Prepare, GivesTheModuleBackWhateverIsToBeKept) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator({.mixed_precision = PrecisionType::kBf16});
    torch::nn::Linear net(1, 1);
    const auto model = accelerator.prepare_model(net);
    EXPECT_EQ(extract_model_from_parallel(model), net.ptr());
    EXPECT_EQ(
        extract_model_from_parallel(
            model, {.keep_fp32_wrapper = false, .keep_torch_compile = false, .recursive = true}),
        net.ptr());
    EXPECT_EQ(extract_model_from_parallel(net, {.keep_fp32_wrapper = false}), net.ptr());
    const auto x = torch::ones({2, 1}, torch::TensorOptions(accelerator.device()));
    EXPECT_EQ(extract_model_from_parallel(model)->forward(x).scalar_type(), torch::kFloat);
  });
}

TEST_P(Prepare, ReplicatesWhatIsTrainedAndOnCpusEverything) {
  const auto frozen_ddp = [](Accelerator& accelerator) {
    torch::nn::Linear frozen(1, 1);
    for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    return find_technique<DistributedDataParallel>(accelerator.prepare_model(frozen));
  };
  make_cluster().run_on_every_rank([&](Rank&) {
    Accelerator accelerator;
    const auto trained = accelerator.prepare_model(torch::nn::Linear(1, 1));
    EXPECT_EQ(find_technique<DistributedDataParallel>(trained) != nullptr, world_size() > 1);
    EXPECT_EQ(find_technique<DistributedDataParallel>(
                  accelerator.prepare_model(torch::nn::Linear(1, 1), {.evaluation_mode = true})),
              nullptr);
    EXPECT_EQ(frozen_ddp(accelerator) != nullptr, world_size() > 1 && !has_devices());
  });
}

TEST_P(Construction, ReadsTheEnvironment) {
  make_cluster().run_on_every_rank([](Rank&) {
    {
      const auto scope = patch_environment({{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", 3}});
      EXPECT_EQ(Accelerator({.gradient_accumulation_steps = 2}).gradient_accumulation_steps(), 3);
    }
    for (auto [name, value] : {std::pair("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "none"),
                               std::pair("ACCELERATE_USE_CPU", "perhaps"),
                               std::pair("ACCELERATE_MIXED_PRECISION", "fp12")}) {
      const auto scope = patch_environment({{name, value}});
      EXPECT_THAT(error_of([] { Accelerator(); }), AllOf(HasSubstr(name), HasSubstr(value)));
    }
    EXPECT_THAT(error_of([] { Accelerator({.gradient_accumulation_steps = 0}); }),
                HasSubstr("at least 1, got 0"));
  });
}

TEST_P(Construction, ShowsHowItPreparesLoaders) {
  make_cluster().run_on_every_rank([](Rank&) {
    const Accelerator plain;
    EXPECT_FALSE(plain.split_batches());
    EXPECT_EQ(plain.dispatch_batches(), std::nullopt);
    EXPECT_TRUE(plain.even_batches());
    EXPECT_FALSE(plain.use_seedable_sampler());
    EXPECT_FALSE(plain.non_blocking());
    EXPECT_FALSE(plain.use_stateful_dataloader());
    Accelerator asked({.dataloader_config = {.split_batches = true,
                                             .dispatch_batches = false,
                                             .even_batches = false,
                                             .use_seedable_sampler = true,
                                             .non_blocking = true,
                                             .use_stateful_dataloader = true}});
    EXPECT_TRUE(asked.split_batches());
    EXPECT_EQ(asked.dispatch_batches(), false);
    EXPECT_FALSE(asked.even_batches());
    EXPECT_TRUE(asked.use_seedable_sampler());
    EXPECT_TRUE(asked.non_blocking());
    EXPECT_TRUE(asked.use_stateful_dataloader());
    const auto made = [] { return made_loader(8 * world_size(), 2 * world_size()); };
    const auto uneven = asked.prepare(made());
    EXPECT_EQ(uneven.total_batch_size(), 2 * world_size()) << "split_batches";
    EXPECT_FALSE(uneven.even_batches());
    EXPECT_TRUE(uneven.shard_options()->use_stateful_dataloader);
    asked.set_even_batches(true);
    EXPECT_TRUE(asked.even_batches());
    EXPECT_TRUE(asked.prepare(made()).even_batches());
    EXPECT_FALSE(uneven.even_batches()) << "prepared before";
    // Given beside the configuration, it must not contradict it.
    EXPECT_TRUE(Accelerator({.split_batches = true}).split_batches());
    EXPECT_THAT(
        error_of([] {
          Accelerator({.split_batches = false, .dataloader_config = {.split_batches = true}});
        }),
        HasSubstr("split_batches"));
  });
}

TEST_P(Construction, TakesOneHandlerOfAKind) {
  make_cluster().run_on_every_rank([](Rank&) {
    EXPECT_THAT(error_of([] {
                  Accelerator({.kwargs_handlers = {DistributedDataParallelKwargs{},
                                                   DistributedDataParallelKwargs{}}});
                }),
                HasSubstr("only one DistributedDataParallelKwargs"));
  });
}

TEST_P(Construction, SharesStateAndRefusesAContradiction) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator first({.kwargs_handlers = {InitProcessGroupKwargs{.timeout = absl::Minutes(5)}}});
    Accelerator second;
    EXPECT_EQ(&first.state(), &second.state());
    EXPECT_EQ(&first.gradient_state(), &second.gradient_state());
    EXPECT_THAT(
        error_of([] {
          Accelerator({.kwargs_handlers = {InitProcessGroupKwargs{.timeout = absl::Minutes(6)}}});
        }),
        AllOf(HasSubstr("\"timeout\":360"), HasSubstr("\"timeout\":300")));
  });
}

TEST_P(Construction, InheritsAccumulationAndRefusesAnother) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator first({.gradient_accumulation_steps = 4});
    Accelerator second;
    EXPECT_EQ(first.gradient_accumulation_steps(), 4);
    EXPECT_EQ(second.gradient_accumulation_steps(), 4);
    EXPECT_THAT(error_of([] { Accelerator({.gradient_accumulation_steps = 2}); }),
                AllOf(HasSubstr("{\"num_steps\":2} contradicts"), HasSubstr("{\"num_steps\":4}")));
    torch::nn::Linear net(1, 1);
    EXPECT_EQ(internal::Access::to(first.prepare(net)), internal::Access::to(second.prepare(net)));
  });
}

TEST_P(Prepare, GivesOneUntouchedObjectBackItself) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    std::unique_ptr<int> own;
    EXPECT_EQ(&accelerator.prepare(own), &own);
  });
}

TEST_P(Place, IsKnownToEachRank) {
  Cluster cluster = make_cluster();
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator;
    EXPECT_EQ(accelerator.process_index(), rank.index());
    EXPECT_EQ(accelerator.num_processes(), world_size());
    EXPECT_EQ(accelerator.is_main_process(), rank.index() == 0);
    EXPECT_EQ(accelerator.is_local_main_process(),
              rank.index() % cluster.spec().ranks_per_node == 0);
    EXPECT_EQ(accelerator.is_last_process(), rank.index() == world_size() - 1);
    EXPECT_EQ(accelerator.should_save_model(), accelerator.is_local_main_process());
    if (has_devices()) return;
    EXPECT_STREQ(to_string(accelerator.distributed_type()), world_size() > 1 ? "MULTI_CPU" : "NO");
  });
}

}  // namespace
}  // namespace accelerate
