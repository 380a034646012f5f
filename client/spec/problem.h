// What is wrong with a spec, and where a user finds it.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace telar::client {

struct Place {  // From 1; line 0 = the file as a whole.
  int line = 0;
  int column = 0;
};

struct Problem {
  std::string file;
  Place place;
  std::string field;  // "model.layers", "data.train[1]"; empty when no field is to blame.
  std::string text;   // What was got and what is allowed, in one line.
};

// "job.yaml:3:7: model.layers: got 'x', want ..."
std::string to_string(const Problem& problem);

// What reading a spec brought besides the message.
struct SpecReading {
  std::vector<Problem> problems;        // Everything wrong, in file order; empty = read whole.
  std::map<std::string, Place> places;  // Where each field that the file sets stands, by its path.
};

// 'text', cut to a readable length and with control characters escaped: safe to print in one line.
std::string quote(const std::string& text);

}  // namespace telar::client
