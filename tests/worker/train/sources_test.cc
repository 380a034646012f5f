// Blends of sources with documents, from files to a run's losses: what is read, what is told, and what a change of the
// number of replicas leaves alone.
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tests/fakes/rendezvous.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/plan/resolve.h"
#include "worker/train/dataset.h"
#include "worker/train/failure.h"
#include "worker/train/run.h"

namespace telar::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kLength = 16, kGlobal = 4;

class SourcesTest : public ::testing::Test {
 protected:
  SourcesTest() {
    char name[] = "/tmp/telar_sources_test_XXXXXX";
    root_ = mkdtemp(name);
    for (int i = 0; i < 60; ++i) {
      write("wiki", i, "The season of light number " + std::to_string(i * 37 % 101) + " and its winter of despair.\n");
    }
    for (int i = 0; i < 40; ++i) write("code", i, "auto x" + std::to_string(i) + " = " + std::to_string(i * i) + ";\n");
  }
  ~SourcesTest() override { fs::remove_all(root_); }

  void write(const std::string& folder, int number, const std::string& text) {
    fs::create_directories(root_ / folder);
    std::ofstream(root_ / folder / (std::to_string(100 + number) + ".txt")) << text;
  }

  // Two sources, documents kept apart everywhere.
  v1::JobSpec spec(uint64_t steps) const {
    v1::JobSpec spec;
    spec.set_name("test");
    spec.set_seed(5);
    spec.mutable_model()->set_architecture(v1::GPT2);
    spec.mutable_model()->set_layers(2);
    spec.mutable_model()->set_hidden(32);
    spec.mutable_model()->set_heads(2);
    v1::DataSpec& data = *spec.mutable_data();
    for (const auto& [name, weight] : {std::pair("wiki", 3.0), std::pair("code", 1.0)}) {
      v1::DataSource& source = *data.add_sources();
      source.set_name(name);
      source.set_weight(weight);
      source.add_train((root_ / name / "*.txt").string());
    }
    data.set_split(v1::DataSpec::DOCUMENTS);
    data.set_eval_fraction(0.3);
    data.set_reset_at_documents(true);
    data.set_mask_document_starts(true);
    spec.mutable_batch()->set_global(kGlobal);
    spec.mutable_batch()->set_micro(1);
    spec.mutable_batch()->set_sequence_length(kLength);
    spec.mutable_optimizer()->set_learning_rate(3e-3);
    spec.mutable_schedule()->set_kind(v1::ScheduleSpec::CONSTANT);
    spec.mutable_schedule()->set_steps(steps);
    spec.mutable_eval()->set_sequences(8);
    return resolved(spec);
  }
  static v1::JobSpec resolved(v1::JobSpec spec) {
    EXPECT_THAT(plan::resolve(spec, v1::ResourceSpec::CPU), IsEmpty());
    return spec;
  }

  struct Told {
    std::vector<double> losses;
    v1::RankStarted started;
    v1::EvalReport eval;
  };
  // Runs all ranks of the job and returns what the first told.
  Told run_job(v1::JobSpec spec, const std::string& run_dir, uint32_t replicas) {
    spec.mutable_resources()->set_devices(replicas);
    spec.mutable_parallel()->set_data(replicas);
    spec = resolved(spec);
    fakes::FakeRendezvous rendezvous;
    const std::string folder = (root_ / run_dir).string();
    const auto events_of = [&](uint32_t rank) {
      return folder + "/events-" + std::to_string(epoch_) + "-" + std::to_string(rank);
    };
    ++epoch_;
    fs::create_directories(folder);
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < replicas; ++rank) {
      threads.emplace_back([&, rank] {
        v1::RankPlan plan;
        plan.set_job("projects/default/jobs/test");
        plan.set_epoch(epoch_);
        plan.set_rank(rank);
        plan.set_world_size(replicas);
        plan.set_threads(1);
        plan.mutable_device()->set_kind(v1::ResourceSpec::CPU);
        plan.set_run_dir(folder);
        plan.set_listen_host("127.0.0.1");
        if (replicas > 1) plan.set_rendezvous_address(rendezvous.address());
        *plan.mutable_spec() = spec;
        auto events = EventLog::open(events_of(rank)).value();
        const std::atomic<bool> stop{false};
        const auto outcome = run(plan, *events, stop, Replica::Execution::kLanes);
        EXPECT_TRUE(outcome.ok()) << outcome.status();
      });
    }
    for (std::thread& thread : threads) thread.join();
    Told told;
    std::ifstream lines(events_of(0));
    for (std::string line; std::getline(lines, line);) {
      v1::RankEvent event;
      EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &event).ok()) << line;
      if (event.has_started()) told.started = event.started();
      if (event.has_step()) told.losses.push_back(event.step().loss());
      if (event.has_eval()) told.eval = event.eval();
    }
    return told;
  }

  // What is told of the sources is what is told of all.
  static void expect_sources_add_up(const v1::EvalReport& eval) {
    ASSERT_EQ(eval.sources_size(), 2);
    EXPECT_EQ(eval.sources(0).name(), "wiki");
    uint64_t tokens = 0;
    double loss = 0;
    for (const v1::SourceLoss& source : eval.sources()) {
      EXPECT_GT(source.loss(), 0);
      tokens += source.tokens();
      loss += source.loss() * static_cast<double>(source.tokens());
    }
    EXPECT_EQ(tokens, eval.tokens());
    EXPECT_NEAR(loss, eval.loss() * static_cast<double>(tokens), 1e-6 * loss);
  }
  // The evaluation's loss of each source in the run's curve.
  nlohmann::json curve_of_sources(const std::string& run_dir) const {
    std::ifstream lines(root_ / run_dir / "metrics.jsonl");
    nlohmann::json found;
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains("eval_sources")) found = json["eval_sources"];
    }
    return found;
  }

  fs::path root_;
  uint64_t epoch_ = 0;
};

