#include "worker/plan/resolve_enums.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "telar/v1/spec.pb.h"

namespace telar::plan {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// "none, selective or full", as specs write them.
std::string names_of(const EnumDescriptor& type) {
  std::string names;
  for (int i = 1; i < type.value_count(); ++i) {  // 0 is "unspecified".
    std::string name = type.value(i)->name();
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    names += (i == 1 ? "" : i + 1 == type.value_count() ? " or " : ", ") + name;
  }
  return names;
}

// Of each message of a spec the fields that are enums or have some below: few, and every submit is looked at.
using Fields = std::map<const Descriptor*, std::vector<const FieldDescriptor*>>;

bool has_enums(const Descriptor& type, Fields& found) {
  const auto [at, is_new] = found.try_emplace(&type);
  if (!is_new) return !at->second.empty();
  std::vector<const FieldDescriptor*> fields;
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    const bool below =
        field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && has_enums(*field->message_type(), found);
    if (below || field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) fields.push_back(field);
  }
  found[&type] = fields;
  return !fields.empty();
}

const Fields& fields_with_enums() {
  static const Fields all = [] {
    Fields found;
    has_enums(*v1::JobSpec::descriptor(), found);
    return found;
  }();
  return all;
}

}  // namespace

void check_enums(const Message& message, const std::string& path, Problems& problems) {
  const Reflection& reflection = *message.GetReflection();
  for (const FieldDescriptor* field : fields_with_enums().at(message.GetDescriptor())) {
    const bool repeated = field->is_repeated();
    const bool is_enum = field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM;
    const int count = repeated ? reflection.FieldSize(message, field) : reflection.HasField(message, field) ? 1 : 0;
    for (int i = 0; i < count; ++i) {
      int number = 0;
      if (is_enum) {
        number =
            repeated ? reflection.GetRepeatedEnumValue(message, field, i) : reflection.GetEnumValue(message, field);
        if (field->enum_type()->FindValueByNumber(number) != nullptr) continue;
      }
      const std::string whole = path.empty() ? field->name() : path + "." + field->name();
      const std::string name = repeated ? fmt::format("{}[{}]", whole, i) : whole;
      if (is_enum) {
        problems.add(name, "{} is not known; use {}", number, names_of(*field->enum_type()));
      } else {
        check_enums(repeated ? reflection.GetRepeatedMessage(message, field, i) : reflection.GetMessage(message, field),
                    name, problems);
      }
    }
  }
}

}  // namespace telar::plan
