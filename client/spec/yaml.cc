#include "client/spec/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <set>
#include <sstream>
#include <vector>

#include "absl/strings/str_join.h"
#include "client/spec/scalar.h"
#include "client/spec/suggest.h"

namespace telar::client {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::string join_path(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

std::string what_is(const YAML::Node& node) {
  if (!node.IsDefined() || node.IsNull()) return "nothing";
  if (node.IsSequence()) return "a list";
  if (node.IsMap()) return "a mapping";
  return quote(node.Scalar());
}

std::string field_names(const Descriptor* message) {
  std::vector<std::string> names;
  for (int i = 0; i < message->field_count(); ++i) names.push_back(message->field(i)->name());
  return absl::StrJoin(names, ", ");
}

// Walks the nodes along the schema, so depth and work are bounded by the schema whatever the file nests or aliases.
class Reader {
 public:
  Reader(std::string file, const Descriptor* root, SpecReading& reading)
      : file_(std::move(file)), root_(root), reading_(reading) {}

  void message(const YAML::Node& node, Place place, const std::string& path, Message& out) {
    if (!node.IsMap()) {
      problem(place_of(node, place), path,
              "got " + what_is(node) + ", want a mapping with fields of " + field_names(out.GetDescriptor()));
      return;
    }
    std::set<std::string> seen;
    for (const auto& entry : node) {
      const Place key_place = place_of(entry.first, place);
      if (!entry.first.IsScalar()) {
        problem(key_place, path, "got " + what_is(entry.first) + " as a key, want the name of a field");
        continue;
      }
      const std::string key = entry.first.Scalar();
      const std::string key_path = join_path(path, key);
      const FieldDescriptor* one = out.GetDescriptor()->FindFieldByName(key);
      if (one == nullptr) {
        unknown(key_place, path, key, out.GetDescriptor());
      } else if (!seen.insert(key).second) {
        problem(key_place, key_path,
                "is set twice; the first is in line " + std::to_string(reading_.places[key_path].line));
      } else {
        reading_.places[key_path] = key_place;
        field(entry.second, key_place, key_path, one, out);
      }
    }
  }

  void field(const YAML::Node& node, Place place, const std::string& path, const FieldDescriptor* one, Message& out) {
    if (!one->is_repeated() || !node.IsSequence()) {
      value(node, place, path, one, out);
      return;
    }
    for (size_t i = 0; i < node.size(); ++i) {
      const std::string element = path + "[" + std::to_string(i) + "]";
      reading_.places[element] = place_of(node[i], place);
      value(node[i], place, element, one, out);
    }
  }

  void problem(Place place, const std::string& field, const std::string& text) {
    reading_.problems.push_back({file_, place, field, text});
  }

 private:
  static Place place_of(const YAML::Node& node, Place otherwise) {
    if (node.IsNull()) return otherwise;  // Nothing stands where the next thing does.
    const YAML::Mark mark = node.Mark();
    return mark.is_null() ? otherwise : Place{mark.line + 1, mark.column + 1};
  }

  void unknown(Place place, const std::string& path, const std::string& key, const Descriptor* type) {
    const std::string near = suggest_field(key, type, root_);
    problem(place, path, "unknown field " + quote(key) + (near.empty() ? ", want one of " + field_names(type) : near));
  }

  // One element of a list, or the field itself.
  void value(const YAML::Node& node, Place place, const std::string& path, const FieldDescriptor* one, Message& out) {
    if (one->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (node.IsNull()) return;
      const auto* reflection = out.GetReflection();
      if (const FieldDescriptor* mode = named_mode(node, one); mode != nullptr && !one->is_repeated()) {
        Message& group = *reflection->MutableMessage(&out, one);
        group.GetReflection()->SetBool(&group, mode, true);
        return;
      }
      message(node, place, path,
              one->is_repeated() ? *reflection->AddMessage(&out, one) : *reflection->MutableMessage(&out, one));
      return;
    }
    // Only text has no number of its own to be wrong about, so the kinds are told apart before the value is parsed.
    static const std::string kWantText = "want text";
    if (!node.IsScalar()) {
      const bool text = one->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
      const std::string want = text ? kWantText : wanted(one, out);
      problem(place_of(node, place), path, "got " + what_is(node) + ", " + want);
      return;
    }
    const std::string want = set_scalar(out, one, node.Scalar());
    if (!want.empty()) problem(place_of(node, place), path, "got " + quote(node.Scalar()) + ", " + want);
  }

  // `parallel: auto` is `parallel: {auto: true}`: a group written as the name of one of its flags.
  static const FieldDescriptor* named_mode(const YAML::Node& node, const FieldDescriptor* group) {
    if (!node.IsScalar()) return nullptr;
    const FieldDescriptor* flag = group->message_type()->FindFieldByName(node.Scalar());
    const bool plain = flag != nullptr && flag->cpp_type() == FieldDescriptor::CPPTYPE_BOOL && !flag->is_repeated();
    return plain ? flag : nullptr;
  }

  // The rule of a scalar field; no such field takes the empty text.
  static std::string wanted(const FieldDescriptor* one, Message& out) { return set_scalar(out, one, ""); }

  const std::string file_;
  const Descriptor* const root_;
  SpecReading& reading_;
};

// Sees only where documents begin.
class DocumentStarts final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { last = {mark.line + 1, mark.column + 1}; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

  Place last;
};

// Where a second document or stray text begins; line 0 = nowhere. YAML::LoadAll would not do: after stray closing
// brackets it finds empty documents without end.
Place second_document(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStarts starts;
  if (!parser.HandleNextDocument(starts) || !parser.HandleNextDocument(starts)) return {};
  return starts.last;
}

}  // namespace

void read_yaml(const std::string& file, const std::string& text, Message& message, SpecReading& reading) {
  Reader reader(file, message.GetDescriptor(), reading);
  try {
    const YAML::Node document = YAML::Load(text);
    const Place second = second_document(text);
    if (second.line > 0) {
      reader.problem(second, "", "unexpected text after the job spec");
    } else if (document.IsNull()) {
      reader.problem({}, "", "is empty, want a job spec");
    } else {
      reader.message(document, {1, 1}, "", message);
    }
  } catch (const YAML::Exception& failure) {
    const bool known = !failure.mark.is_null();
    reader.problem(known ? Place{failure.mark.line + 1, failure.mark.column + 1} : Place{}, "",
                   "cannot be read: " + failure.msg);
  }
}

void read_yaml_value(const std::string& file, const std::string& path, const std::string& text,
                     const FieldDescriptor* field, Message& message, SpecReading& reading) {
  Reader reader(file, message.GetDescriptor(), reading);
  try {
    const YAML::Node node = field->is_repeated() && text.starts_with('[') ? YAML::Load(text) : YAML::Node(text);
    reader.field(node, {}, path, field, message);
  } catch (const YAML::Exception& failure) {
    reader.problem({}, path, "got " + quote(text) + ", cannot be read: " + failure.msg);
  }
}

}  // namespace telar::client
