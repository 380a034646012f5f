#include "worker/plan/resolve_enums.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"

namespace telar::plan {
namespace {

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

class Walk {
 public:
  explicit Walk(Problems& problems) : problems_(problems) {}

  void message(const Message& message, const std::string& path) {
    const Reflection& reflection = *message.GetReflection();
    std::vector<const FieldDescriptor*> fields;
    reflection.ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      const std::string name = path.empty() ? field->name() : path + "." + field->name();
      const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
      for (int i = 0; i < count; ++i) {
        value(message, *field, i, field->is_repeated() ? fmt::format("{}[{}]", name, i) : name);
      }
    }
  }

 private:
  void value(const Message& message, const FieldDescriptor& field, int i, const std::string& path) {
    const Reflection& reflection = *message.GetReflection();
    const bool repeated = field.is_repeated();
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      this->message(
          repeated ? reflection.GetRepeatedMessage(message, &field, i) : reflection.GetMessage(message, &field), path);
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
      const int number =
          repeated ? reflection.GetRepeatedEnumValue(message, &field, i) : reflection.GetEnumValue(message, &field);
      if (field.enum_type()->FindValueByNumber(number) != nullptr) return;
      problems_.add(path, "{} is not known; use {}", number, names_of(*field.enum_type()));
    }
  }

  Problems& problems_;
};

}  // namespace

void check_enums(const Message& message, const std::string& path, Problems& problems) {
  Walk(problems).message(message, path);
}

}  // namespace telar::plan
