#include "client/spec/textproto.h"

#include <algorithm>

#include "client/spec/scalar.h"
#include "client/spec/suggest.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"

namespace telar::client {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::TextFormat;

// The parser skips unknown groups by recursion without a limit of its own.
constexpr int kDeepestNesting = 64;

// The text between the n-th pair of double quotes of a parser's message, n from 0.
std::string quoted_part(const std::string& text, int n) {
  size_t begin = 0, end = std::string::npos;
  for (int i = 0; i <= n; ++i) {
    begin = text.find('"', i == 0 ? 0 : end + 1);
    if (begin == std::string::npos) return "";
    end = text.find('"', begin + 1);
    if (end == std::string::npos) return "";
  }
  return text.substr(begin + 1, end - begin - 1);
}

const FieldDescriptor* find_enum_field(const Descriptor* type, const std::string& name) {
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM && field->name() == name) return field;
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (const FieldDescriptor* below = find_enum_field(field->message_type(), name)) return below;
  }
  return nullptr;
}

// Turns what protobuf's parser says into our words; what it says beyond the two known forms stays.
std::string reworded(const std::string& text, const Descriptor* root) {
  if (text.find("has no field named") != std::string::npos) {
    const std::string key = quoted_part(text, 1);
    const Descriptor* type = root->file()->pool()->FindMessageTypeByName(quoted_part(text, 0));
    if (type != nullptr) return "unknown field " + quote(key) + suggest_field(key, type, root);
  }
  if (text.starts_with("Unknown enumeration value")) {
    const FieldDescriptor* field = find_enum_field(root, quoted_part(text, 1));
    if (field != nullptr)
      return "got " + quote(quoted_part(text, 0)) + ", want one of " + enum_values(field->enum_type());
  }
  std::string line = text;
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

class Collector final : public google::protobuf::io::ErrorCollector {
 public:
  Collector(std::string file, const Descriptor* root, SpecReading& reading)
      : file_(std::move(file)), root_(root), reading_(reading) {}
  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    reading_.problems.push_back({file_, {line + 1, column + 1}, "", reworded(message, root_)});
  }
  // An unknown field is only a warning once the parser is told to go on after it.
  void AddWarning(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    AddError(line, column, message);
  }

 private:
  const std::string file_;
  const Descriptor* const root_;
  SpecReading& reading_;
};

// How deep brackets nest at most, outside of strings and comments.
int nesting(const std::string& text) {
  int depth = 0, deepest = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '#') {
      i = text.find('\n', i);
      if (i == std::string::npos) break;
    } else if (c == '"' || c == '\'') {
      for (++i; i < text.size() && text[i] != c && text[i] != '\n'; ++i) {
        if (text[i] == '\\') ++i;
      }
    } else if (c == '{' || c == '<' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == '>' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

// YAML and JSON know names only; numbers are for those who print messages by other means. They must have a name.
void check_number(const Message& message, const FieldDescriptor* field, int i, const std::string& element,
                  SpecReading& reading, const std::string& file) {
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_ENUM) return;
  const auto& reflection = *message.GetReflection();
  const int number = field->is_repeated() ? reflection.GetRepeatedEnumValue(message, field, i)
                                          : reflection.GetEnumValue(message, field);
  if (field->enum_type()->FindValueByNumber(number) != nullptr) return;
  reading.problems.push_back({file, reading.places[element], element,
                              "got " + std::to_string(number) + ", want one of " + enum_values(field->enum_type())});
}

void record_places(const Message& message, const TextFormat::ParseInfoTree& tree, const std::string& path,
                   SpecReading& reading, const std::string& file) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string name = path.empty() ? field->name() : path + "." + field->name();
    const bool repeated = field->is_repeated();
    const int count = repeated ? message.GetReflection()->FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const int index = repeated ? i : -1;
      const TextFormat::ParseLocation location = tree.GetLocation(field, index);
      const std::string element = repeated ? name + "[" + std::to_string(i) + "]" : name;
      if (location.line >= 0) reading.places[element] = {location.line + 1, location.column + 1};
      check_number(message, field, i, element, reading, file);
      const TextFormat::ParseInfoTree* below = tree.GetTreeForNested(field, index);
      if (below == nullptr || field->is_map()) continue;
      record_places(repeated ? message.GetReflection()->GetRepeatedMessage(message, field, i)
                             : message.GetReflection()->GetMessage(message, field),
                    *below, element, reading, file);
    }
  }
}

}  // namespace

void read_textproto(const std::string& file, const std::string& text, Message& message, SpecReading& reading) {
  if (nesting(text) > kDeepestNesting) {
    reading.problems.push_back({file, {}, "", "is nested deeper than any job spec"});
    return;
  }
  Collector collector(file, message.GetDescriptor(), reading);
  TextFormat::ParseInfoTree tree;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&collector);
  parser.WriteLocationsTo(&tree);
  parser.AllowUnknownField(true);
  if (!parser.ParseFromString(text, &message)) return;
  if (reading.problems.empty() && message.ByteSizeLong() == 0) {
    reading.problems.push_back({file, {}, "", "is empty, want a job spec"});
  }
  record_places(message, tree, "", reading, file);
}

}  // namespace telar::client
