#include "client/spec/reader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "telar/v1/spec.pb.h"

namespace telar::client {
namespace {

std::string problems_of(const SpecReading& reading) {
  std::string all;
  for (const Problem& problem : reading.problems) all += to_string(problem) + "\n";
  return all;
}

// The problems of a YAML text, a line each.
std::string problems(const std::string& text, Format format = Format::kYaml) {
  v1::JobSpec spec;
  return problems_of(read_spec("j", text, format, spec));
}

v1::JobSpec read(const std::string& text, Format format = Format::kYaml) {
  v1::JobSpec spec;
  EXPECT_EQ(problems_of(read_spec("j", text, format, spec)), "") << text;
  return spec;
}

TEST(ReaderTest, AWholeSpec) {
  const v1::JobSpec spec = read(R"(# a job
name: tiny
model:
  preset: gpt2-124m
  architecture: gpt2
  tied_head: no
data:
  train: [a.txt, "b c.txt"]
  format: llmc-bin
precision: {compute: BF16}
optimizer:
  learning_rate: 1e-4
  clip_norm: 0
schedule:
  kind: Cosine
  steps: 1.5k
seed: 18446744073709551615
)");
  EXPECT_EQ(spec.name(), "tiny");
  EXPECT_EQ(spec.model().architecture(), v1::GPT2);
  EXPECT_TRUE(spec.model().has_tied_head());
  EXPECT_FALSE(spec.model().tied_head());
  EXPECT_FALSE(spec.model().has_qkv_bias());
  EXPECT_EQ(spec.data().train(1), "b c.txt");
  EXPECT_EQ(spec.data().format(), v1::DataSpec::LLMC_BIN);
  EXPECT_EQ(spec.precision().compute(), v1::BF16);
  EXPECT_EQ(spec.optimizer().learning_rate(), 1e-4);
  EXPECT_TRUE(spec.optimizer().has_clip_norm()) << "an explicit 0 is not a default";
  EXPECT_EQ(spec.schedule().steps(), 1500u);
  EXPECT_EQ(spec.seed(), 18446744073709551615u);
}

TEST(ReaderTest, ScalarsAreReadByTheTypeOfTheField) {
  const v1::JobSpec spec = read("name: no\nsample: {prompt: 0123, tokens: 0123}\ndata: {train: [1e-4, true, ~x]}\n");
  EXPECT_EQ(spec.name(), "no");
  EXPECT_EQ(spec.sample().prompt(), "0123");
  EXPECT_EQ(spec.sample().tokens(), 123u);
  EXPECT_EQ(spec.data().train(0), "1e-4");
  EXPECT_EQ(spec.data().train(1), "true");
}

TEST(ReaderTest, AScalarIsAListOfOne) {
  EXPECT_EQ(read("data: {train: corpus.txt}\n").data().train_size(), 1);
  EXPECT_EQ(read("data: {train: []}\n").data().train_size(), 0);
}

TEST(ReaderTest, AGroupWithoutContentIsAbsent) {
  const v1::JobSpec spec = read("name: x\neval:\nmodel:\n  # layers: 2\n");
  EXPECT_FALSE(spec.has_eval() && spec.eval().ByteSizeLong() > 0);
}

TEST(ReaderTest, Anchors) { EXPECT_EQ(read("batch: {global: &n 8, micro: *n}\n").batch().micro(), 8u); }

TEST(ReaderTest, JsonWithItsEscapes) {
  const v1::JobSpec spec = read(
      "{\n\t\"name\": \"a\\/b\", \"seed\": \"17\",\n\t\"sample\": {\"prompt\": \"\\ud83d\\ude00 \\u00e9 \\\\ud83d\"}}",
      Format::kJson);
  EXPECT_EQ(spec.name(), "a/b");
  EXPECT_EQ(spec.seed(), 17u) << "protobuf's JSON writes 64-bit integers as text";
  EXPECT_EQ(spec.sample().prompt(), "\xf0\x9f\x98\x80 \xc3\xa9 \\ud83d");
}

TEST(ReaderTest, AllProblemsAtOnceInFileOrder) {
  EXPECT_EQ(
      problems(R"(nmae: x
model:
  layer: 2
  heads: -1
  hidden: 1.5
  architecture: gpt3
  tied_head: maybe
data:
  train: {a: b}
batch: [1]
seed: 18446744073709551616
schedule:
  kind: [cosine]
optimizer: {learning_rate: fast}
)"),
      "j:1:1: unknown field 'nmae'; did you mean 'name'?\n"
      "j:3:3: model: unknown field 'layer'; did you mean 'layers'?\n"
      "j:4:10: model.heads: got '-1', want an integer from 0 to 4294967295 (suffixes k M G Ki Mi Gi)\n"
      "j:5:11: model.hidden: got '1.5', want an integer from 0 to 4294967295 (suffixes k M G Ki Mi Gi)\n"
      "j:6:17: model.architecture: got 'gpt3', want one of gpt2, llama; did you mean 'gpt2'?\n"
      "j:7:14: model.tied_head: got 'maybe', want true or false\n"
      "j:9:10: data.train: got a mapping, want text\n"
      "j:10:8: batch: got a list, want a mapping with fields of global, micro, sequence_length\n"
      "j:11:7: seed: got '18446744073709551616', want an integer from 0 to 18446744073709551615 (suffixes k M G Ki "
      "Mi Gi)\n"
      "j:13:9: schedule.kind: got a list, want one of constant, cosine, linear, wsd\n"
      "j:14:28: optimizer.learning_rate: got 'fast', want a finite number\n");
}

TEST(ReaderTest, AFieldInTheWrongGroupIsPointedAt) {
  EXPECT_EQ(problems("learning_rate: 1\n"),
            "j:1:1: unknown field 'learning_rate'; did you mean 'optimizer.learning_rate'?\n");
  EXPECT_EQ(problems("model: {sequenceLength: 1}\n"),
            "j:1:9: model: unknown field 'sequenceLength'; did you mean 'batch.sequence_length'?\n");
  EXPECT_EQ(problems("batch: {zzz: 1}\n"),
            "j:1:9: batch: unknown field 'zzz', want one of global, micro, sequence_length\n");
}

TEST(ReaderTest, DuplicateKeys) {
  EXPECT_EQ(problems("seed: 1\nmodel: {layers: 1}\nseed: 2\n"), "j:3:1: seed: is set twice; the first is in line 1\n");
}

TEST(ReaderTest, NumbersOutOfTheirRange) {
  for (const char* bad : {"4294967296", "5G", "-1", "1e10", "0x10", "1_000", "ten", "''", "1e-1", "1 k", "2kk", "."}) {
    EXPECT_NE(problems(std::string("model: {layers: ") + bad + "}\n"), "") << bad;
  }
  for (const char* bad : {"1e999", ".inf", "nan", "''", "0,1", "1e-4x"}) {
    EXPECT_NE(problems(std::string("optimizer: {learning_rate: ") + bad + "}\n"), "") << bad;
  }
}

TEST(ReaderTest, NothingWhereAValueIsWanted) {
  EXPECT_EQ(problems("schedule:\n  steps:\n"),
            "j:2:3: schedule.steps: got nothing, want an integer from 0 to 18446744073709551615 (suffixes k M G Ki Mi "
            "Gi)\n");
  EXPECT_EQ(problems("name: null\n"), "j:1:1: name: got nothing, want text\n");
}

TEST(ReaderTest, NotASpecAtAll) {
  EXPECT_EQ(problems(""), "j: is empty, want a job spec\n");
  EXPECT_EQ(problems(" \n\n"), "j: is empty, want a job spec\n");
  EXPECT_EQ(problems("# only a comment\n"), "j: is empty, want a job spec\n");
  EXPECT_EQ(problems("---\n"), "j: is empty, want a job spec\n");
  EXPECT_EQ(problems("name: a\n---\nname: b\n"), "j:2:1: unexpected text after the job spec\n");
  EXPECT_EQ(problems("name: a\xff\n"), "j:1:8: is not UTF-8 text\n");
  EXPECT_EQ(problems(std::string("name: a\0b\n", 10)), "j:1:8: is not UTF-8 text\n");
  EXPECT_TRUE(problems("hello\n").starts_with("j:1:1: got 'hello', want a mapping with fields of name, model, "));
  EXPECT_TRUE(problems("- a\n").starts_with("j:1:1: got a list, want a mapping"));
  EXPECT_EQ(problems("? [a]\n: b\n"), "j:1:3: got a list as a key, want the name of a field\n");
  EXPECT_TRUE(problems("name: [\n").find("cannot be read") != std::string::npos);
  EXPECT_TRUE(problems("a: b: c\n").starts_with("j:1:5: cannot be read: ")) << problems("a: b: c\n");
  EXPECT_TRUE(problems(std::string(kMostSpecBytes + 1, ' ')).starts_with("j: is too long"));
}

TEST(ReaderTest, ByteOrderMarkAndWindowsLineEnds) {
  EXPECT_EQ(read("\xef\xbb\xbfname: x\r\nmodel:\r\n  layers: 2\r\n").model().layers(), 2u);
}

TEST(ReaderTest, PlacesOfWhatTheFileSets) {
  v1::JobSpec spec;
  const SpecReading reading =
      read_spec("j", "name: x\nmodel:\n  layers: 2\ndata:\n  train:\n  - a\n  - b\n", Format::kYaml, spec);
  ASSERT_TRUE(reading.problems.empty());
  EXPECT_EQ(reading.places.at("model.layers").line, 3);
  EXPECT_EQ(reading.places.at("model.layers").column, 3);
  EXPECT_EQ(reading.places.at("data.train[1]").line, 7);
  EXPECT_FALSE(reading.places.contains("model.heads"));
}

TEST(ReaderTest, FormatByExtensionThenByContent) {
  EXPECT_EQ(format_of("a.yaml", "{"), Format::kYaml);
  EXPECT_EQ(format_of("a.json", ""), Format::kJson);
  EXPECT_EQ(format_of("a.b/c.pbtxt", ""), Format::kTextproto);
  EXPECT_EQ(format_of("-", " {\"name\": 1}"), Format::kJson);
  EXPECT_EQ(format_of("-", "# c\nname: \"x\"\nmodel {\n  layers: 2\n}\n"), Format::kTextproto);
  EXPECT_EQ(format_of("-", "name: x\nmodel: {layers: 2}\n"), Format::kYaml);
}

TEST(ReaderTest, Files) {
  std::istringstream in("name: from stdin\n");
  v1::JobSpec spec;
  EXPECT_TRUE(read_spec_file("-", in, spec).problems.empty());
  EXPECT_EQ(spec.name(), "from stdin");
  const std::string path = testing::TempDir() + "/telar-reader-test-" + std::to_string(getpid()) + ".json";
  std::ofstream(path) << "{\"name\": \"file\"}";
  spec.Clear();
  EXPECT_TRUE(read_spec_file(path, in, spec).problems.empty());
  EXPECT_EQ(spec.name(), "file");
  EXPECT_EQ(problems_of(read_spec_file("/no/such.yaml", in, spec)),
            "/no/such.yaml: cannot be opened: No such file or directory\n");
  EXPECT_EQ(problems_of(read_spec_file("/", in, spec)), "/: is a directory, want a file\n");
}

TEST(ReaderTest, LongAndOddValuesStayOneLine) {
  const std::string shown = problems("seed: \"" + std::string(500, 'x') + "\"\n");
  EXPECT_LT(shown.size(), 250u);
  EXPECT_EQ(problems("seed: \"a\\nb\\e\"\n").find('\n'), problems("seed: \"a\\nb\\e\"\n").size() - 1);
  EXPECT_EQ(quote("\xc3\xa9\x1b"), "'\xc3\xa9\\x1b'");
}

TEST(ReaderTest, AGroupMayBeTheNameOfOneOfItsFlags) {
  EXPECT_TRUE(read("parallel: auto").parallel().auto_());
  EXPECT_TRUE(read("{\"parallel\": \"auto\"}", Format::kJson).parallel().auto_());
  EXPECT_EQ(read("parallel: {auto: true, tensor: 2}").parallel().tensor(), 2u);
  EXPECT_NE(problems("parallel: automatic"), "");
  EXPECT_NE(problems("parallel: tensor"), "");
}

}  // namespace
}  // namespace telar::client
