// Image classification on files: DATA has a folder of images for each class, as torchvision's
// ImageFolder reads them. Every fifth image is for the evaluation, and the weights of the best
// epoch are kept. HF Accelerate's counterpart: examples/cv_example.py.
//
//   image_classification --data DATA --epochs 5
//   accelerate launch --num_processes 2 image_classification --data DATA
//   accelerate launch --simulate 2x4:h100 image_classification --data DATA
//
// Images are grey and of one size, in PGM files: `convert photo.png -colorspace gray photo.pgm`.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "accelerate/accelerate.h"

namespace {

std::string flag(int argc, char** argv, const std::string& name, std::string value) {
  for (int i = 1; i + 1 < argc; ++i)
    if (argv[i] == name) value = argv[i + 1];
  return value;
}

std::vector<std::string> sorted_entries(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());  // a folder's own order differs between machines
  return paths;
}

// [1, height, width], from 0 to 1.
at::Tensor read_image(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string kind;
  int64_t width = 0, height = 0, most = 0;
  file >> kind >> width >> height >> most;
  TORCH_CHECK_VALUE(file && kind == "P5" && most > 0 && most < 256, path, " is not a PGM image");
  file.get();
  const at::Tensor pixels = torch::empty({1, height, width}, torch::kByte);
  file.read(reinterpret_cast<char*>(pixels.data_ptr()), pixels.numel());
  TORCH_CHECK_VALUE(file, path, " ends within the image");
  return pixels.to(torch::kFloat).div(static_cast<double>(most));
}

// Reads an image whenever a batch needs it, so that a data set may be larger than memory.
class ImageFolder {
 public:
  ImageFolder(const std::string& folder, bool for_evaluation) {
    for (const std::string& of_class : sorted_entries(folder)) {
      const std::vector<std::string> images = sorted_entries(of_class);
      for (size_t i = 0; i < images.size(); ++i)
        if ((i % 5 == 4) == for_evaluation) images_.emplace_back(images[i], classes_);
      ++classes_;
    }
    TORCH_CHECK_VALUE(!images_.empty(), folder, " has no folders with images");
  }
  size_t size() const { return images_.size(); }
  std::pair<at::Tensor, int64_t> get(size_t index) const {
    return {read_image(images_[index].first), images_[index].second};
  }
  int64_t classes() const { return classes_; }

 private:
  std::vector<std::pair<std::string, int64_t>> images_;
  int64_t classes_ = 0;
};

class NetImpl : public torch::nn::Module {
 public:
  // For images [rows, 1, height, width].
  NetImpl(int64_t height, int64_t width, int64_t classes)
      : output_(register_module("output",
                                torch::nn::Linear(32 * (height / 2) * (width / 2), classes))) {}
  at::Tensor forward(const at::Tensor& images) {
    const at::Tensor x = torch::max_pool2d(torch::relu(first_(images)), {2, 2});
    return output_(torch::relu(second_(x)).flatten(1));
  }

 private:
  static torch::nn::Conv2dOptions layer(int64_t in, int64_t out) {
    return torch::nn::Conv2dOptions(in, out, 3).padding(1);
  }
  torch::nn::Conv2d first_ = register_module("first", torch::nn::Conv2d(layer(1, 16)));
  torch::nn::Conv2d second_ = register_module("second", torch::nn::Conv2d(layer(16, 32)));
  torch::nn::Linear output_;
};
TORCH_MODULE(Net);

int train(int argc, char** argv) {
  const std::string folder = flag(argc, argv, "--data", "images");
  const int epochs = std::stoi(flag(argc, argv, "--epochs", "5"));
  accelerate::Accelerator accelerator(
      {.project_config = {
           .project_dir = "out", .automatic_checkpoint_naming = true, .total_limit = 1}});
  accelerate::set_seed(42);
  const ImageFolder train_images(folder, false), test_images(folder, true);
  const at::Tensor first = train_images.get(0).first;
  accelerate::DataLoader train_data(train_images, {.batch_size = 8, .shuffle = true});
  accelerate::DataLoader test_data(test_images, {.batch_size = 8});
  Net net(first.size(1), first.size(2), train_images.classes());
  torch::optim::Adam adam(net->parameters(), 0.005);
  auto [model, optimizer, train_loader, test_loader] =
      accelerator.prepare(net, adam, train_data, test_data);
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    model->train();
    for (auto& [images, labels] : train_loader) {
      accelerator.backward(torch::cross_entropy_loss(model(images), labels));
      optimizer.step();
      optimizer.zero_grad();
    }
    model->eval();
    const torch::NoGradGuard no_grad;
    accelerate::metrics::Accuracy accuracy;
    for (auto& [images, labels] : test_loader) {
      const auto [predicted, expected] =
          accelerator.gather_for_metrics(std::pair(model(images).argmax(1), labels));
      accuracy.add(predicted, expected);
    }
    accelerator.save_state({}, {.metric = accuracy.compute()});
    if (accelerator.is_main_process())
      accelerator.print("epoch ", epoch, ": accuracy ", accuracy.compute(), " of ",
                        test_images.size(), " images");
  }
  const std::string best = accelerator.load_state({}, {.best = true});
  accelerator.save_model(model, "out/model");
  if (accelerator.is_main_process()) accelerator.print("out/model has the weights of ", best);
  accelerator.end_training();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
