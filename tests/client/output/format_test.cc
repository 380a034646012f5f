#include "client/output/format.h"

#include <gtest/gtest.h>

#include <cmath>

#include "client/output/progress.h"
#include "client/output/table.h"

namespace telar::client {
namespace {

TEST(FormatTest, Figures) {
  EXPECT_EQ(count(0), "0");
  EXPECT_EQ(count(999), "999");
  EXPECT_EQ(count(1000), "1k");
  EXPECT_EQ(count(12'345), "12.3k");
  EXPECT_EQ(count(999'999), "1M");
  EXPECT_EQ(count(124'439'808), "124M");
  EXPECT_EQ(bytes(0), "0 B");
  EXPECT_EQ(bytes(1536), "1.5 KiB");
  EXPECT_EQ(bytes(uint64_t{141} << 30), "141.0 GiB");
  EXPECT_EQ(duration(0.44), "0.4s");
  EXPECT_EQ(duration(59.6), "1m00s");
  EXPECT_EQ(duration(192), "3m12s");
  EXPECT_EQ(duration(18'120), "5h02m");
  EXPECT_EQ(duration(273'600), "3d04h");
  EXPECT_EQ(duration(-1), "-");
  EXPECT_EQ(duration(std::nan("")), "-");
  EXPECT_EQ(duration(INFINITY), "-");
  EXPECT_EQ(loss(0), "-");
  EXPECT_EQ(loss(3.45678), "3.4568");
}

TEST(FormatTest, LossesOfSources) {
  v1::EvalReport eval;
  EXPECT_EQ(source_losses(eval.sources()), "");
  for (const auto& [name, loss] : {std::pair("web", 3.25), std::pair("code", 1.5)}) {
    v1::SourceLoss& source = *eval.add_sources();
    source.set_name(name);
    source.set_loss(loss);
  }
  EXPECT_EQ(source_losses(eval.sources()), " (web 3.2500, code 1.5000)");
  v1::JobEvent event;
  eval.set_step(7);
  eval.set_loss(2.5);
  *event.mutable_rank_report()->mutable_event()->mutable_eval() = eval;
  EXPECT_EQ(event_line(event), "eval at step 7: loss 2.5000 (web 3.2500, code 1.5000)");
}

TEST(FormatTest, MfuIsUnknownWithoutAPeak) {
  v1::Progress progress;
  EXPECT_EQ(mfu(progress), "n/a");
  progress.set_mfu(0.4567);
  EXPECT_EQ(mfu(progress), "45.7%");
}

TEST(FormatTest, Ages) {
  google::protobuf::Timestamp then;
  EXPECT_EQ(age(then, 100), "-");
  then.set_seconds(1000);
  EXPECT_EQ(age(then, 990), "0s") << "clocks differ";
  EXPECT_EQ(age(then, 1059), "59s");
  EXPECT_EQ(age(then, 1000 + 7300), "2h");
  EXPECT_EQ(age(then, 1000 + 200'000), "2d");
}

TEST(FormatTest, IdsAndLines) {
  EXPECT_EQ(id_of("projects/p/jobs/j-1"), "j-1");
  EXPECT_EQ(id_of("j-1"), "j-1");
  EXPECT_EQ(one_line("a\nb\x1b[2Jc"), "a b [2Jc");
}

TEST(TableTest, AlignsByCharactersAndTrailsNothing) {
  Table table({"A", "LONG", "C"});
  table.add({"\xc3\xa9\xc3\xa9\xc3\xa9", "x", ""});
  table.add({"1", "", "z"});
  EXPECT_EQ(table.text(true), "A    LONG  C\n\xc3\xa9\xc3\xa9\xc3\xa9  x\n1          z\n");
  EXPECT_EQ(table.text(false), "\xc3\xa9\xc3\xa9\xc3\xa9  x\n1       z\n");
  EXPECT_EQ(cut("\xc3\xa9\xc3\xa9x", 2), "\xc3\xa9\xc3\xa9");
}

TEST(ProgressLineTest, BeforeAndAfterTheFirstStep) {
  v1::Job job;
  job.set_state(v1::Job::QUEUED);
  job.set_message("waits for 8 devices, 2 free");
  EXPECT_EQ(progress_line(job), "QUEUED  waits for 8 devices, 2 free");
  job.set_state(v1::Job::RUNNING);
  job.mutable_progress()->set_step(120);
  job.mutable_progress()->set_total_steps(1000);
  job.mutable_progress()->set_loss(3.4512);
  job.mutable_progress()->set_tokens_per_second(12'345);
  job.mutable_progress()->set_eta_seconds(192);
  EXPECT_EQ(progress_line(job), "RUNNING  120/1000  loss 3.4512  tokens/s 12.3k  MFU n/a  ETA 3m12s");
}

TEST(EventLineTest, OfEachKind) {
  v1::JobEvent event;
  EXPECT_EQ(event_line(event), "");
  event.mutable_state_change()->set_to(v1::Job::QUEUED);
  EXPECT_EQ(event_line(event), "QUEUED");
  event.mutable_state_change()->set_from(v1::Job::RUNNING);
  event.mutable_state_change()->set_to(v1::Job::RESTARTING);
  event.mutable_state_change()->set_reason("rank 1 exited with 137");
  event.mutable_state_change()->set_epoch(2);
  EXPECT_EQ(event_line(event), "RUNNING -> RESTARTING: rank 1 exited with 137 (epoch 2)");
  v1::RankReport* report = event.mutable_rank_report();
  report->set_rank(3);
  report->mutable_event()->mutable_step()->set_step(1);
  EXPECT_EQ(event_line(event), "") << "the progress line shows steps";
  report->mutable_event()->mutable_eval()->set_step(100);
  report->mutable_event()->mutable_eval()->set_loss(2.5);
  EXPECT_EQ(event_line(event), "eval at step 100: loss 2.5000");
  auto* checkpoint = report->mutable_event()->mutable_checkpoint();
  checkpoint->set_step(100);
  checkpoint->set_path("/runs/j/ckpt/step-00000100");
  checkpoint->set_bytes(1536);
  checkpoint->set_seconds(0.25);
  EXPECT_EQ(event_line(event), "checkpoint at step 100: /runs/j/ckpt/step-00000100 (1.5 KiB, 0.2s)");
  checkpoint->set_state(v1::CheckpointReport::STAGED);  // Nothing to rely on yet.
  EXPECT_EQ(event_line(event), "");
  checkpoint->set_state(v1::CheckpointReport::DURABLE);
  checkpoint->set_stall_seconds(2);
  EXPECT_EQ(event_line(event),
            "checkpoint at step 100: /runs/j/ckpt/step-00000100 (1.5 KiB, 0.2s, training waited 2.0s)");
  checkpoint->set_state(v1::CheckpointReport::FAILED);
  checkpoint->set_message("write /runs/j: No space left on device");
  EXPECT_EQ(event_line(event), "checkpoint at step 100 FAILED: write /runs/j: No space left on device");
  report->mutable_event()->mutable_failure()->set_failure_class(v1::OUT_OF_MEMORY);
  report->mutable_event()->mutable_failure()->set_message("141 GiB wanted");
  EXPECT_EQ(event_line(event), "rank 3 failed (out_of_memory): 141 GiB wanted");
}

}  // namespace
}  // namespace telar::client
