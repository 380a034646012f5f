#include "worker/agent/event_file.h"

#include <algorithm>
#include <fstream>
#include <optional>

#include <google/protobuf/util/json_util.h>

namespace telar::agent {
namespace {

constexpr size_t kTail = 64 << 10;
constexpr size_t kMostQuoted = 200;

v1::RankEvent parse(const std::string& line) {
  v1::RankEvent event;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // A rank may be newer than this daemon.
  if (!google::protobuf::util::JsonStringToMessage(line, &event, options).ok()) event.Clear();
  return event;
}

// One line without its newline; nullopt when the file ends before the newline comes.
std::optional<std::string> complete_line(std::ifstream& file) {
  std::string line;
  if (!std::getline(file, line) || file.eof()) return std::nullopt;
  return line;
}

std::string tail_of(const std::string& path, size_t most) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const auto size = static_cast<size_t>(file.tellg());
  const size_t wanted = std::min(size, most);
  file.seekg(static_cast<std::streamoff>(size - wanted));
  std::string text(wanted, '\0');
  file.read(text.data(), static_cast<std::streamsize>(wanted));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

}  // namespace

std::vector<v1::RankEvent> read_events(const std::string& path, EventCursor& cursor, size_t most_bytes) {
  std::vector<v1::RankEvent> events;
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(cursor.byte));
  size_t bytes = 0;
  while (bytes < most_bytes) {
    const auto line = complete_line(file);
    if (!line || (!events.empty() && bytes + line->size() > most_bytes)) break;
    events.push_back(parse(*line));
    bytes += line->size() + 1;
    ++cursor.line;
  }
  cursor.byte += bytes;
  return events;
}

EventCursor find_line(const std::string& path, uint64_t line) {
  EventCursor cursor;
  std::ifstream file(path, std::ios::binary);
  while (cursor.line < line) {
    const auto text = complete_line(file);
    if (!text) break;
    ++cursor.line;
    cursor.byte += text->size() + 1;
  }
  return cursor;
}

Outcome read_outcome(const std::string& path) {
  Outcome outcome;
  const std::string text = tail_of(path, kTail);
  // Words about the end are the last that a rank writes: failure or finished, nothing after them.
  for (size_t end = text.rfind('\n'); end != std::string::npos && end > 0;) {
    const size_t before = text.rfind('\n', end - 1);
    const size_t begin = before == std::string::npos ? 0 : before + 1;
    const v1::RankEvent event = parse(text.substr(begin, end - begin));
    if (event.has_finished()) {
      outcome.finished = !event.finished().interrupted();
      outcome.interrupted = event.finished().interrupted();
      return outcome;
    }
    if (event.has_failure()) {
      outcome.failed = true;
      outcome.failure = event.failure();
      return outcome;
    }
    if (event.has_step()) return outcome;
    end = before;
  }
  return outcome;
}

std::string last_log_line(const std::string& path) {
  std::string text = tail_of(path, 8 << 10);
  while (!text.empty() && static_cast<unsigned char>(text.back()) <= ' ') text.pop_back();
  std::string line = text.substr(text.rfind('\n') + 1);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) > '~') c = '?';  // Protobuf wants UTF-8.
  }
  return line.size() <= kMostQuoted ? line : line.substr(0, kMostQuoted) + "...";
}

}  // namespace telar::agent
