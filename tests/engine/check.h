// A test harness in one header: register, check, say what went wrong with the values.
//
//     TEST(free_neighbours_are_joined) {          the name says the rule
//       const check::Context seed("seed", 7);     printed if a check below fails
//       CHECK(arena.blocks() == 1);
//       CHECK_EQUAL(arena.free_bytes(), 512u);
//     }
//
// A failed check throws, so a test ends at its first failure. Values are printed if they can be.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <ostream>
#include <random>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace check {

struct Test {
  std::string name;  // file.test
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

struct Register {
  Register(const char* file, const char* name, void (*run)()) {
    std::string stem = file;
    stem = stem.substr(stem.find_last_of('/') + 1);
    stem = stem.substr(0, stem.find('.'));
    if (stem.starts_with("test_")) stem = stem.substr(5);
    tests().push_back({stem + "." + name, run});
  }
};

// What a failed check throws. Not a std::exception: no code under test should catch it by accident.
struct Failure {
  std::string text;
};

// What is being tried, for the message of a failed check. Innermost last.
inline thread_local std::vector<std::string> contexts;
inline thread_local std::vector<std::string> trail;  // those that an exception went through, innermost first

class Context {
 public:
  template <typename Value>
  Context(const char* name, const Value& value) {
    std::ostringstream text;
    text << name << " " << value;
    contexts.push_back(text.str());
  }
  ~Context() {
    if (std::uncaught_exceptions() > exceptions_) trail.push_back(contexts.back());
    contexts.pop_back();
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

 private:
  const int exceptions_ = std::uncaught_exceptions();
};

template <typename Value>
void print(std::ostream& out, const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    out << static_cast<long long>(value);
  } else if constexpr (std::is_same_v<Value, bool>) {
    out << (value ? "true" : "false");
  } else if constexpr (std::is_same_v<Value, unsigned char>) {
    out << static_cast<int>(value);
  } else if constexpr (requires { out << value; }) {
    out << value;
  } else if constexpr (requires {
                         value.begin();
                         value.size();
                       }) {
    out << value.size() << " of {";
    std::size_t shown = 0;
    for (const auto& item : value) {
      if (shown++ == 16) {
        out << " ...";
        break;
      }
      out << " ";
      print(out, item);
    }
    out << " }";
  } else {
    out << "?";
  }
}

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::ostringstream text;
  text << file << ":" << line << ": " << what;
  for (const std::string& context : contexts) text << "\n      with " << context;
  throw Failure{text.str()};
}

template <typename A, typename B>
[[noreturn]] void fail_with(const char* file, int line, const char* what, const A& a, const B& b) {
  std::ostringstream text;
  text << what << "\n      left  ";
  print(text, a);
  text << "\n      right ";
  print(text, b);
  fail(file, line, text.str());
}

template <typename A, typename B>
bool equal(const A& a, const B& b) {
  if constexpr (std::is_integral_v<A> && std::is_integral_v<B> && !std::is_same_v<A, bool> &&
                !std::is_same_v<B, bool>) {
    return std::cmp_equal(a, b);
  } else {
    return a == b;
  }
}

inline bool near(double a, double b) { return std::abs(a - b) <= 1e-9 * std::max({1.0, std::abs(a), std::abs(b)}); }

// Numbers drawn the same way on every machine (the standard's distributions are not).
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t below(std::uint64_t limit) { return engine_() % limit; }
  std::uint64_t between(std::uint64_t low, std::uint64_t high) { return low + below(high - low + 1); }
  bool chance(unsigned percent) { return below(100) < percent; }
  template <typename Items>
  auto& pick(Items& items) {
    return items[below(items.size())];
  }

 private:
  std::mt19937_64 engine_;
};

// Percent of the rounds of random tests that are run: COOP_TEST_ROUNDS, or all.
inline int rounds_percent() {
  static const int percent = [] {
    const char* text = std::getenv("COOP_TEST_ROUNDS");
    return text ? std::clamp(std::atoi(text), 1, 100) : 100;
  }();
  return percent;
}

// How many rounds of `all`: the test says so if they are fewer.
inline int rounds(int all) {
  const int some = std::max(all * rounds_percent() / 100, 1);
  if (some < all) std::printf("(shortened: %d of %d rounds) ", some, all);
  return some;
}

}  // namespace check

#define TEST(name)                                                        \
  static void name();                                                     \
  static const ::check::Register register_##name(__FILE__, #name, &name); \
  static void name()

#define CHECK(condition) \
  (static_cast<bool>(condition) ? static_cast<void>(0) : ::check::fail(__FILE__, __LINE__, "CHECK(" #condition ")"))

#define CHECK_OP_(name, holds, left, right)                                                                          \
  do {                                                                                                               \
    const auto& left_value_ = (left);                                                                                \
    const auto& right_value_ = (right);                                                                              \
    if (!(holds)) ::check::fail_with(__FILE__, __LINE__, name "(" #left ", " #right ")", left_value_, right_value_); \
  } while (false)

#define CHECK_EQUAL(left, right) CHECK_OP_("CHECK_EQUAL", ::check::equal(left_value_, right_value_), left, right)
#define CHECK_NEAR(left, right) CHECK_OP_("CHECK_NEAR", ::check::near(left_value_, right_value_), left, right)
#define CHECK_AT_MOST(left, right) CHECK_OP_("CHECK_AT_MOST", left_value_ <= right_value_, left, right)

#define CHECK_THROWS(exception, ...)                                                  \
  do {                                                                                \
    bool thrown_ = false;                                                             \
    try {                                                                             \
      __VA_ARGS__;                                                                    \
    } catch (const exception&) {                                                      \
      thrown_ = true;                                                                 \
    }                                                                                 \
    if (!thrown_) ::check::fail(__FILE__, __LINE__, "nothing thrown: " #__VA_ARGS__); \
  } while (false)
