// What a package has to be before its code is loaded, and the cache.
#include "accelerate/compile/packages/package.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/base/checksum.h"
#include "accelerate/platform/host_files.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;
using Kind = PackageSource::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
namespace fs = std::filesystem;

RegionRequest request() {
  return {.libtorch = "2.6.0",
          .text =
              "{\"region\":1,\"inputs\":[]}\n{\"op\":\"aten::mm\"}\n{\"op\":\"aten::t\"}\n"
              "{\"gradients\":[]}\n"};
}

RegionMachine machine() {
  return {.name = "x86_64", .features = {"avx", "avx2", "fma"}, .user = geteuid()};
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
}

// A cache with a package of request(), which the compiler might have made.
class Package {
 public:
  Package() {
    EXPECT_TRUE(write_region(cache(), request()).ok());
    fs::permissions(folder(), fs::perms::owner_all);
    json = {{"format", 2},
            {"region", region_id(request())},
            {"libtorch", "2.6.0"},
            {"cxx11_abi", _GLIBCXX_USE_CXX11_ABI},
            {"machine", "x86_64"},
            {"features", {"avx", "fma"}},
            {"forward",
             {{"inputs", {0, 2}},
              {"outputs", {{{"from", "result"}, {"index", 0}}, nullptr}},
              {"saved", {{{"from", "input"}, {"index", 2}}}}}},
            {"backward", {{"gradients", {{{"from", "grad"}, {"index", 0}}}}}}};
    for (const char* name : {"forward.so", "backward.so"}) {
      write(folder() / name, name);
      json["files"][name] = {{"bytes", std::string(name).size()}, {"sha256", sha256(name)}};
    }
    save();
  }

  std::string cache() const { return temporary_.path("regions"); }
  fs::path folder() const { return fs::path(cache()) / "2.6.0" / region_id(request()); }
  void save() { write(folder() / "package.json", json.dump()); }

  std::string error(const RegionRequest& of = request(), const RegionMachine& on = machine()) {
    return std::string(find_package(cache(), of, on).status().message());
  }

  Json json;

 private:
  const TemporaryFolder temporary_;
};

TEST(RegionPackage, SaysWhereTensorsComeFrom) {
  Package package;
  const auto found = find_package(package.cache(), request(), machine());
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->folder, package.folder().string());
  EXPECT_THAT(found->inputs, ElementsAre(0, 2));
  EXPECT_THAT(found->outputs,
              ElementsAre(PackageSource{Kind::kResult, 0}, PackageSource{Kind::kNone, 0}));
  EXPECT_THAT(found->saved, ElementsAre(PackageSource{Kind::kInput, 2}));
  EXPECT_TRUE(found->has_backward);
  EXPECT_THAT(found->gradients, ElementsAre(PackageSource{Kind::kGrad, 0}));
}

TEST(RegionPackage, IsThatOfItsTextReleaseModeAndOptionsAlone) {
  Package package;
  for (const auto& change : std::vector<std::function<void(RegionRequest&)>>{
           [](RegionRequest& other) { other.text += "\n"; },
           [](RegionRequest& other) { other.libtorch = "2.7.0"; },
           [](RegionRequest& other) { other.mode = "max-autotune"; },
           [](RegionRequest& other) { other.options = R"({"memory_budget":0.5})"; }}) {
    RegionRequest other = request();
    change(other);
    const auto found = find_package(package.cache(), other, machine());
    EXPECT_TRUE(absl::IsNotFound(found.status())) << found.status();
    EXPECT_THAT(std::string(found.status().message()), HasSubstr("there is no package for it in"));
  }
}

struct Change {
  std::string says;
  std::function<void(Package&)> make;
};

