// Runs the tests whose name contains one of the arguments; all of them without arguments. -l lists
// them.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>

#include "check.h"

int main(int count, char** arguments) {
  std::vector<check::Test> chosen;
  for (const check::Test& test : check::tests()) {
    const bool wanted = count < 2 || std::any_of(
                                         arguments + 1, arguments + count,
                                         [&](const char* part) { return test.name.find(part) != std::string::npos; });
    if (count == 2 && std::strcmp(arguments[1], "-l") == 0) {
      std::printf("%s\n", test.name.c_str());
    } else if (wanted) {
      chosen.push_back(test);
    }
  }
  if (count == 2 && std::strcmp(arguments[1], "-l") == 0) return 0;
  std::sort(chosen.begin(), chosen.end(), [](const auto& a, const auto& b) { return a.name < b.name; });

  int passed = 0, failed = 0;
  for (const check::Test& test : chosen) {
    std::printf("[%zu/%zu] %s ", static_cast<std::size_t>(passed + failed + 1), chosen.size(), test.name.c_str());
    std::fflush(stdout);
    const auto start = std::chrono::steady_clock::now();
    std::string problem;
    try {
      test.run();
    } catch (const check::Failure& failure) {
      problem = failure.text;
    } catch (const std::exception& error) {
      problem = std::string("threw: ") + error.what();
      for (const std::string& context : check::trail) problem += "\n      with " + context;
    }
    check::trail.clear();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (problem.empty()) {
      ++passed;
      std::printf("ok %.2f s\n", seconds);
    } else {
      ++failed;
      std::printf("FAILED %.2f s\n    %s\n", seconds, problem.c_str());
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed || chosen.empty() ? 1 : 0;
}
