# libtelar_cpu.so. Exports one symbol: two modules in one process must not see each other's code.
add_library(telar_cpu MODULE module.cc)
target_include_directories(telar_cpu PRIVATE ${CMAKE_SOURCE_DIR})
target_link_libraries(telar_cpu PRIVATE telar_cpu_device telar_cpu_kernels telar_cpu_gloo)
target_compile_options(telar_cpu PRIVATE ${TELAR_WARNINGS})
target_link_options(telar_cpu PRIVATE -Wl,--exclude-libs,ALL)
if(NOT SANITIZE)  # A sanitizer's symbols come from the program.
  target_link_options(telar_cpu PRIVATE -Wl,--no-undefined)
endif()
set_target_properties(telar_cpu PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