TEST(RegionPackage, IsNotLoadedWithAnyDoubt) {
  const auto set = [](const char* key, const Json& value) {
    return [key, value](Package& package) {
      package.json[key] = value;
      package.save();
    };
  };
  const std::vector<Change> changes = {
      {"for LibTorch 2.7.0, not 2.6.0", set("libtorch", "2.7.0")},
      {"for the C++11 ABI ", set("cxx11_abi", 1 - _GLIBCXX_USE_CXX11_ABI)},
      {"for region abc, not ", set("region", "abc")},
      {"for a machine aarch64, not x86_64", set("machine", "aarch64")},
      {"instructions of avx512f, which this CPU lacks", set("features", {"avx", "avx512f"})},
      {"format 1, and 2 is known", set("format", 1)},
      {"package.json cannot be read", set("forward", {{"inputs", "all"}})},
      {"a tensor from", set("forward", {{"inputs", {0}},
                                        {"outputs", {{{"from", "nowhere"}, {"index", 0}}}},
                                        {"saved", Json::array()}})},
      {"package.json cannot be read",
       [](Package& package) { write(package.folder() / "package.json", "{\"format\":"); }},
      {"names the file \"../forward.so\"",
       [](Package& package) {
         package.json["files"]["../forward.so"] = package.json["files"]["forward.so"];
         package.save();
       }},
      {"names the file \"/etc/passwd\"",
       [](Package& package) {
         package.json["files"]["/etc/passwd"] = package.json["files"]["forward.so"];
         package.save();
       }},
      {"no code for a half",
       [](Package& package) {
         package.json["files"].erase("backward.so");
         package.save();
       }},
      {"forward.so has 9 bytes instead of 10",
       [](Package& package) { write(package.folder() / "forward.so", "forward.s"); }},
      {"backward.so is not what was written",
       [](Package& package) { write(package.folder() / "backward.so", "backward!so"); }},
      {"backward.so is missing",
       [](Package& package) { fs::remove(package.folder() / "backward.so"); }},
      {"forward.so is not a file of the cache",
       [](Package& package) {
         fs::rename(package.folder() / "forward.so", package.cache() + "/elsewhere.so");
         fs::create_symlink(package.cache() + "/elsewhere.so", package.folder() / "forward.so");
       }},
      {"forward.json is not one of its files",
       [](Package& package) { write(package.folder() / "forward.json", "{}"); }},
      {"forward.so can be written by other users",
       [](Package& package) {
         fs::permissions(package.folder() / "forward.so", fs::perms::others_write,
                         fs::perm_options::add);
       }},
      {"package.json can be written by other users",
       [](Package& package) {
         fs::permissions(package.folder() / "package.json", fs::perms::group_write,
                         fs::perm_options::add);
       }},
      {"can be written by other users",
       [](Package& package) {
         fs::permissions(package.folder(), fs::perms::others_write, fs::perm_options::add);
       }},
  };
  for (const Change& change : changes) {
    Package package;
    ASSERT_EQ(package.error(), "");
    change.make(package);
    const std::string error = package.error();
    EXPECT_THAT(error, HasSubstr(change.says));
    EXPECT_THAT(error, HasSubstr("the package " + package.folder().string() + " is not loaded: "));
    EXPECT_THAT(error, HasSubstr("`accelerate compile` makes it anew"));
    EXPECT_THAT(error, Not(HasSubstr("\n")));
  }
}

TEST(RegionPackage, OfAnotherUserIsNotLoaded) {
  Package package;
  RegionMachine other = machine();
  other.user = geteuid() + 1;
  const std::string error = package.error(request(), other);
  // What root has made is anybody's to use.
  if (geteuid() == 0) {
    EXPECT_EQ(error, "");
  } else {
    EXPECT_THAT(error, HasSubstr("belongs to user"));
  }
}

TEST(RegionPackage, OfALinkedFolderIsNotLoaded) {
  Package package;
  const fs::path moved = package.cache() + "/moved";
  fs::rename(package.folder(), moved);
  fs::create_directory_symlink(moved, package.folder());
  EXPECT_THAT(package.error(), HasSubstr("is not a folder of the cache"));
}

TEST(RegionMachine, HasFeatures) {
  const RegionMachine current = RegionMachine::current();
  EXPECT_FALSE(current.name.empty());
  EXPECT_THAT(current.features, Not(IsEmpty()));
  EXPECT_EQ(current.user, geteuid());
}

