// Programs of different versions talk to each other: what is in the contract stays as it is. proto/baseline.txt holds
// every field, enum value and method; this compares it with what was compiled.
//
// After an addition: tests/house/update_proto_baseline.sh [BUILD-DIR].
#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.pb.h"
#include "gtest/gtest.h"
#include "telar/v1/cluster.pb.h"
#include "telar/v1/jobs.pb.h"
#include "telar/v1/rank.pb.h"
#include "telar/v1/spec.pb.h"
#include "tests/house/sources.h"

namespace telar::house {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string type_of(const FieldDescriptor& field) {
  std::string type = field.is_map() ? "map" : field.is_repeated() ? "repeated" : field.has_presence() ? "optional" : "";
  type += type.empty() ? "" : " ";
  if (field.message_type() != nullptr) return type + field.message_type()->full_name();
  if (field.enum_type() != nullptr) return type + field.enum_type()->full_name();
  return type + field.type_name();
}

void add_enum(const EnumDescriptor& one, std::set<std::string>& lines) {
  for (int i = 0; i < one.value_count(); ++i) {
    lines.insert("value " + one.full_name() + " " + std::to_string(one.value(i)->number()) + " " +
                 one.value(i)->name());
  }
}

// The name is part of a line: JSON and YAML travel by names.
void add_message(const Descriptor& message, std::set<std::string>& lines) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    std::string line = "field " + message.full_name() + " " + std::to_string(field.number()) + " " + field.name() +
                       " " + type_of(field);
    const auto* group = field.real_containing_oneof();
    if (group != nullptr) line += " oneof " + group->name();
    lines.insert(line);
  }
  for (int i = 0; i < message.nested_type_count(); ++i) add_message(*message.nested_type(i), lines);
  for (int i = 0; i < message.enum_type_count(); ++i) add_enum(*message.enum_type(i), lines);
}

std::set<std::string> lines_of_file(const FileDescriptor& file) {
  std::set<std::string> lines;
  for (int i = 0; i < file.message_type_count(); ++i) add_message(*file.message_type(i), lines);
  for (int i = 0; i < file.enum_type_count(); ++i) add_enum(*file.enum_type(i), lines);
  for (int i = 0; i < file.service_count(); ++i) {
    const ServiceDescriptor& service = *file.service(i);
    for (int m = 0; m < service.method_count(); ++m) {
      const MethodDescriptor& method = *service.method(m);
      lines.insert("method " + service.full_name() + "/" + method.name() + " " +
                   (method.client_streaming() ? "stream " : "") + method.input_type()->full_name() + " -> " +
                   (method.server_streaming() ? "stream " : "") + method.output_type()->full_name());
    }
  }
  return lines;
}

std::set<std::string> contract() {
  std::set<std::string> all;
  for (const FileDescriptor* file : {v1::JobSpec::descriptor()->file(), v1::RankPlan::descriptor()->file(),
                                     v1::Job::descriptor()->file(), v1::HeartbeatRequest::descriptor()->file()}) {
    all.merge(lines_of_file(*file));
  }
  return all;
}

std::vector<std::string> missing(const std::set<std::string>& in, const std::set<std::string>& of) {
  std::vector<std::string> lines;
  std::set_difference(of.begin(), of.end(), in.begin(), in.end(), std::back_inserter(lines));
  return lines;
}

std::set<std::string> baseline() {
  const std::vector<std::string> lines = lines_of(read_file(tree_root() / "proto/baseline.txt"));
  return {lines.begin(), lines.end()};
}

TEST(Proto, NothingOfTheContractIsTakenBack) {
  const std::set<std::string> now = contract(), before = baseline();
  ASSERT_GT(now.size(), 300u);
  const std::vector<std::string> gone = missing(now, before);
  EXPECT_THAT(gone, IsEmpty()) << "removed, renumbered, renamed or of another type; older programs rely on it:"
                               << joined(gone);
  if (std::getenv("TELAR_UPDATE_PROTO_BASELINE") != nullptr && gone.empty()) {
    std::ofstream file(tree_root() / "proto/baseline.txt");
    for (const std::string& line : now) file << line << "\n";
    return;
  }
  const std::vector<std::string> fresh = missing(before, now);
  EXPECT_THAT(fresh, IsEmpty()) << "new, not in proto/baseline.txt; run tests/house/update_proto_baseline.sh:"
                                << joined(fresh);
}

TEST(Proto, PlantedBreaksAreFound) {
  const auto lines_with = [](const FieldDescriptor::Type type, int number, const char* value) {
    google::protobuf::FileDescriptorProto file;
    file.set_name("planted.proto");
    file.set_package("planted");
    file.set_syntax("proto3");
    auto* message = file.add_message_type();
    message->set_name("M");
    auto* field = message->add_field();
    field->set_name("f");
    field->set_number(number);
    field->set_type(static_cast<google::protobuf::FieldDescriptorProto::Type>(type));
    field->set_label(google::protobuf::FieldDescriptorProto::LABEL_OPTIONAL);
    auto* kind = file.add_enum_type();
    kind->set_name("E");
    kind->add_value()->set_name(value);
    kind->mutable_value(0)->set_number(0);
    google::protobuf::DescriptorPool pool;
    return lines_of_file(*pool.BuildFile(file));
  };
  const auto before = lines_with(FieldDescriptor::TYPE_STRING, 1, "ZERO");
  EXPECT_THAT(missing(before, before), IsEmpty());
  EXPECT_THAT(missing(lines_with(FieldDescriptor::TYPE_STRING, 2, "ZERO"), before),
              ElementsAre("field planted.M 1 f string"));
  EXPECT_THAT(missing(lines_with(FieldDescriptor::TYPE_BYTES, 1, "ZERO"), before),
              ElementsAre("field planted.M 1 f string"));
  EXPECT_THAT(missing(lines_with(FieldDescriptor::TYPE_STRING, 1, "NOUGHT"), before),
              ElementsAre("value planted.E 0 ZERO"));
}

}  // namespace
}  // namespace telar::house
