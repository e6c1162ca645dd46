// How many threads the kernels of this thread use. Do not ask PyTorch: the first question on a new
// thread sets the count. Until then MKL chooses the number of threads of matrix products.
#pragma once

namespace coop {

struct Threads {
  int openmp = 1;
  int mkl = 1;

  static Threads now();
  // OpenMP's alone, which is quick to ask for. Setting PyTorch's number sets both.
  static int of_openmp();
  void apply() const;
  // PyTorch sets a thread's counts when the first of its kernels asks for them, once. A kernel that
  // runs again must not be the one that asks: the program would go on with other counts than
  // without coop.
  static bool may_be_unset() { return !seen_set_; }
  static void set_here() { seen_set_ = true; }
  bool operator==(const Threads&) const = default;

 private:
  static inline thread_local bool seen_set_ = false;
};

}  // namespace coop
