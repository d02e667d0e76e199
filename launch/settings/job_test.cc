#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "accelerate/platform/host_files.h"
#include "launch/settings/machine.h"

namespace accelerate::launcher::settings {
namespace {

using ::testing::HasSubstr;

const char kTwoHosts[] = "SM_HOSTS=[\"algo-1\",\"algo-2\"]";

// The system of a container that has SageMaker's file of hosts.
class Container {
 public:
  explicit Container(const std::string& hosts_file) {
    const std::filesystem::path path = file();
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << hosts_file;
  }

  std::string root() const { return folder_.path(); }
  std::string file() const { return folder_.path("opt/ml/input/config/resourceconfig.json"); }

 private:
  const TemporaryFolder folder_;
};

std::string error_of(const absl::StatusOr<Job>& job) {
  EXPECT_FALSE(job.ok());
  return std::string(job.status().message());
}

TEST(FindJob, KnowsTheVariablesOfSageMakersToolkit) {
  const absl::StatusOr<Job> job =
      find_job({kTwoHosts, "SM_CURRENT_HOST=algo-2", "SM_NUM_GPUS=8"}, "/nowhere");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->kind, JobKind::kSageMaker);
  EXPECT_EQ(job->nodes, 2);
  EXPECT_EQ(job->node_rank, 1);
  EXPECT_EQ(job->first_host, "algo-1");
  EXPECT_EQ(job->devices_per_node, 8);
  EXPECT_EQ(job->hosts_file, "");
}

TEST(FindJob, ReadsSageMakersFileWhereThereAreNoVariables) {
  const Container container(
      R"({"current_host": "algo-2", "hosts": ["algo-1", "algo-2", "algo-3"],
          "network_interface_name": "eth0"})");
  const absl::StatusOr<Job> job = find_job({"TRAINING_JOB_NAME=night"}, container.root());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->kind, JobKind::kSageMaker);
  EXPECT_EQ(job->nodes, 3);
  EXPECT_EQ(job->node_rank, 1);
  EXPECT_EQ(job->first_host, "algo-1");
  EXPECT_EQ(job->hosts_file, container.file());
  // The variables win.
  EXPECT_EQ(find_job({kTwoHosts, "SM_CURRENT_HOST=algo-1"}, container.root())->nodes, 2);
}

TEST(FindJob, NamesWhatMakesNoSenseInASageMakerJob) {
  EXPECT_THAT(error_of(find_job({"SM_HOSTS=algo-1"}, "/nowhere")),
              HasSubstr("variable SM_HOSTS: expected a JSON list of hosts, not \"algo-1\""));
  EXPECT_THAT(error_of(find_job({kTwoHosts, "SM_CURRENT_HOST=algo-3"}, "/nowhere")),
              HasSubstr("variable SM_CURRENT_HOST: \"algo-3\" is none of the hosts"));
  const Container cut("{\"hosts\": [");
  EXPECT_THAT(error_of(find_job({}, cut.root())), HasSubstr(cut.file() + ": expected a JSON"));
  const Container alone("{\"hosts\": [\"algo-1\"]}");
  EXPECT_THAT(error_of(find_job({}, alone.root())), HasSubstr(": current_host: \"\" is none"));
}

