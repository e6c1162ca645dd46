// How many threads the kernels of this thread use. PyTorch's own count is no answer: whoever asks for it on a new thread sets it,
// and until then products of matrices run with as many threads as MKL likes.
#pragma once

namespace coop {

struct Threads {
  int openmp = 1;
  int mkl = 1;

  static Threads now();
  // OpenMP's alone, which is quick to ask for. Whoever sets PyTorch's number sets both.
  static int of_openmp();
  void apply() const;
  bool operator==(const Threads&) const = default;
};

}  // namespace coop
