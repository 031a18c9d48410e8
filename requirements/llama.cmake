# Read by CMake after llama.cpp's project() (CMAKE_PROJECT_<NAME>_INCLUDE): llama-cpp-python forces this library on, half
# of llama.cpp's files, which only llama.cpp's own programs use.
set(LLAMA_BUILD_COMMON OFF CACHE BOOL "" FORCE)
