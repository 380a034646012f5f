# cmake -DIN=file -DOUT=file.cc -DNAME=symbol -P embed.cmake: a file's bytes as a C++ array in telar::client.
file(READ ${IN} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes
  "${bytes}")
file(WRITE ${OUT} "#include <cstddef>
namespace telar::client {
extern const unsigned char ${NAME}[];
extern const size_t ${NAME}Size;
const unsigned char ${NAME}[] = {
${bytes}
};
const size_t ${NAME}Size = sizeof ${NAME};
}  // namespace telar::client
")
