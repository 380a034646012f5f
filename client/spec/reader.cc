#include "client/spec/reader.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "client/spec/suggest.h"
#include "client/spec/text.h"
#include "client/spec/textproto.h"
#include "client/spec/yaml.h"

namespace telar::client {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// A line that opens a message without a colon ("model {") is textproto and cannot be YAML.
bool looks_like_textproto(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    size_t at = line.find_first_not_of(" \t");
    if (at == std::string::npos || line[at] == '#') continue;
    const size_t name = at;
    while (at < line.size() && (std::isalnum(static_cast<unsigned char>(line[at])) || line[at] == '_')) ++at;
    const size_t brace = line.find_first_not_of(" \t", at);
    if (at > name && brace != std::string::npos && line[brace] == '{') return true;
  }
  return false;
}

SpecReading only(const std::string& file, const std::string& text) {
  SpecReading reading;
  reading.problems.push_back({file, {}, "", text});
  return reading;
}

// Up to one byte more than a spec may have, so that the caller sees that it is too long.
std::string read_all(std::istream& in) {
  std::string text(kMostSpecBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

}  // namespace

Format format_of(const std::string& path, const std::string& text) {
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".yaml" || extension == ".yml") return Format::kYaml;
  if (extension == ".json") return Format::kJson;
  for (const char* one : {".textproto", ".txtpb", ".pbtxt", ".textpb"}) {
    if (extension == one) return Format::kTextproto;
  }
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '{') return Format::kJson;
  return looks_like_textproto(text) ? Format::kTextproto : Format::kYaml;
}

SpecReading read_spec(const std::string& file, const std::string& text, Format format, Message& spec) {
  if (text.size() > kMostSpecBytes) {
    return only(file, "is too long for a job spec, at most " + std::to_string(kMostSpecBytes) + " bytes");
  }
  SpecReading reading;
  if (const Place bad = first_bad_byte(text); bad.line > 0) {
    reading.problems.push_back({file, bad, "", "is not UTF-8 text"});
    return reading;
  }
  static const std::string kByteOrderMark = "\xef\xbb\xbf";
  const std::string body = text.starts_with(kByteOrderMark) ? text.substr(kByteOrderMark.size()) : text;
  if (body.find_first_not_of(" \t\r\n") == std::string::npos) return only(file, "is empty, want a job spec");
  if (format == Format::kTextproto) {
    read_textproto(file, body, spec, reading);
  } else {
    read_yaml(file, format == Format::kJson ? join_surrogates(body) : body, spec, reading);
  }
  return reading;
}

SpecReading read_spec_file(const std::string& path, std::istream& in, Message& spec) {
  if (path == "-") {
    const std::string text = read_all(in);
    return read_spec("standard input", text, format_of("", text), spec);
  }
  std::error_code failure;
  if (std::filesystem::is_directory(path, failure)) return only(path, "is a directory, want a file");
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return only(path, "cannot be opened: " + std::string(std::strerror(errno)));
  const std::string text = read_all(file);
  if (file.bad()) return only(path, "cannot be read: " + std::string(std::strerror(errno)));
  return read_spec(path, text, format_of(path, text), spec);
}

std::vector<Problem> set_field(const std::string& assignment, Message& spec) {
  static const std::string kFile = "--set";
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    return {{kFile, {}, "", "got " + quote(assignment) + ", want path=value"}};
  }
  const std::string path = assignment.substr(0, equals);
  const std::string value = assignment.substr(equals + 1);
  if (first_bad_byte(value).line > 0) return {{kFile, {}, path, "is not UTF-8 text"}};
  Message* message = &spec;
  std::istringstream names(path);
  const FieldDescriptor* field = nullptr;
  for (std::string name; std::getline(names, name, '.');) {
    if (field != nullptr) {
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_repeated()) {
        return {{kFile, {}, path, quote(field->name()) + " has no fields"}};
      }
      message = message->GetReflection()->MutableMessage(message, field);
    }
    field = message->GetDescriptor()->FindFieldByName(name);
    if (field == nullptr) {
      return {{kFile,
               {},
               path,
               "unknown field " + quote(name) + suggest_field(name, message->GetDescriptor(), spec.GetDescriptor())}};
    }
  }
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_repeated()) {
    return {{kFile,
             {},
             path,
             "names a group of fields; set one of them, as " + path + "." + field->message_type()->field(0)->name() +
                 "=..."}};
  }
  message->GetReflection()->ClearField(message, field);
  SpecReading reading;
  read_yaml_value(kFile, path, value, field, *message, reading);
  return reading.problems;
}

}  // namespace telar::client
