// The quotient a / (b * c) of integers, rounded once, to the nearest double, as Python does. Scores
// of a policy must be equal exactly where those of DTR's simulator are, and bytes times nanoseconds
// fit neither a double nor 64 bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace coop::ideal {

struct Quotient {
  std::int64_t numerator;
  std::int64_t b;  // b and c are not negative; if one is 0, the quotient is infinite
  std::int64_t c;

  // The value with three roundings instead of one.
  double roughly() const {
    const double divisor = static_cast<double>(b) * static_cast<double>(c);
    return divisor > 0 ? static_cast<double>(numerator) / divisor : std::numeric_limits<double>::infinity();
  }
  bool surely_above(double bound) const { return surely_above(roughly(), bound); }
  static bool surely_above(double rough, double bound) { return rough > bound + std::abs(bound) * kMargin; }

  double value() const {
    if (b == 0 || c == 0) return std::numeric_limits<double>::infinity();
    const Wide divisor = static_cast<Wide>(b) * static_cast<Wide>(c);
    const std::uint64_t size =
        numerator < 0 ? 0 - static_cast<std::uint64_t>(numerator) : static_cast<std::uint64_t>(numerator);
    const double rounded = divide(size, divisor);
    return numerator < 0 ? -rounded : rounded;
  }

 private:
  __extension__ using Wide = unsigned __int128;
  static constexpr double kMargin = 1e-14;
  static constexpr std::uint64_t kExact = std::uint64_t{1} << 53;  // doubles hold all integers up to here

  static double divide(std::uint64_t number, Wide divisor) {
    if (number <= kExact && divisor <= kExact) return static_cast<double>(number) / static_cast<double>(divisor);
    if (number == 0) return 0;
    // Computes two bits more than a double has. The last one is set if there is any remainder: then
    // the conversion rounds correctly.
    std::uint64_t bits = static_cast<std::uint64_t>(number / divisor);
    Wide rest = number % divisor;
    int shift = 0;
    for (; bits < 2 * kExact; ++shift) {
      rest <<= 1;
      bits <<= 1;
      if (rest >= divisor) {
        rest -= divisor;
        bits |= 1;
      }
    }
    if (rest != 0) bits |= 1;
    return std::ldexp(static_cast<double>(bits), -shift);
  }
};

}  // namespace coop::ideal
