# cmake -DOUT=file.cc -DIN="a.textproto;b.textproto" -P rates.cmake: the texts as C++ strings.
set(all "")
set(count 0)
foreach(file ${IN})
  file(READ ${file} text)
  string(APPEND all "    R\"rates(${text})rates\",\n")
  math(EXPR count "${count} + 1")
endforeach()
file(WRITE ${OUT} "#include <cstddef>
namespace telar::forecast {
extern const char* const kRatesTexts[];
extern const size_t kRatesTextsCount;
const char* const kRatesTexts[] = {
${all}};
const size_t kRatesTextsCount = ${count};
}  // namespace telar::forecast
")