TEST_F(SourcesTest, AreTrainedOnByWeightAndHeldOutByDocument) {
  const auto opened = open_dataset(spec(50));
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_EQ(opened->sources.size(), 2u);
  EXPECT_EQ(opened->sources[0].name(), "wiki");
  EXPECT_EQ(opened->sources[0].documents(), 60u);
  EXPECT_EQ(opened->sources[1].documents(), 40u);
  EXPECT_DOUBLE_EQ(opened->sources[0].share(), 0.75);
  const data::Mixture& train = *opened->train;
  EXPECT_THAT(train.consumed(50 * kGlobal), ::testing::ElementsAre(150, 50));
  EXPECT_DOUBLE_EQ(opened->sources[1].epochs(), 50.0 / static_cast<double>(train.samplers()[1].rows()));
  EXPECT_EQ(opened->eval[0].samples, 6u);
  EXPECT_EQ(opened->eval[1].samples, std::min<uint64_t>(2, opened->eval[1].rows.rows()));
  // No document is on both sides.
  uint64_t tokens = 0;
  for (size_t i = 0; i < 2; ++i) {
    std::set<std::vector<int32_t>> seen;
    for (const data::Section* section : {&train.samplers()[i].section(), &opened->eval[i].rows.section()}) {
      tokens += section->size();
      EXPECT_GT(section->document_count(), 0u);
      for (uint64_t d = 0; d < section->document_count(); ++d) {
        std::vector<int32_t> text(section->document(d).count);
        ASSERT_TRUE(section->read(section->document(d).first, text).ok());
        EXPECT_EQ(text.back(), 256);
        EXPECT_TRUE(seen.insert(text).second);
      }
    }
  }
  EXPECT_EQ(tokens, opened->train_tokens + opened->eval_tokens);
}

TEST_F(SourcesTest, ASourcesOrderDoesNotDependOnItsNeighbours) {
  v1::JobSpec both = spec(10), one = spec(10);
  one.mutable_data()->mutable_sources()->DeleteSubrange(0, 1);
  const auto two_opened = open_dataset(both), one_opened = open_dataset(one);
  ASSERT_TRUE(two_opened.ok() && one_opened.ok());
  const data::Sampler &among_two = two_opened->train->samplers()[1], &alone = one_opened->train->samplers()[0];
  const data::Sampler& neighbour = two_opened->train->samplers()[0];
  std::vector<uint64_t> a, b, c;
  for (uint64_t i = 0; i < alone.rows(); ++i) {
    a.push_back(among_two.tokens_of(i).first);
    b.push_back(alone.tokens_of(i).first);
    c.push_back(neighbour.tokens_of(i).first);
  }
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
}

TEST_F(SourcesTest, ErrorsNameTheSource) {
  v1::JobSpec wrong = spec(10);
  wrong.mutable_data()->mutable_sources(1)->set_train(0, (root_ / "nothing" / "*").string());
  auto status = open_dataset(wrong).status();
  EXPECT_EQ(class_of(status), v1::DATA);
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(HasSubstr("source code: "), HasSubstr("matches no file")));
  v1::JobSpec single = spec(10);
  single.mutable_data()->mutable_sources(0)->set_train(0, (root_ / "wiki" / "100.txt").string());
  status = open_dataset(single).status();
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(HasSubstr("source wiki: "), HasSubstr("1 documents"), HasSubstr("eval_fraction 0.3")));
}