// ---- The cache.

TEST(RegionCache, IsWhereVariablesSay) {
  const auto cache_of = [](std::map<std::string, std::string> variables) {
    const auto found =
        region_cache([&](std::string_view name) { return variables[std::string(name)]; });
    return found.ok() ? *found : std::string(found.status().message());
  };
  EXPECT_EQ(cache_of({{"ACCELERATE_COMPILE_CACHE", "/a"}, {"HOME", "/h"}}), "/a");
  EXPECT_EQ(cache_of({{"XDG_CACHE_HOME", "/x"}, {"HOME", "/h"}}), "/x/accelerate-cpp/regions");
  EXPECT_EQ(cache_of({{"HOME", "/h"}}), "/h/.cache/accelerate-cpp/regions");
  EXPECT_THAT(cache_of({}), HasSubstr("set ACCELERATE_COMPILE_CACHE or HOME"));
}

TEST(RegionCache, ListsAndClearsRegionsAndNothingElse) {
  Package package;
  RegionRequest second = request();
  second.libtorch = "2.7.0";
  ASSERT_TRUE(write_region(package.cache(), second).ok());
  write(fs::path(package.cache()) / "notes.txt", "mine");
  write(fs::path(package.cache()) / "2.6.0" / "notes.txt", "mine");
  const auto regions = list_regions(package.cache());
  ASSERT_TRUE(regions.ok()) << regions.status();
  ASSERT_EQ(regions->size(), 2);
  EXPECT_EQ(regions->at(0).id, region_id(request()));
  EXPECT_EQ(regions->at(0).operators, 2);
  EXPECT_TRUE(regions->at(0).has_backward);
  EXPECT_EQ(regions->at(0).bytes, 21);
  EXPECT_EQ(regions->at(1).libtorch, "2.7.0");
  EXPECT_EQ(regions->at(1).bytes, 0);
  EXPECT_EQ(clear_regions(package.cache()).value(), 2);
  EXPECT_THAT(list_regions(package.cache()).value(), IsEmpty());
  EXPECT_TRUE(fs::exists(fs::path(package.cache()) / "notes.txt"));
  EXPECT_TRUE(fs::exists(fs::path(package.cache()) / "2.6.0" / "notes.txt"));
  EXPECT_EQ(clear_regions("/no/such/cache").value(), 0);
}

TEST(RegionCache, CountsNoPackageInTheFormOfAnotherVersion) {
  Package package;
  package.json["format"] = 1;
  package.save();
  EXPECT_EQ(list_regions(package.cache()).value().at(0).bytes, 0);
  write(package.folder() / "package.json", "{");
  EXPECT_EQ(list_regions(package.cache()).value().at(0).bytes, 0);
}

TEST(RegionCache, IsListedAndClearedAlthoughAWriteWasCutOff) {
  Package package;
  const fs::path other = package.folder().parent_path() / std::string(64, 'a');
  fs::create_directories(other);
  const auto regions = list_regions(package.cache());
  ASSERT_TRUE(regions.ok()) << regions.status();
  EXPECT_EQ(regions->size(), 1);
  EXPECT_EQ(clear_regions(package.cache()).value(), 2);
  EXPECT_FALSE(fs::exists(other));
}

TEST(RegionCache, KeepsAFileThatIsThere) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_region(folder.path(), request()).ok());
  const fs::path path = fs::path(folder.path()) / "2.6.0" / region_id(request()) / "region";
  const auto before = fs::last_write_time(path);
  ASSERT_TRUE(write_region(folder.path(), request()).ok());
  EXPECT_EQ(fs::last_write_time(path), before);
  std::ifstream file(path);
  std::string head;
  std::getline(file, head);
  EXPECT_EQ(head, absl::StrCat(R"({"libtorch":"2.6.0","cxx11_abi":)", _GLIBCXX_USE_CXX11_ABI,
                               R"(,"mode":"default","options":{}})"));
}

}  // namespace
}  // namespace accelerate