TEST(FindJob, CountsTheTasksOfASlurmStepOrElseOfItsJob) {
  const auto job = [](std::vector<std::string> more) {
    more.insert(more.end(), {"SLURM_JOB_ID=7", "SLURM_NNODES=4", "SLURM_NTASKS=8",
                             "SLURM_JOB_NODELIST=n[1-4]", "SLURM_GPUS_ON_NODE=h100:3"});
    const absl::StatusOr<Job> found = find_job(more, "/nowhere");
    EXPECT_TRUE(found.ok()) << found.status();
    return *found;
  };
  const std::vector<std::string> task = {"SLURM_PROCID=1", "SLURM_STEP_ID=2", "SLURM_NODEID=1"};
  std::vector<std::string> counted = task;
  counted.insert(counted.end(), {"SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NUM_NODES=2"});
  EXPECT_EQ(job({}).kind, JobKind::kSlurmShell);
  EXPECT_EQ(job({}).tasks, 8);
  EXPECT_EQ(job({}).nodes, 4);
  EXPECT_EQ(job({"SLURM_STEP_NUM_NODES=2"}).nodes, 4) << "of another step than the shell";
  EXPECT_EQ(job(counted).kind, JobKind::kSlurmTask);
  EXPECT_EQ(job(counted).tasks, 2);
  EXPECT_EQ(job(counted).nodes, 2);
  EXPECT_EQ(job(counted).node_rank, 1);
  EXPECT_EQ(job(task).tasks, 8) << "the step says nothing";
  EXPECT_EQ(job(task).nodes, 4);
  EXPECT_EQ(job(task).first_host, "n1");
  EXPECT_EQ(job(task).devices_per_node, 3);
}

// What the other tests have in one form: the older name, a bare number, and the agreed port.
TEST(FindJob, ReadsTheOtherFormsOfSlurmsVariables) {
  const std::vector<std::string> shell = {"SLURM_JOB_ID=7", "SLURM_JOB_NUM_NODES=3",
                                          "SLURM_JOB_NODELIST=n[1-3]", "SLURM_GPUS_ON_NODE=4"};
  const absl::StatusOr<Job> job = find_job(shell, "/nowhere");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->nodes, 3);
  EXPECT_EQ(job->devices_per_node, 4);
  EXPECT_EQ(job->port, 20007);
  EXPECT_EQ(job->tasks, 0);
  std::vector<std::string> task = shell;
  task.insert(task.end(), {"SLURM_PROCID=1", "SLURM_STEP_ID=2", "SLURM_NODEID=2"});
  const absl::StatusOr<Job> step = find_job(task, "/nowhere");
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->node_rank, 2);
  EXPECT_EQ(step->port, 20007 + 2 * 97) << "steps of one job use ports of their own";
  for (const char* wrong : {"SLURM_NNODES=x", "SLURM_NTASKS=-1"}) {
    const std::string name(wrong, std::string(wrong).find('='));
    EXPECT_THAT(error_of(find_job({"SLURM_JOB_ID=7", wrong}, "/nowhere")),
                HasSubstr("variable " + name + ": expected a number from 0"));
  }
}

TEST(FindJob, ReadsTheHostsOfASlurmJob) {
  const auto first_host = [](const std::string& list) {
    const absl::StatusOr<Job> job =
        find_job({"SLURM_JOB_ID=7", "SLURM_NNODES=2", "SLURM_JOB_NODELIST=" + list}, "/nowhere");
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? job->first_host : "";
  };
  EXPECT_EQ(first_host("nid[000008-000011]"), "nid000008");
  EXPECT_EQ(first_host("b2, b1"), "b2");
  EXPECT_EQ(first_host("rack[1-2]n[03,05-06]-ib"), "rack1n03-ib");
  for (const char* list : {"n[1,[2-3]]", "n[1-2", "(null)"}) {
    EXPECT_THAT(error_of(find_job({"SLURM_JOB_ID=7", std::string("SLURM_JOB_NODELIST=") + list},
                                  "/nowhere")),
                HasSubstr(std::string("variable SLURM_JOB_NODELIST: \"") + list +
                          "\" is not a list of hosts"));
  }
}

TEST(FindJob, RefusesHostsThatAreNoText) {
  EXPECT_THAT(error_of(find_job({"SM_HOSTS=\xff"}, "/nowhere")),
              HasSubstr("variable SM_HOSTS: expected a JSON list of hosts, not"));
}

TEST(FindJob, IsNoneWithoutAScheduler) {
  EXPECT_EQ(find_job({"PATH=/bin"}, "/nowhere")->kind, JobKind::kNone);
}

}  // namespace
}  // namespace accelerate::launcher::settings