// Other weights and a source more from sample 20 on, as if the spec had been changed: each source goes on where it was,
// and whether the run stops once more on the way makes no difference.
TEST_F(SourcesTest, EachGoesOnWhenTheBlendIsChanged) {
  for (int i = 0; i < 30; ++i) write("more", i, "Number " + std::to_string(i * 7) + " of what came later, in time.\n");
  const auto changed = [this](uint64_t steps) {
    v1::JobSpec job = spec(steps);
    job.mutable_data()->mutable_sources(0)->set_weight(1);
    v1::DataSource& more = *job.mutable_data()->add_sources();
    more.set_name("more");
    more.set_weight(2);
    more.add_train((root_ / "more" / "*.txt").string());
    return resolved(job);
  };
  run_job(spec(5), "one", 1);
  const Told one = run_job(changed(12), "one", 1);
  run_job(spec(5), "two", 1);
  run_job(changed(8), "two", 2);
  const Told two = run_job(changed(12), "two", 1);
  ASSERT_EQ(one.losses.size(), 7u);
  ASSERT_EQ(two.losses.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(two.losses[i], one.losses[i + 3], 2e-5 * one.losses[i + 3]);
  for (const char* run : {"one", "two"}) {
    const auto latest =
        checkpoint::find_latest(checkpoint::FileSystem::posix(), (root_ / run).string(), checkpoint::Depth::kManifest);
    const checkpoint::Manifest& manifest = latest.value().checkpoint->manifest();
    using Counts = std::map<std::string, uint64_t>;
    ASSERT_TRUE(manifest.blend_start);
    EXPECT_EQ(manifest.blend_start->samples, 20u);
    EXPECT_EQ(manifest.blend_start->consumed, (Counts{{"wiki", 15}, {"code", 5}}));
    EXPECT_EQ(manifest.consumed_sources, (Counts{{"wiki", 15 + 7}, {"code", 5 + 7}, {"more", 14}}));
  }
}

// Rows have different numbers of targets, and so have replicas and micro-batches: a mean of their means would differ.
// One rank with one micro-batch, one with four, two with two each, and a run that goes from one rank to two within an
// epoch, see the same samples and come to the same losses.
TEST_F(SourcesTest, ReplicasMayComeAndGo) {
  for (const auto rows : {v1::DataSpec::PACKED, v1::DataSpec::DOCUMENT}) {
    const std::string name = rows == v1::DataSpec::PACKED ? "packed" : "document";
    v1::JobSpec job = spec(12), half = spec(5);
    job.mutable_data()->set_rows(rows);
    half.mutable_data()->set_rows(rows);
    v1::JobSpec whole_batch = job;
    whole_batch.mutable_batch()->set_micro(kGlobal);
    const Told want = run_job(whole_batch, name + "-one", 1);
    ASSERT_EQ(want.losses.size(), 12u);
    EXPECT_LT(want.losses.back(), 0.9 * want.losses.front());
    ASSERT_EQ(want.started.sources_size(), 2);
    EXPECT_EQ(want.started.sources(1).name(), "code");
    EXPECT_GT(want.started.sources(1).epochs(), 0);
    EXPECT_GT(want.eval.tokens(), 0u);
    expect_sources_add_up(want.eval);
    EXPECT_EQ(curve_of_sources(name + "-one")["code"], want.eval.sources(1).loss());

    const auto expect_same = [&](const std::vector<double>& losses, size_t from, const char* what) {
      ASSERT_EQ(losses.size() + from, want.losses.size()) << what;
      for (size_t i = 0; i < losses.size(); ++i) {
        EXPECT_NEAR(losses[i], want.losses[i + from], 2e-5 * want.losses[i + from]) << name << " " << what << " " << i;
      }
    };
    expect_same(run_job(job, name + "-accumulation", 1).losses, 0, "accumulation");
    const Told two = run_job(job, name + "-two", 2);
    expect_same(two.losses, 0, "two");
    EXPECT_EQ(two.eval.tokens(), want.eval.tokens());
    EXPECT_NEAR(two.eval.loss(), want.eval.loss(), 2e-5 * want.eval.loss());
    run_job(half, name + "-grows", 1);
    const Told grown = run_job(job, name + "-grows", 2);
    EXPECT_EQ(grown.started.start_step(), 5u);
    expect_same(grown.losses, 5, "grown");
  }
}

}  // namespace
}  // namespace telar::train
