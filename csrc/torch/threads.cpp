// Both libraries keep the count for each thread; the names are those of their C interfaces. Where
// PyTorch was built without one of them, there is nothing to keep.
#include "torch/threads.h"

extern "C" {
[[gnu::weak]] int omp_get_max_threads();
[[gnu::weak]] void omp_set_num_threads(int);
[[gnu::weak]] int MKL_Get_Max_Threads();
[[gnu::weak]] int MKL_Set_Num_Threads_Local(int);
}

namespace coop {

int Threads::of_openmp() { return omp_get_max_threads ? omp_get_max_threads() : 1; }

Threads Threads::now() { return {of_openmp(), MKL_Get_Max_Threads ? MKL_Get_Max_Threads() : 1}; }

void Threads::apply() const {
  if (omp_set_num_threads) omp_set_num_threads(openmp);
  if (MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(mkl);
}

}  // namespace coop
