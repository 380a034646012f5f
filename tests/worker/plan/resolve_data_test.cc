// spec.data: defaults, and every mistake at once.
#include <gmock/gmock.h>

#include "worker/plan/resolve.h"

namespace telar::plan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::JobSpec spec_of() {
  v1::JobSpec spec;
  spec.set_name("small");
  v1::ModelSpec& model = *spec.mutable_model();
  model.set_architecture(v1::LLAMA);
  model.set_layers(2);
  model.set_hidden(64);
  model.set_heads(4);
  model.set_ffn(128);
  spec.mutable_batch()->set_global(8);
  spec.mutable_batch()->set_sequence_length(32);
  spec.mutable_schedule()->set_steps(10);
  return spec;
}
v1::JobSpec shards() {
  v1::JobSpec spec = spec_of();
  spec.mutable_model()->set_vocab(50257);
  spec.mutable_data()->set_format(v1::DataSpec::LLMC_BIN);
  spec.mutable_data()->add_train("/a.bin");
  return spec;
}
v1::DataSource& add_source(v1::JobSpec& spec, const std::string& name, double weight) {
  v1::DataSource& source = *spec.mutable_data()->add_sources();
  source.set_name(name);
  source.set_weight(weight);
  source.add_train("/" + name);
  return source;
}

std::vector<std::string> problems_of(v1::JobSpec spec) {
  std::vector<std::string> found;
  for (const SpecProblem& problem : resolve(spec, v1::ResourceSpec::CPU)) {
    found.push_back(problem.field + ": " + problem.description);
  }
  return found;
}

TEST(ResolveData, FillsDefaultsIn) {
  v1::JobSpec spec = spec_of();
  add_source(spec, "", 0);
  add_source(spec, "code", 2.5).add_eval("/held-out");
  ASSERT_THAT(resolve(spec, v1::ResourceSpec::CPU), IsEmpty());
  const v1::DataSpec& data = spec.data();
  EXPECT_EQ(data.sources(0).name(), "source-0");
  EXPECT_EQ(data.sources(0).weight(), 1);
  EXPECT_EQ(data.sources(1).weight(), 2.5);
  EXPECT_EQ(data.split(), v1::DataSpec::TAIL);
  EXPECT_EQ(data.rows(), v1::DataSpec::PACKED);
  EXPECT_EQ(data.eval_fraction(), 0.02);
}

TEST(ResolveData, HoldsNothingOutOfSourcesWithEvalFiles) {
  v1::JobSpec spec = spec_of();
  add_source(spec, "a", 1).add_eval("/b");
  ASSERT_THAT(resolve(spec, v1::ResourceSpec::CPU), IsEmpty());
  EXPECT_EQ(spec.data().eval_fraction(), 0);
}

TEST(ResolveData, NamesEveryMistake) {
  v1::JobSpec spec = spec_of();
  spec.mutable_data()->add_train("/t");
  spec.mutable_data()->add_eval("/e");
  spec.mutable_data()->set_eval_fraction(0.7);
  spec.mutable_data()->set_split(static_cast<v1::DataSpec::Split>(9));
  spec.mutable_data()->set_rows(static_cast<v1::DataSpec::Rows>(8));
  add_source(spec, "Wiki", -1);
  add_source(spec, "code", 1);
  add_source(spec, "code", HUGE_VAL).add_eval("relative");
  spec.mutable_data()->add_sources()->set_weight(std::nan(""));
  EXPECT_THAT(problems_of(spec),
              ElementsAre("spec.data.split: 9 is not known; use tail or documents",
                          "spec.data.rows: 8 is not known; use packed or document",
                          "spec.data.train: does not go with data.sources; use data.sources[].train",
                          "spec.data.eval: does not go with data.sources; use data.sources[].eval",
                          "spec.data.sources[0].name: 'Wiki' must be of a-z, 0-9 and '-'",
                          "spec.data.sources[0].weight: -1 is not above 0 and at most 1000000000000",
                          "spec.data.sources[2].name: 'code' is another source's name, too",
                          "spec.data.sources[2].eval: 'relative' must be an absolute path on the workers",
                          "spec.data.sources[2].weight: inf is not above 0 and at most 1000000000000",
                          "spec.data.sources[3].train: no file given",
                          "spec.data.sources[3].weight: nan is not above 0 and at most 1000000000000",
                          "spec.data.eval_fraction: 0.7 is not within [0, 0.5]"));
}

TEST(ResolveData, AsksForTheTokenBetweenDocuments) {
  v1::JobSpec spec = shards();
  v1::DataSpec& data = *spec.mutable_data();
  data.set_split(v1::DataSpec::DOCUMENTS);
  data.set_rows(v1::DataSpec::DOCUMENT);
  data.set_reset_at_documents(true);
  data.set_mask_document_starts(true);
  EXPECT_THAT(
      problems_of(spec),
      ElementsAre(AllOf(HasSubstr("spec.data.split: documents needs"), HasSubstr("tokenizer.end_of_document")),
                  HasSubstr("spec.data.rows: document needs"), HasSubstr("spec.data.reset_at_documents: true needs"),
                  HasSubstr("spec.data.mask_document_starts: true needs")));
  spec.mutable_tokenizer()->set_end_of_document("50256");
  EXPECT_THAT(problems_of(spec), IsEmpty());
  for (const char* wrong : {"50257", "-1", "12x", "<eot>"}) {
    spec.mutable_tokenizer()->set_end_of_document(wrong);
    EXPECT_THAT(problems_of(spec), ElementsAre(AllOf(HasSubstr("spec.tokenizer.end_of_document"), HasSubstr(wrong),
                                                     HasSubstr("below the vocabulary of 50257"))));
  }
}

TEST(ResolveData, TextTellsOfItsDocuments) {
  v1::JobSpec spec = spec_of();
  spec.mutable_data()->add_train("/a.txt");
  spec.mutable_data()->set_reset_at_documents(true);
  spec.mutable_data()->set_split(v1::DataSpec::DOCUMENTS);
  EXPECT_THAT(problems_of(spec), IsEmpty());
}

}  // namespace
}  // namespace telar::plan
