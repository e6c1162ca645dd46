// Cheap and expensive results, told apart by measured cost density (seconds per byte).
//
// The densities of a step spread over orders of magnitude and form two groups: elementwise ops,
// norms and copies; and matrix products, convolutions and attention. Otsu's threshold on a
// histogram of log density, weighted by bytes, finds the gap between them. Old entries of the
// histogram decay, so that it follows the program.
#pragma once

#include <array>
#include <cmath>

#include "engine/types.h"

namespace coop {

class DensityClasses {
 public:
  void add(double density, Bytes bytes) {
    if (density <= 0 || bytes == 0) return;
    bins_[bin(density)] += static_cast<double>(bytes);
    if (++count_ % kPeriod == 0 || count_ == kFirst) update();
  }
  // Unknown (zero) counts as expensive: a cheap storage among expensive ones does less harm than
  // the reverse.
  Side side(double density) const {
    if (density <= 0 || threshold_ < 0) return Side::low;
    return bin(density) > threshold_ ? Side::low : Side::high;
  }

 private:
  static constexpr int kBins = 96;
  static constexpr std::uint64_t kFirst = 32, kPeriod = 1024;

  static int bin(double density) {  // half octaves from 1e-13 s/B up
    const double at = 2 * std::log2(density / 1e-13);
    return at < 0 ? 0 : at >= kBins ? kBins - 1 : static_cast<int>(at);
  }
  void update() {
    double total = 0, moment = 0;
    for (int i = 0; i < kBins; ++i) {
      total += bins_[i];
      moment += i * bins_[i];
    }
    double weight = 0, below = 0, best = -1;
    for (int i = 0; i + 1 < kBins; ++i) {
      weight += bins_[i];
      below += i * bins_[i];
      if (weight <= 0 || weight >= total) continue;
      const double gap = below / weight - (moment - below) / (total - weight);
      const double spread = weight * (total - weight) * gap * gap;
      if (spread > best) {
        best = spread;
        threshold_ = i;
      }
    }
    for (double& b : bins_) b *= 0.75;
  }

  std::array<double, kBins> bins_{};
  int threshold_ = -1;
  std::uint64_t count_ = 0;
};

}  // namespace coop
